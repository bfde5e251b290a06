"""The bytes of the records inside a batch, uncompressed.

    length           varint     of what follows in the record
    attributes       int8       no bit is in use
    timestamp delta  varlong    to the base timestamp of the batch
    offset delta     varint     to the base offset of the batch
    key length       varint     -1 for null
    key
    value length     varint     -1 for null
    value
    header count     varint
    headers          each: key length (varint), key (UTF-8), value length (varint, -1), value

Varints are zigzag-encoded, low 7 bits first, as in Protocol Buffers. (Apache Kafka,
`DefaultRecord.java`.)

This file and `pure.py` say what a payload is and how damage is told; the compiled module does the
same faster, and asks them for the words when it meets damage.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeAlias

from odradek.errors import CorruptBatch
from odradek.types import Buffer

__all__ = [
    "MIN_RECORD_SIZE",
    "Header",
    "RawRecord",
    "Record",
    "encode_record",
    "encode_varint",
    "parse_headers",
    "parse_records",
    "read_varint",
    "shift_timestamp",
]

Header: TypeAlias = tuple[str, bytes | None]

MIN_RECORD_SIZE = 7
"""Length, attributes, two deltas, null key, null value, no headers: a byte each."""

_SMALL = tuple(bytes((number,)) for number in range(128))
_NULL = b"\x01"
_NO_HEADERS = b"\x00"
_MAX_ZIGZAG = 2**64 - 1
_MAX_INT32 = 2**31 - 1

_new = tuple.__new__


class Record(NamedTuple):
    """One record. `timestamp` is in ms since 1970 or -1; None stands for Kafka's null."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()


class RawRecord(NamedTuple):
    """A record as it lies in the payload: `payload[start:end]`, key and value by their place.

    `key_size` and `value_size` are negative for null.
    """

    start: int
    end: int
    timestamp_delta: int
    offset_delta: int
    key_at: int
    key_size: int
    value_at: int
    value_size: int
    headers: tuple[Header, ...]


def encode_varint(value: int) -> bytes:
    """Return `value`, from -2**63 to 2**63 - 1, as a zigzag varint of 1 to 10 bytes."""
    zigzag = (value << 1) ^ (value >> 63)
    if zigzag < 128:
        return _SMALL[zigzag]
    if zigzag < 16_384:
        return bytes((zigzag & 127 | 128, zigzag >> 7))
    encoded = bytearray()
    while zigzag > 127:
        encoded.append(zigzag & 127 | 128)
        zigzag >>= 7
    encoded.append(zigzag)
    return bytes(encoded)


def read_varint(data: bytes, position: int) -> tuple[int, int]:
    """Return the varint at `position` and the position behind it.

    Raises IndexError where the data end before it does, CorruptBatch when it is longer than 10
    bytes or has more than 64 bits.
    """
    zigzag = data[position]
    position += 1
    if zigzag > 127:
        zigzag &= 127
        shift = 7
        while True:
            byte = data[position]
            position += 1
            zigzag |= (byte & 127) << shift
            if zigzag > _MAX_ZIGZAG or shift > 63:
                raise CorruptBatch("a varint has more than 64 bits")
            if byte < 128:
                break
            shift += 7
    return (zigzag >> 1) ^ -(zigzag & 1), position


def encode_record(
    offset_delta: int,
    timestamp_delta: int,
    key: bytes | None,
    value: bytes | None,
    headers: Iterable[Header] = (),
) -> bytes:
    """Return one record, its length in front."""
    parts = [b"\x00", encode_varint(timestamp_delta), encode_varint(offset_delta)]
    if key is None:
        parts.append(_NULL)
    else:
        parts += (encode_varint(len(key)), key)
    if value is None:
        parts.append(_NULL)
    else:
        parts += (encode_varint(len(value)), value)
    if headers:
        parts.append(_encode_headers(headers))
    else:
        parts.append(_NO_HEADERS)
    body = b"".join(parts)
    return encode_varint(len(body)) + body


def _encode_headers(headers: Iterable[Header]) -> bytes:
    parts: list[bytes] = []
    count = 0
    for name, value in headers:
        encoded = name.encode()
        parts += (encode_varint(len(encoded)), encoded)
        if value is None:
            parts.append(_NULL)
        else:
            parts += (encode_varint(len(value)), value)
        count += 1
    return encode_varint(count) + b"".join(parts)


def shift_timestamp(payload: Buffer, raw: RawRecord, shift: int) -> bytes:
    """Return the record with `shift` added to its timestamp delta; key, value, headers as is."""
    body = b"".join(
        (
            b"\x00",
            encode_varint(raw.timestamp_delta + shift),
            encode_varint(raw.offset_delta),
            encode_varint(raw.key_size),
            payload[raw.key_at : raw.end],
        )
    )
    return encode_varint(len(body)) + body


def parse_records(  # noqa: PLR0915  # one loop without calls: see the comment in it
    payload: Buffer, count: int
) -> Iterator[RawRecord]:
    """Yield the `count` records of an uncompressed payload, in order.

    Raises CorruptBatch where the payload's structure is broken: at the broken record, or at the
    end when bytes are left over.
    """
    if count < 0:
        raise CorruptBatch(f"the batch has a record count of {count}")
    payload = bytes(payload)
    position = 0
    total = len(payload)
    # Below, a varint of one byte (-64 to 63) is read in place: a call per field would halve the
    # records decoded per second. The length is seldom that small.
    for _ in range(count):
        start = position
        try:
            length, position = read_varint(payload, position)
            end = position + length
            if length < MIN_RECORD_SIZE - 1 or end > total:
                raise CorruptBatch(f"a record of {length} bytes where {total - position} are left")
            byte = payload[position + 1]
            if byte < 128:
                timestamp_delta = (byte >> 1) ^ -(byte & 1)
                position += 2
            else:
                timestamp_delta, position = read_varint(payload, position + 1)
            byte = payload[position]
            if byte < 128:
                offset_delta = (byte >> 1) ^ -(byte & 1)
                position += 1
            else:
                offset_delta, position = read_varint(payload, position)
                if not -_MAX_INT32 - 1 <= offset_delta <= _MAX_INT32:
                    raise CorruptBatch(f"a record has an offset delta of {offset_delta}")
            byte = payload[position]
            if byte < 128:
                key_size = (byte >> 1) ^ -(byte & 1)
                key_at = position + 1
            else:
                key_size, key_at = read_varint(payload, position)
            position = key_at + key_size if key_size > 0 else key_at
            byte = payload[position]
            if byte < 128:
                value_size = (byte >> 1) ^ -(byte & 1)
                value_at = position + 1
            else:
                value_size, value_at = read_varint(payload, position)
            position = value_at + value_size if value_size > 0 else value_at
            if payload[position]:
                headers, position = parse_headers(payload, position, end)
            else:
                headers = ()
                position += 1
        except IndexError:
            raise CorruptBatch("the payload ends within a record") from None
        if position != end:
            raise CorruptBatch(f"a record of {length} bytes has fields of another length")
        yield _new(
            RawRecord,
            (
                start,
                end,
                timestamp_delta,
                offset_delta,
                key_at,
                key_size,
                value_at,
                value_size,
                headers,
            ),
        )
    if position != total:
        raise CorruptBatch(f"{total - position} bytes follow the last of {count} records")


def parse_headers(payload: bytes, position: int, end: int) -> tuple[tuple[Header, ...], int]:
    """Return the headers whose count stands at `position`, and the position behind them.

    Raises like `read_varint`, and CorruptBatch when they do not end before `end`.
    """
    count, position = read_varint(payload, position)
    if not 0 < count <= (end - position) // 2:
        raise CorruptBatch(f"a record with {count} headers in {end - position} bytes")
    headers: list[Header] = []
    for _ in range(count):
        size, position = read_varint(payload, position)
        if not 0 <= size <= end - position:
            raise CorruptBatch(f"a header's key of {size} bytes where {end - position} are left")
        name = payload[position : position + size].decode(errors="replace")
        size, position = read_varint(payload, position + size)
        if size > end - position:
            raise CorruptBatch(f"a header's value of {size} bytes where {end - position} are left")
        if size < 0:
            headers.append((name, None))
        else:
            headers.append((name, payload[position : position + size]))
            position += size
    return tuple(headers), position
