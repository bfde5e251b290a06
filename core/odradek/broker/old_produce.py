"""Produce before version 3: requests that are advertised for old librdkafka, and always refused.

Versions 0 to 2 carry message sets of the formats before Kafka 0.11, and are no part of the wire
table. A client that sends one nevertheless is told UNSUPPORTED_VERSION for each partition.

    request:   acks int16, timeout_ms int32, [topic string, [index int32, message set bytes]]
    response:  [topic string, [index int32, error int16, base offset int64,
               log append time int64 (2)]], throttle time int32 (1, 2)

Source: Apache Kafka 3.9, `ProduceRequest.json` and `ProduceResponse.json`.
"""

from __future__ import annotations

from struct import Struct
from struct import error as StructError

from odradek.errors import ErrorCode, MalformedMessage
from odradek.types import Buffer

__all__ = ["refusal"]

_ACKS_AND_TIMEOUT = Struct(">hi")
_INT16 = Struct(">h")
_INT32 = Struct(">i")
_INDEX_AND_SIZE = Struct(">ii")
_RESULT = Struct(">ihq")
_RESULT_WITH_TIME = Struct(">ihqq")
_SIZE_AND_ID = Struct(">ii")

THROTTLE_FROM = 1
TIME_FROM = 2

LIMIT = 16 * 1024 * 1024
"""Bytes of a response: answers may be larger than what asks for them."""

SMALLEST_TOPIC = 2 + 4
SMALLEST_PARTITION = 4 + 4


def refusal(frame: Buffer, offset: int, version: int, correlation_id: int) -> bytes | None:
    """Return the response frame that refuses a Produce request of version 0, 1 or 2.

    `frame` is the request without its size, `offset` where its body begins. None for acks=0: the
    client reads no response. Takes little more memory than `LIMIT`. Raises MalformedMessage.
    """
    try:
        acks, _ = _ACKS_AND_TIMEOUT.unpack_from(frame, offset)
        body = bytearray()
        at = _topics(memoryview(frame), offset + _ACKS_AND_TIMEOUT.size, version, body)
    except StructError:
        raise MalformedMessage("Produce request: it ends early") from None
    if at != len(frame):
        raise MalformedMessage(f"Produce request: {len(frame) - at} bytes follow it")
    if acks == 0:
        return None
    if version >= THROTTLE_FROM:
        body += _INT32.pack(0)
    return _SIZE_AND_ID.pack(4 + len(body), correlation_id) + body


def _topics(frame: memoryview, at: int, version: int, body: bytearray) -> int:
    """Write each topic's answer into `body`; return where the request's array ends."""
    topics, at = _count(frame, at, SMALLEST_TOPIC)
    body += _INT32.pack(topics)
    for _ in range(topics):
        (length,) = _INT16.unpack_from(frame, at)
        end = _end(frame, at + 2, length)
        body += frame[at:end]
        partitions, at = _count(frame, end, SMALLEST_PARTITION)
        body += _INT32.pack(partitions)
        if len(body) + partitions * _RESULT_WITH_TIME.size > LIMIT:
            raise MalformedMessage("Produce request: more partitions than can be answered")
        for _ in range(partitions):
            index, size = _INDEX_AND_SIZE.unpack_from(frame, at)
            # Null, which is -1 long, is what the message set of a partition may be too.
            at = _end(frame, at + _INDEX_AND_SIZE.size, 0 if size == -1 else size)
            if version >= TIME_FROM:
                body += _RESULT_WITH_TIME.pack(index, ErrorCode.UNSUPPORTED_VERSION, -1, -1)
            else:
                body += _RESULT.pack(index, ErrorCode.UNSUPPORTED_VERSION, -1)
    return at


def _count(frame: memoryview, at: int, smallest: int) -> tuple[int, int]:
    """Read how many elements of `smallest` bytes or more an array has; return where they begin."""
    (count,) = _INT32.unpack_from(frame, at)
    at += _INT32.size
    if not 0 <= count <= (len(frame) - at) // smallest:
        raise MalformedMessage(f"Produce request: an array of {count} elements")
    return count, at


def _end(frame: memoryview, at: int, length: int) -> int:
    if not 0 <= length <= len(frame) - at:
        raise MalformedMessage(f"Produce request: {length} bytes where {len(frame) - at} are left")
    return at + length
