"""Reading what is needed once, such as all of a log by compaction, without filling the cache.

The page cache is what consumers and `sendfile` live on: a gigabyte read in passing would put out
what they need. So whatever was not cached before is given back to the kernel after it was read.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from odradek.contracts.storage import Corrupt, OutOfRange
from odradek_storage_file.files import FileRef
from odradek_storage_file.ops import Ops

__all__ = ["OnceRef"]

STEP = 64 * 1024
"""Bytes whose first says whether all are cached: the kernel reads ahead at least as far."""


class OnceRef(FileRef):
    """A range of a sealed segment, read when `views` is called, in whatever thread that is."""

    __slots__ = ()

    def views(self) -> Sequence[memoryview]:
        """Read the range, and leave the page cache as it was."""
        if self._file is None:
            raise OutOfRange("the reference was closed")
        if not self._count:
            return ()
        ops = self._file.files.ops
        try:
            # A description of the file of its own: reading ahead is turned off on it alone.
            fd = ops.open_again(self._fd)
        except OSError:  # no descriptor is free, or no /proc
            return super().views()
        try:
            return (self._read(ops, fd, self._file.path),)
        except OSError as error:
            raise Corrupt(f"cannot read {self._file.path}: {error.strerror}") from error
        finally:
            ops.close(fd)

    def _read(self, ops: Ops, fd: int, path: str) -> memoryview:
        data = memoryview(bytearray(self._count))
        ops.advise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        found = ops.read_cached(fd, data, self._position)
        done = found or 0
        start, end = self._position + done, self._position + self._count
        cold: list[int] = []
        if found is not None:  # look before reading, which would make them all cached
            cold = [at for at in range(start, end, STEP) if not ops.is_cached(fd, at)]
        while done < self._count:
            read = ops.read_into(fd, data[done:], self._position + done)
            if not read:
                raise Corrupt(
                    f"{path} ends before byte {end}: bytes that were stored have vanished"
                )
            done += read
        for at in cold:
            ops.advise(fd, at, min(STEP, end - at), os.POSIX_FADV_DONTNEED)
        return data.toreadonly()
