"""A world for decentralised groups: members over a coordinator that fails when told to.

Nobody fetches records: a member's consumer is a `Worker`, which counts up the offsets of the
partitions it owns, commits them, and checks what a group promises whenever it is called.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from random import Random
from uuid import UUID, uuid5

import attrs
import trio
import trio.testing

from odradek.client import ClientSettings, Cluster, TopicPartition
from odradek.client.consumer_settings import ConsumerSettings
from odradek.client.decentralised import DecentralisedMembership, open_membership
from odradek.client.decentralised.keys import GroupKeys, offset_of
from odradek.client.errors import NotReachable
from odradek.client.membership import CommitFailed, CommittedOffset, MembershipState
from odradek.client.metadata import Metadata, PartitionInfo, TopicInfo
from odradek.contracts.background import open_tasks
from odradek.contracts.coordinator import (
    Absent,
    Change,
    Coordinator,
    CoordinatorError,
    Entry,
    Op,
    Session,
    Unavailable,
    Uncertain,
    Version,
    Watch,
)
from odradek.contracts.keyspace import Draft
from odradek.errors import KafkaError
from odradek.memory.coordinator import MemoryCoordinator, MemoryState, open_memory_coordinator
from odradek.memory.transport import MemoryTransport
from odradek.types import PartitionKey

GROUP = "the group"
TTL = 6.0
QUICK = ClientSettings(
    client_id="worker",
    retry_backoff=0.01,
    retry_backoff_max=0.5,
    request_timeout=5.0,
    metadata_max_age=30.0,
)
_NAMESPACE = UUID(int=0)


@attrs.define
class Topics:
    """The topics there are, as brokers would tell; `id` changes when one is created again."""

    counts: dict[str, int] = attrs.Factory(dict)
    lives: dict[str, int] = attrs.Factory(dict)

    def id(self, name: str) -> UUID:
        return uuid5(_NAMESPACE, f"{name} {self.lives.get(name, 0)}")

    def partitions(self, *names: str) -> set[TopicPartition]:
        return {TopicPartition(name, n) for name in names for n in range(self.counts[name])}


class ToldCluster(Cluster):
    """A cluster whose metadata is told by a `Topics`, without brokers."""

    def __init__(self, topics: Topics, nursery: trio.Nursery, settings: ClientSettings = QUICK):
        super().__init__(("memory://nobody",), settings, MemoryTransport(), nursery)
        self.told = topics
        self.reachable = True

    async def renew(
        self,
        topics: Collection[str] | None = (),
        *,
        newer_than: int | None = None,
        create: bool = False,
    ) -> Metadata:
        await trio.lowlevel.checkpoint()
        if not self.reachable:
            raise NotReachable("nobody is there")
        infos = {}
        for name, count in self.told.counts.items():
            parts = tuple(PartitionInfo(n, None, (), (), ()) for n in range(count))
            infos[name] = TopicInfo(name, self.told.id(name), False, parts, ())
        self.metadata = attrs.evolve(
            self.metadata, generation=self.metadata.generation + 1, topics=infos
        )
        self.image_changed.set()
        self.image_changed = trio.Event()
        return self.metadata


class RepeatingDraft(Draft):
    """Gives an entry that is created again the versions it had before, as ZooKeeper does (C5)."""

    def _write(self, key: str, value: bytes, owner: str | None) -> Version:
        before = self.get(key)
        super()._write(key, value, owner)
        version = Version(0 if before is None else before.version + 1)
        after = self.changes[key]
        assert after is not None
        self.changes[key] = attrs.evolve(after, version=version)
        return version


def repeat_versions(state: MemoryState) -> None:
    keyspace = state.keyspace
    keyspace.begin = lambda: RepeatingDraft(keyspace)  # type: ignore[method-assign]


class FaultyCoordinator(Coordinator):
    """Another coordinator, slowly and with errors: `rate` of the calls fail, until it is 0."""

    def __init__(self, inner: MemoryCoordinator, world: World) -> None:
        self.inner = inner
        self.world = world
        self.rate = world.rate
        self.latency = 0.2 if world.rate else 0.0
        self.sessions: list[Session] = []
        self.transactions: list[tuple[Op, ...]] = []
        self._random = world.random

    def _fails(self) -> bool:
        failed = self._random.random() < self.rate
        self.world.faults += failed
        return failed

    async def _pass_time(self) -> None:
        if self.latency:
            await trio.sleep(self._random.random() * self.latency)

    async def get(self, key: str) -> Entry | None:
        await self._pass_time()
        if self._fails():
            raise Unavailable("a fault was injected")
        return await self.inner.get(key)

    async def list(self, directory: str) -> dict[str, Entry]:
        await self._pass_time()
        if self._fails():
            raise Unavailable("a fault was injected")
        return await self.inner.list(directory)

    async def put(self, key: str, value: bytes) -> Version:
        raise NotImplementedError

    @contextmanager
    def counted(self) -> Iterator[Sequence[tuple[Op, ...]]]:
        """Collect the transactions."""
        self.transactions.clear()
        yield self.transactions

    async def txn(self, *ops: Op) -> tuple[Version | Absent, ...]:
        self.transactions.append(ops)
        await self._pass_time()
        if not self._fails():
            return await self.inner.txn(*ops)
        kind = self._random.choice(("refused", "lost", "applied", "late"))
        if kind == "refused":
            raise Unavailable("a fault was injected")
        if kind == "applied":
            await self.inner.txn(*ops)
            await self._pass_time()
        elif kind == "late":
            self.world.tasks.start_soon(self._apply_late, ops)
        raise Uncertain("a fault was injected")

    async def _apply_late(self, ops: tuple[Op, ...]) -> None:
        await trio.sleep(self._random.random() * 3)
        try:
            await self.inner.txn(*ops)
        except CoordinatorError:
            return

    @asynccontextmanager
    async def watch(self, directory: str) -> AsyncIterator[Watch]:
        await self._pass_time()
        if self._fails():
            raise Unavailable("a fault was injected")
        async with self.inner.watch(directory) as watch:
            yield _SlowWatch(watch, self)

    @asynccontextmanager
    async def session(self, ttl: float) -> AsyncIterator[Session]:
        await self._pass_time()
        if self._fails():
            raise Unavailable("a fault was injected")
        async with self.inner.session(ttl) as session:
            self.sessions.append(session)
            yield session


class _Unsure(MemoryCoordinator):
    def __init__(self, state: MemoryState, random: Random) -> None:
        super().__init__(state)
        self._random = random

    async def txn(self, *ops: Op) -> tuple[Version | Absent, ...]:
        fate = self._random.randrange(4)
        if fate:
            result = await super().txn(*ops)
            if fate > 1:
                return result
        raise Uncertain("a fault was injected")


class _SlowWatch(Watch):
    def __init__(self, inner: Watch, faulty: FaultyCoordinator) -> None:
        self.snapshot = inner.snapshot
        self._inner = inner
        self._faulty = faulty

    async def __anext__(self) -> Change:
        await self._faulty._pass_time()
        return await anext(self._inner)


class Worker:
    """A member and its consumer. `log` is what it was called with."""

    def __init__(self, world: World, name: str, topics: Collection[str]) -> None:
        self.world = world
        self.name = name
        self.topics = frozenset(topics)
        self.owned: frozenset[TopicPartition] = frozenset()
        self.positions: dict[TopicPartition, int] = {}
        self.keys: dict[TopicPartition, PartitionKey] = {}
        self.log: list[tuple[str, frozenset[TopicPartition]]] = []
        self.membership: DecentralisedMembership
        self.coordinator: FaultyCoordinator
        self.cluster: ToldCluster
        self.scope = trio.CancelScope()
        self.stop = trio.Event()
        self.gone = trio.Event()
        self.refused = 0

    # --- as a subscriber

    async def revoked(self, partitions: Collection[TopicPartition]) -> None:
        self.log.append(("revoked", frozenset(partitions)))
        assert self.owned.issuperset(partitions)
        await self.commit(partitions)
        self._drop(partitions)

    async def assigned(self, partitions: Collection[TopicPartition]) -> None:
        self.log.append(("assigned", frozenset(partitions)))
        assert self.owned.isdisjoint(partitions)
        self.world.check_owners(self, partitions)
        self.owned |= frozenset(partitions)
        if not partitions:
            return
        self.keys.update((each, self.world.key(each)) for each in partitions)
        committed = await self.membership.committed(partitions)
        for each in partitions:
            offset = committed[each].offset if each in committed else 0
            if self.membership.alive and each in self.owned:
                acknowledged = self.world.acknowledged.get(self.world.key(each), 0)
                assert offset >= acknowledged, "an acknowledged commit is lost"
            self.positions[each] = offset

    async def lost(self, partitions: Collection[TopicPartition]) -> None:
        self.log.append(("lost", frozenset(partitions)))
        self._drop(partitions)

    def _drop(self, partitions: Collection[TopicPartition]) -> None:
        self.owned -= frozenset(partitions)
        for each in partitions:
            self.positions.pop(each, None)

    # --- as a consumer

    @property
    def live(self) -> frozenset[TopicPartition]:
        """What it may hand out records of now."""
        return self.owned if self.membership.alive else frozenset()

    async def commit(self, partitions: Collection[TopicPartition]) -> None:
        keys = {each: self.keys[each] for each in partitions}
        offsets = {p: CommittedOffset(self.positions[p]) for p in partitions if p in self.positions}
        try:
            await self.membership.commit(offsets)
        except (CommitFailed, KafkaError):
            self.refused += 1
        else:
            for each, offset in offsets.items():
                self.world.note(keys[each], offset.offset)

    async def work(self) -> None:
        """Count up, and commit now and then, for as long as it may."""
        while True:
            await trio.sleep(self.world.random.random() * 0.5)
            for each in self.live & self.positions.keys():
                self.positions[each] += 1
            if self.world.random.random() < 0.5:
                await self.commit(self.live)

    async def live_on(self, working: bool) -> None:
        """Be a consumer: open, run until told to stop, leave."""
        try:
            with self.scope:
                async with AsyncExitStack() as stack:
                    tasks = await stack.enter_async_context(open_tasks())
                    inner = await stack.enter_async_context(open_memory_coordinator(GROUP))
                    self.coordinator = FaultyCoordinator(inner, self.world)
                    self.cluster = ToldCluster(self.world.topics, tasks)
                    self.membership = await stack.enter_async_context(
                        open_membership(
                            self.cluster,
                            self.coordinator,
                            GROUP,
                            self.world.settings,
                            member_id=self.name,
                        )
                    )
                    async with open_tasks() as running:
                        await running.start(self.membership.run, self)
                        self.world.workers[self.name] = self
                        if working:
                            running.start_soon(self.work)
                        await self.stop.wait()
                    await self.commit(self.live)
                    self.owned = frozenset()
                    await self.membership.leave()
        finally:
            self.world.workers.pop(self.name, None)
            self.gone.set()

    async def leave(self) -> None:
        self.stop.set()
        await self.gone.wait()

    async def kill(self) -> None:
        """End without another word: the server keeps its keys until the session has expired."""
        self.coordinator.inner.disconnect()
        self.scope.cancel()
        await self.gone.wait()


class World:
    """The group, its topics, and what may never happen to it."""

    def __init__(self, tasks: trio.Nursery, observer: MemoryCoordinator, seed: int, rate: float):
        self.random = Random(seed)
        self.rate = rate
        self.faults = 0
        self.forgetful = False  # whether offsets may be deleted, and go back
        self.tasks = tasks
        self.observer = observer
        self.topics = Topics()
        self.workers: dict[str, Worker] = {}
        self.acknowledged: dict[PartitionKey, int] = {}
        self.settings = ConsumerSettings(session_timeout=TTL, heartbeat_interval=1.0)
        self.keys = GroupKeys(GROUP)
        self._names = iter(range(10_000))

    def key(self, partition: TopicPartition) -> PartitionKey:
        return PartitionKey(self.topics.id(partition.topic), partition.partition)

    async def join(self, *topics: str, working: bool = False) -> Worker:
        worker = Worker(self, f"worker-{next(self._names):03}", topics)
        self.tasks.start_soon(worker.live_on, working)
        await self.until(lambda: worker.name in self.workers)
        return worker

    def unsure(self) -> Coordinator:
        """Another client, of whose writes every other one's answer is lost, applied or not."""
        return _Unsure(self.observer.state, self.random)

    def note(self, partition: PartitionKey, offset: int) -> None:
        self.acknowledged[partition] = max(offset, self.acknowledged.get(partition, 0))

    def check_owners(self, who: Worker, partitions: Collection[TopicPartition]) -> None:
        for other in self.workers.values():
            if other is not who:
                both = other.live.intersection(partitions)
                assert not both, f"{other.name} and {who.name} own {both}"

    async def check_offsets(self, task_status: trio.TaskStatus[None]) -> None:
        """Assert that no committed offset ever goes back, or away."""
        newest: dict[str, int] = {}
        async with self.observer.watch(self.keys.offsets) as watch:
            task_status.started()
            async for change in watch:
                if change.entry is None:
                    assert self.forgetful, "an offset was deleted"
                    newest.pop(change.key, None)
                    continue
                committed = offset_of(change.entry).committed
                offset = 0 if committed is None else committed.offset
                back = offset < newest.get(change.key, 0)
                assert self.forgetful or not back, "a committed offset went back"
                newest[change.key] = offset

    def settled(self) -> bool:
        """Whether every partition has one owner, and everybody knows."""
        owned = [each for worker in self.workers.values() for each in worker.live]
        subscribed = {name for worker in self.workers.values() for name in worker.topics}
        return (
            len(owned) == len(set(owned))
            and set(owned) == self.topics.partitions(*subscribed & self.topics.counts.keys())
            and all(
                worker.membership.status.state is MembershipState.STABLE
                for worker in self.workers.values()
            )
        )

    async def until(self, reached: Callable[[], bool], within: float = 60.0) -> None:
        """Wait until `reached` holds, looking often: time here is cheap."""
        with trio.fail_after(within):
            while not reached():  # noqa: ASYNC110  # what is waited for has no event
                await trio.sleep(0.01)

    async def until_owned(self, worker: Worker, *partitions: TopicPartition) -> None:
        """Wait until `worker` owns exactly these, and the group has settled."""
        await self.until(lambda: worker.live == set(partitions))
        await self.until_settled(1)

    async def until_settled(self, within: float) -> float:
        """Wait until `settled` holds, and say how long that took."""
        begun = trio.current_time()
        try:
            await self.until(self.settled, within)
        except trio.TooSlowError:
            state = {w.name: (w.membership.status, w.live) for w in self.workers.values()}
            raise AssertionError(f"not settled within {within:g} s: {state}") from None
        return trio.current_time() - begun


@asynccontextmanager
async def open_world(seed: int = 0, rate: float = 0.0) -> AsyncIterator[World]:
    """Open a world without topics and members; at the end all members are cancelled."""
    async with open_memory_coordinator(GROUP) as observer, open_tasks() as tasks:
        repeat_versions(observer.state)
        world = World(tasks, observer, seed, rate)
        await tasks.start(world.check_offsets)
        yield world


def in_a_world(test: Callable[[World], Awaitable[None]]) -> Callable[[], None]:
    """Run the test in a world with a topic, where time passes while nothing else can happen."""

    def run() -> None:
        async def main() -> None:
            with trio.fail_after(3600):
                async with open_world() as world:
                    world.topics.counts["t"] = 6
                    await test(world)

        trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))

    run.__name__ = test.__name__
    return run
