"""Making batches: records in, one batch of bytes out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import index as as_index
from typing import Final, Protocol

from odradek.record.batch import (
    ATTRIBUTES_POSITION,
    COMPRESSION_MASK,
    CONTROL,
    CRC_POSITION,
    HEADER,
    HEADER_SIZE,
    MAGIC,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    PREFIX_SIZE,
    TRANSACTIONAL,
)
from odradek.record.compression import CompressionType, compress, validate_level
from odradek.record.crc import crc32c
from odradek.record.layout import Header, encode_record, encode_varint
from odradek.types import Buffer

__all__ = ["MAX_RECORDS", "BatchBuilder", "Unfinished", "batch_size_bound", "checked", "finish"]

MAX_RECORDS: Final = 2**31 - 1

_MAX_RECORD_OVERHEAD = 5 + 1 + 10 + 5 + 5 + 5 + 5
_MAX_HEADER_OVERHEAD = 5 + 5
_MIN_INT64 = -(2**63)
_MAX_INT64 = 2**63 - 1
_NULL = b"\x01"
_NO_HEADERS = b"\x00"


def batch_size_bound(key: bytes | None, value: bytes | None, headers: Iterable[Header] = ()) -> int:
    """Return an upper bound of the bytes an uncompressed batch of this one record takes."""
    size = HEADER_SIZE + _MAX_RECORD_OVERHEAD + len(key or b"") + len(value or b"")
    for name, content in headers:
        size += _MAX_HEADER_OVERHEAD + len(name.encode()) + len(content or b"")
    return size


def checked(
    key: object, value: object, headers: Iterable[tuple[object, object]] = ()
) -> tuple[Header, ...]:
    """Return the headers of a record whose parts are what they should be.

    Raises TypeError for a key, value or header's value that is neither bytes nor None (a view or
    an array may have more bytes than its length says), and for a header's name that is no text.
    """
    for part in (key, value):
        if part is not None and not isinstance(part, bytes):
            raise TypeError(f"records are bytes or None, not {type(part).__name__}")
    found: list[Header] = []
    for name, content in headers:
        if not isinstance(name, str):
            raise TypeError(f"a header's name is text, not {type(name).__name__}")
        if content is not None and not isinstance(content, bytes):
            raise TypeError(f"a header's value is bytes or None, not {type(content).__name__}")
        found.append((name, content))
    return tuple(found)


class BatchBuilder:
    """Collects records up to a size and makes one batch of them.

    `max_bytes` bounds the uncompressed batch, header included; the built batch is never larger,
    for one that compression would enlarge is left uncompressed. Base offset 0 and no leader epoch:
    the broker assigns both. `producer_id`, `producer_epoch`, `base_sequence` and `transactional`
    are attributes, and may be set until `build`: a producer learns them when it sends.

    Not for concurrent use. Raises ValueError for a compression level out of range.
    """

    def __init__(
        self,
        max_bytes: int,
        *,
        compression: CompressionType = CompressionType.NONE,
        level: int | None = None,
        producer_id: int = NO_PRODUCER_ID,
        producer_epoch: int = NO_PRODUCER_EPOCH,
        base_sequence: int = NO_SEQUENCE,
        transactional: bool = False,
        control: bool = False,
    ) -> None:
        validate_level(compression, level)
        self.max_bytes = max_bytes
        self.compression = compression
        self.level = level
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.base_sequence = base_sequence
        self.transactional = transactional
        self.control = control
        self._batch = bytearray(HEADER_SIZE)
        self._given_away = 0
        self._count = 0
        self._base_timestamp = NO_TIMESTAMP
        self._max_timestamp = NO_TIMESTAMP

    def __len__(self) -> int:
        return self._count

    @property
    def size(self) -> int:
        """Bytes of the uncompressed batch as it stands, header included."""
        return len(self._batch)

    @property
    def base_timestamp(self) -> int:
        """The timestamp of the first record, or -1."""
        return self._base_timestamp

    @property
    def max_timestamp(self) -> int:
        """The newest timestamp, or -1."""
        return self._max_timestamp

    def append(
        self,
        timestamp: int,
        key: bytes | None,
        value: bytes | None,
        headers: Iterable[Header] = (),
    ) -> bool:
        """Add a record, or return False and change nothing when it does not fit any more.

        Its offset delta is the number of records before it. A record that does not fit into an
        empty builder needs one with a larger `max_bytes` (`batch_size_bound`).

        Raises OverflowError, and changes nothing, for a timestamp that does not fit into 64 bits,
        or is as far from the first one; TypeError for a timestamp that is no whole number, and a
        key, value or header's value that is neither bytes nor None; UnicodeEncodeError for a
        header's name that UTF-8 cannot say.
        """
        timestamp = as_index(timestamp)
        if (
            headers
            or (value.__class__ is not bytes and value is not None)
            or (key.__class__ is not bytes and key is not None)
        ):
            headers = checked(key, value, headers)
        encoded = encode_record(self._count, self._timestamp_delta(timestamp), key, value, headers)
        if len(self._batch) + len(encoded) > self.max_bytes or self._count == MAX_RECORDS:
            return False
        self._add(encoded, 1, timestamp)
        return True

    def extend(
        self,
        timestamp: int,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None = None,
        start: int = 0,
    ) -> int:
        """Add `values[start:]` until the builder is full; return how many were taken.

        All have the same timestamp and no headers; `keys`, as many as `values`, are null without.
        Like as many calls of `append`, in a fraction of the time.

        Raises ValueError where `keys` are fewer or more than `values` or `start` is negative, and
        otherwise like `append`: nothing is added then.
        """
        if start < 0 or (keys is not None and len(keys) != len(values)):
            raise ValueError("as many keys as values are needed, and a start that is not negative")
        timestamp = as_index(timestamp)
        prefix = b"\x00" + encode_varint(self._timestamp_delta(timestamp))
        room = min(self.max_bytes - len(self._batch), _MAX_INT64)
        first = count = self._count
        parts: list[bytes] = []
        last_size, value_size = -1, _NULL
        encoded_key = _NULL
        key_bytes: bytes = b""
        for index in range(start, len(values)):
            value = values[index]
            offset = encode_varint(count)
            if value.__class__ is not bytes and value is not None:
                checked(None, value)
            if keys is not None:
                key = keys[index]
                if key.__class__ is not bytes and key is not None:
                    checked(key, None)
                encoded_key = _NULL if key is None else encode_varint(len(key))
                key_bytes = key or b""
            if value is None:
                last_size, value_size, value = -1, _NULL, b""
            elif len(value) != last_size:
                last_size = len(value)
                value_size = encode_varint(last_size)
            size = (
                len(prefix)
                + len(offset)
                + len(encoded_key)
                + len(key_bytes)
                + len(value_size)
                + len(value)
                + 1
            )
            length = encode_varint(size)
            room -= size + len(length)
            if room < 0 or count == MAX_RECORDS:
                break
            parts += (
                length,
                prefix,
                offset,
                encoded_key,
                key_bytes,
                value_size,
                value,
                _NO_HEADERS,
            )
            count += 1
        if count > first:
            self._add(b"".join(parts), count - first, timestamp)
        return count - first

    def build(self) -> bytearray:
        """Return the batch. Raises ValueError when the builder is empty.

        An uncompressed batch is the builder's own buffer, without a copy. The builder may still be
        used, to add or to build again with another producer: it goes on with a copy of that buffer
        as it is then. BufferError is raised when its size was changed in between.
        """
        if self._count == 0:
            raise ValueError("a batch holds at least one record")
        self._own()
        batch = finish(self, self._batch)
        self._given_away = len(batch) if batch is self._batch else 0
        return batch

    def _timestamp_delta(self, timestamp: int) -> int:
        delta = timestamp - self._base_timestamp if self._count else 0
        if not (_MIN_INT64 <= timestamp <= _MAX_INT64 and _MIN_INT64 <= delta <= _MAX_INT64):
            raise OverflowError(f"the timestamp {timestamp} does not fit into 64 bits")
        return delta

    def _add(self, encoded: bytes, count: int, timestamp: int) -> None:
        self._own()
        if self._count == 0:
            self._base_timestamp = timestamp
        self._batch += encoded
        self._count += count
        self._max_timestamp = max(self._max_timestamp, timestamp)

    def _own(self) -> None:
        if self._given_away:
            if len(self._batch) != self._given_away:
                raise BufferError("the size of the batch was changed since it was built")
            self._batch = self._batch.copy()
            self._given_away = 0


class Unfinished(Protocol):
    """A builder, as `finish` reads it."""

    compression: CompressionType
    level: int | None
    producer_id: int
    producer_epoch: int
    base_sequence: int
    transactional: bool
    control: bool

    def __len__(self) -> int: ...
    @property
    def base_timestamp(self) -> int:
        """The timestamp of the first record."""

    @property
    def max_timestamp(self) -> int:
        """The newest timestamp."""


def finish(builder: Unfinished, batch: bytearray) -> bytearray:
    """Return `batch`, room for a header and then the records, compressed and with its header.

    Where nothing is compressed that is `batch` itself.
    """
    compression = builder.compression
    if compression is not CompressionType.NONE:
        with memoryview(batch) as view:
            payload: Buffer = compress(compression, view[HEADER_SIZE:], builder.level)
        if HEADER_SIZE + len(payload) < len(batch):
            batch = bytearray(HEADER_SIZE)
            batch += payload
        else:
            compression = CompressionType.NONE
    HEADER.pack_into(
        batch,
        0,
        0,
        len(batch) - PREFIX_SIZE,
        -1,
        MAGIC,
        0,
        (compression & COMPRESSION_MASK)
        | (TRANSACTIONAL if builder.transactional else 0)
        | (CONTROL if builder.control else 0),
        len(builder) - 1,
        builder.base_timestamp,
        builder.max_timestamp,
        builder.producer_id,
        builder.producer_epoch,
        builder.base_sequence,
        len(builder),
    )
    with memoryview(batch) as view:
        crc = crc32c(view[ATTRIBUTES_POSITION:])
    batch[CRC_POSITION : CRC_POSITION + 4] = crc.to_bytes(4, "big")
    return batch
