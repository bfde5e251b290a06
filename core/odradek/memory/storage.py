"""The storage contract in memory: for tests, embedding, and logs that may die with the process.

Bytes are kept as they were appended, in immutable pieces, so a `DataRef` needs no copy and
outlives every edit. A store with a name lives on in the process when it is closed, so that what
a broker does at its next start can be tried; `forget_memory_store` ends it.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from types import MappingProxyType

import attrs
import trio

from odradek.config import setting
from odradek.contracts.storage import (
    MAX_RELATIVE_OFFSET,
    Chunk,
    Claim,
    DataRef,
    EpochStart,
    Fenced,
    Full,
    Hint,
    LogEdit,
    LogSnapshot,
    Offline,
    OutOfRange,
    PartitionReader,
    PartitionWriter,
    Recovery,
    SegmentIndex,
    SegmentInfo,
    SegmentStore,
    StoreTraits,
    StoreUsage,
    Unavailable,
    scan,
)
from odradek.contracts.storage_rules import check_chunk, edited, edited_blobs
from odradek.types import PartitionKey

__all__ = ["MemoryStorageSettings", "forget_memory_store", "open_memory_store"]

INDEX_INTERVAL = 4096


@attrs.frozen(kw_only=True)
class MemoryStorageSettings:
    """Settings of `memory:` storage."""

    max_bytes: int = setting(
        256 * 1024 * 1024,
        minimum=1,
        doc="How many bytes of record batches the store holds; beyond them producers are told "
        "to try again later.",
    )


class _Segment:
    """The pieces of one segment: `starts[i]` is the byte at which `pieces[i]` begins."""

    def __init__(self, segment_id: int, base_offset: int) -> None:
        self.id = segment_id
        self.base_offset = base_offset
        self.end_offset = base_offset
        self.size = 0
        self.max_timestamp = -1
        self.max_timestamp_offset = -1
        self.created_ms = time.time_ns() // 1_000_000
        self.sealed = False
        self.starts: list[int] = []
        self.pieces: list[bytes] = []
        self.index = SegmentIndex()
        self.index.add(base_offset, 0, -1)

    def add(self, chunk: Chunk) -> None:
        self.starts.append(self.size)
        self.pieces.append(b"".join(chunk.buffers))
        for meta in chunk.batches:
            if self.size - self.index.positions[-1] >= INDEX_INTERVAL:
                self.index.add(meta.base_offset, self.size, self.max_timestamp)
            if meta.max_timestamp > self.max_timestamp:
                self.max_timestamp = meta.max_timestamp
                self.max_timestamp_offset = meta.last_offset
            self.size += meta.size
            self.end_offset = meta.last_offset + 1

    def slice(self, start: int, end: int) -> list[memoryview]:
        views = []
        for i in range(max(bisect_right(self.starts, start) - 1, 0), len(self.pieces)):
            begins = self.starts[i]
            if begins >= end:
                break
            piece = memoryview(self.pieces[i])
            views.append(piece[max(start - begins, 0) : end - begins])
        return views

    def info(self) -> SegmentInfo:
        return SegmentInfo(
            self.id,
            self.base_offset,
            self.end_offset,
            self.size,
            self.max_timestamp,
            self.max_timestamp_offset,
            self.created_ms,
            self.sealed,
        )


class _Log:
    """One partition's log, shared by its readers and its writer."""

    def __init__(self) -> None:
        self.next_id = 1
        self.segments: dict[int, _Segment] = {0: _Segment(0, 0)}
        self.active = self.segments[0]
        self.log_start = 0
        self.epochs: list[EpochStart] = []
        self.blobs: Mapping[str, bytes] = MappingProxyType({})
        self.built: dict[int, _Segment] = {}
        self.dropped = False
        self._snapshot: LogSnapshot | None = None

    def changed(self) -> None:
        self._snapshot = None

    def snapshot(self) -> LogSnapshot:
        if self._snapshot is None:
            infos = sorted(
                (segment.info() for segment in self.segments.values()),
                key=lambda info: (info.base_offset, not info.sealed),
            )
            self._snapshot = LogSnapshot(
                tuple(infos),
                self.log_start,
                self.active.end_offset,
                tuple(self.epochs),
                self.blobs,
            )
        return self._snapshot

    def new_active(self, base_offset: int) -> None:
        self.active = _Segment(self.next_id, base_offset)
        self.segments[self.next_id] = self.active
        self.next_id += 1

    def size(self) -> int:
        return sum(s.size for s in self.segments.values())


class _Shelf:
    """What a store holds, apart from the store that is open on it."""

    def __init__(self) -> None:
        self.logs: dict[PartitionKey, _Log] = {}
        self.bytes = 0
        self.open = False


_shelves: dict[str, _Shelf] = {}


class _Ticket:
    """Durable at once: there is nothing that memory could survive."""

    __slots__ = ("end_offset",)

    durable = True

    def __init__(self, end_offset: int) -> None:
        self.end_offset = end_offset

    async def wait(self) -> None:
        pass


class _Ref(DataRef):
    def __init__(self, views: list[memoryview]) -> None:
        self._views = views
        self._length = sum(map(len, views))

    def __len__(self) -> int:
        return self._length

    def file_range(self) -> None:
        return None

    def views(self) -> Sequence[memoryview]:
        return self._views

    def close(self) -> None:
        self._views = []


class _Reader(PartitionReader):
    def __init__(self, log: _Log) -> None:
        self._log = log

    @property
    def snapshot(self) -> LogSnapshot:
        return self._log.snapshot()

    def _segment(self, segment_id: int) -> _Segment:
        segment = None if self._log.dropped else self._log.segments.get(segment_id)
        if segment is None:
            raise OutOfRange(f"there is no segment {segment_id}")
        return segment

    async def index(self, segment_id: int) -> SegmentIndex:
        kept = self._segment(segment_id).index
        copy = SegmentIndex()
        copy.offsets = kept.offsets[:]
        copy.positions = kept.positions[:]
        copy.timestamps = kept.timestamps[:]
        return copy

    async def read(self, segment_id: int, position: int, max_bytes: int, hint: Hint) -> DataRef:
        segment = self._segment(segment_id)
        if not 0 <= position <= segment.size:
            raise OutOfRange(f"position {position} is beyond segment {segment_id}'s {segment.size}")
        return _Ref(segment.slice(position, min(position + max_bytes, segment.size)))

    async def aclose(self) -> None:
        pass


class _Writer(_Reader, PartitionWriter):
    def __init__(self, store: MemoryStore, key: PartitionKey, log: _Log, epoch: int) -> None:
        super().__init__(log)
        self._store = store
        self._key = key
        self.epoch = epoch
        self.ended: type[Fenced] | type[Offline] | None = None
        self._refused = 1

    @property
    def recovery(self) -> Recovery:
        return Recovery()

    def _check(self) -> None:
        if self.ended is Fenced:
            raise Fenced(f"{self._key}: leader epoch {self.epoch} is over")
        if self.ended is not None:
            raise Offline(f"{self._key}: the writer is closed")

    def append(self, chunk: Chunk) -> _Ticket:
        self._check()
        log = self._log
        active = log.active
        size = check_chunk(chunk, active.end_offset)
        end_offset = chunk.batches[-1].last_offset + 1
        if (
            end_offset - 1 - active.base_offset > MAX_RELATIVE_OFFSET
            or active.size + size > self._store.traits.segment_bytes
        ):
            raise ValueError("the active segment cannot take the chunk: roll first")
        self._refused = size
        self._store.take(size)
        self._refused = 1
        active.add(chunk)
        for meta in chunk.batches:
            if not log.epochs or meta.leader_epoch > log.epochs[-1].epoch:
                log.epochs.append(EpochStart(meta.leader_epoch, meta.base_offset))
        log.changed()
        return _Ticket(end_offset)

    async def room(self) -> None:
        while True:
            self._check()
            if self._store.free >= self._refused:
                return
            await self._store.freed.wait()

    async def flush(self) -> None:
        self._check()

    def roll(self) -> SegmentInfo:
        self._check()
        log = self._log
        sealed = log.active
        if not sealed.size:
            return sealed.info()
        sealed.sealed = True
        log.new_active(sealed.end_offset)
        log.changed()
        return sealed.info()

    async def build(self, chunks: AsyncIterator[Chunk]) -> SegmentInfo:
        self._check()
        segment: _Segment | None = None
        taken = 0
        try:
            async for chunk in chunks:
                self._check()
                end = segment.end_offset if segment else chunk.batches[0].base_offset
                size = check_chunk(chunk, end)
                self._store.take(size)
                taken += size
                if segment is None:
                    segment = _Segment(self._log.next_id, end)
                    self._log.next_id += 1
                segment.add(chunk)
            if segment is None:
                raise ValueError("a segment cannot be built from nothing")
        except BaseException:
            self._store.take(-taken)
            raise
        segment.sealed = True
        self._log.built[segment.id] = segment
        return segment.info()

    async def commit(self, edit: LogEdit) -> LogSnapshot:
        await trio.lowlevel.checkpoint_if_cancelled()
        self._check()
        log = self._log
        if edit.restart_at is not None:
            if edit.remove or edit.add or edit.log_start is not None or edit.restart_at < 0:
                raise OutOfRange("a restart stands alone, at an offset of 0 or more")
            log.blobs = edited_blobs(log.blobs, edit)
            self._empty(edit.restart_at)
            return log.snapshot()
        infos, log_start = edited(log.snapshot().segments, log.log_start, edit, log.built)
        log.blobs = edited_blobs(log.blobs, edit)
        created_ms = {info.id: info.created_ms for info in infos}
        for info in edit.add:
            log.segments[info.id] = log.built.pop(info.id)
            log.segments[info.id].created_ms = created_ms[info.id]
        kept = created_ms.keys()
        for gone in [s for s in log.segments.values() if s.id not in kept]:
            del log.segments[gone.id]
            self._store.take(-gone.size)
        log.log_start = log_start
        log.changed()
        return log.snapshot()

    def _empty(self, offset: int) -> None:
        log = self._log
        self._store.take(-log.size())
        log.segments.clear()
        log.epochs.clear()
        log.new_active(offset)
        log.log_start = offset
        log.changed()

    async def truncate(self, end_offset: int) -> None:
        await trio.lowlevel.checkpoint_if_cancelled()
        self._check()
        log = self._log
        if end_offset < log.log_start:
            raise OutOfRange(f"{end_offset} is below the log start {log.log_start}")
        if end_offset >= log.active.end_offset:
            return
        base = end_offset
        for info in reversed(log.snapshot().segments):
            if info.base_offset < end_offset and log.segments[info.id].size:
                self._cut(log.segments[info.id], end_offset)
            if info.base_offset < end_offset and log.segments[info.id].size:
                break
            gone = log.segments.pop(info.id)
            base = min(base, gone.base_offset)
            self._store.take(-gone.size)
        last = (
            log.segments[max(log.segments, key=lambda i: log.segments[i].base_offset)]
            if (log.segments)
            else None
        )
        if last is None or last.sealed:
            log.new_active(last.end_offset if last else max(base, log.log_start))
        end = log.active.end_offset
        log.epochs = [epoch for epoch in log.epochs if epoch.start_offset < end]
        log.changed()

    def _cut(self, segment: _Segment, end_offset: int) -> None:
        """Keep the whole batches below `end_offset`: build the segment anew from its headers."""
        data = b"".join(segment.pieces)
        found = scan(memoryview(data), verify=False)
        kept = [meta for meta in found.metas if meta.last_offset < end_offset]
        size = sum(meta.size for meta in kept)
        anew = _Segment(segment.id, segment.base_offset)
        anew.created_ms, anew.sealed = segment.created_ms, segment.sealed
        if kept:
            anew.add(Chunk(kept, [data[:size]]))
        self._store.take(size - segment.size)
        self._log.segments[segment.id] = anew
        if self._log.active is segment:
            self._log.active = anew

    async def aclose(self) -> None:
        if self.ended is None:
            self.ended = Offline
        self._log.built.clear()
        self._store.released(self._key, self)


class MemoryStore(SegmentStore):
    """See `open_memory_store`."""

    def __init__(self, shelf: _Shelf, name: str, settings: MemoryStorageSettings) -> None:
        self._shelf = shelf
        self._name = name
        self._settings = settings
        self._writers: dict[PartitionKey, _Writer] = {}
        self.freed = trio.Event()

    @property
    def traits(self) -> StoreTraits:
        """Not shared, truncatable, and nothing survives."""
        return StoreTraits(
            name="memory",
            shared=False,
            truncatable=True,
            durability="none",
            segment_bytes=2**31 - 1,
            index_bytes=INDEX_INTERVAL,
        )

    @property
    def free(self) -> int:
        """Bytes that may still be appended."""
        return self._settings.max_bytes - self._shelf.bytes

    def take(self, size: int) -> None:
        """Account for bytes; negative when they are given back. Raises Full."""
        if size > self.free:
            raise Full(
                f"memory:{self._name} holds {self._shelf.bytes} of {self._settings.max_bytes} bytes"
            )
        self._shelf.bytes += size
        if size < 0:
            event, self.freed = self.freed, trio.Event()
            event.set()

    async def probe(self) -> None:
        """Nothing can be lacking."""

    async def open_writer(self, key: PartitionKey, claim: Claim) -> PartitionWriter:
        """Open or create a log in memory."""
        await trio.lowlevel.checkpoint_if_cancelled()
        old = self._writers.get(key)
        log = self._shelf.logs.get(key)
        known = max(old.epoch if old else -1, log.epochs[-1].epoch if log and log.epochs else -1)
        if claim.epoch < known:
            raise Fenced(f"{key}: leader epoch {claim.epoch} is older than {known}")
        if old is not None:
            old.ended = Fenced
        if log is None:
            log = self._shelf.logs[key] = _Log()
        writer = self._writers[key] = _Writer(self, key, log, claim.epoch)
        return writer

    async def open_reader(self, key: PartitionKey) -> PartitionReader:
        """Open a log in memory for reading."""
        log = self._shelf.logs.get(key)
        if log is None:
            raise OutOfRange(f"there is no log of {key}")
        return _Reader(log)

    async def partitions(self) -> Sequence[PartitionKey]:
        """Return every partition held."""
        return tuple(self._shelf.logs)

    async def drop(self, key: PartitionKey) -> None:
        """Forget a log."""
        writer = self._writers.pop(key, None)
        if writer is not None:
            writer.ended = Fenced
        log = self._shelf.logs.pop(key, None)
        if log is not None:
            log.snapshot()
            log.dropped = True
            self.take(-log.size())

    async def usage(self) -> StoreUsage:
        """Say how much of the bound is left."""
        return StoreUsage(f"memory:{self._name}", self._settings.max_bytes, max(self.free, 0))

    def released(self, key: PartitionKey, writer: _Writer) -> None:
        """Forget a writer that was closed, unless another one took over."""
        if self._writers.get(key) is writer:
            del self._writers[key]

    def close(self) -> None:
        """End every writer."""
        for writer in self._writers.values():
            writer.ended = writer.ended or Offline
        self._writers.clear()
        event, self.freed = self.freed, trio.Event()
        event.set()


@asynccontextmanager
async def open_memory_store(
    name: str, settings: MemoryStorageSettings | None = None
) -> AsyncIterator[SegmentStore]:
    """Open the store called `name` in this process, or, without a name, one of one's own.

    A named store can be opened again after it was closed, with all that it held; only one may be
    open at a time (Unavailable).
    """
    shelf = _shelves.setdefault(name, _Shelf()) if name else _Shelf()
    if shelf.open:
        raise Unavailable(f"memory:{name} is open already in this process")
    store = MemoryStore(shelf, name, settings or MemoryStorageSettings())
    shelf.open = True
    try:
        yield store
    finally:
        store.close()
        shelf.open = False


def forget_memory_store(name: str) -> None:
    """Free what a named store holds. Idempotent. Raises Unavailable while it is open."""
    if name in _shelves and _shelves[name].open:
        raise Unavailable(f"memory:{name} is open")
    _shelves.pop(name, None)
