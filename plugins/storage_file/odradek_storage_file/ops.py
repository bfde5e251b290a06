"""The calls to the operating system that change a disk or can fail on one, in one place.

A test that wants a failing fsync, a full disk or a loss of power gives a subclass of `Ops`.
Everything else in the package goes through an instance of it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Callable, Sequence

from odradek.types import Buffer

__all__ = ["NO_DESCRIPTOR", "NO_SPACE", "Ops", "rest_of", "write_all", "write_atomically"]

NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})
"""No room on the disk, or none for this user."""

NO_DESCRIPTOR = frozenset({errno.EMFILE, errno.ENFILE})
"""The process, or the machine, has as many files open as it may."""

DESCRIPTOR_PATIENCE = 10.0
DESCRIPTOR_RETRY = 0.01
"""Seconds to wait for a free descriptor, and between two attempts."""

IOV_MAX = 1024
"""How many buffers Linux takes in one vectored write (`IOV_MAX` of limits.h)."""


class Ops:
    """The operating system's own calls."""

    open = staticmethod(os.open)
    close = staticmethod(os.close)
    pread = staticmethod(os.pread)
    pwritev = staticmethod(os.pwritev)
    fdatasync = staticmethod(os.fdatasync)
    fsync = staticmethod(os.fsync)
    ftruncate = staticmethod(os.ftruncate)
    rename = staticmethod(os.rename)
    link = staticmethod(os.link)
    unlink = staticmethod(os.unlink)
    mkdir = staticmethod(os.mkdir)
    statvfs: Callable[[str], os.statvfs_result] = staticmethod(os.statvfs)

    def is_cached(self, fd: int, position: int) -> bool:
        """Whether reading the byte at `position` would not wait for the disk.

        True too where the file system cannot tell (RWF_NOWAIT: ext4, XFS and Btrfs can).
        """
        try:
            os.preadv(fd, [bytearray(1)], position, os.RWF_NOWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True
        return True

    def read_cached(self, fd: int, buffer: memoryview, position: int) -> int | None:
        """Read what the page cache holds from `position` on; return how many bytes that was.

        None where the file system cannot tell (see `is_cached`).
        """
        try:
            return os.preadv(fd, [buffer], position, os.RWF_NOWAIT)
        except BlockingIOError:
            return 0
        except OSError:
            return None

    def read_into(self, fd: int, buffer: memoryview, position: int) -> int:
        """Read from `position` on; return how many bytes came, 0 at the end. Raises OSError."""
        return os.preadv(fd, [buffer], position)

    def open_again(self, fd: int) -> int:
        """Open the file behind a descriptor once more, for reading. Raises OSError."""
        return os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)

    def advise(self, fd: int, position: int, count: int, advice: int) -> None:
        """Tell the kernel what to do with its cache (posix_fadvise). Raises OSError."""
        os.posix_fadvise(fd, position, count, advice)

    def open_patiently(self, path: str, flags: int, mode: int = 0o777) -> int:
        """Open a file, waiting for a free descriptor; for worker threads only. Raises OSError.

        Sockets use descriptors too, and come and go; a file that was not opened yet leaves no
        doubt about what is on the disk, so this is no failure of the disk.
        """
        deadline = time.monotonic() + DESCRIPTOR_PATIENCE
        while True:
            try:
                return self.open(path, flags, mode)
            except OSError as error:
                if error.errno not in NO_DESCRIPTOR or time.monotonic() > deadline:
                    raise
            time.sleep(DESCRIPTOR_RETRY)

    def sync_directory(self, path: str) -> None:
        """Make creations, renames and deletions of files in a directory durable."""
        fd = self.open_patiently(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self.fsync(fd)
        finally:
            self.close(fd)

    def remove(self, path: str) -> None:
        """Unlink a file that may be gone already."""
        with contextlib.suppress(FileNotFoundError):
            self.unlink(path)


def rest_of(buffers: Sequence[Buffer], written: int) -> list[memoryview]:
    """Return what a vectored write of so many bytes left to be written."""
    views = [memoryview(buffer) for buffer in buffers]
    while views and written >= len(views[0]):
        written -= len(views.pop(0))
    if views and written:
        views[0] = views[0][written:]
    return views


def write_all(ops: Ops, fd: int, buffers: Sequence[Buffer], position: int) -> int:
    """Write all the buffers at a byte position, in as many calls as it takes; return the length.

    Raises OSError; how much was written is then unknown.
    """
    views = [memoryview(buffer) for buffer in buffers if len(buffer)]
    total = 0
    while views:
        written = ops.pwritev(fd, views[:IOV_MAX], position + total)
        total += written
        views = rest_of(views, written)
    return total


def write_atomically(ops: Ops, directory: str, name: str, data: bytes) -> None:
    """Replace a file as a whole, durably: temporary file, fsync, rename, fsync of the directory.

    Raises OSError; the old file is then still there, or the new one.
    """
    temporary = f"{directory}/{name}.tmp"
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    fd = ops.open_patiently(temporary, flags, 0o644)
    try:
        write_all(ops, fd, [data], 0)
        ops.fsync(fd)
    finally:
        ops.close(fd)
    ops.rename(temporary, f"{directory}/{name}")
    ops.sync_directory(directory)
