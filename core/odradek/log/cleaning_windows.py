"""The windows that compaction reads a log by, and what stays of them.

A window is a MiB of a segment, or one batch that is larger. It is read and worked on in a worker;
the event loop only hands it over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, TypeVar, TypeVarTuple

from attrs import define

from odradek.contracts.storage import MAX_RELATIVE_OFFSET, Chunk, DataRef, Hint, SegmentInfo
from odradek.errors import CorruptBatch
from odradek.log.partition import PartitionLog
from odradek.log.worker import Worker
from odradek.record import (
    HEADER_SIZE,
    BatchMeta,
    CorruptWindow,
    OffsetMap,
    clean_window,
    crc32c,
    note_window,
    parse_header,
    scan,
)
from odradek.record.batch import ATTRIBUTES_POSITION, CRC_POSITION
from odradek.record.windows import no_breath
from odradek.types import Buffer

__all__ = ["WINDOW", "Cleaning", "Gate", "Source", "Windows", "joined", "note"]

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

WINDOW = 1024 * 1024
"""Bytes read at a time. A few milliseconds of work: small enough to make way, large enough that
handing it to the worker (0.1 ms) does not count."""

LIMIT = 10 * 1024 * 1024
"""The most bytes that a batch may take uncompressed to be opened, whatever max.message.bytes is.
Three times that are in memory at most: the batch as it is read, opened, and as it stays."""

MANY = 2048
"""Batches in a window from which on the next one is smaller. Each costs the thread that answers
requests some 2 us, in one go."""

MIN_WINDOW = 64 * 1024
MAX_POSITION = 2**31 - 1
"""How large a segment may be: positions in Kafka's indexes are 32-bit."""


class Gate(Protocol):
    """Keeps the pace."""

    async def __call__(self, size: int) -> None:
        """Return when work may go on, after `size` bytes were read, or before they are written."""


class Windows:
    """Has windows of one log worked on, at the gate's pace.

    `limit`: the most bytes that the records of a batch may take uncompressed. `read`: bytes read.
    `breathe`: what functions call that hold the GIL for long, see `Worker`.
    """

    def __init__(self, log: PartitionLog, worker: Worker, gate: Gate) -> None:
        self.reader = log.reader()
        self.gate = gate
        self.limit = LIMIT
        self.breathe = worker.breathe
        self.read = 0
        self._key = log.key
        self._worker = worker

    async def work(
        self,
        segment: SegmentInfo,
        position: int,
        data: DataRef,
        function: Callable[[DataRef, *Ts], T],
        *args: *Ts,
    ) -> T:
        """Have a function called on bytes of a segment, in the worker, and keep the pace."""
        try:
            result = await self._worker.run(function, data, *args)
        except CorruptWindow as error:
            raise self._damaged(segment, position + error.position, error.detail) from None
        self.read += len(data)
        await self.gate(len(data))
        return result

    async def larger(self, segment: SegmentInfo, position: int, size: int, needed: int) -> int:
        """Return the size of the window that has one whole batch. Raises CorruptBatch.

        A length that is no longer usual, because of damage or because max.message.bytes was
        lowered, is believed only when the CRC says so: nothing of that size is held before.
        """
        left = segment.size - position
        if needed <= size or needed > left:
            raise self._damaged(
                segment, position, f"a batch of {needed} bytes, {left} are left, ends elsewhere"
            )
        if needed > self.limit and not await self._has_right_crc(segment, position, needed):
            raise self._damaged(
                segment, position, f"the CRC of a batch of {needed} bytes is wrong, or its length"
            )
        return needed

    async def _has_right_crc(self, segment: SegmentInfo, position: int, size: int) -> bool:
        """Check a batch window by window."""
        with await self.reader.read(segment.id, position, HEADER_SIZE, Hint.ONCE) as data:
            head = await self.work(segment, position, data, _copied)
        crc = crc32c(head[ATTRIBUTES_POSITION:])
        at, end = position + HEADER_SIZE, position + size
        while at < end:
            with await self.reader.read(segment.id, at, min(WINDOW, end - at), Hint.ONCE) as data:
                if not len(data):
                    return False
                crc = await self.work(segment, at, data, _crc_after, crc)
                at += len(data)
        return crc == int.from_bytes(head[CRC_POSITION:ATTRIBUTES_POSITION], "big")

    def _damaged(self, segment: SegmentInfo, position: int, detail: str) -> CorruptBatch:
        return CorruptBatch(
            f"segment {segment.id} of {self._key} (offsets {segment.base_offset} to "
            f"{segment.end_offset - 1}) is damaged at byte {position}: {detail}"
        )


@define
class Cleaning:
    """By what a pass decides which records go, and what it has learnt on the way.

    `offsets`: the newest offset of each key, noted up to `end`. `kept`: last offsets of batches
    that stay, if only empty. `expire`: whether tombstones may still go: not once a batch could not
    be opened, which may hold a record that a later tombstone deletes. `horizon`: the earliest
    delete horizon of a tombstone that stays. `opaque_from`: an offset at or shortly before the
    first batch that could not be opened. A worker reads this; it changes between two windows.
    """

    offsets: OffsetMap
    end: int
    now_ms: int
    delete_retention_ms: int
    kept: frozenset[int]
    expire: bool = True
    horizon: int | None = None
    opaque_from: int | None = None


class _Window(NamedTuple):
    """What stays of a window. `needed`: how large it must be when not even one batch fitted.

    `following`: no batch after it begins below this offset.
    """

    position: int
    needed: int
    following: int
    metas: list[BatchMeta]
    buffers: list[Buffer]
    changed: bool
    horizon: int | None
    opaque: bool


class Source:
    """The batches of a group of segments, as they stay.

    `held`: a window that was read and is not given away yet. `windows`: how many were read.
    `number`: the segment that the last one was of.
    """

    def __init__(self, windows: Windows, group: Sequence[SegmentInfo], cleaning: Cleaning) -> None:
        self.gate = windows.gate
        self._windows = windows
        self._group = group
        self._cleaning = cleaning
        self._position = 0
        self._following = 0
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
        windows, cleaning = self._windows, self._cleaning
        while True:
            segment = self._group[self.number]
            if self._position >= segment.size:
                if self.number + 1 == len(self._group):
                    return None
                self.number += 1
                self._position = 0
                self._following = 0
                continue
            self.close()
            data = await windows.reader.read(segment.id, self._position, self._size, Hint.ONCE)
            self._data = data
            bounds = max(segment.base_offset, self._following), segment.end_offset
            window = await windows.work(
                segment,
                self._position,
                data,
                _clean,
                cleaning,
                bounds,
                windows.limit,
                windows.breathe,
            )
            if not window.position:
                self._size = await windows.larger(
                    segment, self._position, self._size, window.needed
                )
                continue
            self._size = _next_size(self._size, len(window.metas))
            self._following = window.following
            self._position += window.position
            self.windows += 1
            # One that has passed already belongs to tombstones that may never go (see `expire`).
            horizon = window.horizon
            if cleaning.expire and horizon is not None and horizon >= cleaning.now_ms:
                cleaning.horizon = min(cleaning.horizon or horizon, horizon)
            if window.opaque:
                cleaning.expire = False
                if cleaning.opaque_from is None:
                    cleaning.opaque_from = bounds[0]
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
            built.append(await self._windows.reader.build(_Chunks(self)))
        return built


class _Chunks:
    """The chunks of one segment. (No async generator: one that is left half-way has to be closed
    by hand.)"""

    def __init__(self, source: Source) -> None:
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
        await self._source.gate(size)
        self._source.held = None
        return Chunk(window.metas, window.buffers)


# -- in the worker ---------------------------------------------------------------------------


def joined(data: DataRef) -> memoryview:
    """Return the bytes as one piece; a copy where they are several."""
    views = data.views()
    return views[0] if len(views) == 1 else memoryview(b"".join(views))


def _needed(view: memoryview, position: int) -> int:
    """The size of the batch at the beginning of a window in which no batch is whole."""
    if position or len(view) < HEADER_SIZE:
        return HEADER_SIZE
    return parse_header(view).size


def _copied(data: DataRef) -> bytes:
    return b"".join(data.views())


def _crc_after(data: DataRef, crc: int) -> int:
    for view in data.views():
        crc = crc32c(view, crc)
    return crc


def _first(view: memoryview, bounds: tuple[int, int]) -> None:
    """Hold the first batch against the offsets that may follow. Raises CorruptWindow.

    No CRC covers base offsets, so nothing else tells a flipped bit in the first one of a window.
    """
    if len(view) >= HEADER_SIZE:
        meta = parse_header(view)
        _hold(meta.base_offset, meta.last_offset + 1, bounds, 0)


def _hold(base: int, following: int, bounds: tuple[int, int], position: int) -> None:
    """Hold offsets [base, following) against the bounds. Raises CorruptWindow."""
    least, end = bounds
    if base < least or following > end:
        raise CorruptWindow(
            f"offsets {base} to {following - 1} do not lie within {least} to {end - 1}", position
        )


def note(
    data: DataRef,
    offsets: OffsetMap,
    end: int,
    bounds: tuple[int, int],
    limit: int,
    breathe: Callable[[], None] = no_breath,
) -> tuple[int, int, bool, int]:
    """Note a window's keys: bytes used, offset that follows, full, bytes needed.

    `bounds`: the offsets that may follow here, up to the segment's end.
    """
    view = joined(data)
    noted = note_window(view, offsets, end, limit=limit, breathe=breathe)
    _first(view, bounds)
    _hold(bounds[0], noted.next_offset, bounds, noted.position)
    return noted.position, noted.next_offset, noted.full, _needed(view, noted.position)


def _next_size(size: int, batches: int) -> int:
    """How large the next window is to be, after one with so many batches that stay."""
    if batches > MANY:
        return max(size * MANY // batches, MIN_WINDOW)
    return min(2 * size, WINDOW)


def _clean(
    data: DataRef,
    cleaning: Cleaning,
    bounds: tuple[int, int],
    limit: int,
    breathe: Callable[[], None] = no_breath,
) -> _Window:
    """Clean a window. What lies beyond `cleaning.end` is copied. `bounds`: see `note`."""
    view = joined(data)
    cleaned = clean_window(
        view,
        cleaning.offsets,
        end_offset=cleaning.end,
        now_ms=cleaning.now_ms,
        delete_retention_ms=cleaning.delete_retention_ms,
        last_of_producers=cleaning.kept,
        limit=limit,
        expire=cleaning.expire,
        breathe=breathe,
    )
    position, metas, buffers = cleaned.position, cleaned.metas, cleaned.buffers
    _first(view, bounds)
    following = max(cleaned.next_offset, bounds[0])
    _hold(bounds[0], following, bounds, position)
    if bounds[1] > cleaning.end:
        rest = scan(view, position=position)
        if rest.problem is not None and rest.problem.kind == "corrupt":
            raise CorruptWindow(rest.problem.text, rest.problem.position)
        # Where the window ends inside of a batch below `end`, there is nothing to copy yet.
        if rest.metas:
            for meta, at in zip(rest.metas, rest.positions, strict=True):
                _hold(meta.base_offset, meta.last_offset + 1, (following, bounds[1]), at)
                following = meta.last_offset + 1
            metas = [*metas, *rest.metas]
            buffers = [*buffers, view[position : rest.end]]
            position = rest.end
    return _Window(
        position,
        _needed(view, position),
        following,
        metas,
        buffers,
        cleaned.changed,
        cleaned.horizon,
        cleaned.opaque > 0,
    )
