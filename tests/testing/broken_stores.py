"""Stores broken on purpose, each in one way, to try the conformance kit."""

from __future__ import annotations

import copy
import os
import threading
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from types import MappingProxyType
from typing import Any, ClassVar

import attrs
import trio

from odradek.contracts.storage import (
    BatchMeta,
    Chunk,
    Claim,
    Corrupt,
    DataRef,
    EpochStart,
    Fenced,
    Full,
    Hint,
    LogEdit,
    LogSnapshot,
    Offline,
    OutOfRange,
    PartitionKey,
    PartitionReader,
    PartitionWriter,
    Recovery,
    SegmentIndex,
    SegmentInfo,
    SegmentStore,
    StoreTraits,
    Ticket,
    scan,
)
from odradek.memory import storage as memory
from odradek.memory.storage import MemoryStorageSettings, MemoryStore
from odradek.testing.storage import StorageHarness, Trait

Logs = dict[PartitionKey, Any]


def copy_log(log: Any) -> Any:
    """Copy a log of the store in memory; the bytes are immutable and stay shared."""
    other = memory._Log()
    for name in ("next_id", "log_start", "dropped"):
        setattr(other, name, getattr(log, name))
    other.epochs = list(log.epochs)
    other.blobs = MappingProxyType(dict(log.blobs))
    other.built = {}
    other.segments = {}
    for segment in log.segments.values():
        twin = other.segments[segment.id] = copy.copy(segment)
        twin.starts, twin.pieces = segment.starts[:], segment.pieces[:]
        twin.index = SegmentIndex()
        for column in ("offsets", "positions", "timestamps"):
            setattr(twin.index, column, getattr(segment.index, column)[:])
    other.active = other.segments[log.active.id]
    other.changed()
    return other


class DamagedBlob(bytes):
    """What `damage_blob` leaves behind: a store that checks knows it."""


class Faithful(MemoryStore):
    """A store in memory that tells durable from written; the broken ones override something."""

    writer: ClassVar[type[memory._Writer]]
    reader: ClassVar[type[memory._Reader]]

    def __init__(self, shelf: Any) -> None:
        super().__init__(shelf, "broken", MemoryStorageSettings())
        self.safe: Logs = {}
        self.broken = False
        self.sync()

    def sync(self) -> None:
        """Make everything durable."""
        if self.broken:
            raise Offline("the disk is gone")
        self.safe = {key: copy_log(log) for key, log in self._shelf.logs.items()}

    @property
    def traits(self) -> StoreTraits:
        return attrs.evolve(super().traits, durability="ack")

    async def open_writer(self, key: PartitionKey, claim: Claim) -> PartitionWriter:
        if self.broken:
            raise Offline("the disk is gone")
        log = self._shelf.logs.get(key)
        for segment in log.segments.values() if log else ():
            if scan(memoryview(b"".join(segment.pieces))).problem is not None:
                raise Corrupt(f"{key}: segment {segment.id} is damaged; restore it")
        lost = self.lost_blobs(log.blobs) if log else []
        writer = await super().open_writer(key, claim)
        writer.__class__ = self.writer
        assert isinstance(writer, FaithfulWriter)
        if log and lost:
            log.blobs = MappingProxyType({n: b for n, b in log.blobs.items() if n not in lost})
            log.changed()
        writer.found = Recovery(not lost, detail=", ".join(lost))
        return writer

    def lost_blobs(self, blobs: Mapping[str, bytes]) -> list[str]:
        return [name for name, blob in blobs.items() if isinstance(blob, DamagedBlob)]

    async def open_reader(self, key: PartitionKey) -> PartitionReader:
        reader = await super().open_reader(key)
        reader.__class__ = self.reader
        return reader

    async def drop(self, key: PartitionKey) -> None:
        await super().drop(key)
        self.sync()


class FaithfulTicket:
    """Durable once somebody waited for it."""

    def __init__(self, writer: FaithfulWriter, end_offset: int) -> None:
        self.writer = writer
        self.end_offset = end_offset

    @property
    def durable(self) -> bool:
        return self.end_offset <= self.writer.safe_end

    async def wait(self) -> None:
        await trio.lowlevel.checkpoint()
        if not self.durable:
            self.writer._check()
            self.writer.store.sync()


class FaithfulReader(memory._Reader):
    pass


class FaithfulWriter(memory._Writer):
    ticket: ClassVar[type[FaithfulTicket]] = FaithfulTicket
    found: Recovery

    @property
    def recovery(self) -> Recovery:
        return self.found

    @property
    def store(self) -> Faithful:
        assert isinstance(self._store, Faithful)
        return self._store

    @property
    def safe_end(self) -> int:
        log = self.store.safe.get(self._key)
        return log.active.end_offset if log else 0

    @property
    def snapshot(self) -> LogSnapshot:
        return attrs.evolve(self._log.snapshot(), durable_end=self.safe_end)

    def _check(self) -> None:
        super()._check()
        if self.store.broken:
            raise Offline("the disk is gone")

    def append(self, chunk: Chunk) -> Ticket:  # type: ignore[override]
        return self.ticket(self, super().append(chunk).end_offset)

    async def flush(self) -> None:
        self._check()
        self.store.sync()

    async def commit(self, edit: LogEdit) -> LogSnapshot:
        await super().commit(edit)
        self.store.sync()
        return self.snapshot

    async def truncate(self, end_offset: int) -> None:
        await super().truncate(end_offset)
        self.store.sync()

    async def aclose(self) -> None:
        if self.ended is None and not self.store.broken:
            self.store.sync()
        await super().aclose()


Faithful.writer = FaithfulWriter
Faithful.reader = FaithfulReader


class KitHarness(StorageHarness):
    """The harness over a store in memory."""

    traits = frozenset(Trait)

    def __init__(self, store: type[Faithful] = Faithful, patience: float = 10.0) -> None:
        self._type = store
        self._shelf = memory._Shelf()
        self._crashed: Any = None
        self._open: Faithful | None = None
        self.patience = patience  # type: ignore[misc]

    @asynccontextmanager
    async def open(self) -> AsyncIterator[SegmentStore]:
        if self._crashed is not None:
            self._shelf, self._crashed = self._crashed, None
        self._open = self._type(self._shelf)
        yield self._open
        self._open.close()

    async def crash(self, *, power: bool = False) -> None:
        assert self._open is not None
        logs = self._open.safe if power else self._shelf.logs
        self._crashed = memory._Shelf()
        self._crashed.logs = {key: copy_log(log) for key, log in logs.items()}
        self._crashed.bytes = sum(log.size() for log in self._crashed.logs.values())

    async def damage(self, key: PartitionKey, position: int) -> None:
        shelf = self._crashed or self._shelf
        for segment in shelf.logs[key].segments.values():
            if position < segment.size:
                data = bytearray(b"".join(segment.pieces))
                data[position] ^= 0x10
                segment.pieces, segment.starts = [bytes(data)], [0]
                return
            position -= segment.size
        raise AssertionError("the log is shorter than that")

    async def stored(self, key: PartitionKey) -> bytes:
        segments = (self._crashed or self._shelf).logs[key].segments.values()
        return b"".join(piece for segment in segments for piece in segment.pieces)

    async def damage_blob(self, key: PartitionKey, name: str) -> None:
        log = (self._crashed or self._shelf).logs[key]
        log.blobs = MappingProxyType({**log.blobs, name: DamagedBlob(b"?")})
        log.changed()

    @contextmanager
    def failing(self, store: SegmentStore) -> Iterator[None]:
        assert isinstance(store, Faithful)
        store.broken = True
        yield

    @contextmanager
    def full(self, store: SegmentStore) -> Iterator[None]:
        assert isinstance(store, Faithful)
        taken = store.free - 60_000
        store.take(taken)
        yield
        store.take(-taken)


def broken(
    name: str, writer: type[FaithfulWriter] = FaithfulWriter, **overrides: Any
) -> type[Faithful]:
    """Make a store whose writers are broken."""
    return type(name, (Faithful,), {"writer": writer, **overrides})


def with_ticket(name: str, ticket: type[FaithfulTicket]) -> type[Faithful]:
    """Make a store whose tickets are broken."""
    return broken(name, type(f"{name}Writer", (FaithfulWriter,), {"ticket": ticket}))


# -- appending and reading -----------------------------------------------------------------------


class _StartsAtOne(FaithfulWriter):
    @property
    def snapshot(self) -> LogSnapshot:
        found = super().snapshot
        first = attrs.evolve(found.segments[0], base_offset=1)
        return attrs.evolve(found, segments=(first, *found.segments[1:]))


class _SortsBuffers(FaithfulWriter):
    def append(self, chunk: Chunk) -> Ticket:  # type: ignore[override]
        return super().append(Chunk(chunk.batches, sorted(chunk.buffers, key=len)))


class LosesTheEndOnClose(Faithful):
    class writer(FaithfulWriter):
        async def aclose(self) -> None:
            if self.ended is None:
                await super().truncate(self._log.active.end_offset - 1)
            await super().aclose()


class _ReadsAnywhere(FaithfulWriter):
    async def read(self, segment_id: int, position: int, max_bytes: int, hint: Hint) -> DataRef:
        size = self._log.segments[segment_id].size
        return await super().read(segment_id, min(max(position, 0), size), max_bytes, hint)


class _WrongFile(DataRef):
    def __init__(self, inner: DataRef) -> None:
        self.inner = inner
        self.fd = os.memfd_create("wrong")
        os.write(self.fd, b"x" * len(inner))

    def __len__(self) -> int:
        return len(self.inner)

    def file_range(self) -> tuple[int, int, int]:
        return self.fd, 0, len(self.inner)

    def views(self) -> Sequence[memoryview]:
        return self.inner.views()

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class _SendsAnotherFile(FaithfulWriter):
    async def read(self, segment_id: int, position: int, max_bytes: int, hint: Hint) -> DataRef:
        return _WrongFile(await super().read(segment_id, position, max_bytes, hint))


class _OneSnapshotForAll(FaithfulWriter):
    @property
    def snapshot(self) -> LogSnapshot:
        new = super().snapshot
        old: LogSnapshot | None = getattr(self, "_one", None)
        if old is None:
            self._one = new
            return new
        for name in ("segments", "epochs", "log_start", "durable_end", "blobs"):
            object.__setattr__(old, name, getattr(new, name))
        return old


class _ForgetsEpochs(FaithfulWriter):
    @property
    def snapshot(self) -> LogSnapshot:
        return attrs.evolve(super().snapshot, epochs=super().snapshot.epochs[-1:])


class _RefusesGaps(FaithfulWriter):
    def append(self, chunk: Chunk) -> Ticket:  # type: ignore[override]
        end = self._log.active.end_offset
        for meta in chunk.batches:
            if meta.base_offset != end:
                raise ValueError("a gap")
            end = meta.last_offset + 1
        return super().append(chunk)


class _TakesAnything(FaithfulWriter):
    def append(self, chunk: Chunk) -> Ticket:  # type: ignore[override]
        self._check()
        self._log.active.add(chunk)
        self._log.changed()
        return FaithfulTicket(self, self._log.active.end_offset)


class _KeepsTheBuffers(FaithfulWriter):
    def append(self, chunk: Chunk) -> Ticket:  # type: ignore[override]
        ticket = super().append(chunk)
        if len(chunk.buffers) == 2:
            segment = self._log.active
            segment.pieces[-1] = chunk.buffers[0]  # type: ignore[assignment]
            segment.pieces.append(chunk.buffers[1])  # type: ignore[arg-type]
            segment.starts.append(segment.starts[-1] + len(chunk.buffers[0]))
        return ticket


class _ForItselfAlone(FaithfulTicket):
    done = False

    @property
    def durable(self) -> bool:
        return self.done

    async def wait(self) -> None:
        await super().wait()
        self.done = True


class _ForOneWaiter(FaithfulTicket):
    waited = False

    async def wait(self) -> None:
        if self.waited:
            await trio.sleep_forever()
        self.waited = True
        await super().wait()


class _BeforeTheSync(FaithfulTicket):
    @property
    def durable(self) -> bool:
        return True


class _FlushesNothing(FaithfulWriter):
    async def flush(self) -> None:
        self._check()


class LosesTheMiddle(Faithful):
    def sync(self) -> None:
        super().sync()
        for log in self.safe.values():
            for segment in log.segments.values():
                if len(segment.pieces) > 3:
                    segment.size -= len(segment.pieces.pop(1))
                    segment.starts.pop(1)


class _SparseIndex(FaithfulWriter):
    async def index(self, segment_id: int) -> SegmentIndex:
        index = SegmentIndex()
        index.add(self._log.segments[segment_id].base_offset, 0, -1)
        return index


class _OneIndexForAll(FaithfulWriter):
    async def index(self, segment_id: int) -> SegmentIndex:
        return self._log.segments[segment_id].index


class _TakesWhatItRefuses(FaithfulWriter):
    def append(self, chunk: Chunk) -> Ticket:  # type: ignore[override]
        try:
            return super().append(chunk)
        except Full:
            self._log.active.add(chunk)
            self._log.changed()
            raise


# -- edits ---------------------------------------------------------------------------------------


class _ReusesIds(FaithfulWriter):
    def roll(self) -> SegmentInfo:
        sealed = super().roll()
        log = self._log
        if sealed.sealed:
            log.segments[-1] = log.segments.pop(sealed.id)
            log.segments[-1].id = -1
            log.segments[sealed.id] = log.segments.pop(log.active.id)
            log.active.id = sealed.id
            log.changed()
        return sealed


class RollsAreForgotten(Faithful):
    def sync(self) -> None:
        super().sync()
        for log in self.safe.values():
            if len(log.segments) == 2:
                first, second = log.segments.values()
                first.pieces += second.pieces
                first.starts += [start + first.size for start in second.starts]
                first.size += second.size
                first.end_offset, first.sealed = second.end_offset, False
                del log.segments[second.id]
                log.active = first


class _KeepsWhatItReplaces(FaithfulWriter):
    async def commit(self, edit: LogEdit) -> LogSnapshot:
        gone = {i: self._log.segments.get(i) for i in edit.remove}
        await super().commit(edit)
        self._log.segments.update({i: s for i, s in gone.items() if s is not None})
        self._log.changed()
        return self.snapshot


class _BeginsAnew(FaithfulWriter):
    async def commit(self, edit: LogEdit) -> LogSnapshot:
        built = [(self._log.built[info.id], info.created_ms) for info in edit.add]
        await super().commit(edit)
        for segment, created_ms in built:
            segment.created_ms = created_ms
        self._log.changed()
        return self.snapshot


class _CommitsInMemory(FaithfulWriter):
    async def commit(self, edit: LogEdit) -> LogSnapshot:
        safe = self.store.safe
        snapshot = await super().commit(edit)
        self.store.safe = safe
        return snapshot


class _BuildsInPlace(FaithfulWriter):
    async def build(self, chunks: AsyncIterator[Chunk]) -> SegmentInfo:
        info = await super().build(chunks)
        self._log.segments[info.id] = self._log.built[info.id]
        self._log.changed()
        return info


class _LogStartStays(FaithfulWriter):
    async def commit(self, edit: LogEdit) -> LogSnapshot:
        before = self._log.log_start
        await super().commit(edit)
        self._log.log_start = before
        self._log.changed()
        return self.snapshot


class _BlobsFirst(FaithfulWriter):
    async def commit(self, edit: LogEdit) -> LogSnapshot:
        await super().commit(LogEdit(blobs=edit.blobs))
        return await super().commit(edit)


class _StepByStep(FaithfulWriter):
    async def commit(self, edit: LogEdit) -> LogSnapshot:
        with trio.CancelScope(shield=True):
            await super().commit(LogEdit(blobs=edit.blobs))
        await trio.lowlevel.checkpoint()
        return await super().commit(edit)


class _EditsACopy(FaithfulWriter):
    async def commit(self, edit: LogEdit) -> LogSnapshot:
        await super().commit(edit)
        held = copy_log(self._log)
        for _ in range(5):
            await trio.lowlevel.checkpoint()
        vars(self._log).update(vars(held))
        return self.snapshot


class _ForgetfulRef(DataRef):
    def __init__(self, segment: Any, start: int, end: int) -> None:
        self.segment, self.start, self.end = segment, start, end

    def __len__(self) -> int:
        return self.end - self.start

    def file_range(self) -> None:
        return None

    def views(self) -> Sequence[memoryview]:
        found: list[memoryview] = self.segment.slice(self.start, self.end)
        return found

    def close(self) -> None:
        pass


class _RefersToPositions(FaithfulWriter):
    async def read(self, segment_id: int, position: int, max_bytes: int, hint: Hint) -> DataRef:
        segment = self._segment(segment_id)
        return _ForgetfulRef(segment, position, min(position + max_bytes, segment.size))

    async def truncate(self, end_offset: int) -> None:
        for segment in self._log.segments.values():
            if segment.end_offset > end_offset:
                segment.pieces = segment.pieces[:0]
                segment.starts = segment.starts[:0]
        await super().truncate(end_offset)


class _ReadsOnceOnly(FaithfulWriter):
    async def read(self, segment_id: int, position: int, max_bytes: int, hint: Hint) -> DataRef:
        ref = await super().read(segment_id, position, max_bytes, hint)
        if hint is Hint.ONCE:
            known: set[int] = self.__dict__.setdefault("_read", set())
            if segment_id in known:
                return await super().read(segment_id, position, 0, hint)
            known.add(segment_id)
        return ref


class _OwnThread(_WrongFile):
    def __init__(self, inner: DataRef) -> None:
        super().__init__(inner)
        self.thread = threading.get_ident()

    def views(self) -> Sequence[memoryview]:
        if threading.get_ident() != self.thread:
            return ()
        return self.inner.views()


class _ReadsInOneThread(FaithfulWriter):
    async def read(self, segment_id: int, position: int, max_bytes: int, hint: Hint) -> DataRef:
        return _OwnThread(await super().read(segment_id, position, max_bytes, hint))


class _RenamesTooEarly(FaithfulWriter):
    async def commit(self, edit: LogEdit) -> LogSnapshot:
        for info in edit.add:
            for segment in self._log.segments.values():
                if segment.id in edit.remove and segment.base_offset == info.base_offset:
                    built = self._log.built[info.id]
                    segment.pieces, segment.starts = built.pieces, built.starts
                    await trio.lowlevel.checkpoint()
                    await trio.lowlevel.checkpoint()
        return await super().commit(edit)


class _LingersInTheLog(FaithfulWriter):
    async def commit(self, edit: LogEdit) -> LogSnapshot:
        if edit.linger_ms and not edit.add:
            edit = attrs.evolve(edit, remove=())
        return await super().commit(edit)


class _BuildsTheFirstPart(FaithfulWriter):
    async def build(self, chunks: AsyncIterator[Chunk]) -> SegmentInfo:
        async def part() -> AsyncIterator[Chunk]:
            taken = 0
            async for chunk in chunks:
                taken += sum(map(len, chunk.buffers))
                if taken < 16 << 20:
                    yield chunk

        return await super().build(part())


class _CutsWithinBatches(FaithfulWriter):
    async def truncate(self, end_offset: int) -> None:
        await super().truncate(end_offset + 1)


class _TruncatesInMemory(FaithfulWriter):
    async def truncate(self, end_offset: int) -> None:
        safe = self.store.safe
        await super().truncate(end_offset)
        self.store.safe = safe


class _RemembersEpochs(FaithfulWriter):
    async def truncate(self, end_offset: int) -> None:
        epochs: list[EpochStart] = list(self._log.epochs)
        await super().truncate(end_offset)
        self._log.epochs = epochs
        self._log.changed()


class _RestartsAtItsEnd(FaithfulWriter):
    async def commit(self, edit: LogEdit) -> LogSnapshot:
        if edit.restart_at is not None:
            edit = attrs.evolve(edit, restart_at=self._log.active.end_offset)
        return await super().commit(edit)


class _ForgetsEmptyBlobs(FaithfulWriter):
    async def commit(self, edit: LogEdit) -> LogSnapshot:
        blobs: Mapping[str, bytes | None] = {k: v or None for k, v in edit.blobs.items()}
        return await super().commit(attrs.evolve(edit, blobs=blobs))


class _EditsAlone(FaithfulWriter):
    async def commit(self, edit: LogEdit) -> LogSnapshot:
        safe = copy_log(self.store.safe.get(self._key) or memory._Log())
        await super().commit(edit)
        safe.log_start = self._log.log_start
        self.store.safe[self._key] = safe
        return self.snapshot


# -- claims --------------------------------------------------------------------------------------


class NeverFences(Faithful):
    async def open_writer(self, key: PartitionKey, claim: Claim) -> PartitionWriter:
        old = self._writers.pop(key, None)
        if old is not None and claim.epoch < old.epoch:
            raise Fenced("older")
        return await super().open_writer(key, claim)


class TakesAnyEpoch(Faithful):
    async def open_writer(self, key: PartitionKey, claim: Claim) -> PartitionWriter:
        return await super().open_writer(key, attrs.evolve(claim, epoch=claim.epoch + 1_000_000))


class RefusesEqualEpochs(Faithful):
    async def open_writer(self, key: PartitionKey, claim: Claim) -> PartitionWriter:
        old = self._writers.get(key)
        if old is not None and old.epoch == claim.epoch:
            raise Fenced("there is one already")
        return await super().open_writer(key, claim)


class _AppendsLate(FaithfulWriter):
    late: ClassVar[list[Chunk]] = []

    def append(self, chunk: Chunk) -> Ticket:  # type: ignore[override]
        metas: list[BatchMeta] = list(chunk.batches)
        self.late.append(Chunk(metas, [bytes(b"".join(chunk.buffers))]))
        return super().append(chunk)

    async def flush(self) -> None:
        if self.epoch == 2 and self.late:
            last = self.late.pop()
            self._log.active.add(last)
            self._log.changed()
        await super().flush()


class OneWriterInAll(Faithful):
    async def open_writer(self, key: PartitionKey, claim: Claim) -> PartitionWriter:
        for writer in self._writers.values():
            writer.ended = Fenced
        return await super().open_writer(key, claim)


class _ServesWhenClosed(FaithfulWriter):
    async def aclose(self) -> None:
        self._store.released(self._key, self)


class ReadsACopy(Faithful):
    class reader(FaithfulReader):
        @property
        def snapshot(self) -> LogSnapshot:
            if not hasattr(self, "_first"):
                self._first = super().snapshot
            return self._first

    async def open_reader(self, key: PartitionKey) -> PartitionReader:
        reader = await super().open_reader(key)
        assert reader.snapshot.segments
        return reader


class ReadingCreates(Faithful):
    async def open_reader(self, key: PartitionKey) -> PartitionReader:
        self._shelf.logs.setdefault(key, memory._Log())
        return await super().open_reader(key)


class DropsNothing(Faithful):
    async def drop(self, key: PartitionKey) -> None:
        writer = self._writers.pop(key, None)
        if writer is not None:
            writer.ended = Fenced


class DropsInMemory(Faithful):
    async def drop(self, key: PartitionKey) -> None:
        safe = self.safe
        await super().drop(key)
        self.safe = safe

    def crashed(self) -> Logs:
        return self.safe


class _TriesAgain(FaithfulWriter):
    def _check(self) -> None:
        try:
            super()._check()
        except Offline:
            self.store.broken = False
            raise


class RepairsInSilence(Faithful):
    async def open_writer(self, key: PartitionKey, claim: Claim) -> PartitionWriter:
        try:
            return await super().open_writer(key, claim)
        except Corrupt:
            for segment in self._shelf.logs[key].segments.values():
                found = scan(memoryview(b"".join(segment.pieces)))
                data = b"".join(segment.pieces)[: found.end]
                segment.pieces, segment.starts, segment.size = [data], [0], found.end
            raise


class ServesDamage(Faithful):
    async def open_writer(self, key: PartitionKey, claim: Claim) -> PartitionWriter:
        writer = await MemoryStore.open_writer(self, key, claim)
        writer.__class__ = self.writer
        return writer


class ServesDamagedBlobs(Faithful):
    def lost_blobs(self, blobs: Mapping[str, bytes]) -> list[str]:
        return []


class RefusesWithoutBlobs(Faithful):
    def lost_blobs(self, blobs: Mapping[str, bytes]) -> list[str]:
        for name in super().lost_blobs(blobs):
            raise Corrupt(f"blob {name} is damaged")
        return []


class _LosesBlobsInSilence(FaithfulWriter):
    @property
    def recovery(self) -> Recovery:
        return Recovery()


class ReadsWhatWasDropped(Faithful):
    async def drop(self, key: PartitionKey) -> None:
        log = self._shelf.logs.get(key)
        await super().drop(key)
        if log is not None:
            log.dropped = False


FOUND_BY: list[tuple[type[Faithful], str]] = [
    (broken("StartsAtOne", _StartsAtOne), "test_a_new_log_is_empty_and_starts_at_0"),
    (broken("SortsBuffers", _SortsBuffers), "test_batches_read_back_in_order"),
    (LosesTheEndOnClose, "test_batches_read_back_after_reopening"),
    (broken("ReadsAnywhere", _ReadsAnywhere), "test_reading_is_bounded_by_the_segment"),
    (broken("SendsAnotherFile", _SendsAnotherFile), "test_file_ranges_hold_the_same_bytes"),
    (broken("OneSnapshotForAll", _OneSnapshotForAll), "test_a_snapshot_never_changes"),
    (broken("ForgetsEpochs", _ForgetsEpochs), "test_leader_epochs_are_remembered"),
    (broken("RefusesGaps", _RefusesGaps), "test_offsets_may_have_gaps"),
    (broken("TakesAnything", _TakesAnything), "test_mistakes_of_the_caller_are_refused"),
    (broken("KeepsTheBuffers", _KeepsTheBuffers), "test_buffers_can_be_reused_at_once"),
    (with_ticket("TicketsForThemselves", _ForItselfAlone), "test_tickets_say_what_they_cover"),
    (with_ticket("TicketsForOneWaiter", _ForOneWaiter), "test_any_number_of_tasks_wait"),
    (with_ticket("AcknowledgesFirst", _BeforeTheSync), "test_what_was_acknowledged_survives"),
    (broken("FlushesNothing", _FlushesNothing), "test_flush_makes_everything_durable"),
    (LosesTheMiddle, "test_a_crash_leaves_a_prefix"),
    (broken("SparseIndex", _SparseIndex), "test_an_index_leads_near_every_offset"),
    (broken("OneIndexForAll", _OneIndexForAll), "test_an_index_belongs_to_the_caller"),
    (
        broken("TakesWhatItRefuses", _TakesWhatItRefuses),
        "test_a_full_store_says_so_and_loses_nothing",
    ),
    (broken("ReusesIds", _ReusesIds), "test_rolling_changes_no_byte"),
    (RollsAreForgotten, "test_rolls_survive_a_crash"),
    (broken("KeepsWhatItReplaces", _KeepsWhatItReplaces), "test_an_edit_replaces_segments"),
    (broken("BeginsAnew", _BeginsAnew), "test_segment_is_as_old_as_the_youngest_it_replaces"),
    (broken("CommitsInMemory", _CommitsInMemory), "test_edits_survive_a_crash"),
    (broken("BuildsInPlace", _BuildsInPlace), "test_what_is_built_is_invisible"),
    (broken("LogStartStays", _LogStartStays), "test_retention_removes_the_oldest"),
    (broken("BlobsFirst", _BlobsFirst), "test_an_edit_that_cannot_be_changes_nothing"),
    (broken("StepByStep", _StepByStep), "test_a_cancelled_edit_is_whole_or_nothing"),
    (broken("EditsACopy", _EditsACopy), "test_appending_goes_on_during_an_edit"),
    (broken("RefersToPositions", _RefersToPositions), "test_references_outlive_every_edit"),
    (broken("ReadsOnceOnly", _ReadsOnceOnly), "test_every_hint_reads_the_same"),
    (broken("ReadsInOneThread", _ReadsInOneThread), "test_references_are_read_in_any_thread"),
    (broken("RenamesTooEarly", _RenamesTooEarly), "test_reading_goes_on_during_an_edit"),
    (broken("LingersInTheLog", _LingersInTheLog), "test_what_lingers_is_out_of_the_log"),
    (broken("BuildsTheFirstPart", _BuildsTheFirstPart), "test_a_large_segment_is_built"),
    (broken("CutsWithinBatches", _CutsWithinBatches), "test_truncation_leaves_a_prefix"),
    (broken("TruncatesInMemory", _TruncatesInMemory), "test_truncation_survives_a_crash"),
    (broken("RemembersEpochs", _RemembersEpochs), "test_truncation_forgets_epochs"),
    (broken("RestartsAtItsEnd", _RestartsAtItsEnd), "test_a_log_can_start_anew"),
    (broken("ForgetsEmptyBlobs", _ForgetsEmptyBlobs), "test_blobs_come_back"),
    (ServesDamagedBlobs, "test_a_damaged_blob_is_lost_alone"),
    (RefusesWithoutBlobs, "test_a_damaged_blob_is_lost_alone"),
    (broken("LosesBlobsInSilence", _LosesBlobsInSilence), "test_a_damaged_blob_is_lost_alone"),
    (broken("EditsAlone", _EditsAlone), "test_an_edit_makes_earlier_appends_durable"),
    (NeverFences, "test_a_newer_claim_fences_the_older_writer"),
    (TakesAnyEpoch, "test_an_older_claim_is_refused"),
    (RefusesEqualEpochs, "test_an_equal_claim_takes_over"),
    (broken("AppendsLate", _AppendsLate), "test_nothing_of_a_fenced_writer_appears_later"),
    (OneWriterInAll, "test_partitions_do_not_fence_one_another"),
    (broken("ServesWhenClosed", _ServesWhenClosed), "test_a_closed_writer_is_offline"),
    (ReadsACopy, "test_a_reader_follows_the_writer"),
    (ReadingCreates, "test_a_log_that_never_was_cannot_be_read"),
    (DropsNothing, "test_drop_removes_a_log_for_good"),
    (ReadsWhatWasDropped, "test_drop_removes_a_log_for_good"),
    (DropsInMemory, "test_a_dropped_log_stays_dropped"),
    (broken("TriesAgain", _TriesAgain), "test_a_failure_is_final"),
    (RepairsInSilence, "test_damage_in_the_middle_is_reported_and_left"),
    (ServesDamage, "test_damage_in_the_middle_is_reported_and_left"),
]

__all__ = ["FOUND_BY", "Faithful", "KitHarness", "OutOfRange"]
