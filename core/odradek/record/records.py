"""Records in and out of batches: for clients, tools, and the few settings that look at records.

Which bytes a batch has is decided here; what they hold is read by the implementation in force
(`odradek.record.kernel`). The broker's hot path never comes here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, TypeVar

from odradek.errors import CorruptBatch
from odradek.record import kernel
from odradek.record.batch import (
    DELETE_HORIZON,
    HEADER_SIZE,
    BatchMeta,
    assemble,
    check_crc,
    parse_header,
)
from odradek.record.compression import CompressionType, compress, decompress
from odradek.record.layout import Record, shift_timestamp
from odradek.record.scan import scan
from odradek.types import Buffer

__all__ = [
    "DECOMPRESSED_LIMIT",
    "decode_records",
    "filter_batch",
    "iter_records",
    "open_batch",
    "widen_records",
]

T = TypeVar("T")

DECOMPRESSED_LIMIT: Final = 128 * 1024 * 1024
"""What a batch may decompress to, in bytes, for a reader that names no limit of its own."""


def decode_records(
    view: Buffer, position: int = 0, *, verify: bool = True, limit: int = DECOMPRESSED_LIMIT
) -> list[Record]:
    """Return the records of the one batch that starts at `position`.

    `verify` checks the CRC. Raises CorruptBatch when the batch is damaged or not whole in `view`,
    and KafkaError as `decompress` does: MESSAGE_TOO_LARGE when the records take more than `limit`
    bytes uncompressed, UNSUPPORTED_COMPRESSION_TYPE for a codec Kafka does not have.
    """
    meta, payload = open_batch(memoryview(view), position, verify, limit)
    return _decode(meta, payload)


def widen_records(
    kind: type[T], before: tuple[object, ...], records: list[Record], after: tuple[object, ...]
) -> list[T]:
    """Return records as tuples of `kind`, with the fields `before` and `after` around theirs.

    For whoever hands out records under a name of its own: several times faster than to build them
    one by one. `kind` is a named tuple of just so many fields, and what is around holds no
    reference to it. Raises TypeError.
    """
    return kernel.active.widen(kind, before, records, after)


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
    meta, payload = open_batch(memoryview(view), 0, True, limit)
    parsed = kernel.active.parse_records(payload, meta.record_count)
    records = zip(parsed, _decode(meta, payload), strict=True)
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


def open_batch(
    view: memoryview, position: int, verify: bool, limit: int
) -> tuple[BatchMeta, memoryview]:
    """Return the header and the uncompressed payload of a batch; raise as `decode_records`.

    The payload of a batch that is not compressed is a part of `view`.
    """
    meta = parse_header(view, position)
    end = position + meta.size
    if end > len(view):
        raise CorruptBatch(f"a batch of {meta.size} bytes where {len(view) - position} are left")
    if meta.record_count < 0:
        raise CorruptBatch(f"the batch has a record count of {meta.record_count}")
    if verify and not check_crc(view, position, meta.size):
        raise CorruptBatch("the CRC of the batch is wrong")
    if meta.record_count == 0 and meta.size == HEADER_SIZE:
        return meta, memoryview(b"")
    return meta, decompress(meta.compression, view[position + HEADER_SIZE : end], limit)


def _decode(meta: BatchMeta, payload: Buffer) -> list[Record]:
    return kernel.active.decode(
        payload,
        meta.record_count,
        meta.base_offset,
        meta.base_timestamp,
        meta.max_timestamp if meta.log_append_time else None,
    )
