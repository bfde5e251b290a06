"""Data of removed segments that is still there, for an operator to find (file.delete.delay.ms)."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Sequence
from math import inf

from odradek_storage_file.ops import Ops

__all__ = ["Lingering", "remove_files"]


class Lingering:
    """Files and when they are to go, on the monotonic clock. Used in the trio thread alone.

    The files of one edit go together: thousands of them cost no more here than one.
    """

    def __init__(self, ops: Ops) -> None:
        self._ops = ops
        self._heap: list[tuple[float, int, deque[tuple[str, int]]]] = []
        self._edits = 0

    def __len__(self) -> int:
        return sum(len(files) for _, _, files in self._heap)

    def add(self, due: float, files: Iterable[tuple[str, int]]) -> None:
        """Let the files of an edit (path, size in bytes) stay until `due`."""
        self._edits += 1
        heapq.heappush(self._heap, (due, self._edits, deque(files)))

    @property
    def next_due(self) -> float:
        """When the next files are to go; infinite if there are none."""
        return self._heap[0][0] if self._heap else inf

    def take(self, now: float) -> list[str]:
        """Return the files of an edit that are due; the caller removes them."""
        if self.next_due > now or not self._heap:
            return []
        return [path for path, _ in heapq.heappop(self._heap)[2]]

    def expire(self) -> bool:
        """Let every file be due; say if that changed anything."""
        if self.next_due in (inf, -inf):
            return False
        self._heap = sorted((-inf, number, files) for _, number, files in self._heap)
        return True

    def reclaim(self, size: int) -> bool:
        """Remove files before their time until they held `size` bytes; say if there were any.

        Blocks, so it is for when a producer would be refused otherwise.
        """
        found = bool(self._heap)
        while self._heap and size > 0:
            files = self._heap[0][2]
            path, held = files.popleft()
            if not files:
                heapq.heappop(self._heap)
            remove_files(self._ops, [path])
            size -= held
        return found


def remove_files(ops: Ops, paths: Sequence[str]) -> None:
    """Unlink files; what cannot be removed is tried when its partition is opened again."""
    for path in paths:
        try:
            ops.remove(path)
        except OSError:
            continue
