"""Finding things in a log: a batch by offset, by size, by timestamp.

A look-up starts at a row of the sparse index and walks batch headers from there. Only the
look-up by timestamp opens a batch, because its answer names a record.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from odradek.contracts.storage import Hint, PartitionReader, SegmentIndex, SegmentInfo
from odradek.errors import KafkaError
from odradek.record import HEADER_SIZE, BatchMeta, decompress, parse_header
from odradek.record.layout import parse_records

if TYPE_CHECKING:
    from odradek.log.partition import PartitionLog

__all__ = ["Found", "Headers", "cut", "first_at_or_after", "newest", "position_of"]

FIRST_WINDOW = 4096
SCAN_WINDOW = 256 * 1024

EXPANSION = 8
"""How many times max.message.bytes a batch may take uncompressed when it is looked into."""


class Found(NamedTuple):
    """A record found by time: its offset, its timestamp in ms, the batch's leader epoch."""

    offset: int
    timestamp: int
    leader_epoch: int


class Headers:
    """A walk over the batch headers of a segment, from a batch boundary on:

        walk = Headers(reader, segment_id, position)
        while await walk.more():
            for meta, position in walk: ...

    Reads windows and skips over the records: the first window is one index interval, because a
    look-up by offset rarely needs more. (No async generator: one that is left half-way needs to
    be closed by hand.)
    """

    def __init__(self, reader: PartitionReader, segment_id: int, position: int) -> None:
        self._reader = reader
        self._segment_id = segment_id
        self._position = position
        self._window = FIRST_WINDOW
        self._held = b""

    async def more(self) -> bool:
        """Read the next window; False at the end. Raises what `PartitionReader.read` raises."""
        with await self._reader.read(
            self._segment_id, self._position, self._window, Hint.RANDOM
        ) as data:
            self._held = b"".join(data.views())
        self._window = SCAN_WINDOW
        return len(self._held) >= HEADER_SIZE

    def __iter__(self) -> Iterator[tuple[BatchMeta, int]]:
        """Yield the headers in the window, with their byte positions. Raises CorruptBatch."""
        held = self._held
        start = self._position
        at = 0
        while at + HEADER_SIZE <= len(held):
            meta = parse_header(held, at)
            yield meta, start + at
            at += meta.size
        self._position = start + at


async def position_of(
    reader: PartitionReader, segment: SegmentInfo, index: SegmentIndex, offset: int
) -> int:
    """Byte position of the first batch that reaches to `offset` or beyond (size if none does)."""
    row = index.floor(offset)
    walk = Headers(reader, segment.id, index.positions[row])
    while await walk.more():
        for meta, position in walk:
            if meta.last_offset >= offset:
                return position
    return segment.size


async def cut(
    reader: PartitionReader,
    segment: SegmentInfo,
    index: SegmentIndex,
    start: int,
    max_bytes: int,
    at_least_one: bool,
) -> tuple[int, int]:
    """End of the whole batches from byte `start` that fit into `max_bytes`: (position, offset).

    An index row where one lies in reach, which costs no I/O; else by headers. With
    `at_least_one` the first batch counts even when it alone is larger.
    """
    row = index.floor_position(start + max_bytes)
    if index.positions[row] > start:
        return index.positions[row], index.offsets[row]
    end, end_offset = start, -1
    walk = Headers(reader, segment.id, start)
    while await walk.more():
        for meta, position in walk:
            following = position + meta.size
            if following - start > max_bytes and not (at_least_one and position == start):
                return end, end_offset
            end, end_offset = following, meta.last_offset + 1
            if following - start >= max_bytes:
                return end, end_offset
    return end, end_offset


async def first_at_or_after(log: PartitionLog, timestamp: int) -> Found | None:
    """First committed record whose timestamp is `timestamp` (ms) or later, or None (KIP-79)."""
    reader = log.reader()
    for segment in log.segments:
        if segment.max_timestamp < timestamp or segment.end_offset <= log.log_start_offset:
            continue
        index = await log.index_of(segment)
        walk = Headers(reader, segment.id, index.positions[index.floor_timestamp(timestamp)])
        while await walk.more():
            for meta, position in walk:
                if meta.max_timestamp < timestamp or meta.last_offset < log.log_start_offset:
                    continue
                for offset, stamp in await _timestamps(log, segment.id, meta, position):
                    if stamp >= timestamp and offset >= log.log_start_offset:
                        if offset >= log.high_watermark:
                            return None
                        return Found(offset, stamp, meta.leader_epoch)
    return None


async def newest(log: PartitionLog) -> Found | None:
    """The first committed record with the largest timestamp of them all, or None (KIP-734)."""
    candidates = [
        s for s in log.segments if s.max_timestamp >= 0 and s.end_offset > log.log_start_offset
    ]
    if not candidates:
        return None
    largest = max(segment.max_timestamp for segment in candidates)
    found = await first_at_or_after(log, largest)
    if found is not None:
        return found
    # Compaction emptied the batch that has it and kept the timestamp in the header, or the record
    # is below the log start, or not committed yet.
    largest = await _largest_timestamp(log, candidates)
    return None if largest < 0 else await first_at_or_after(log, largest)


async def _largest_timestamp(log: PartitionLog, segments: Iterable[SegmentInfo]) -> int:
    """The largest timestamp of a committed record from the log start on; -1 for none.

    By the headers; only the batch that the log start lies in is opened.
    """
    start, end = log.log_start_offset, log.high_watermark
    largest = -1
    for segment in sorted(segments, key=lambda s: s.max_timestamp, reverse=True):
        if segment.max_timestamp <= largest:
            break
        walk = Headers(log.reader(), segment.id, 0)
        while await walk.more():
            for meta, position in walk:
                if not meta.record_count or meta.last_offset < start or meta.base_offset >= end:
                    continue
                if meta.max_timestamp <= largest:
                    continue
                if meta.base_offset >= start:
                    largest = meta.max_timestamp
                    continue
                for offset, stamp in await _timestamps(log, segment.id, meta, position):
                    if offset >= start:
                        largest = max(largest, stamp)
    return largest


async def _timestamps(
    log: PartitionLog, segment_id: int, meta: BatchMeta, position: int
) -> Iterable[tuple[int, int]]:
    """The (offset, timestamp) of each record, decoded as they are asked for.

    A batch that has one time for all, cannot be opened, or is a bomb, counts as one record at its
    first offset that may be read: a consumer then starts a little early, which loses nothing.
    """
    if not meta.record_count:
        return []  # compaction emptied it
    whole = (max(meta.base_offset, log.log_start_offset), meta.max_timestamp)
    if meta.log_append_time:
        return [whole]
    with await log.reader().read(segment_id, position, meta.size, Hint.RANDOM) as data:
        batch = memoryview(b"".join(data.views()))
    limit = EXPANSION * log.settings.max_message_bytes
    try:
        payload = bytes(decompress(meta.compression, batch[HEADER_SIZE:], limit))
    except KafkaError:
        return [whole]
    return _walk(meta, payload, whole)


def _walk(meta: BatchMeta, payload: bytes, whole: tuple[int, int]) -> Iterator[tuple[int, int]]:
    try:
        for record in parse_records(payload, meta.record_count):
            yield (
                meta.base_offset + record.offset_delta,
                meta.base_timestamp + record.timestamp_delta,
            )
    except KafkaError:
        yield whole
