"""Data of removed segments that is still there, for an operator to find (file.delete.delay.ms)."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from math import inf

from odradek_storage_file.ops import Ops

__all__ = ["Lingering", "remove_files"]


class Lingering:
    """Files and when each is to go, on the monotonic clock. Used in the trio thread alone."""

    def __init__(self, ops: Ops) -> None:
        self._ops = ops
        self._heap: list[tuple[float, str, int]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, due: float, files: Sequence[tuple[str, int]]) -> None:
        """Let files (path, size in bytes) stay until `due`."""
        for path, size in files:
            heapq.heappush(self._heap, (due, path, size))

    @property
    def next_due(self) -> float:
        """When the next file is to go; infinite if there is none."""
        return self._heap[0][0] if self._heap else inf

    def take(self, now: float) -> list[str]:
        """Return the files that are due; the caller removes them."""
        due = []
        while self._heap and self._heap[0][0] <= now:
            due.append(heapq.heappop(self._heap)[1])
        return due

    def expire(self) -> bool:
        """Let every file be due; say if that changed anything."""
        if self.next_due in (inf, -inf):
            return False
        self._heap = sorted((-inf, path, size) for _, path, size in self._heap)
        return True

    def reclaim(self, size: int) -> bool:
        """Remove files before their time until they held `size` bytes; say if there were any.

        Blocks, so it is for when a producer would be refused otherwise.
        """
        found = bool(self._heap)
        while self._heap and size > 0:
            _, path, held = heapq.heappop(self._heap)
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
