"""Groups under faults, as long as one likes: each seed is another history.

A broker, a producer and members of a group, all in one process and on one clock. The broker is
restarted; members join, leave, die, are cut off for shorter and longer than their sessions last,
and are slow; partitions are added. All the while nobody owns what another member of the same
generation owns, and no committed offset goes back. After quiet, everything that was acknowledged
has been processed, and all of it is committed.

    ODRADEK_SEEDS=500 pytest tests/simulation        seeds 0 to 499
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count
from random import Random
from uuid import UUID

import attrs
import pytest
import trio

from odradek.broker import Broker, Host, open_broker
from odradek.broker.host import Boot
from odradek.client import (
    Admin,
    ClientSettings,
    CommitFailed,
    Consumer,
    ConsumerSettings,
    FetchedBatch,
    NewTopic,
    ProducerSettings,
    TopicPartition,
    open_cluster,
    open_consumer,
    open_producer,
)
from odradek.config import config_from_options
from odradek.errors import OdradekError
from odradek.log.worker import InlineWorker, Worker
from odradek.memory.coordinator import open_memory_coordinator
from odradek.testing.simulation import FaultyNetwork, simulate

SEEDS = range(int(os.environ.get("ODRADEK_SEEDS", "8")))
STEPS = 30
SESSION = 10.0
QUIET = 600.0
"""Seconds after the last fault in which a group has to be whole again; new partitions are seen with
the age of the metadata."""
TOPIC, GROUP = "t", "g"
CLIENT = ClientSettings(
    retry_backoff=0.1, retry_backoff_max=1.0, request_timeout=20.0, connect_timeout=2.0,
    metadata_max_age=300.0,
)  # fmt: skip

_names = count()


class SimulatedHost(Host):
    """A machine whose clock is trio's and whose ids come from the seed."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def now_ms(self) -> int:
        return 1_700_000_000_000 + int(trio.current_time() * 1000) % 10**9

    def boot(self) -> Boot:
        return Boot("simulated", int(trio.current_time() * 1000))

    def new_id(self) -> UUID:
        return UUID(int=self._random.getrandbits(128), version=4)

    def cpu_s(self) -> float:
        return 0.0

    def worker(self, name: str) -> Worker:
        return InlineWorker()


class World:
    """Everything there is in one history, and what must hold in it."""

    def __init__(self, name: str, random: Random, nursery: trio.Nursery) -> None:
        self.random = random
        self.nursery = nursery
        self.name = name
        self.host = SimulatedHost(random)
        self.broker: Broker | None = None
        self.partitions = 4
        self.acknowledged: set[tuple[int, int]] = set()
        self.sent = Counter[int]()
        self.processed: set[tuple[int, int]] = set()
        self.members: dict[str, Member] = {}
        self.owners: dict[tuple[int, TopicPartition], str] = {}
        self.committed: dict[TopicPartition, int] = {}
        self.trace: list[tuple[float, str]] = []
        self.commits = 0
        self.rate = 1.0
        self.strategy = random.choice(("cooperative-sticky", "range", "roundrobin", "sticky"))
        self.scope = trio.CancelScope()
        self.stopped = trio.Event()
        self._numbers = count(1)

    def note(self, text: str) -> None:
        self.trace.append((round(trio.current_time(), 6), text))

    # The broker

    async def run_broker(self, *, task_status: trio.TaskStatus[trio.CancelScope]) -> None:
        config = config_from_options(
            listen=[f"memory://{self.name}"],
            storage=f"memory://{self.name}",
            coordinator=f"memory:{self.name}",
            overrides=[
                "groups.offsets_partitions=2",
                "groups.initial_rebalance_delay_ms=500",
                "topics.segment.bytes=65536",
            ],
        )
        with trio.CancelScope() as scope:
            async with open_broker(config, host=self.host) as broker:
                self.broker = broker
                task_status.started(scope)
                await trio.sleep_forever()

    async def keep_broker(self) -> None:
        """Run a broker, and another one when it ends."""
        while True:
            self.scope = await self.nursery.start(self.run_broker)
            self.stopped = trio.Event()
            await self.stopped.wait()

    async def restart_broker(self) -> None:
        broker, self.broker = self.broker, None
        if broker is None:
            return
        self.note("broker stops")
        for member in self.members.values():
            member.network.drop()
        self.scope.cancel()
        await trio.sleep(self.random.random() * 8)
        self.stopped.set()

    # What must hold

    def assigned(self, member: Member, generation: int, partitions: set[TopicPartition]) -> None:
        for partition in sorted(partitions):
            owner = self.owners.setdefault((generation, partition), member.name)
            assert owner == member.name, (
                f"generation {generation} of {partition}: {owner} and {member.name}"
            )

    def stored(self) -> dict[TopicPartition, int]:
        """The group's committed offsets, from the coordinator's own state."""
        assert self.broker is not None
        from odradek.wire.api.a09_offset_fetch import OffsetFetchRequestGroup

        hosted = self.broker.groups.shard_of(GROUP)
        answer = hosted.machine.fetch_offsets(
            OffsetFetchRequestGroup(group_id=GROUP, topics=None), 8, self.host.now_ms()
        )
        return {
            TopicPartition(topic.name, each.partition_index): each.committed_offset
            for topic in answer.topics
            for each in topic.partitions
        }

    def commit_told(self, offsets: dict[TopicPartition, int]) -> None:
        """A member was told that these are stored."""
        self.commits += 1
        for partition, offset in offsets.items():
            self.committed[partition] = max(self.committed.get(partition, 0), offset)

    def settled(self) -> bool:
        living = [member for member in self.members.values() if member.consumer is not None]
        owned = [p for member in living if member.consumer for p in member.consumer.assignment]
        return len(owned) == len(set(owned)) == self.partitions

    def finished(self) -> bool:
        if self.broker is None or not self.settled() or not self.acknowledged <= self.processed:
            return False
        try:
            stored = self.stored()
        except OdradekError:
            return False
        return all(stored.get(TopicPartition(TOPIC, n), 0) == self.sent[n] for n in self.sent)

    async def check_commits(self) -> None:
        """Look at the stored offsets again and again: none is before what was told."""
        while True:
            await trio.sleep(1)
            told = dict(self.committed)
            try:
                stored = self.stored() if self.broker is not None else None
            except OdradekError:
                continue  # it is being loaded
            for partition, offset in told.items() if stored is not None else ():
                assert stored is not None
                assert stored.get(partition, 0) >= offset, f"{partition}: {offset} was committed"


@attrs.define(eq=False)
class Member:
    """A consumer that processes, slowly at times, and commits."""

    name: str
    world: World
    network: FaultyNetwork
    scope: trio.CancelScope = attrs.Factory(trio.CancelScope)
    leaving: trio.Event = attrs.Factory(trio.Event)
    consumer: Consumer | None = None
    slow: float = 0.0

    async def run(self) -> None:
        """Consume until told to leave, or killed."""
        world = self.world
        settings = ConsumerSettings(
            session_timeout=SESSION,
            heartbeat_interval=SESSION / 4,
            rebalance_timeout=30.0,
            auto_commit=False,
            auto_offset_reset="earliest",
            assignors=(world.strategy,),
            max_wait=0.5,
        )

        async def assigned(consumer: Consumer, _: frozenset[TopicPartition]) -> None:
            generation = consumer.health.generation
            world.note(f"{self.name} has {sorted(consumer.assignment)} in {generation}")
            world.assigned(self, generation, set(consumer.assignment))

        try:
            with self.scope:
                async with (
                    open_cluster(f"memory://{world.name}", CLIENT, transport=self.network) as cl,
                    open_consumer(
                        cl, GROUP, topics=[TOPIC], settings=settings, on_assigned=assigned
                    ) as consumer,
                ):
                    cl._random.seed(world.random.getrandbits(64))
                    self.consumer = consumer
                    await self.consume(consumer)
        finally:
            self.consumer = None
            world.members.pop(self.name, None)

    async def consume(self, consumer: Consumer) -> None:
        batches = consumer.batches()
        while not self.leaving.is_set():
            batch = None
            with trio.move_on_after(1.0):
                batch = await anext(batches)
            if batch is not None:
                await self.process(consumer, batch)
            elif consumer.assignment:
                # Nothing new: commit once more what an earlier attempt may have failed to
                where = {each: consumer.position(each) for each in consumer.assignment}
                await self.commit(consumer, {p: at for p, at in where.items() if at})

    async def process(self, consumer: Consumer, batch: FetchedBatch) -> None:
        world = self.world
        await trio.sleep(self.slow)
        records = batch.records()
        for record in records:
            assert record.value is not None
            world.processed.add((batch.partition.partition, int(record.value)))
        await self.commit(consumer, {batch.partition: records[-1].offset + 1})

    async def commit(self, consumer: Consumer, offsets: dict[TopicPartition, int]) -> None:
        try:
            await consumer.commit(offsets)
        except (CommitFailed, OdradekError) as failed:
            self.world.note(f"{self.name} did not commit: {type(failed).__name__}")
        else:
            self.world.commit_told(offsets)

    def kill(self) -> None:
        """As kill -9: nobody hears of it."""
        self.network.cut()
        self.scope.cancel()


async def produce(world: World) -> None:
    """Send numbers to all partitions; note what was acknowledged."""
    network = FaultyNetwork(Random(world.random.getrandbits(64)))
    url = f"memory://{world.name}"
    async with (
        open_cluster(url, CLIENT, transport=network) as cluster,
        open_producer(cluster, ProducerSettings(linger=0.05), now_ms=world.host.now_ms) as producer,
    ):
        cluster._random.seed(world.random.getrandbits(64))

        async def one(partition: int) -> None:
            number = world.sent[partition]
            world.sent[partition] += 1
            delivery = await producer.send(TOPIC, b"%d" % number, partition=partition)
            await delivery.wait()
            world.acknowledged.add((partition, number))

        async with trio.open_nursery() as nursery:
            while world.rate:
                for partition in range(world.partitions):
                    nursery.start_soon(one, partition)
                await trio.sleep(1 / world.rate)


async def one_fault(world: World) -> None:
    """Let one thing happen."""
    random = world.random
    members = sorted(world.members.values(), key=lambda member: member.name)
    kind = random.choice(("join", "join", "leave", "kill", "cut", "cut", "slow", "broker", "grow"))
    if kind == "join" and len(members) < 6:
        name = f"m{next(world._numbers)}"
        network = FaultyNetwork(Random(random.getrandbits(64)))
        member = world.members[name] = Member(name, world, network)
        world.note(f"{name} joins")
        world.nursery.start_soon(member.run)
    elif kind == "broker":
        world.nursery.start_soon(world.restart_broker)
    elif kind == "grow" and world.partitions < 8 and world.broker is not None:
        async with open_cluster(f"memory://{world.name}", CLIENT) as cluster:
            cluster._random.seed(random.getrandbits(64))
            try:
                await Admin(cluster).create_partitions({TOPIC: world.partitions + 1})
            except OdradekError:
                world.note("no partition was added")
            else:
                world.partitions += 1
    elif members:
        member = random.choice(members)
        world.note(f"{kind} {member.name}")
        if kind == "leave":
            member.leaving.set()
        elif kind == "kill":
            member.kill()
        elif kind == "slow":
            member.slow = random.choice((0.0, 1.0, SESSION * 1.5))
        elif kind == "cut":
            world.nursery.start_soon(cut, member, random.random() * 2 * SESSION)


async def cut(member: Member, seconds: float) -> None:
    member.network.cut()
    await trio.sleep(seconds)
    if not member.scope.cancel_called:
        member.network.heal()


@asynccontextmanager
async def open_world(random: Random) -> AsyncIterator[World]:
    name = f"simulation-{next(_names)}"
    # What is in the coordinator is gone when nobody has it open any more
    async with open_memory_coordinator(name), trio.open_nursery() as nursery:
        world = World(name, random, nursery)
        nursery.start_soon(world.keep_broker)
        async with open_cluster(f"memory://{world.name}", CLIENT) as cluster:
            cluster._random.seed(random.getrandbits(64))
            topic = NewTopic(name=TOPIC, partitions=world.partitions)
            await cluster.retrying(lambda: Admin(cluster).create_topic(topic), timeout=60)
        nursery.start_soon(world.check_commits)
        nursery.start_soon(produce, world)
        yield world
        nursery.cancel_scope.cancel()


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110  # waiting costs nothing here
        await trio.sleep(1)


async def history(random: Random) -> World:
    async with open_world(random) as world:
        for _ in range(STEPS):
            await one_fault(world)
            await trio.sleep(random.random() * SESSION)
        world.rate = 0.0
        world.note("quiet")
        await until(lambda: world.broker is not None)
        for member in world.members.values():
            if not member.scope.cancel_called:
                member.network.heal()
                member.slow = 0.0
        last = Member("last", world, FaultyNetwork(Random(random.getrandbits(64))))
        world.members["last"] = last
        world.nursery.start_soon(last.run)
        with trio.move_on_after(QUIET):
            await until(world.finished)
        assert world.settled(), f"no agreement: {world.trace[-10:]}"
        lost = world.acknowledged - world.processed
        assert not lost, f"never processed: {sorted(lost)[:10]}"
        assert world.finished(), (world.stored(), world.sent)
    return world


@pytest.mark.parametrize("seed", SEEDS)
def test_a_group_keeps_its_promises_whatever_happens(seed: int) -> None:
    world = simulate(seed, history)
    assert len(world.acknowledged) > 100, "a history in which nothing happens shows nothing"
    assert world.commits > 50


def test_a_seed_tells_one_history() -> None:
    assert simulate(1, history).trace == simulate(1, history).trace
