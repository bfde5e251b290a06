"""What every store checks in the same way before it changes anything: pure, for implementers."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType

from attrs import evolve

from odradek.contracts.storage import (
    MAX_BLOB_BYTES,
    Chunk,
    LogEdit,
    OutOfRange,
    SegmentInfo,
)

__all__ = ["check_chunk", "edited", "edited_blobs"]


def check_chunk(chunk: Chunk, end_offset: int) -> int:
    """Return the length of a chunk in bytes, if a log that ends at `end_offset` may take it.

    For implementers. Raises ValueError as `PartitionWriter.append` says.
    """
    size = 0
    following = end_offset
    for meta in chunk.batches:
        if meta.base_offset < following or meta.last_offset < meta.base_offset:
            raise ValueError(
                f"a batch of offsets {meta.base_offset} to {meta.last_offset} cannot follow "
                f"offset {following - 1}"
            )
        size += meta.size
        following = meta.last_offset + 1
    given = sum(map(len, chunk.buffers))
    if given != size or not size:
        raise ValueError(f"the buffers hold {given} bytes, the batches {size}")
    return size


def _order(segment: SegmentInfo) -> tuple[int, bool]:
    return segment.base_offset, not segment.sealed


def edited(
    segments: Sequence[SegmentInfo], log_start: int, edit: LogEdit, built: Mapping[int, object]
) -> tuple[tuple[SegmentInfo, ...], int]:
    """Return the segments and the log start that an edit leaves; `built` is keyed by segment id.

    For implementers: everything `commit` checks that needs no I/O. Segments that are added have
    their `created_ms` here as it is to be kept. Raises OutOfRange.
    """
    by_id = {segment.id: segment for segment in segments}
    removed = []
    for segment_id in edit.remove:
        segment = by_id.pop(segment_id, None)
        if segment is None or not segment.sealed:
            raise OutOfRange(f"segment {segment_id} is not a sealed segment of this log")
        removed.append(segment)
    added = []
    for segment in edit.add:
        if segment.id not in built:
            raise OutOfRange(f"segment {segment.id} was not built by this writer")
        if not removed or not (
            min(s.base_offset for s in removed) <= segment.base_offset
            and segment.end_offset <= max(s.end_offset for s in removed)
        ):
            raise OutOfRange(f"segment {segment.id} lies outside of the segments it replaces")
        added.append(evolve(segment, created_ms=max(s.created_ms for s in removed)))
    # The rest is in order: of thousands of segments only the neighbours are looked at.
    result = list(by_id.values())
    for segment in added:
        at = bisect_left(result, _order(segment), key=_order)
        for left, right in pairwise([*result[max(at - 1, 0) : at], segment, *result[at : at + 1]]):
            if left.end_offset > right.base_offset:
                raise OutOfRange(f"segments {left.id} and {right.id} would overlap")
        result.insert(at, segment)
    start = log_start if edit.log_start is None else edit.log_start
    if not log_start <= start <= result[-1].end_offset:
        raise OutOfRange(f"log start {start} is not within [{log_start}, {result[-1].end_offset}]")
    return tuple(result), start


def edited_blobs(blobs: Mapping[str, bytes], edit: LogEdit) -> Mapping[str, bytes]:
    """Return the blobs that an edit leaves. For implementers; raises ValueError over the bound."""
    if not edit.blobs:
        return blobs
    result = dict(blobs)
    for name, value in edit.blobs.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = bytes(value)
    total = sum(map(len, result.values()))
    if total > MAX_BLOB_BYTES:
        raise ValueError(f"the blobs would take {total} bytes, more than {MAX_BLOB_BYTES}")
    return MappingProxyType(result)
