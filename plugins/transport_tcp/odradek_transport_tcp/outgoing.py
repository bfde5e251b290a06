"""What is left of one `send`: parts turned into as few system calls as they can be."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Sequence

from odradek.contracts.transport import FileRange, Part, ShortFile
from odradek.types import Buffer

__all__ = ["FileUnreadable", "Outgoing"]

try:
    _IOV_MAX = min(os.sysconf("SC_IOV_MAX"), 1024)
except (ValueError, OSError):
    _IOV_MAX = 16  # the least that POSIX allows

# Small buffers are joined, since the kernel takes longer over an iovec than memcpy over its
# bytes: 64 parts of 50 bytes went out in 5.1 us instead of 7.6, of 500 bytes in 6.3 instead of
# 8.6; at 2,000 bytes each it no longer pays.
_JOIN_MEAN = 1024
_JOIN_MAX = 64 * 1024

# One call never holds the event loop longer than it takes to send this much (about 0.15 ms).
_RANGE_MAX = 1024 * 1024

# Read at once from a file that sendfile refuses: what the socket does not take is read again.
_COPY_MAX = 128 * 1024

# A header that goes out just before a file range joins its first packet: 3.4 us less per pair.
_MSG_MORE = getattr(socket, "MSG_MORE", 0)

_REFUSED = {errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP}
_OF_THE_SOCKET = {
    errno.EPIPE,
    errno.ECONNRESET,
    errno.ECONNABORTED,
    errno.ETIMEDOUT,
    errno.ENOTCONN,
    errno.ENOTSOCK,
    errno.ESHUTDOWN,
    errno.EHOSTDOWN,
    errno.EHOSTUNREACH,
    errno.ENETDOWN,
    errno.ENETRESET,
    errno.ENETUNREACH,
    errno.ENOBUFS,
}


class FileUnreadable(Exception):
    """The file of a range failed with `error`, not the socket."""

    def __init__(self, error: OSError) -> None:
        super().__init__(str(error))
        self.error = error


class Outgoing:
    """The unsent rest of a sequence of parts."""

    __slots__ = ("_copy", "_index", "_parts", "_skip")

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = parts
        self._index = 0
        self._skip = 0  # bytes of the part at `_index` that are sent
        self._copy = not hasattr(os, "sendfile")
        self._advance(0)

    @property
    def done(self) -> bool:
        """Whether every byte is sent."""
        return self._index == len(self._parts)

    def push(self, sock: socket.socket) -> int:
        """Make one system call's worth of progress and return how many bytes it took.

        Not to be called when `done`. Raises BlockingIOError when the socket is full, OSError
        when it broke, `FileUnreadable` and `ShortFile` when a file is at fault.
        """
        part = self._parts[self._index]
        if isinstance(part, FileRange):
            sent = self._push_range(sock, part)
        else:
            sent = self._push_buffers(sock)
        self._advance(sent)
        return sent

    def _push_buffers(self, sock: socket.socket) -> int:
        parts = self._parts
        first = self._index
        run: list[Buffer] = []
        total = 0
        more = 0
        for index in range(first, min(len(parts), first + _IOV_MAX)):
            part = parts[index]
            if isinstance(part, FileRange):
                if part.count:
                    more = _MSG_MORE
                    break
                continue
            run.append(part)
            total += len(part)
        if self._skip:
            run[0] = memoryview(run[0])[self._skip :]
            total -= self._skip
        if len(run) == 1:
            return sock.send(run[0], more)
        if total <= _JOIN_MAX and total <= _JOIN_MEAN * len(run):
            return sock.send(b"".join(run), more)
        return sock.sendmsg(run, (), more)

    def _push_range(self, sock: socket.socket, part: FileRange) -> int:
        offset = part.offset + self._skip
        count = part.count - self._skip
        if not self._copy:
            try:
                sent = os.sendfile(sock.fileno(), part.fd, offset, min(count, _RANGE_MAX))
            except BlockingIOError:
                raise
            except OSError as exc:
                if exc.errno in _OF_THE_SOCKET or sock.fileno() < 0:
                    raise
                if exc.errno not in _REFUSED:
                    raise FileUnreadable(exc) from None
                self._copy = True
            else:
                if not sent:
                    raise self._short(part)
                return sent
        try:
            data = os.pread(part.fd, min(count, _COPY_MAX), offset)
        except OSError as exc:
            raise FileUnreadable(exc) from None
        if not data:
            raise self._short(part)
        return sock.send(data)

    def _short(self, part: FileRange) -> ShortFile:
        return ShortFile(
            f"descriptor {part.fd} ends at or before byte {part.offset + self._skip}: the range"
            f" was to be {part.count} bytes from {part.offset}"
        )

    def _advance(self, sent: int) -> None:
        self._skip += sent
        parts = self._parts
        while self._index < len(parts):
            length = _length(parts[self._index])
            if self._skip < length:
                return
            self._skip -= length
            self._index += 1


def _length(part: Part) -> int:
    return part.count if isinstance(part, FileRange) else len(part)
