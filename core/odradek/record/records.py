"""Records in and out of batches: for clients, tools, and the few settings that look at records.

Pure Python; the broker's hot path never comes here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from odradek.errors import CorruptBatch
from odradek.record.batch import (
    COMPRESSION_MASK,
    CONTROL,
    DELETE_HORIZON,
    HEADER_SIZE,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    TRANSACTIONAL,
    BatchMeta,
    assemble,
    check_crc,
    parse_header,
)
from odradek.record.compression import CompressionType, compress, decompress, validate_level
from odradek.record.layout import Header, encode_record, parse_records, shift_timestamp
from odradek.record.scan import scan
from odradek.types import Buffer

__all__ = [
    "DECOMPRESSED_LIMIT",
    "BatchBuilder",
    "Record",
    "batch_size_bound",
    "decode_records",
    "filter_batch",
    "iter_records",
]

DECOMPRESSED_LIMIT: Final = 128 * 1024 * 1024
"""What a batch may decompress to, in bytes, for a reader that names no limit of its own."""

_MAX_RECORD_OVERHEAD = 5 + 1 + 10 + 5 + 5 + 5 + 5
_MAX_HEADER_OVERHEAD = 5 + 5
_MAX_RECORDS = 2**31 - 1

_new = tuple.__new__


class Record(NamedTuple):
    """One record. `timestamp` is in ms since 1970 or -1; None stands for Kafka's null."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()


def decode_records(
    view: Buffer, position: int = 0, *, verify: bool = True, limit: int = DECOMPRESSED_LIMIT
) -> list[Record]:
    """Return the records of the one batch that starts at `position`.

    `verify` checks the CRC. Raises CorruptBatch when the batch is damaged or not whole in `view`,
    and KafkaError as `decompress` does: MESSAGE_TOO_LARGE when the records take more than `limit`
    bytes uncompressed, UNSUPPORTED_COMPRESSION_TYPE for a codec Kafka does not have.
    """
    meta, payload = _open_batch(memoryview(view), position, verify, limit)
    return _decode(meta, payload)


def iter_records(
    view: Buffer, *, verify: bool = True, limit: int = DECOMPRESSED_LIMIT, control: bool = False
) -> Iterator[Record]:
    """Yield the records of consecutive batches; those of control batches only with `control`.

    An incomplete batch at the end is left out, as fetch responses may end in one. Raises like
    `decode_records`, after all records before the damaged batch. Whether a transaction was
    aborted is not looked at.
    """
    window = memoryview(view)
    found = scan(window, verify=False)
    for meta, position in zip(found.metas, found.positions, strict=True):
        if control or not meta.control:
            yield from decode_records(window, position, verify=verify, limit=limit)
    if found.problem is not None and found.problem.kind == "corrupt":
        raise CorruptBatch(f"{found.problem.text} (at byte {found.problem.position})")


def filter_batch(
    view: Buffer,
    keep: Callable[[Record], bool],
    *,
    delete_horizon: int | None = None,
    level: int | None = None,
    limit: int = DECOMPRESSED_LIMIT,
) -> bytearray | None:
    """Return the batch without the records that `keep` refuses, as Kafka's log cleaner leaves it.

    Offsets, sequence numbers, producer, leader epoch and the first and last offset of the batch
    stay, so that the producer's state can still be read from it; the max timestamp becomes that
    of the records left (under LogAppendTime it stays). Key, value and headers keep their bytes;
    the payload is compressed again by the same codec. `delete_horizon` in ms is written into a
    batch that has none yet (KIP-534). None when no record is left: whether an empty batch must
    stay for its producer's sake is the log's to know (`assemble` makes one).

    The CRC is checked. Raises like `decode_records`.
    """
    meta, payload = _open_batch(memoryview(view), 0, True, limit)
    records = zip(parse_records(payload, meta.record_count), _decode(meta, payload), strict=True)
    kept = [raw for raw, record in records if keep(record)]
    if not kept:
        return None
    if meta.delete_horizon is not None:
        delete_horizon = None
    if len(kept) == meta.record_count and delete_horizon is None:
        return bytearray(view[: meta.size])
    if not meta.log_append_time:
        newest = max(raw.timestamp_delta for raw in kept)
        meta = meta._replace(max_timestamp=meta.base_timestamp + newest)
    if delete_horizon is None:
        body = b"".join(payload[raw.start : raw.end] for raw in kept)
    else:
        shift = meta.base_timestamp - delete_horizon
        body = b"".join(shift_timestamp(payload, raw, shift) for raw in kept)
        meta = meta._replace(
            base_timestamp=delete_horizon, attributes=meta.attributes | DELETE_HORIZON
        )
    left = meta._replace(record_count=len(kept))
    return assemble(left, compress(CompressionType(meta.compression), body, level))


def _open_batch(
    view: memoryview, position: int, verify: bool, limit: int
) -> tuple[BatchMeta, bytes]:
    """Return the header and the uncompressed payload of a batch; raise as `decode_records`."""
    meta = parse_header(view, position)
    end = position + meta.size
    if end > len(view):
        raise CorruptBatch(f"a batch of {meta.size} bytes where {len(view) - position} are left")
    if meta.record_count < 0:
        raise CorruptBatch(f"the batch has a record count of {meta.record_count}")
    if verify and not check_crc(view, position, meta.size):
        raise CorruptBatch("the CRC of the batch is wrong")
    if meta.record_count == 0 and meta.size == HEADER_SIZE:
        return meta, b""
    payload = decompress(meta.compression, view[position + HEADER_SIZE : end], limit)
    return meta, bytes(payload)


def _decode(meta: BatchMeta, payload: bytes) -> list[Record]:
    base_offset = meta.base_offset
    base_timestamp = meta.base_timestamp
    append_time = meta.max_timestamp if meta.log_append_time else None
    return [
        _new(
            Record,
            (
                base_offset + offset_delta,
                base_timestamp + timestamp_delta if append_time is None else append_time,
                None if key_size < 0 else payload[key_at : key_at + key_size],
                None if value_size < 0 else payload[value_at : value_at + value_size],
                headers,
            ),
        )
        for (
            _,
            _,
            timestamp_delta,
            offset_delta,
            key_at,
            key_size,
            value_at,
            value_size,
            headers,
        ) in parse_records(payload, meta.record_count)
    ]


def batch_size_bound(key: bytes | None, value: bytes | None, headers: Iterable[Header] = ()) -> int:
    """Return an upper bound of the bytes an uncompressed batch of this one record takes."""
    size = HEADER_SIZE + _MAX_RECORD_OVERHEAD + len(key or b"") + len(value or b"")
    for name, content in headers:
        size += _MAX_HEADER_OVERHEAD + len(name.encode()) + len(content or b"")
    return size


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
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.base_sequence = base_sequence
        self.transactional = transactional
        self.control = control
        self._level = level
        self._payload = bytearray()
        self._count = 0
        self._base_timestamp = NO_TIMESTAMP
        self._max_timestamp = NO_TIMESTAMP

    def __len__(self) -> int:
        return self._count

    @property
    def size(self) -> int:
        """Bytes of the uncompressed batch as it stands, header included."""
        return HEADER_SIZE + len(self._payload)

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
        """
        base = self._base_timestamp if self._count else timestamp
        encoded = encode_record(self._count, timestamp - base, key, value, headers)
        if self.size + len(encoded) > self.max_bytes or self._count == _MAX_RECORDS:
            return False
        self._payload += encoded
        self._count += 1
        self._base_timestamp = base
        self._max_timestamp = max(self._max_timestamp, timestamp)
        return True

    def build(self) -> bytearray:
        """Return the batch; the builder stays as it is. Raises ValueError when it is empty."""
        if self._count == 0:
            raise ValueError("a batch holds at least one record")
        compression = self.compression
        payload: bytes | bytearray = self._payload
        if compression is not CompressionType.NONE:
            payload = compress(compression, payload, self._level)
            if len(payload) >= len(self._payload):
                compression, payload = CompressionType.NONE, self._payload
        attributes = (
            (compression & COMPRESSION_MASK)
            | (TRANSACTIONAL if self.transactional else 0)
            | (CONTROL if self.control else 0)
        )
        meta = BatchMeta(
            base_offset=0,
            last_offset=self._count - 1,
            size=HEADER_SIZE + len(payload),
            leader_epoch=-1,
            attributes=attributes,
            base_timestamp=self._base_timestamp,
            max_timestamp=self._max_timestamp,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            base_sequence=self.base_sequence,
            record_count=self._count,
        )
        return assemble(meta, payload)
