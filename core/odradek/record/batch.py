"""The header of a record batch v2: the unit on the wire, on disk and in the bucket.

    position  bytes  field                      in the CRC
    0         8      base offset                no: the leader assigns it in place
    8         4      batch length               no    (bytes that follow this field)
    12        4      partition leader epoch     no: the leader assigns it in place
    16        1      magic, 2                   no
    17        4      CRC-32C of all that follows
    21        2      attributes                 yes
    23        4      last offset delta          yes
    27        8      base timestamp, ms         yes
    35        8      max timestamp, ms          yes
    43        8      producer id                yes
    51        2      producer epoch             yes
    53        4      base sequence              yes
    57        4      record count               yes
    61        ...    records, compressed as the attributes say

Everything is big-endian and signed, but for the CRC. Attributes: bits 0 to 2 compression, 3
LogAppendTime, 4 transactional, 5 control, 6 delete horizon; the others are zero. (Apache Kafka,
`DefaultRecordBatch.java`; KIP-98, KIP-534.)

The broker reads this header, checks the CRC, writes offset and epoch, and looks no further.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from odradek.errors import CorruptBatch
from odradek.record.crc import crc32c
from odradek.types import Buffer

__all__ = [
    "ATTRIBUTES_POSITION",
    "COMPRESSION_MASK",
    "CONTROL",
    "CRC_POSITION",
    "DELETE_HORIZON",
    "HEADER",
    "HEADER_SIZE",
    "LENGTH_POSITION",
    "LOG_APPEND_TIME",
    "MAGIC",
    "MAGIC_POSITION",
    "MIN_LENGTH",
    "NO_PRODUCER_EPOCH",
    "NO_PRODUCER_ID",
    "NO_SEQUENCE",
    "NO_TIMESTAMP",
    "PREFIX_SIZE",
    "RESERVED_ATTRIBUTES",
    "TRANSACTIONAL",
    "BatchMeta",
    "assemble",
    "assign",
    "check_crc",
    "increment_sequence",
    "parse_header",
    "set_log_append_time",
]

HEADER = Struct(">qiibIhiqqqhii")
"""base offset, length, leader epoch, magic, CRC, attributes, last offset delta, base timestamp,
max timestamp, producer id, producer epoch, base sequence, record count."""

HEADER_SIZE = 61
PREFIX_SIZE = 12
"""Base offset and length: the bytes that the batch length does not count (Kafka: LOG_OVERHEAD)."""
MIN_LENGTH = HEADER_SIZE - PREFIX_SIZE

LENGTH_POSITION = 8
MAGIC = 2
MAGIC_POSITION = 16
CRC_POSITION = 17
ATTRIBUTES_POSITION = 21

COMPRESSION_MASK = 0x07
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20
DELETE_HORIZON = 0x40
"""The base timestamp is the time when the batch's tombstones may go (KIP-534)."""
RESERVED_ATTRIBUTES = ~0x7F

NO_TIMESTAMP = -1
NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1

_MAX_SEQUENCE = 2**31 - 1
_MAX_TIMESTAMP_POSITION = 35

_unpack_header = HEADER.unpack_from
_pack_offset = Struct(">q").pack_into
_pack_epoch = Struct(">i").pack_into
_unpack_length = Struct(">i").unpack_from
_unpack_crc = Struct(">I").unpack_from
_pack_crc = Struct(">I").pack_into
_unpack_attributes = Struct(">h").unpack_from
_pack_attributes = Struct(">h").pack_into
_pack_timestamp = Struct(">q").pack_into
_new = tuple.__new__


def increment_sequence(sequence: int, increment: int) -> int:
    """Return the sequence number `increment` after `sequence`: 0 follows 2**31 - 1."""
    following = sequence + increment
    return following if following <= _MAX_SEQUENCE else following - _MAX_SEQUENCE - 1


class BatchMeta(NamedTuple):
    """What the header of a batch says. A tuple: the broker builds one for every batch.

    Offsets are inclusive; `size` is in bytes and counts the whole batch, with its 12 byte
    prefix; timestamps are milliseconds since 1970 or -1; producer id, epoch and sequence are -1
    where the producer is not idempotent.
    """

    base_offset: int
    last_offset: int
    size: int
    leader_epoch: int
    attributes: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def next_offset(self) -> int:
        """The offset after the last one: where the next batch starts."""
        return self.last_offset + 1

    @property
    def compression(self) -> int:
        """The codec's number, a `CompressionType` unless it is above 4 (unknown to Kafka too)."""
        return self.attributes & COMPRESSION_MASK

    @property
    def log_append_time(self) -> bool:
        """Whether every record's timestamp is `max_timestamp`, the time of the append."""
        return bool(self.attributes & LOG_APPEND_TIME)

    @property
    def transactional(self) -> bool:
        """Whether the batch belongs to a transaction."""
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def control(self) -> bool:
        """Whether the batch holds a control record (`odradek.record.control`), not data."""
        return bool(self.attributes & CONTROL)

    @property
    def delete_horizon(self) -> int | None:
        """The time in ms from which the batch's tombstones may be removed, if it is set."""
        return self.base_timestamp if self.attributes & DELETE_HORIZON else None

    @property
    def has_producer(self) -> bool:
        """Whether an idempotent or transactional producer wrote the batch."""
        return self.producer_id >= 0

    @property
    def last_sequence(self) -> int:
        """The sequence number of the last record, or -1 where there are none."""
        if self.base_sequence < 0:
            return NO_SEQUENCE
        return increment_sequence(self.base_sequence, self.last_offset - self.base_offset)

    def assigned(self, base_offset: int, leader_epoch: int) -> BatchMeta:
        """Return what `parse_header` gives after `assign(view, position, ...)` of the same."""
        return _new(
            BatchMeta,
            (
                base_offset,
                base_offset + self[1] - self[0],
                self[2],
                leader_epoch,
                *self[4:],
            ),
        )


def parse_header(view: Buffer, position: int = 0) -> BatchMeta:
    """Read the header of the batch that starts at `position`; O(1), the CRC is not checked.

    The rest of the batch need not be in `view`.

    Raises CorruptBatch when `view` has fewer than 61 bytes from `position` on, when the length
    is less than a header's or negative, and when the magic is not 2.
    """
    if len(view) - position < HEADER_SIZE or position < 0:
        raise CorruptBatch(
            f"a batch header takes {HEADER_SIZE} bytes, and {len(view) - position} are left"
        )
    (
        base_offset,
        length,
        leader_epoch,
        magic,
        _,
        attributes,
        last_offset_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        record_count,
    ) = _unpack_header(view, position)
    if magic != MAGIC:
        raise CorruptBatch(f"the batch has magic {magic}, not {MAGIC}")
    if length < MIN_LENGTH:
        raise CorruptBatch(f"the batch length {length} is less than {MIN_LENGTH}")
    return _new(
        BatchMeta,
        (
            base_offset,
            base_offset + last_offset_delta,
            length + PREFIX_SIZE,
            leader_epoch,
            attributes,
            base_timestamp,
            max_timestamp,
            producer_id,
            producer_epoch,
            base_sequence,
            record_count,
        ),
    )


def check_crc(view: memoryview, position: int, size: int) -> bool:
    """Whether the CRC of the batch of `size` bytes at `position` is right; O(size), no copy.

    False too when the batch is not whole in `view`, or `size` is less than a header's.
    """
    end = position + size
    if size < HEADER_SIZE or end > len(view):
        return False
    (stored,) = _unpack_crc(view, position + CRC_POSITION)
    return bool(crc32c(view[position + ATTRIBUTES_POSITION : end]) == stored)


def assign(view: Buffer, position: int, base_offset: int, leader_epoch: int) -> None:
    """Write base offset and leader epoch in place; both lie outside of the CRC.

    `view` must be writable and hold a batch at `position`; nothing is checked.
    """
    _pack_offset(view, position, base_offset)
    _pack_epoch(view, position + PREFIX_SIZE, leader_epoch)


def set_log_append_time(view: memoryview, position: int, timestamp: int) -> None:
    """Make `timestamp` the time of every record of the batch, in place; O(size).

    Sets the attribute and the max timestamp and renews the CRC, as Kafka does; the base timestamp
    stays as the producer wrote it. `view` must be writable and hold the whole batch at
    `position`; nothing is checked.
    """
    start = position + ATTRIBUTES_POSITION
    (length,) = _unpack_length(view, position + LENGTH_POSITION)
    (attributes,) = _unpack_attributes(view, start)
    _pack_attributes(view, start, attributes | LOG_APPEND_TIME)
    _pack_timestamp(view, position + _MAX_TIMESTAMP_POSITION, timestamp)
    crc = crc32c(view[start : position + PREFIX_SIZE + length])
    _pack_crc(view, position + CRC_POSITION, crc)


def assemble(meta: BatchMeta, payload: Buffer) -> bytearray:
    """Return the batch that `meta` describes around `payload`, with its length and CRC.

    `payload` is compressed already, as the attributes say; `meta.size` is not looked at.
    """
    batch = bytearray(HEADER_SIZE)
    batch += payload
    HEADER.pack_into(
        batch,
        0,
        meta.base_offset,
        len(batch) - PREFIX_SIZE,
        meta.leader_epoch,
        MAGIC,
        0,
        meta.attributes,
        meta.last_offset - meta.base_offset,
        meta.base_timestamp,
        meta.max_timestamp,
        meta.producer_id,
        meta.producer_epoch,
        meta.base_sequence,
        meta.record_count,
    )
    with memoryview(batch) as view:
        _pack_crc(batch, CRC_POSITION, crc32c(view[ATTRIBUTES_POSITION:]))
    return batch
