"""Coordinators broken on purpose, each in one way, to try the conformance kit."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

import trio
from attrs import evolve

from odradek.contracts.coordinator import (
    ABSENT,
    Absent,
    Change,
    Check,
    Coordinator,
    Delete,
    Entry,
    Op,
    Put,
    Session,
    Unavailable,
    Version,
    Watch,
)
from odradek.memory.coordinator import (
    MemoryCoordinator,
    MemorySession,
    MemoryState,
    memory_state,
    open_memory_coordinator,
)
from odradek.testing.coordinator import CoordinatorHarness, Trait


class Faithful(Coordinator):
    """Hands everything to a coordinator in memory; the broken ones override something."""

    keeps_state_across_restarts = True

    def __init__(self, inner: MemoryCoordinator) -> None:
        self.inner = inner

    async def get(self, key: str) -> Entry | None:
        return await self.inner.get(key)

    async def list(self, directory: str) -> dict[str, Entry]:
        return await self.inner.list(directory)

    async def put(self, key: str, value: bytes) -> Version:
        return await self.inner.put(key, value)

    async def txn(self, *ops: Op) -> tuple[Version | Absent, ...]:
        return await self.inner.txn(*ops)

    @asynccontextmanager
    async def watch(self, directory: str) -> AsyncIterator[Watch]:
        async with self.inner.watch(directory) as watch:
            yield watch

    @asynccontextmanager
    async def session(self, ttl: float) -> AsyncIterator[Session]:
        async with self.inner.session(ttl) as session:
            yield session

    def cut(self) -> None:
        self.inner.disconnect()

    async def heal(self) -> None:
        self.inner.reconnect()


class KitHarness(CoordinatorHarness):
    """A coordinator in memory, with every trait there is, through `plugin`."""

    traits = frozenset(Trait)
    ttl = 0.05

    def __init__(self, plugin: type[Faithful], patience: float = 10) -> None:
        self.patience = patience
        self._plugin = plugin
        self._clients: list[Faithful] = []
        self._name = f"kit-{id(self)}"
        self._state: MemoryState | None = None

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Coordinator]:
        self._state = memory_state(self._name)  # held, so that it survives its clients
        async with open_memory_coordinator(self._name) as inner:
            client = self._plugin(inner)
            self._clients.append(client)
            try:
                yield client
            finally:
                self._clients.remove(client)

    async def restart(self) -> None:
        for client in self._clients:
            client.cut()
        for client in self._clients:
            await client.heal()
        if not self._plugin.keeps_state_across_restarts:
            self._name += "-again"

    async def expire(self, session: Session) -> None:
        inner = session.inner if isinstance(session, OddSession) else session
        assert isinstance(inner, MemorySession)
        inner.coordinator.state.expire(inner.id)

    async def cut(self, coordinator: Coordinator) -> None:
        assert isinstance(coordinator, Faithful)
        coordinator.cut()

    async def heal(self, coordinator: Coordinator) -> None:
        assert isinstance(coordinator, Faithful)
        await coordinator.heal()


class OddSession(Session):
    """A session that may say what it likes about another one."""

    def __init__(self, inner: Session) -> None:
        assert isinstance(inner, MemorySession)
        self.inner = inner
        self.id = inner.id
        self.ttl = inner.ttl
        self.lost = inner.lost

    @property
    def alive(self) -> bool:
        return self.inner.alive


class OddSessions(Faithful):
    """Gives `OddSession`s, and takes them in transactions."""

    kind: type[OddSession] = OddSession

    @asynccontextmanager
    async def session(self, ttl: float) -> AsyncIterator[Session]:
        async with self.inner.session(ttl) as session:
            yield self.kind(session)

    async def txn(self, *ops: Op) -> tuple[Version | Absent, ...]:
        return await super().txn(*map(_unwrapped, ops))


def _unwrapped(op: Op) -> Op:
    if isinstance(op, Put) and isinstance(op.session, OddSession):
        return evolve(op, session=op.session.inner)
    return op


class OddWatch(Watch):
    """A watch over another one."""

    def __init__(self, inner: Watch) -> None:
        self.inner = inner
        self.snapshot: Mapping[str, Entry] = inner.snapshot

    async def __anext__(self) -> Change:
        return await anext(self.inner)


class OddWatches(Faithful):
    """Gives `OddWatch`es."""

    kind: Callable[[Watch], OddWatch] = OddWatch

    @asynccontextmanager
    async def watch(self, directory: str) -> AsyncIterator[Watch]:
        async with self.inner.watch(directory) as watch:
            yield type(self).kind(watch)


# --- keys and values


class ReadsBadKeys(Faithful):
    async def get(self, key: str) -> Entry | None:
        return self.inner.state.keyspace.get(key)


class RefusesLongKeys(Faithful):
    async def put(self, key: str, value: bytes) -> Version:
        if len(key) > 255:
            raise ValueError("too long")
        return await super().put(key, value)


class ReadsFromALaggingReplica(Faithful):
    _replica: dict[str, Entry | None]

    async def get(self, key: str) -> Entry | None:
        replica = self.__dict__.setdefault("_replica", {})
        before = replica.get(key)
        replica[key] = await super().get(key)
        entry: Entry | None = before if before is not None else replica[key]
        return entry


class ListsByPrefix(Faithful):
    async def list(self, directory: str) -> dict[str, Entry]:
        directories = self.inner.state.keyspace._directories
        await super().list(directory)
        return {
            key: entry
            for name, entries in directories.items()
            if name.startswith(directory)
            for key, entry in entries.items()
        }


class PutReturnsThePreviousVersion(Faithful):
    async def put(self, key: str, value: bytes) -> Version:
        before = await self.get(key)
        version = await super().put(key, value)
        return version if before is None else before.version


class IgnoresVersions(Faithful):
    async def txn(self, *ops: Op) -> tuple[Version | Absent, ...]:
        fresh: list[Op] = []
        for op in ops:
            entry = await self.get(op.key)
            known = entry is not None and op.version is not ABSENT
            fresh.append(evolve(op, version=entry.version) if entry and known else op)
        return await super().txn(*fresh)


class NumbersEachLifeAnew(Faithful):
    async def get(self, key: str) -> Entry | None:
        entry = await super().get(key)
        return entry and evolve(entry, revision=entry.revision - entry.created)


class CreatedChangesWithEachWrite(Faithful):
    async def get(self, key: str) -> Entry | None:
        entry = await super().get(key)
        return entry and evolve(entry, created=entry.revision)


# --- transactions


class SkipsDeletes(Faithful):
    async def txn(self, *ops: Op) -> tuple[Version | Absent, ...]:
        kept: list[Op] = [op for op in ops if not isinstance(op, Delete)]
        versions = dict(zip(kept, await super().txn(*kept), strict=True)) if kept else {}
        return tuple(versions.get(op, ABSENT) for op in ops)


class AppliesOneByOne(Faithful):
    async def txn(self, *ops: Op) -> tuple[Version | Absent, ...]:
        versions: list[Version | Absent] = []
        for op in ops:
            versions += await super().txn(op)
            await trio.sleep(0.0005)
        return tuple(versions)


class CreatesOverWhatIsThere(Faithful):
    async def txn(self, *ops: Op) -> tuple[Version | Absent, ...]:
        draft = self.inner.state.keyspace
        fresh: list[Op] = []
        await trio.lowlevel.checkpoint()
        for op in ops:
            entry = draft.get(op.key)
            if entry is not None and isinstance(op, Put) and op.version is ABSENT:
                fresh.append(Put(op.key, op.value, entry.version))
            else:
                fresh.append(op)
        keyspace_draft = draft.begin()
        versions = keyspace_draft.txn(tuple(fresh))
        draft.commit(keyspace_draft)
        return versions


class RefusesLargeTransactions(Faithful):
    async def txn(self, *ops: Op) -> tuple[Version | Absent, ...]:
        if len(ops) > 32:
            raise ValueError("too many")
        return await super().txn(*ops)


class HasNoLimits(Faithful):
    async def txn(self, *ops: Op) -> tuple[Version | Absent, ...]:
        await trio.lowlevel.checkpoint()
        draft = self.inner.state.keyspace.begin()
        versions = draft.txn(ops)
        self.inner.state.keyspace.commit(draft)
        return versions


class ChecksAndThenActs(Faithful):
    async def txn(self, *ops: Op) -> tuple[Version | Absent, ...]:
        checked = await super().txn(*ops[:-1]) if ops[:-1] else ()
        (op,) = ops[-1:]
        entry = await self.get(op.key)
        if not isinstance(op, Put) or (entry.version if entry else ABSENT) != op.version:
            return (*checked, *await super().txn(op))
        return (*checked, await self.put(op.key, op.value))


class IgnoresChecks(Faithful):
    async def txn(self, *ops: Op) -> tuple[Version | Absent, ...]:
        kept: list[Op] = [op for op in ops if not isinstance(op, Check)]
        versions = dict(zip(kept, await super().txn(*kept), strict=True)) if kept else {}
        return tuple(versions.get(op, op.version) for op in ops)


# --- watches


class BeginsWithoutASnapshot(OddWatches):
    class kind(OddWatch):
        def __init__(self, inner: Watch) -> None:
            super().__init__(inner)
            self.snapshot = {}


class NeverTellsDeletions(OddWatches):
    class kind(OddWatch):
        async def __anext__(self) -> Change:
            while (change := await super().__anext__()).entry is None:
                pass
            return change


class TellsOldStatesAgain(OddWatches):
    class kind(OddWatch):
        def __init__(self, inner: Watch) -> None:
            super().__init__(inner)
            self._told: deque[Change] = deque()

        async def __anext__(self) -> Change:
            if len(self._told) == 3:
                change = self._told.popleft()
                self._told.clear()
                return change
            self._told.append(await super().__anext__())
            return self._told[-1]


class LastWatchTakesAll(Faithful):
    _newest: OddWatch | None = None

    @asynccontextmanager
    async def watch(self, directory: str) -> AsyncIterator[Watch]:
        client = self

        class Jealous(OddWatch):
            async def __anext__(self) -> Change:
                if client._newest is not self:
                    await trio.sleep_forever()
                return await super().__anext__()

        async with self.inner.watch(directory) as watch:
            client._newest = Jealous(watch)
            yield client._newest


class QueuesEveryChange(Faithful):
    @asynccontextmanager
    async def watch(self, directory: str) -> AsyncIterator[Watch]:
        sender, receiver = trio.open_memory_channel[Change](1000)

        class Queue(OddWatch):
            async def __anext__(self) -> Change:
                return await receiver.receive()

        async def fill(watch: Watch) -> None:
            async for change in watch:
                await sender.send(change)

        async with self.inner.watch(directory) as watch, trio.open_nursery() as nursery:
            nursery.start_soon(fill, watch)
            yield Queue(watch)
            nursery.cancel_scope.cancel()


class ForgetsWhatHappenedWhileCutOff(Faithful):
    async def heal(self) -> None:
        for watch in self.inner._watches:
            vars(watch)["resync"] = lambda entries: None
        await super().heal()


class WatchEndsWithItsConnection(OddWatches):
    _cut = False

    @asynccontextmanager
    async def watch(self, directory: str) -> AsyncIterator[Watch]:
        client = self

        class Mortal(OddWatch):
            async def __anext__(self) -> Change:
                if client._cut:
                    raise Unavailable("connection lost")
                return await super().__anext__()

        async with self.inner.watch(directory) as watch:
            yield Mortal(watch)

    def cut(self) -> None:
        self._cut = True
        super().cut()


# --- sessions


class OverwritingDisowns(Faithful):
    async def put(self, key: str, value: bytes) -> Version:
        entry = await self.get(key)
        if entry is not None:
            await self.txn(Delete(key, entry.version))
        return await super().put(key, value)


class TakesForeignSessions(Faithful):
    async def txn(self, *ops: Op) -> tuple[Version | Absent, ...]:
        for op in ops:
            if isinstance(op, Put) and isinstance(op.session, MemorySession):
                return await op.session.coordinator.txn(*ops)
        return await super().txn(*ops)


class TakesAnyTtl(Faithful):
    @asynccontextmanager
    async def session(self, ttl: float) -> AsyncIterator[Session]:
        async with super().session(ttl if 0 < ttl < 100 else 1) as session:
            yield session


class LeavingDoesNotEndTheSession(Faithful):
    @asynccontextmanager
    async def session(self, ttl: float) -> AsyncIterator[Session]:
        yield await self._open_for_ever(ttl)

    async def _open_for_ever(self, ttl: float) -> MemorySession:
        await trio.lowlevel.checkpoint()
        session = self.inner.state._open_session(self.inner, ttl)
        self.inner._sessions.add(session)  # until the coordinator is closed
        return session


class CancellationLeavesTheSession(LeavingDoesNotEndTheSession):
    @asynccontextmanager
    async def session(self, ttl: float) -> AsyncIterator[Session]:
        session = await self._open_for_ever(ttl)
        yield session
        self.inner._leave(session)


class DeadSessionsRise(OddSessions):
    class kind(OddSession):
        @property
        def alive(self) -> bool:
            return True


class BelievesWhatItWasToldLast(OddSessions):
    class kind(OddSession):
        @property
        def alive(self) -> bool:
            return self.inner.alive or not self.inner.coordinator.connected


class NeverRenews(Faithful):
    @asynccontextmanager
    async def session(self, ttl: float) -> AsyncIterator[Session]:
        async def run_out(session: Session) -> None:
            await trio.sleep(session.ttl)
            self.inner.state.expire(session.id)

        async with self.inner.session(ttl) as session, trio.open_nursery() as nursery:
            nursery.start_soon(run_out, session)
            yield session
            nursery.cancel_scope.cancel()


class EphemeralsArePersistent(Faithful):
    async def txn(self, *ops: Op) -> tuple[Version | Absent, ...]:
        return await super().txn(
            *(evolve(op, session=None) if isinstance(op, Put) else op for op in ops)
        )


class WholeTxnIsEphemeral(Faithful):
    async def txn(self, *ops: Op) -> tuple[Version | Absent, ...]:
        sessions = [op.session for op in ops if isinstance(op, Put) and op.session]
        return await super().txn(
            *(
                evolve(op, session=sessions[0])
                if isinstance(op, Put) and op.version is ABSENT and sessions
                else op
                for op in ops
            )
        )


# --- failures


class ForgetsOnRestart(Faithful):
    keeps_state_across_restarts = False


class SendsQueuedWritesLate(Faithful):
    """As kazoo does by default."""

    def __init__(self, inner: MemoryCoordinator) -> None:
        super().__init__(inner)
        self._queue: list[tuple[Op, ...]] = []

    async def txn(self, *ops: Op) -> tuple[Version | Absent, ...]:
        if not self.inner.connected:
            self._queue.append(ops)
        return await super().txn(*ops)

    async def heal(self) -> None:
        await super().heal()
        for ops in self._queue:
            await super().txn(*ops)


class CancelledReaderLosesAChange(OddWatches):
    class kind(OddWatch):
        async def __anext__(self) -> Change:
            change = await super().__anext__()
            await trio.sleep(0.0005)
            return change


class ServesWhenClosed(Faithful):
    async def get(self, key: str) -> Entry | None:
        await trio.lowlevel.checkpoint()
        return self.inner.state.keyspace.get(key)
