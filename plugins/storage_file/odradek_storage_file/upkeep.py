"""What a storage directory does in the background: manifests, and files and directories to go."""

from __future__ import annotations

import os
from collections.abc import Sequence
from math import inf
from typing import TYPE_CHECKING

import trio

from odradek.contracts.storage import Full, Offline
from odradek_storage_file.bridge import in_thread
from odradek_storage_file.lingering import Lingering, remove_files
from odradek_storage_file.ops import Ops

if TYPE_CHECKING:
    from odradek_storage_file.partition import Partition
    from odradek_storage_file.store import FileStore

__all__ = ["Upkeep"]


class Upkeep:
    """Does one thing after the other, and waits while there is none."""

    def __init__(self, store: FileStore) -> None:
        self._store = store
        self._ops = store.ops
        self._parked = trio.lowlevel.ParkingLot()
        self._directories: list[str] = []
        self._descriptors: list[int] = []
        store.files.close_later = self.close_later
        self.to_save: dict[Partition, None] = {}
        self.lingering = Lingering(store.ops)

    def save_soon(self, partition: Partition) -> None:
        """Have the manifest of a partition written."""
        if partition not in self.to_save:
            self.to_save[partition] = None
            self._parked.unpark_all()

    def delete(self, directories: Sequence[str]) -> None:
        """Have dropped directories deleted."""
        self._directories.extend(directories)
        self._parked.unpark_all()

    def close_later(self, fd: int) -> None:
        """Have the descriptor of a removed file closed."""
        self._descriptors.append(fd)
        self._parked.unpark_all()

    def abandon(self) -> None:
        """Close what is left to close; from now on descriptors are closed at once."""
        self._store.files.close_later = self._ops.close
        while self._descriptors:
            self._ops.close(self._descriptors.pop())

    def linger(self, seconds: float, files: Sequence[tuple[str, int]]) -> None:
        """Have files (path, size in bytes) removed after so many seconds."""
        self.lingering.add(trio.current_time() + seconds, files)
        self._parked.unpark_all()

    async def clear(self) -> None:
        """Remove what lingers now, because its room is needed."""
        while files := self.lingering.take(inf):
            with trio.CancelScope(shield=True):  # nobody else knows of them any more
                await in_thread(remove_files, self._ops, files)

    def clear_soon(self) -> None:
        """Have what lingers removed now: there is room left, but not much."""
        if self.lingering.expire():
            self._parked.unpark_all()

    async def run(self) -> None:
        """Do what there is to do, until cancelled."""
        while True:
            if self._descriptors:
                fds, self._descriptors = self._descriptors, []
                with trio.CancelScope(shield=True):  # nobody else knows of them any more
                    await in_thread(_close, self._ops, fds)
            elif self.to_save:
                partition = next(iter(self.to_save))
                del self.to_save[partition]
                partition.readers += 1
                try:
                    # Whoever fills the disk takes what room is given back. The ballast is for
                    # what frees room, and for closing.
                    await partition.save(ballast=False)
                except (Offline, Full):
                    pass  # the recovery point stays where it is, which costs time, not data
                finally:
                    partition.readers -= 1
                    self._store.let_go(partition)
            elif self._directories:
                await in_thread(_delete, self._ops, f"{self._store.root}/{self._directories.pop()}")
            elif due := self.lingering.take(trio.current_time()):
                await in_thread(remove_files, self._ops, due)
            else:
                with trio.move_on_at(self.lingering.next_due):
                    await self._parked.park()


def _close(ops: Ops, fds: list[int]) -> None:
    for fd in fds:
        ops.close(fd)


def _delete(ops: Ops, path: str) -> None:
    """Remove a directory and what is in it; what cannot be removed is tried at the next start."""
    try:
        for name in os.listdir(path):
            ops.remove(f"{path}/{name}")
        os.rmdir(path)
    except OSError:
        return
