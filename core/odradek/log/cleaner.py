"""Compaction of one log: keys noted, segments rewritten without the records that have a newer one.

    pass 1   dirty segments ---- windows --> note_window --> OffsetMap
    pass 2   every segment  ---- windows --> clean_window --> PartitionWriter.build --> log.edit

A window is a MiB of a segment, or one batch that is larger. It is read and worked on in a worker;
the event loop only hands windows over. Memory: the map, and a few windows.

Each group of segments is swapped on its own, oldest first, so a crash or a cancellation between
two groups leaves a log that is compacted in part, and right: records are removed only where a
newer one of their key is in the log, and a tombstone only after the records before it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from typing import NamedTuple, Protocol, TypeVar, TypeVarTuple

from attrs import evolve, frozen

from odradek.contracts.storage import (
    MAX_RELATIVE_OFFSET,
    Chunk,
    Corrupt,
    DataRef,
    Hint,
    LogEdit,
    LogSnapshot,
    OutOfRange,
    SegmentInfo,
)
from odradek.errors import CorruptBatch
from odradek.log.compaction import CLEANER_BLOB, CleanerState, Plan, dirty_segments, groups, plan
from odradek.log.lookup import EXPANSION, position_of
from odradek.log.partition import PartitionLog
from odradek.log.worker import Worker
from odradek.record import (
    HEADER_SIZE,
    BatchMeta,
    CorruptWindow,
    OffsetMap,
    clean_window,
    note_window,
    parse_header,
    scan,
)
from odradek.types import Buffer

__all__ = ["Compacted", "Tools", "compact", "state_of", "survey"]

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

WINDOW = 1024 * 1024
"""Bytes read at a time. A few milliseconds of work: small enough to make way, large enough that
handing it to the worker (0.1 ms) does not count."""

MIN_LIMIT = 1024 * 1024
MAX_TIMESTAMP = 2**63 - 1
MAX_POSITION = 2**31 - 1
"""How large a segment may be: positions in Kafka's indexes are 32-bit."""


class Gate(Protocol):
    """Keeps the pace."""

    async def __call__(self, size: int) -> None:
        """Return when work may go on, after `size` bytes were read, or before they are written."""


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
    keys than fit into the map, and another pass is due.
    """

    read: int
    size_before: int
    size_after: int
    rewritten: int
    cleaned_to: int
    whole: bool


def state_of(log: PartitionLog) -> CleanerState:
    """How far a log is compacted."""
    return CleanerState.load(log.reader().snapshot.blobs.get(CLEANER_BLOB))


async def survey(log: PartitionLog, now_ms: int, known: dict[int, int]) -> Plan | None:
    """Return the pass that is due for a log, or None.

    `known`: the timestamps of first batches by segment id, from earlier surveys of the log. They
    are only read where max.compaction.lag.ms is set. Raises StorageError, CorruptBatch.
    """
    reader = log.reader()
    settings = log.settings
    snapshot = reader.snapshot
    state = state_of(log)
    found = plan(snapshot, log.high_watermark, settings, state, now_ms, known)
    # A lag that is longer than the time since 1970 is none: nothing can be as old.
    if found is not None or not settings.compacted or settings.max_compaction_lag_ms >= now_ms:
        return found
    dirty = dirty_segments(snapshot, log.high_watermark, settings, state, now_ms)
    wanted = {segment.id for segment in dirty}
    for gone in known.keys() - wanted:
        del known[gone]
    for segment_id in wanted - known.keys():
        with await reader.read(segment_id, 0, HEADER_SIZE, Hint.RANDOM) as data:
            known[segment_id] = parse_header(_joined(data)).max_timestamp
    return plan(snapshot, log.high_watermark, settings, state, now_ms, known)


async def compact(
    log: PartitionLog, due: Plan, tools: Tools, *, now_ms: int, proven_ms: int
) -> Compacted | None:
    """Carry out one pass; None when the log changed meanwhile, and has to be planned anew.

    `now_ms`: the time by which things are old, so that tombstones whose delete horizon it has
    reached go. `proven_ms`: the time from which the delete horizons that are given now count.
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
    except OutOfRange:
        return None  # a segment was removed, or the log closed, between two windows


class _Window(NamedTuple):
    """What stays of a window. `needed`: how large it must be when not even one batch fitted."""

    position: int
    needed: int
    metas: list[BatchMeta]
    buffers: list[Buffer]
    changed: bool
    horizon: int | None
    opaque: bool


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
        self.limit = EXPANSION * max(settings.max_message_bytes, MIN_LIMIT)
        self.expire = True
        self.horizon: int | None = None
        self.read = 0
        self.kept: frozenset[int] = frozenset()

    async def run(self) -> Compacted | None:
        due = self.plan
        # The last batch stays too, if only empty: a consumer at an offset behind the last batch of
        # the log, but before the high watermark, would ask again and again and get nothing.
        self.kept = self.log.producers.last_offsets() | {due.segments[-1].end_offset - 1}
        offsets, end = await self._note()
        if end <= due.dirty_from < due.dirty_to:
            return None
        before = after = rewritten = 0
        for group in groups(due.segments, end, self.segment_bytes):
            present = {segment.id for segment in self.log.segments}
            left = tuple(segment for segment in group if segment.id in present)
            if not left:
                continue  # retention was faster
            with self.log.holding(segment.id for segment in left):
                old, new, count = await self._clean_group(left, offsets, end)
            before += old
            after += new
            rewritten += count
        state = CleanerState(end, self.horizon, self.at_ms, self._touched(end))
        await self.log.edit(lambda _: LogEdit(blobs={CLEANER_BLOB: state.dump()}))
        return Compacted(self.read, before, after, rewritten, end, end == due.dirty_to)

    # -- windows -----------------------------------------------------------------------------

    async def _work(
        self,
        segment: SegmentInfo,
        position: int,
        data: DataRef,
        function: Callable[[DataRef, *Ts], T],
        *args: *Ts,
    ) -> T:
        """Have a function called on bytes of a segment, in the worker, and keep the pace."""
        try:
            result = await self.tools.worker.run(function, data, *args)
        except CorruptWindow as error:
            raise CorruptBatch(
                f"segment {segment.id} of {self.log.key} (offsets {segment.base_offset} to "
                f"{segment.end_offset - 1}) is damaged at byte {position + error.position}: "
                f"{error.detail}"
            ) from None
        self.read += len(data)
        await self.tools.gate(len(data))
        return result

    def _larger(self, segment: SegmentInfo, position: int, size: int, needed: int) -> int:
        """Return the size of the window that has one whole batch. Raises CorruptBatch."""
        left = segment.size - position
        if size < needed <= left and needed <= self.limit:
            return needed
        raise CorruptBatch(
            f"segment {segment.id} of {self.log.key} (offsets {segment.base_offset} to "
            f"{segment.end_offset - 1}) is damaged at byte {position}: a batch of {needed} bytes "
            f"where {left} are left, and none was to be larger than {self.limit}"
        )

    # -- pass 1 ------------------------------------------------------------------------------

    async def _note(self) -> tuple[OffsetMap, int]:
        """Note the keys of the dirty part; return the map, and the offset up to which it goes."""
        due = self.plan
        offsets = OffsetMap(
            self.tools.map_bytes,
            due.dirty_from,
            self.tools.seed,
            expected=due.dirty_to - due.dirty_from,
        )
        for segment in due.segments:
            if segment.end_offset <= due.dirty_from:
                continue
            position = 0
            if segment.base_offset < due.dirty_from:
                index = await self.log.index_of(segment)
                position = await position_of(self.reader, segment, index, due.dirty_from)
            size = WINDOW
            while position < segment.size:
                with await self.reader.read(segment.id, position, size, Hint.ONCE) as data:
                    used, following, full, needed = await self._work(
                        segment, position, data, _note, offsets, due.dirty_to, self.limit
                    )
                position += used
                if full:
                    return offsets, following
                size = WINDOW if used else self._larger(segment, position, size, needed)
        return offsets, due.dirty_to

    # -- pass 2 ------------------------------------------------------------------------------

    async def _clean_group(
        self, group: tuple[SegmentInfo, ...], offsets: OffsetMap, end: int
    ) -> tuple[int, int, int]:
        """Rewrite a group of segments into one, if that changes anything.

        Returns its bytes before and after, and how many segments were replaced.
        """
        before = sum(segment.size for segment in group)
        expire = self.expire
        with closing(_Source(self, group, offsets, end)) as source:
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
            self.expire = expire
        with closing(_Source(self, group, offsets, end)) as source:
            built = await self._replace(group, source)
        return before, left_alone + built, len(group)

    async def _replace(self, group: Sequence[SegmentInfo], source: _Source) -> int:
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


class _Source:
    """The batches of a group of segments, as they stay.

    `held`: a window that was read and is not given away yet. `windows`: how many were read.
    `number`: the segment that the last one was of.
    """

    def __init__(
        self, run: _Compaction, group: Sequence[SegmentInfo], offsets: OffsetMap, end: int
    ) -> None:
        self.run = run
        self._group = group
        self._offsets = offsets
        self._end = end
        self._position = 0
        self._size = WINDOW
        self._data: DataRef | None = None
        self.held: _Window | None = None
        self.windows = 0
        self.number = 0

    def close(self) -> None:
        """Let go of the bytes of the last window."""
        if self._data is not None:
            self._data.close()
            self._data = None

    async def read(self) -> _Window | None:
        """Return what stays of the next window, None at the end. The one before must be written."""
        run = self.run
        while True:
            segment = self._group[self.number]
            if self._position >= segment.size:
                if self.number + 1 == len(self._group):
                    return None
                self.number += 1
                self._position = 0
                continue
            self.close()
            data = await run.reader.read(segment.id, self._position, self._size, Hint.ONCE)
            self._data = data
            window = await run._work(
                segment, self._position, data, _clean, self._offsets, self._end,
                segment.end_offset > self._end, run.now_ms, run.delete_retention_ms, run.kept,
                run.limit, run.expire,
            )  # fmt: skip
            if not window.position:
                self._size = run._larger(segment, self._position, self._size, window.needed)
                continue
            self._size = WINDOW
            self._position += window.position
            self.windows += 1
            # One that has passed already belongs to tombstones that may never go (see `expire`).
            if run.expire and window.horizon is not None and window.horizon >= run.now_ms:
                run.horizon = min(run.horizon or window.horizon, window.horizon)
            if window.opaque:
                run.expire = False
            return window

    async def more(self) -> bool:
        """Whether a window with batches is held; reads on until there is one."""
        while self.held is None or not self.held.metas:
            self.held = await self.read()
            if self.held is None:
                return False
        return True

    async def build(self) -> list[SegmentInfo]:
        """Build as many segments as it takes: one, but for the largest."""
        built = []
        while await self.more():
            built.append(await self.run.reader.build(_Chunks(self)))
        return built


class _Chunks:
    """The chunks of one segment. (No async generator: one that is left half-way has to be closed
    by hand.)"""

    def __init__(self, source: _Source) -> None:
        self._source = source
        self._base = -1
        self._size = 0

    def __aiter__(self) -> _Chunks:
        return self

    async def __anext__(self) -> Chunk:
        if not await self._source.more():
            raise StopAsyncIteration
        window = self._source.held
        assert window is not None
        if self._base < 0:
            self._base = window.metas[0].base_offset
        size = sum(meta.size for meta in window.metas)
        self._size += size
        if self._size > MAX_POSITION or (
            window.metas[-1].last_offset - self._base > MAX_RELATIVE_OFFSET
        ):
            raise StopAsyncIteration
        await self._source.run.tools.gate(size)
        self._source.held = None
        return Chunk(window.metas, window.buffers)


# -- in the worker ---------------------------------------------------------------------------


def _joined(data: DataRef) -> memoryview:
    views = data.views()
    return views[0] if len(views) == 1 else memoryview(b"".join(views))


def _needed(view: memoryview, position: int) -> int:
    """The size of the batch at the beginning of a window in which no batch is whole."""
    if position or len(view) < HEADER_SIZE:
        return HEADER_SIZE
    return parse_header(view).size


def _note(data: DataRef, offsets: OffsetMap, end: int, limit: int) -> tuple[int, int, bool, int]:
    """Note a window's keys: bytes used, offset that follows, full, bytes needed."""
    view = _joined(data)
    noted = note_window(view, offsets, end, limit=limit)
    return noted.position, noted.next_offset, noted.full, _needed(view, noted.position)


def _clean(
    data: DataRef,
    offsets: OffsetMap,
    end: int,
    beyond: bool,
    now_ms: int,
    delete_retention_ms: int,
    kept: frozenset[int],
    limit: int,
    expire: bool,
) -> _Window:
    """Clean a window. `beyond`: the segment goes beyond `end`, and is copied from there on."""
    view = _joined(data)
    cleaned = clean_window(
        view,
        offsets,
        end_offset=end,
        now_ms=now_ms,
        delete_retention_ms=delete_retention_ms,
        last_of_producers=kept,
        limit=limit,
        expire=expire,
    )
    position, metas, buffers = cleaned.position, cleaned.metas, cleaned.buffers
    if beyond:
        rest = scan(view, position=position)
        if rest.problem is not None and rest.problem.kind == "corrupt":
            raise CorruptWindow(rest.problem.text, rest.problem.position)
        # Where the window ends inside of a batch below `end`, there is nothing to copy yet.
        if rest.metas:
            metas = [*metas, *rest.metas]
            buffers = [*buffers, view[position : rest.end]]
            position = rest.end
    return _Window(
        position,
        _needed(view, position),
        metas,
        buffers,
        cleaned.changed,
        cleaned.horizon,
        cleaned.opaque > 0,
    )
