"""Finding whole frames in a receive buffer (Kafka protocol: int32 size, then that many bytes).

Sans-IO: the caller receives into its buffer, asks `frame_at` what is there, and decides when to
move a partial frame to the front or to get a larger buffer.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING

from odradek.errors import MalformedMessage

if TYPE_CHECKING:
    from odradek.types import Buffer

__all__ = ["SIZE", "frame_at"]

SIZE = 4
"""How many bytes of size stand before a frame."""

_read_size = Struct("!i").unpack_from

_HTTP = (b"GET ", b"POST", b"PUT ", b"HEAD", b"PRI ", b"OPTI")


def frame_at(buffer: Buffer, start: int, filled: int, max_size: int) -> int:
    """Look at the frame whose size prefix is at `start`, in a buffer filled up to `filled`.

    Return the position after the frame; it is larger than `filled` when the frame is not
    complete, and says then how far the buffer must be filled before asking again: to the end of
    the size, and once that is there, to the end of the frame. A complete frame's payload is
    `buffer[start + SIZE : end]`.

    Raises MalformedMessage when the size is not between 1 and `max_size`, with a hint when
    the bytes look like TLS or HTTP. Nothing is allocated.
    """
    end = start + SIZE
    if end > filled:
        return end
    (size,) = _read_size(buffer, start)
    if 0 < size <= max_size:
        return end + int(size)
    raise MalformedMessage(_refusal(bytes(buffer[start:end]), size, max_size))


def _refusal(raw: bytes, size: int, max_size: int) -> str:
    if raw[:2] == b"\x16\x03":
        return "a TLS handshake on a port without TLS: check security.protocol of the client"
    if raw in _HTTP:
        return "an HTTP request: this port speaks the Kafka protocol"
    if size > 0:
        return f"a frame of {size} bytes, over the limit of {max_size}"
    return f"a frame of {size} bytes"
