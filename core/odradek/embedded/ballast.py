"""Room beside the database for writes that find none: on a full disk a change of settings may be
what makes room."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

__all__ = ["Ballast"]

NAME: Final = "coordinator.ballast"
BLOCK: Final = 512
"""Bytes: the unit of `st_blocks`."""
LEAST: Final = 4096
"""Bytes: with less than a page of the database there is no room for anything."""


class Ballast:
    """A file of `size` bytes that only takes up room; 0: none. No error of its own is raised.

    `lacks` says that less is set aside than should be.
    """

    def __init__(self, directory: Path, size: int) -> None:
        self._path = directory / NAME
        self._size = size
        self.lacks = False

    def set_aside(self) -> None:
        """Set the room aside where it lacks, if as much again is free."""
        if not self._size:
            return
        try:
            # Its blocks count: a file that was copied may have none.
            self.lacks = not self._path.exists() or (
                self._path.stat().st_blocks * BLOCK < self._size
            )
            if not self.lacks:
                return
            if self._free() >= 2 * self._size:
                self.lacks = not self._allocate(self._size)
        except OSError:
            self.lacks = True

    def give(self) -> bool:
        """Let the room be used; say whether there was any."""
        try:
            had = self._path.stat().st_blocks > 0
            os.truncate(self._path, 0)
        except OSError:
            return False
        self.lacks = self._size > 0
        return had

    def take_back(self) -> None:
        """Set aside what is left of the room. To be called soon: others take it too."""
        size = self._size
        try:
            while size >= LEAST and not self._allocate(size):
                free = self._free()
                size = free if free < size else size // 2
        except OSError:
            size = 0
        self.lacks = size < self._size

    def _free(self) -> int:
        found = os.statvfs(self._path.parent)
        return found.f_bavail * found.f_frsize

    def _allocate(self, size: int) -> bool:
        try:
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                os.posix_fallocate(descriptor, 0, size)
            except OSError:
                os.ftruncate(descriptor, 0)  # some file systems keep what they could allocate
                return False
            finally:
                os.close(descriptor)
        except OSError:
            return False
        return True
