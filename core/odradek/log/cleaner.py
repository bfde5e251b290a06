"""Compaction of one log: keys noted, segments rewritten without the records that have a newer one.

    pass 1   dirty segments ---- windows --> note_window --> OffsetMap
    pass 2   every segment  ---- windows --> clean_window --> PartitionWriter.build --> log.edit

Memory: the map, and a few windows (`odradek.log.cleaning_windows`).

Each group of segments is swapped on its own, oldest first, so a crash or a cancellation between
two groups leaves a log that is compacted in part, and right: records are removed only where a
newer one of their key is in the log, and a tombstone only after the records before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

from attrs import evolve, frozen

from odradek.contracts.storage import Corrupt, Hint, LogEdit, LogSnapshot, OutOfRange, SegmentInfo
from odradek.errors import CorruptBatch
from odradek.log.cleaning_windows import WINDOW, Cleaning, Gate, Source, Windows, joined, note
from odradek.log.compaction import CLEANER_BLOB, CleanerState, Plan, dirty_segments, groups, plan
from odradek.log.lookup import position_of
from odradek.log.partition import PartitionLog
from odradek.log.worker import Worker
from odradek.record import HEADER_SIZE, OffsetMap, parse_header

__all__ = ["Compacted", "Tools", "compact", "state_of", "survey"]

MAX_TIMESTAMP = 2**63 - 1


@frozen
class Tools:
    """What a compaction works with.

    `seed`: 16 random bytes for the hash of keys. `map_bytes`: how much memory the keys may take.
    """

    worker: Worker
    gate: Gate
    seed: bytes
    map_bytes: int


@frozen
class Compacted:
    """What a compaction did. `size_before` and `size_after` are of the segments it went through.

    `read`: bytes read, in both passes. `rewritten`: segments replaced. `cleaned_to`: see
    `CleanerState`. `whole`: whether all that was dirty is clean now; otherwise there were more
    keys than fit into the map, and another pass is due at once. `opaque_from`: an offset at or
    shortly before the first batch that could not be opened, behind which every tombstone stays;
    None if there is no such batch.
    """

    read: int
    size_before: int
    size_after: int
    rewritten: int
    cleaned_to: int
    whole: bool
    opaque_from: int | None


def state_of(log: PartitionLog) -> CleanerState:
    """How far a log is compacted."""
    return CleanerState.load(log.reader().snapshot.blobs.get(CLEANER_BLOB))


async def survey(
    log: PartitionLog, now_ms: int, known: dict[int, int], passed_ms: int | None = None
) -> Plan | None:
    """Return the pass that is due for a log, or None.

    `known`: the timestamps of first batches by segment id, from earlier surveys of the log. They
    are only read where max.compaction.lag.ms is set. `now_ms`, `passed_ms`: see `plan`. Raises
    StorageError, CorruptBatch.
    """
    reader = log.reader()
    settings = log.settings
    snapshot = reader.snapshot
    state = state_of(log)
    found = plan(snapshot, log.high_watermark, settings, state, now_ms, known, passed_ms)
    # A lag that is longer than the time since 1970 is none: nothing can be as old.
    if found is not None or not settings.compacted or settings.max_compaction_lag_ms >= now_ms:
        return found
    dirty = dirty_segments(snapshot, log.high_watermark, settings, state, now_ms)
    wanted = {segment.id for segment in dirty}
    for gone in known.keys() - wanted:
        del known[gone]
    for segment_id in wanted - known.keys():
        with await reader.read(segment_id, 0, HEADER_SIZE, Hint.RANDOM) as data:
            known[segment_id] = parse_header(joined(data)).max_timestamp
    return plan(snapshot, log.high_watermark, settings, state, now_ms, known, passed_ms)


async def compact(
    log: PartitionLog, due: Plan, tools: Tools, *, now_ms: int, proven_ms: int
) -> Compacted | None:
    """Carry out one pass; None when the log changed meanwhile, and has to be planned anew.

    `now_ms`: the time by which delete horizons have passed, so that their tombstones go.
    `proven_ms`: the time from which the delete horizons that are given now count.
    Both are the retention clock's (`odradek.log.clock`), in milliseconds since 1970.

    Raises Corrupt where stored bytes are damaged: what is behind them was not touched, and
    `log.damage` is set. Raises StorageError: Full and Unavailable (later it may do), Fenced,
    Offline. Cancelled, or after an error: groups done so far stay done.
    """
    run = _Compaction(log, due, tools, now_ms, proven_ms)
    try:
        return await run.run()
    except (Corrupt, CorruptBatch) as error:
        log.damage = str(error)
        raise Corrupt(str(error)) from error
    except OutOfRange as error:
        if log.failure is not None or not run.at_work <= set(log.segments):
            return None  # a segment was removed, or the log closed, between two windows
        # Everything is in its place: what is stored contradicts itself, and would again.
        log.damage = str(error)
        raise Corrupt(str(error)) from error


class _Compaction:
    def __init__(
        self, log: PartitionLog, due: Plan, tools: Tools, now_ms: int, proven_ms: int
    ) -> None:
        settings = log.settings
        self.log = log
        self.state = state_of(log)
        self.plan = due
        self.tools = tools
        self.reader = log.reader()
        self.now_ms = now_ms
        self.at_ms = proven_ms
        self.delete_retention_ms = (
            min(proven_ms + settings.delete_retention_ms, MAX_TIMESTAMP) - now_ms
        )
        self.segment_bytes = settings.segment_bytes
        self.linger_ms = settings.file_delete_delay_ms
        self.windows = Windows(log, tools.worker, tools.gate)
        self.at_work: frozenset[SegmentInfo] = frozenset()

    async def run(self) -> Compacted | None:
        due = self.plan
        # The last batch stays too, if only empty: a consumer at an offset behind the last batch of
        # the log, but before the high watermark, would ask again and again and get nothing.
        kept = self.log.producers.last_offsets() | {due.segments[-1].end_offset - 1}
        offsets, end = await self._note()
        if end <= due.dirty_from < due.dirty_to:
            return None
        cleaning = Cleaning(offsets, end, self.now_ms, self.delete_retention_ms, kept)
        before = after = rewritten = 0
        for group in groups(due.segments, end, self.segment_bytes):
            present = {segment.id for segment in self.log.segments}
            left = tuple(segment for segment in group if segment.id in present)
            if not left:
                continue  # retention was faster
            self.at_work = frozenset(left)
            with self.log.holding(segment.id for segment in left):
                old, new, count = await self._clean_group(left, cleaning)
            before += old
            after += new
            rewritten += count
        # A pass that goes on with another ends where that one should have: else a log that is
        # written to would be compacted again and again.
        due_to = self.state.due_to if due.dirty_from < self.state.due_to else due.dirty_to
        state = CleanerState(
            end, cleaning.horizon, self.at_ms, self._touched(end), due_to if end < due_to else 0
        )
        await self.log.edit(lambda _: LogEdit(blobs={CLEANER_BLOB: state.dump()}))
        return Compacted(
            self.windows.read, before, after, rewritten, end, end == due.dirty_to,
            cleaning.opaque_from,
        )  # fmt: skip

    # -- pass 1 ------------------------------------------------------------------------------

    async def _note(self) -> tuple[OffsetMap, int]:
        """Note the keys of the dirty part; return the map, and the offset up to which it goes."""
        due, windows = self.plan, self.windows
        offsets = OffsetMap(
            self.tools.map_bytes,
            due.dirty_from,
            self.tools.seed,
            expected=due.dirty_to - due.dirty_from,
        )
        if due.dirty_from >= due.dirty_to:
            return offsets, due.dirty_to  # tombstones are to go, and nothing else
        for segment in due.segments:
            if segment.end_offset <= due.dirty_from:
                continue
            self.at_work = frozenset((segment,))
            position = 0
            least = segment.base_offset
            if segment.base_offset < due.dirty_from:
                index = await self.log.index_of(segment)
                position = await position_of(self.reader, segment, index, due.dirty_from)
            size = WINDOW
            while position < segment.size:
                with await self.reader.read(segment.id, position, size, Hint.ONCE) as data:
                    bounds = least, segment.end_offset
                    used, following, full, needed = await windows.work(
                        segment,
                        position,
                        data,
                        note,
                        offsets,
                        due.dirty_to,
                        bounds,
                        windows.limit,
                        windows.breathe,
                    )
                position += used
                if full:
                    return offsets, following
                if used:
                    size, least = WINDOW, following
                else:
                    size = await windows.larger(segment, position, size, needed)
        return offsets, due.dirty_to

    # -- pass 2 ------------------------------------------------------------------------------

    async def _clean_group(
        self, group: tuple[SegmentInfo, ...], cleaning: Cleaning
    ) -> tuple[int, int, int]:
        """Rewrite a group of segments into one, if that changes anything.

        Returns its bytes before and after, and how many segments were replaced.
        """
        before = sum(segment.size for segment in group)
        expire = cleaning.expire
        with closing(Source(self.windows, group, cleaning)) as source:
            source.held = await source.read()
            while source.held is not None and not source.held.changed:
                source.held = await source.read()
            changes, number = source.held is not None, source.number
            if source.windows == 1 and changes:
                built = await self._replace(group, source)
                return before, built, len(group)
        if not changes and not self._worth_merging(group):
            return before, before, 0
        left_alone = 0
        if changes and number and 2 * group[0].size >= self.segment_bytes:
            left_alone = group[0].size  # large enough, and nothing in it goes
            group = group[1:]
        else:
            cleaning.expire = expire
        with closing(Source(self.windows, group, cleaning)) as source:
            built = await self._replace(group, source)
        return before, left_alone + built, len(group)

    async def _replace(self, group: Sequence[SegmentInfo], source: Source) -> int:
        """Build what replaces a group and swap it; return its size."""
        built = await source.build()
        await self.log.edit(lambda snapshot: self._swap(snapshot, group, built), holder=True)
        return sum(segment.size for segment in built)

    def _worth_merging(self, group: Sequence[SegmentInfo]) -> bool:
        """Whether a group is rewritten though no record goes.

        Only where all are small: then no byte is copied more often than segments double.
        """
        return len(group) > 1 and all(2 * s.size < self.segment_bytes for s in group)

    def _swap(
        self, snapshot: LogSnapshot, group: Sequence[SegmentInfo], built: Sequence[SegmentInfo]
    ) -> LogEdit:
        gone = {segment.id for segment in group}
        if not gone <= {segment.id for segment in snapshot.segments}:
            raise OutOfRange(f"{self.log.key} began anew while it was compacted")
        touched = evolve(self.state, touched_to=self._touched(group[-1].end_offset))
        return LogEdit(
            remove=tuple(gone),
            add=tuple(built),
            blobs={CLEANER_BLOB: touched.dump()},
            linger_ms=self.linger_ms,
        )

    def _touched(self, end: int) -> int:
        return max(min(self.state.touched_to, self.log.log_end_offset), end)
