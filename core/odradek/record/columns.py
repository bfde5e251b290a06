"""Record batches straight into columns, without an object for each record."""

from __future__ import annotations

from typing import Final

from odradek.errors import CorruptBatch
from odradek.record import kernel
from odradek.record.column import BinaryColumn, Columns, HeaderColumn
from odradek.record.records import DECOMPRESSED_LIMIT, open_batch
from odradek.record.scan import scan
from odradek.types import Buffer

__all__ = ["MAX_COLUMN_BYTES", "BinaryColumn", "Columns", "HeaderColumn", "decode_columns"]

MAX_COLUMN_BYTES: Final = 2**31 - 1
"""Arrow's offsets are int32: no column can hold more."""

_FIRST_OFFSET: Final = -(2**63)
_LAST_OFFSET: Final = 2**63 - 1


def decode_columns(
    view: Buffer,
    position: int = 0,
    *,
    start_offset: int | None = None,
    end_offset: int | None = None,
    headers: bool = False,
    verify: bool = True,
    limit: int = DECOMPRESSED_LIMIT,
    max_bytes: int = MAX_COLUMN_BYTES,
) -> Columns:
    """Return the records of the consecutive batches from `position` on, as columns.

    Records before `start_offset` (inclusive) and from `end_offset` on (exclusive) are left out, as
    are control batches, and an incomplete batch at the end, as fetch responses may end in one.
    Whether a transaction was aborted is not looked at. `headers` says whether they are wanted.

    `limit` bounds what one batch may take uncompressed, in bytes, and `max_bytes`, at most 2 GiB
    less one, what all may together: decoding stops before the batch that would exceed it, but not
    before the first. Go on at `columns.position`, which is `position` itself when not one whole
    batch is there.

    Raises like `decode_records` when any batch that is reached is damaged: nothing is returned
    then of those before it either.
    """
    window = memoryview(view)
    found = scan(window, position=position, verify=False)
    collector = kernel.active.ColumnCollector(headers)
    start = _FIRST_OFFSET if start_offset is None else max(start_offset, _FIRST_OFFSET)
    end = _LAST_OFFSET if end_offset is None else min(end_offset, _LAST_OFFSET)
    room = min(max_bytes, MAX_COLUMN_BYTES)
    limit = min(limit, MAX_COLUMN_BYTES)
    first = True
    for meta, at in zip(found.metas, found.positions, strict=True):
        if not meta.control and meta.last_offset >= start and meta.base_offset < end:
            _, payload = open_batch(window, at, verify, limit)
            room -= len(payload)
            if room < 0 and not first:
                return collector.finish(at)
            first = False
            append_time = meta.max_timestamp if meta.log_append_time else None
            collector.add(
                payload,
                meta.record_count,
                meta.base_offset,
                meta.base_timestamp,
                append_time,
                start,
                end,
            )
    if found.problem is not None and found.problem.kind == "corrupt":
        raise CorruptBatch(f"{found.problem.text} (at byte {found.problem.position})")
    return collector.finish(found.end)
