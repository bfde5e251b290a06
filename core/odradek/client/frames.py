"""Reading length-prefixed frames from a transport's connection, one at a time."""

from __future__ import annotations

from struct import Struct

from odradek.contracts.transport import Connection, ConnectionLost
from odradek.errors import MalformedMessage

__all__ = ["FrameReader"]

_length = Struct(">i")
_BUFFER_SIZE = 64 * 1024


class FrameReader:
    """Cuts a stream into frames: 4 bytes of length, then as many bytes.

    Small frames are copied out of one buffer, so that many cost one receive; the rest of a large
    one is received straight into its own memory. The caller owns what it gets.
    """

    __slots__ = ("_buffer", "_end", "_largest", "_start", "_stream")

    def __init__(self, stream: Connection, largest: int) -> None:
        self._stream = stream
        self._largest = largest
        self._buffer = memoryview(bytearray(_BUFFER_SIZE))
        self._start = 0
        self._end = 0

    async def next(self) -> memoryview | None:
        """Return the next frame without its length, or None at the end of the stream.

        Raises MalformedMessage for a length that is negative or above `largest`, ConnectionLost
        when the stream ends inside a frame, and what `receive_into` raises.
        """
        while self._end - self._start < 4:
            if not await self._receive():
                return None
        (length,) = _length.unpack_from(self._buffer, self._start)
        if not 0 <= length <= self._largest:
            raise MalformedMessage(
                f"a frame of {length} bytes, and at most {self._largest} are accepted; "
                "does the peer speak the Kafka protocol, without TLS?"
            )
        self._start += 4
        frame = memoryview(bytearray(length))
        have = min(length, self._end - self._start)
        frame[:have] = self._buffer[self._start : self._start + have]
        self._start += have
        while have < length:
            received = await self._stream.receive_into(frame[have:])
            if not received:
                raise ConnectionLost(f"the stream ended {length - have} bytes before its frame")
            have += received
        return frame

    async def _receive(self) -> bool:
        """Receive into the buffer, which holds less than a length; False at the end."""
        left = self._end - self._start
        self._buffer[:left] = bytes(self._buffer[self._start : self._end])
        self._start, self._end = 0, left
        received = await self._stream.receive_into(self._buffer[left:])
        self._end += received
        if not received and left:
            raise ConnectionLost("the stream ended inside of a frame's length")
        return received > 0
