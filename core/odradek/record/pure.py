"""The codec in pure Python: what is in force where the compiled module is not.

Also the reference. The compiled module (`_accelerated.pyx`) has the functions and classes of
`__all__` with the same results; where it meets damage it calls the function of its name here, so
that a damaged payload is told in the same words by both.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import accumulate
from typing import Any, Final, TypeVar

from odradek.errors import CorruptBatch
from odradek.record.builder import BatchBuilder
from odradek.record.column import BinaryColumn, Columns, HeaderColumn
from odradek.record.layout import Record, parse_headers, parse_records, read_varint
from odradek.record.pure_compacting import OffsetMap, clean_window, note_window
from odradek.types import Buffer

__all__ = [
    "BatchBuilder",
    "ColumnCollector",
    "OffsetMap",
    "clean_window",
    "decode",
    "murmur2",
    "note_window",
    "parse_records",
    "widen",
]

_FAR: Final = 2**62
"""Offsets and timestamps this far from zero are added with care, for sums may leave 64 bits."""
_MIN_INT64: Final = -(2**63)
_MAX_INT64: Final = 2**63 - 1

T = TypeVar("T")

_new = tuple.__new__


def decode(  # noqa: PLR0915  # one loop without calls: see the comment in it
    payload: Buffer, count: int, base_offset: int, base_timestamp: int, append_time: int | None
) -> list[Record]:
    """Return the `count` records of an uncompressed payload.

    `append_time`, where it is not None, is the timestamp of every record. Raises CorruptBatch like
    `parse_records`, and at a record whose offset or timestamp does not fit into 64 bits.
    """
    data = bytes(payload)
    if count < 0 or not (-_FAR < base_offset < _FAR and -_FAR < base_timestamp < _FAR):
        return _decode_carefully(data, count, base_offset, base_timestamp, append_time)
    records: list[Record] = []
    add = records.append
    position = 0
    total = len(data)
    # Varints of one byte, and of two where these are common, are read in place: a call for each
    # field would halve the records decoded per second. Whatever looks wrong is left to the careful
    # loop, which says what it is.
    try:
        for _ in range(count):
            byte = data[position]
            position += 1
            if byte > 127:
                second = data[position]
                if second < 128:
                    position += 1
                    byte = byte & 127 | second << 7
                    length = (byte >> 1) ^ -(byte & 1)
                else:
                    length, position = read_varint(data, position - 1)
            else:
                length = (byte >> 1) ^ -(byte & 1)
            end = position + length
            byte = data[position + 1]
            if byte < 128:
                timestamp = base_timestamp + ((byte >> 1) ^ -(byte & 1))
                position += 2
            else:
                delta, position = read_varint(data, position + 1)
                timestamp = base_timestamp + delta
                if not _MIN_INT64 <= timestamp <= _MAX_INT64:
                    break
            byte = data[position]
            position += 1
            if byte > 127:
                second = data[position]
                if second < 128:
                    position += 1
                    byte = byte & 127 | second << 7
                    offset_delta = (byte >> 1) ^ -(byte & 1)
                else:
                    offset_delta, position = read_varint(data, position - 1)
                    if not -(2**31) <= offset_delta < 2**31:
                        break
            else:
                offset_delta = (byte >> 1) ^ -(byte & 1)
            byte = data[position]
            position += 1
            if byte == 1:
                key = None
            else:
                if byte < 128:
                    size = (byte >> 1) ^ -(byte & 1)
                else:
                    size, position = read_varint(data, position - 1)
                if size < 0:
                    key = None
                else:
                    key = data[position : position + size]
                    position += size
            byte = data[position]
            position += 1
            if byte > 127:
                second = data[position]
                if second < 128:
                    position += 1
                    byte = byte & 127 | second << 7
                    size = (byte >> 1) ^ -(byte & 1)
                else:
                    size, position = read_varint(data, position - 1)
            else:
                size = (byte >> 1) ^ -(byte & 1)
            if size < 0:
                value = None
            else:
                value = data[position : position + size]
                position += size
            if data[position]:
                headers, position = parse_headers(data, position, end)
            else:
                headers = ()
                position += 1
            if position != end:
                break
            add(
                _new(
                    Record,
                    (
                        base_offset + offset_delta,
                        timestamp if append_time is None else append_time,
                        key,
                        value,
                        headers,
                    ),
                )
            )
        else:
            if position == total:
                return records
    except (IndexError, CorruptBatch):
        pass
    return _decode_carefully(data, count, base_offset, base_timestamp, append_time)


def _decode_carefully(
    data: bytes, count: int, base_offset: int, base_timestamp: int, append_time: int | None
) -> list[Record]:
    records: list[Record] = []
    for raw in parse_records(data, count):
        offset = base_offset + raw.offset_delta
        timestamp = base_timestamp + raw.timestamp_delta if append_time is None else append_time
        if not (_MIN_INT64 <= offset <= _MAX_INT64 and _MIN_INT64 <= timestamp <= _MAX_INT64):
            raise CorruptBatch(f"a record has offset {offset} and timestamp {timestamp}")
        key = None if raw.key_size < 0 else data[raw.key_at : raw.key_at + raw.key_size]
        value = None if raw.value_size < 0 else data[raw.value_at : raw.value_at + raw.value_size]
        records.append(_new(Record, (offset, timestamp, key, value, raw.headers)))
    return records


def widen(
    kind: type[T], before: tuple[object, ...], records: list[Record], after: tuple[object, ...]
) -> list[T]:
    """Return the records as tuples of `kind`, with the fields `before` and `after` around them.

    `kind` is a named tuple of just so many fields; what is around must be in no cycle with it,
    since the garbage collector may not be told. Raises TypeError.
    """
    fields = getattr(kind, "_fields", ())
    size = len(before) + len(Record._fields) + len(after)
    if kind.__base__ is not tuple or len(fields) != size:
        raise TypeError(f"{kind.__name__} is not a named tuple of {size} fields")
    if not all(type(record) is Record for record in records):
        raise TypeError("only a Record can be made wider")
    make: Any = partial(_new, kind)
    return [make(before + record + after) for record in records]


class ColumnCollector:
    """Collects the records of payloads into columns; `headers` says whether theirs are wanted.

    The keys of all payloads, and likewise the values, must stay below 2 GiB.
    """

    def __init__(self, headers: bool) -> None:
        self._used_up = False
        self._headers = headers
        self._offsets = array("q")
        self._timestamps = array("q")
        self._keys = _Column()
        self._values = _Column()
        self._header_counts = array("i")
        self._header_names = _Column()
        self._header_values = _Column()

    def add(
        self,
        payload: Buffer,
        count: int,
        base_offset: int,
        base_timestamp: int,
        append_time: int | None,
        start: int,
        end: int,
    ) -> None:
        """Add the records with offsets from `start` to before `end`.

        The smallest and the largest number of 64 bits stand for no bound. Raises like `decode`, and
        ValueError after `finish`. After an error the collector is of no use any more.
        """
        self._check()
        records = decode(payload, count, base_offset, base_timestamp, append_time)
        if start > _MIN_INT64 or end < _MAX_INT64:
            records = [record for record in records if start <= record[0] < end]
        if not records:
            return
        offsets, timestamps, keys, values, headers = zip(*records, strict=True)
        self._offsets.extend(offsets)
        self._timestamps.extend(timestamps)
        self._keys.add(keys)
        self._values.add(values)
        if self._headers:
            self._header_counts.extend(map(len, headers))
            pairs = [pair for each in headers for pair in each]
            self._header_names.add([name.encode() for name, _ in pairs])
            self._header_values.add([value for _, value in pairs])

    def finish(self, position: int) -> Columns:
        """Return the columns, whose `position` is the given one; the collector is used up.

        Raises ValueError when it was before.
        """
        self._check()
        self._used_up = True
        headers = None
        if self._headers:
            headers = HeaderColumn(
                _offsets(self._header_counts),
                self._header_names.finish(),
                self._header_values.finish(),
            )
        return Columns(
            memoryview(self._offsets),
            memoryview(self._timestamps),
            self._keys.finish(),
            self._values.finish(),
            headers,
            position,
        )

    def _check(self) -> None:
        if self._used_up:
            raise ValueError("the collector is used up")


class _Column:
    """A BinaryColumn in the making."""

    def __init__(self) -> None:
        self._sizes = array("i")
        self._parts: list[bytes] = []
        self._flags = bytearray()  # a byte for each item: "0" where it is null, else "1"
        self._nulls = 0

    def add(self, items: Sequence[bytes | None]) -> None:
        nulls = items.count(None)
        self._nulls += nulls
        if nulls == len(items):
            self._flags += b"0" * nulls
            self._sizes.frombytes(bytes(nulls * self._sizes.itemsize))
            return
        if nulls:
            self._flags += b"".join([b"0" if item is None else b"1" for item in items])
            items = [item or b"" for item in items]
        else:
            self._flags += b"1" * len(items)
        contents: Sequence[bytes] = items  # type: ignore[assignment]  # no null is left
        self._sizes.extend(map(len, contents))
        self._parts.append(b"".join(contents))

    def finish(self) -> BinaryColumn:
        validity = None
        if self._nulls:
            bits = int(bytes(reversed(self._flags)), 2)
            validity = memoryview(bits.to_bytes((len(self._flags) + 7) // 8, "little"))
        data = memoryview(b"".join(self._parts))
        return BinaryColumn(_offsets(self._sizes), data, validity, self._nulls)


def _offsets(sizes: Iterable[int]) -> memoryview:
    return memoryview(array("i", accumulate(sizes, initial=0)))


def murmur2(data: bytes) -> int:
    """Return the hash, from -2**31 to 2**31 - 1, by which Java producers choose a partition.

    Austin Appleby's MurmurHash2 with Kafka's seed (Apache Kafka, `Utils.murmur2`).
    """
    length = len(data)
    hashed = 0x9747B28C ^ length
    whole = length & ~3
    for position in range(0, whole, 4):
        word = int.from_bytes(data[position : position + 4], "little") * 0x5BD1E995 & 0xFFFFFFFF
        word = (word ^ word >> 24) * 0x5BD1E995 & 0xFFFFFFFF
        hashed = hashed * 0x5BD1E995 & 0xFFFFFFFF ^ word
    if length != whole:
        hashed ^= int.from_bytes(data[whole:], "little")
        hashed = hashed * 0x5BD1E995 & 0xFFFFFFFF
    hashed = (hashed ^ hashed >> 13) * 0x5BD1E995 & 0xFFFFFFFF
    hashed ^= hashed >> 15
    return hashed - (1 << 32) if hashed >> 31 else hashed
