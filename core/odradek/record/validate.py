"""What a batch from a client must satisfy before it enters the log.

The rules are Kafka's (`ProduceRequest.validateRecords`, `UnifiedLog.analyzeAndValidateRecords`,
`LogValidator`), for magic 2. Kafka reads every record of every batch to apply them. Here the
header, which the CRC covers, is believed, and records are read in two cases only: on compacted
topics, where each needs a key, and where the max timestamp is below the base timestamp, which
only the records can set right. So, unlike in Kafka:

* the range of timestamps is checked on the first record and on the newest, as the header has them;
* a payload that is not what the header says is found by whoever reads it (the producer's own
  consumers), not by the broker; of an uncompressed one the size must at least suffice;
* bytes behind the batch are refused, where Kafka drops an incomplete second batch in silence;
* a producer that claims LogAppendTime is refused whatever the topic's timestamp type, where Kafka
  corrects the attribute on a CreateTime topic;
* reserved attributes, a delete horizon, a negative producer epoch beside a producer id, and a
  transactional batch without producer id are refused, which Kafka lets pass.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, Literal, NamedTuple

from attrs import field, frozen

from odradek.errors import CorruptBatch, ErrorCode, InvalidRecord, InvalidTimestamp, KafkaError
from odradek.record import kernel
from odradek.record.batch import (
    ATTRIBUTES_POSITION,
    COMPRESSION_MASK,
    CONTROL,
    DELETE_HORIZON,
    HEADER,
    HEADER_SIZE,
    LENGTH_POSITION,
    LOG_APPEND_TIME,
    MAGIC,
    MAGIC_POSITION,
    MIN_LENGTH,
    NO_TIMESTAMP,
    PREFIX_SIZE,
    RESERVED_ATTRIBUTES,
    TRANSACTIONAL,
    BatchMeta,
    assemble,
    set_log_append_time,
)
from odradek.record.compression import CompressionType, compress, decompress, validate_level
from odradek.record.crc import crc32c
from odradek.record.layout import MIN_RECORD_SIZE

__all__ = ["Rules", "Validated", "validate"]

_FORBIDDEN: Final = RESERVED_ATTRIBUTES | LOG_APPEND_TIME | CONTROL | DELETE_HORIZON
_EXPANSION: Final = 8
"""How many times max.message.bytes a batch may take uncompressed, where records must be read."""

_unpack = HEADER.unpack_from
_unpack_length = Struct(">i").unpack_from
_new = tuple.__new__


@frozen(slots=True, kw_only=True)
class Rules:
    """A topic's settings that concern batches on their way in; the defaults are Kafka's.

    `compression_level` None is the codec's default. Timestamps may be at most
    `timestamp_before_max_ms` before and `timestamp_after_max_ms` after the broker's clock
    (KIP-937; the hour is KIP-1030's).
    Raises ValueError for a level that the codec does not have.
    """

    compression_type: Literal["producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"] = (
        "producer"
    )
    compression_level: int | None = None
    timestamp_type: Literal["CreateTime", "LogAppendTime"] = "CreateTime"
    max_message_bytes: int = 1024 * 1024 + PREFIX_SIZE
    timestamp_before_max_ms: int = 2**63 - 1
    timestamp_after_max_ms: int = 60 * 60 * 1000
    compacted: bool = False

    target: CompressionType | None = field(init=False, repr=False, eq=False)
    """The codec every batch must have; None where the producer chooses."""
    log_append_time: bool = field(init=False, repr=False, eq=False)

    @target.default
    def _make_target(self) -> CompressionType | None:
        if self.compression_type == "producer":
            return None
        if self.compression_type == "uncompressed":
            return CompressionType.NONE
        return CompressionType[self.compression_type.upper()]

    @log_append_time.default
    def _make_log_append_time(self) -> bool:
        return self.timestamp_type == "LogAppendTime"

    def __attrs_post_init__(self) -> None:
        if self.target is not None:
            validate_level(self.target, self.compression_level)


class Validated(NamedTuple):
    """A batch that may enter the log once `assign` gave it offset and leader epoch.

    `buffer` is the caller's view, changed in place where the rules say so, or a new one when the
    batch was compressed again; `meta` is its header, with base offset 0.
    """

    meta: BatchMeta
    buffer: memoryview


def validate(
    records: memoryview, rules: Rules, now_ms: int, *, zstd_allowed: bool = True
) -> Validated:
    """Check what a client sent for one partition, and make it what the topic asks for.

    `records` is exactly one batch, writable; it is changed only when nothing was wrong. O(size)
    for the CRC, twice under LogAppendTime; no record is touched in the default case. When records
    are read they may take up to 8 times max.message.bytes uncompressed, which bounds the memory.
    `zstd_allowed` is false for Produce requests below version 7 (KIP-110).

    Raises:
    InvalidRecord       no batch, an incomplete one, more than one, an old magic
    CorruptBatch        unknown magic, impossible length
    KafkaError          MESSAGE_TOO_LARGE: more than max.message.bytes, also after compression by
                        the topic's codec, or beyond the bound uncompressed
    CorruptBatch        wrong CRC
    InvalidRecord       base offset not 0; offsets and count do not agree; control batch or other
                        attributes a client may not set; sequence or epoch missing beside a
                        producer id; transactional without producer id
    KafkaError          UNSUPPORTED_COMPRESSION_TYPE: no such codec, or zstd where not allowed
    InvalidTimestamp    out of the topic's range, or LogAppendTime claimed by the client
    InvalidRecord       where records are read: a record without key on a compacted topic; a
                        payload that cannot be decompressed or is not what the header says
    """
    available = len(records)
    if available < HEADER_SIZE:
        raise _not_one_batch(records)
    (
        base_offset,
        length,
        leader_epoch,
        magic,
        crc,
        attributes,
        last_offset_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        record_count,
    ) = _unpack(records, 0)
    size = length + PREFIX_SIZE
    if magic != MAGIC or size != available or length < MIN_LENGTH:
        raise _not_one_batch(records)
    if size > rules.max_message_bytes:
        raise _too_large(size, rules)
    if crc32c(records[ATTRIBUTES_POSITION:]) != crc:
        raise CorruptBatch("the CRC of the batch is wrong")
    if base_offset != 0:
        raise InvalidRecord(f"the base offset of a produced batch is 0, not {base_offset}")
    if record_count <= 0 or last_offset_delta != record_count - 1:
        raise InvalidRecord(
            f"{record_count} records do not fit a last offset delta of {last_offset_delta}"
        )
    if attributes & _FORBIDDEN:
        raise _forbidden(attributes)
    if producer_id >= 0:
        if base_sequence < 0 or producer_epoch < 0:
            raise InvalidRecord(
                f"producer {producer_id} has epoch {producer_epoch} and sequence {base_sequence}"
            )
    elif attributes & TRANSACTIONAL:
        raise InvalidRecord("a transactional batch without producer id")
    codec = attributes & COMPRESSION_MASK
    if codec == 0:
        if record_count * MIN_RECORD_SIZE > size - HEADER_SIZE:
            raise InvalidRecord(f"{record_count} records do not fit into {size} bytes")
    elif codec >= CompressionType.ZSTD and (codec > CompressionType.ZSTD or not zstd_allowed):
        raise _unsupported(codec)
    meta = _new(
        BatchMeta,
        (
            0,
            last_offset_delta,
            size,
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
    if (
        rules.compacted
        or (rules.target is not None and rules.target != codec)
        or (max_timestamp < base_timestamp and not rules.log_append_time)
    ):
        return _validate_payload(meta, records, rules, now_ms)
    if rules.log_append_time:
        return _new(Validated, (_stamp(meta, records, now_ms), records))
    _check_timestamps(meta, rules, now_ms)
    return _new(Validated, (meta, records))


def _validate_payload(meta: BatchMeta, records: memoryview, rules: Rules, now_ms: int) -> Validated:
    """Go on with a batch whose records must be looked at or compressed by another codec."""
    codec = CompressionType(meta.compression)
    limit = _EXPANSION * rules.max_message_bytes
    checked = meta
    try:
        payload = decompress(codec, records[HEADER_SIZE:], limit)
        if rules.compacted or meta.max_timestamp < meta.base_timestamp:
            newest = _check_records(meta, payload, rules)
            if not rules.log_append_time:
                checked = meta._replace(max_timestamp=newest)
    except CorruptBatch as error:
        # The CRC was right, so the producer itself wrote this: CORRUPT_MESSAGE would have it retry.
        raise InvalidRecord(error.detail) from None
    if not rules.log_append_time:
        _check_timestamps(checked, rules, now_ms)
    buffer = records
    if rules.target is not None and rules.target is not codec:
        attributes = checked.attributes & ~COMPRESSION_MASK | rules.target
        compressed = compress(rules.target, payload, rules.compression_level)
        checked = checked._replace(attributes=attributes, size=HEADER_SIZE + len(compressed))
        if checked.size > rules.max_message_bytes:
            raise _too_large(checked.size, rules)
        buffer = memoryview(assemble(checked, compressed))
    elif checked.max_timestamp != meta.max_timestamp:
        buffer = memoryview(assemble(checked, records[HEADER_SIZE:]))
    if rules.log_append_time:
        checked = _stamp(checked, buffer, now_ms)
    return Validated(checked, buffer)


def _check_records(meta: BatchMeta, payload: memoryview, rules: Rules) -> int:
    """Check each record and return the newest timestamp."""
    newest = NO_TIMESTAMP
    for index, raw in enumerate(kernel.active.parse_records(payload, meta.record_count)):
        if raw.offset_delta != index:
            raise InvalidRecord(f"record {index} has an offset delta of {raw.offset_delta}")
        if rules.compacted and raw.key_size < 0:
            raise InvalidRecord(f"record {index} has no key, and the topic is compacted")
        newest = max(newest, meta.base_timestamp + raw.timestamp_delta)
    return newest


def _stamp(meta: BatchMeta, buffer: memoryview, now_ms: int) -> BatchMeta:
    set_log_append_time(buffer, 0, now_ms)
    return meta._replace(attributes=meta.attributes | LOG_APPEND_TIME, max_timestamp=now_ms)


def _check_timestamps(meta: BatchMeta, rules: Rules, now_ms: int) -> None:
    if meta.max_timestamp > now_ms + rules.timestamp_after_max_ms or (
        meta.base_timestamp != NO_TIMESTAMP
        and meta.base_timestamp < now_ms - rules.timestamp_before_max_ms
    ):
        raise InvalidTimestamp(
            f"the batch's timestamps, {meta.base_timestamp} to {meta.max_timestamp}, leave the "
            f"allowed range from {now_ms - rules.timestamp_before_max_ms} to "
            f"{now_ms + rules.timestamp_after_max_ms}"
        )


def _not_one_batch(records: memoryview) -> KafkaError:
    """Say why `records` is not exactly one batch of magic 2."""
    if len(records) == 0:
        return InvalidRecord("no batch was sent")
    if len(records) > MAGIC_POSITION:
        magic = records[MAGIC_POSITION]
        if magic < MAGIC:
            return InvalidRecord(f"a batch of the old format {magic} was sent")
        if magic > MAGIC:
            return CorruptBatch(f"there is no record batch of magic {magic}")
    if len(records) >= PREFIX_SIZE:
        (length,) = _unpack_length(records, LENGTH_POSITION)
        if length < MIN_LENGTH:
            return CorruptBatch(f"the batch length {length} is less than {MIN_LENGTH}")
        if length + PREFIX_SIZE < len(records):
            return InvalidRecord("exactly one batch may be sent to a partition at once")
    return InvalidRecord(f"{len(records)} bytes are no whole batch")


def _too_large(size: int, rules: Rules) -> KafkaError:
    return KafkaError(
        ErrorCode.MESSAGE_TOO_LARGE,
        f"the batch takes {size} bytes, and max.message.bytes is {rules.max_message_bytes}",
    )


def _forbidden(attributes: int) -> KafkaError:
    if attributes & LOG_APPEND_TIME:
        return InvalidTimestamp("a producer may not set the timestamp type to LogAppendTime")
    if attributes & CONTROL:
        return InvalidRecord("clients may not write control batches")
    return InvalidRecord(f"clients may not set the attributes {attributes & _FORBIDDEN:#x}")


def _unsupported(codec: int) -> KafkaError:
    if codec == CompressionType.ZSTD:
        text = "zstd needs Produce version 7"
    else:
        text = f"there is no codec {codec}"
    return KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, text)
