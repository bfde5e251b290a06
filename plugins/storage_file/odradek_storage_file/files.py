"""Open segment files: a bounded number of descriptors, and references that keep them readable."""

from __future__ import annotations

import contextlib
import errno
import os
from collections import deque
from collections.abc import Callable, Sequence

from odradek.contracts.storage import Corrupt, DataRef, OutOfRange, Unavailable
from odradek_storage_file.ops import NO_DESCRIPTOR, Ops

__all__ = ["FileRef", "OpenFiles", "SegmentFile"]


class OpenFiles:
    """Keeps at most `limit` segment files open, but for those that are held.

    A clock instead of a list by recency: using a file then costs one attribute on the append path.

    `close_later` closes a descriptor of a removed file elsewhere than in the trio thread: the last
    one frees the file's blocks, which took 7 ms for 128 MB (ext4).
    """

    def __init__(self, ops: Ops, limit: int) -> None:
        self.ops = ops
        self.close_later: Callable[[int], object] = ops.close
        self._limit = limit
        self._open: deque[SegmentFile] = deque()

    def __len__(self) -> int:
        return len(self._open)

    def opened(self, file: SegmentFile) -> None:
        """Take note of a file that was opened, and close others to keep the bound."""
        if len(self._open) >= self._limit:
            self.shrink(self._limit - 1)
        self._open.append(file)

    def closed(self, file: SegmentFile) -> None:
        """Take note of a file that was closed for good."""
        with contextlib.suppress(ValueError):
            self._open.remove(file)

    def open(self, path: str, flags: int, mode: int = 0o777) -> int:
        """Open any file, closing segment files where no descriptor is free. Raises OSError."""
        try:
            return self.ops.open(path, flags, mode)
        except OSError as error:
            if error.errno not in NO_DESCRIPTOR:
                raise
        self.shrink(len(self) // 2)  # others in the process need descriptors too
        return self.ops.open(path, flags, mode)

    def shrink(self, limit: int) -> None:
        """Close files until `limit` are left, or all others are in use."""
        candidates = 2 * len(self._open)  # twice round: the first pass takes the marks away
        while len(self._open) > limit and candidates:
            candidates -= 1
            file = self._open.popleft()
            if file.holds or file.used:
                file.used = False
                self._open.append(file)
            elif file.fd >= 0:
                self.ops.close(file.fd)
                file.fd = -1


class SegmentFile:
    """One file of record batches: opened when it is needed, closed when others need the room.

    `holds` counts who relies on the descriptor; `reach` is the end of the farthest range that a
    holder may still read. A file that is being renamed is at `path` or at `later_path`.
    """

    __slots__ = ("fd", "files", "gone", "holds", "later_path", "path", "reach", "removed", "used")

    def __init__(self, files: OpenFiles, path: str, fd: int = -1) -> None:
        self.files = files
        self.path = path
        self.later_path = path
        self.fd = fd
        self.holds = 0
        self.reach = 0
        self.used = True
        self.gone = False
        self.removed = False
        if fd >= 0:
            files.opened(self)

    def descriptor(self) -> int:
        """Return the descriptor, opening the file if necessary.

        Raises OutOfRange when the file was removed, Corrupt when it is missing though it should
        not be, Unavailable when the process can open no more files.
        """
        self.used = True
        if self.fd >= 0:
            return self.fd
        if self.gone:
            raise OutOfRange(f"{self.path} was removed")
        try:
            try:
                self.fd = self._open(self.path)
            except FileNotFoundError:
                self.fd = self._open(self.later_path)
        except FileNotFoundError:
            raise Corrupt(f"{self.path} is missing; restore it or repair the partition") from None
        except OSError as error:
            raise Unavailable(f"cannot open {self.path}: {error.strerror}") from error
        self.files.opened(self)
        return self.fd

    def _open(self, path: str) -> int:
        files = self.files
        try:
            return files.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EROFS, errno.EPERM):
                raise
        return files.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def hold(self) -> int:
        """Return the descriptor and keep it open until `release`. Raises as `descriptor`."""
        fd = self.descriptor()
        self.holds += 1
        return fd

    def release(self) -> None:
        """Give a hold back."""
        self.holds -= 1
        if not self.holds:
            self.reach = 0
            if self.gone:
                self._close()

    def retire(self, *, removed: bool = False) -> None:
        """Close the file as soon as nobody holds it; `removed`: its name is gone, or soon will."""
        self.gone = True
        self.removed = removed
        if not self.holds:
            self._close()

    def _close(self) -> None:
        if self.fd >= 0:
            self.files.closed(self)
            fd, self.fd = self.fd, -1
            if self.removed:
                self.files.close_later(fd)
            else:
                self.files.ops.close(fd)


class FileRef(DataRef):
    """A range of a segment file, which stays open until the reference is closed."""

    __slots__ = ("_count", "_fd", "_file", "_position")

    def __init__(self, file: SegmentFile, position: int, count: int) -> None:
        self._fd = file.hold()
        self._file: SegmentFile | None = file
        self._position = position
        self._count = count
        file.reach = max(file.reach, position + count)

    def __len__(self) -> int:
        return self._count

    def file_range(self) -> tuple[int, int, int] | None:
        """Return what `os.sendfile` takes."""
        return self._fd, self._position, self._count

    def views(self) -> Sequence[memoryview]:
        """Read the range."""
        if self._file is None:
            raise OutOfRange("the reference was closed")
        if not self._count:
            return ()
        pread = self._file.files.ops.pread
        try:
            data = pread(self._fd, self._count, self._position)
            while len(data) < self._count:
                more = pread(self._fd, self._count - len(data), self._position + len(data))
                if not more:
                    raise Corrupt(
                        f"{self._file.path} ends before byte {self._position + self._count}: "
                        "bytes that were stored have vanished"
                    )
                data += more
        except OSError as error:
            raise Corrupt(f"cannot read {self._file.path}: {error.strerror}") from error
        return (memoryview(data),)

    def close(self) -> None:
        """Let go of the file."""
        file, self._file = self._file, None
        if file is not None:
            self._fd = -1
            file.release()
