"""Where in its segments a log's offsets lie, and reading from there."""

from __future__ import annotations

from odradek.contracts.storage import (
    DataRef,
    Hint,
    OutOfRange,
    PartitionReader,
    SegmentIndex,
    SegmentInfo,
)
from odradek.log.active import ActiveSegment
from odradek.log.index_cache import IndexCache
from odradek.log.lookup import cut, position_of
from odradek.types import PartitionKey

__all__ = ["Positions"]

CURSORS_KEPT = 16


class Positions:
    """Leads from offsets to bytes: by a cursor, or the segments' offsets and a sparse index.

    `cursors`: segment and position where each of the last reads ended, by offset. The next fetch
    of a consumer starts there and needs no look-up at all.
    """

    __slots__ = ("_active", "_indexes", "_key", "_reader", "cursors")

    def __init__(
        self, key: PartitionKey, reader: PartitionReader, indexes: IndexCache, active: ActiveSegment
    ) -> None:
        self._key = key
        self._reader = reader
        self._indexes = indexes
        self._active = active
        self.cursors: dict[int, tuple[int, int]] = {}

    async def read(
        self,
        offset: int,
        max_bytes: int,
        at_least_one: bool,
        watermark: int,
        watermark_segment: int,
        watermark_position: int,
    ) -> DataRef | None:
        """Return whole batches below the high watermark, from the one that holds `offset` on.

        The watermark, and where it lies, are of one moment: a cursor that paired it with a later
        position would lead the next reader past what was committed in between. None where there
        is nothing. Raises OutOfRange when the segment went away, StorageError.
        """
        cursor = self.cursors.pop(offset, None)
        segment = self._segment(offset) if cursor is None else self._present(cursor[0])
        if cursor is not None and cursor[1] >= segment.size and segment.sealed:
            cursor = None  # it was the end of the log, and a new segment has begun since
            segment = self._segment(offset)
        index = await self.index(segment)
        position = cursor[1] if cursor else await position_of(self._reader, segment, index, offset)
        end = segment.size
        end_offset = segment.end_offset
        if segment.id == watermark_segment:
            end = watermark_position
            end_offset = watermark
        if end - position > max_bytes:
            max_bytes = max(max_bytes, 0)
            end, end_offset = await cut(
                self._reader, segment, index, position, max_bytes, at_least_one
            )
        if end <= position:
            return None
        tail = segment.id == self._active.id
        hint = Hint.TAIL if tail else Hint.SCAN
        data = await self._reader.read(segment.id, position, end - position, hint)
        if not tail and end == segment.size:
            self._remember(end_offset, self._segment(end_offset).id, 0)
        else:
            self._remember(end_offset, segment.id, end)
        return data

    def _segment(self, offset: int) -> SegmentInfo:
        """The segment that holds an offset."""
        segments = self._reader.snapshot.segments
        low, high = 0, len(segments)
        while high - low > 1:
            middle = (low + high) // 2
            if segments[middle].base_offset <= offset:
                low = middle
            else:
                high = middle
        # Compaction leaves gaps: the offset may lie behind the last batch of its segment.
        if offset >= segments[low].end_offset and low + 1 < len(segments):
            low += 1
        return segments[low]

    def _present(self, segment_id: int) -> SegmentInfo:
        """The segment that a cursor points into. Raises OutOfRange."""
        for segment in reversed(self._reader.snapshot.segments):
            if segment.id == segment_id:
                return segment
        raise OutOfRange(f"segment {segment_id} is gone")

    def _remember(self, offset: int, segment_id: int, position: int) -> None:
        cursors = self.cursors
        if len(cursors) >= CURSORS_KEPT:
            del cursors[next(iter(cursors))]
        cursors[offset] = (segment_id, position)

    async def index(self, segment: SegmentInfo) -> SegmentIndex:
        """Return the index of a segment, from memory where possible. Raises StorageError."""
        active = self._active
        if segment.id != active.id:
            return await self._indexes.get(self._key, self._reader, segment.id)
        index = active.index
        if index is None:
            index = await self._reader.index(segment.id)
            if segment.id != active.id:
                return index  # rolled meanwhile
            if not len(index):
                index.add(segment.base_offset, 0, -1)
            active.index = index
        return index

    def forget(self, segment_id: int | None = None) -> None:
        """Drop from memory the index of a segment that is gone, or of all of them."""
        self._indexes.forget(self._key, segment_id)
