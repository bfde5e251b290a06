"""The project's own consumer in groups: on a broker of Apache Kafka and on ours, alone, with its
like, and with confluent-kafka in the same group."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from importlib.util import find_spec
from typing import Any, TypeAlias

import pytest
import trio
from tests.interop.conftest import missing
from tests.interop.kafka import KafkaBroker
from tests.interop.process import BrokerProcess
from trio.testing import wait_all_tasks_blocked

from odradek.client import (
    EARLIEST,
    LATEST,
    Admin,
    ClientSettings,
    Cluster,
    CommittedOffset,
    Consumer,
    ConsumerRecord,
    ConsumerSettings,
    GroupDescription,
    NewTopic,
    Start,
    TopicPartition,
    open_cluster,
    open_consumer,
    open_producer,
)
from odradek.errors import ErrorCode, KafkaError

Address: TypeAlias = str

QUICK = ClientSettings(
    retry_backoff=0.02, retry_backoff_max=0.2, request_timeout=20.0, metadata_max_age=0.5
)
LIVELY = ConsumerSettings(
    auto_offset_reset="earliest",
    session_timeout=10.0,
    heartbeat_interval=0.2,
    auto_commit_interval=0.1,
    max_wait=0.1,
)
"""Rebalances are learnt of by heartbeats: these are not to take seconds."""


@pytest.fixture(params=["kafka", "odradek"])
def address(request: pytest.FixtureRequest) -> Address:
    """A broker of each kind, that does not wait for a first member's companions."""
    if request.param == "kafka":
        kafka: KafkaBroker = request.getfixturevalue("kafka")
        return kafka.address
    broker: BrokerProcess = request.getfixturevalue("prompt_broker")
    return broker.address


@pytest.fixture(scope="module")
def prompt_broker(tmp_path_factory: pytest.TempPathFactory) -> Any:
    settings = {"groups.initial_rebalance_delay_ms": 0, "groups.offsets_partitions": 1}
    broker = BrokerProcess(tmp_path_factory.mktemp("prompt"), settings)
    broker.start()
    try:
        yield broker
        assert broker.problems() == []
    finally:
        broker.kill()


@pytest.fixture
async def cluster(address: Address) -> AsyncIterator[Cluster]:
    """The client's view of that broker."""
    with trio.fail_after(90):
        async with open_cluster(address, QUICK) as cluster:
            yield cluster


@pytest.fixture
def admin(cluster: Cluster) -> Admin:
    return Admin(cluster, timeout=20.0)


@pytest.fixture
def foreign(address: Address) -> Callable[..., Any]:
    """Make members with confluent-kafka: `foreign(group, topic, **settings)`."""
    if find_spec("confluent_kafka") is None:
        missing("confluent-kafka")
    from tests.interop.member import ConfluentMember

    return partial(ConfluentMember, address)


async def create(cluster: Cluster, topic: str, partitions: int, records: int = 0) -> None:
    """Create a topic, and fill each partition; the time of each record is its offset."""
    await Admin(cluster).create_topic(
        NewTopic(name=topic, partitions=partitions, replication_factor=1)
    )
    await send(cluster, topic, partitions, records)


async def send(cluster: Cluster, topic: str, partitions: int, records: int) -> None:
    async with open_producer(cluster) as producer:
        for part in range(partitions):
            for n in range(records):
                await producer.send(topic, b"%d-%d" % (part, n), partition=part, timestamp=n)


async def until(condition: Callable[[], Any]) -> None:
    """Return when the condition holds."""
    while True:
        found = condition()
        if isinstance(found, Awaitable):
            found = await found
        if found:
            return
        await trio.sleep(0.01)


class Member:
    """A native member that reads until it is told to leave."""

    def __init__(self, consumer: Consumer) -> None:
        self.consumer = consumer
        self.seen: list[ConsumerRecord] = []
        self.assigned: list[frozenset[TopicPartition]] = []
        self.revoked: list[frozenset[TopicPartition]] = []
        self.leave = trio.CancelScope()

    @property
    def owned(self) -> set[int]:
        return {each.partition for each in self.consumer.assignment}

    async def read(self) -> None:
        async for record in self.consumer:
            self.seen.append(record)


@asynccontextmanager
async def joined(
    cluster: Cluster, group: str, topic: str, settings: ConsumerSettings = LIVELY
) -> AsyncIterator[Member]:
    """Be a member, and read in the background; leaving this leaves the group."""
    member: Member | None = None

    async def assigned(consumer: Consumer, partitions: frozenset[TopicPartition]) -> None:
        while member is None:
            await trio.lowlevel.checkpoint()
        member.assigned.append(partitions)

    async def revoked(consumer: Consumer, partitions: frozenset[TopicPartition]) -> None:
        assert member is not None
        member.revoked.append(partitions)

    async with open_consumer(
        cluster, group, topics=[topic], settings=settings, on_assigned=assigned, on_revoked=revoked
    ) as consumer:
        member = Member(consumer)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(member.read)
            yield member
            nursery.cancel_scope.cancel()


def offsets(committed: dict[TopicPartition, CommittedOffset]) -> dict[int, int]:
    return {partition.partition: at.offset for partition, at in committed.items()}


async def take(consumer: Consumer, count: int) -> list[ConsumerRecord]:
    """The next records, all finished."""
    records = aiter(consumer)
    return [await anext(records) for _ in range(count)]


# -- alone -----------------------------------------------------------------------------------


async def test_consumer_goes_on_where_its_group_committed(
    cluster: Cluster, admin: Admin, topic_name: str
) -> None:
    await create(cluster, topic_name, 2, 5)
    settings = ConsumerSettings(auto_offset_reset="earliest", auto_commit=False)
    async with open_consumer(
        cluster, topic_name, topics=[topic_name], settings=settings
    ) as consumer:
        assert len(await take(consumer, 10)) == 10
        await consumer.commit({TopicPartition(topic_name, 0): CommittedOffset(3, 0, "by hand")})
        committed = await consumer.committed()
        assert committed == {TopicPartition(topic_name, 0): CommittedOffset(3, 0, "by hand")}
    assert offsets(await admin.group_offsets(topic_name)) == {0: 3}
    async with joined(cluster, topic_name, topic_name) as member:
        await until(lambda: len(member.seen) >= 7)
    found = sorted((record.partition, record.offset) for record in member.seen)
    assert found == [(0, 3), (0, 4), (1, 0), (1, 1), (1, 2), (1, 3), (1, 4)]
    assert offsets(await admin.group_offsets(topic_name)) == {0: 5, 1: 5}
    described = (await admin.describe_groups([topic_name]))[topic_name]
    assert isinstance(described, GroupDescription)
    assert (described.state, described.members) == ("Empty", ())


async def test_consumer_that_is_cancelled_commits_and_leaves_at_once(
    cluster: Cluster, admin: Admin, topic_name: str, address: Address
) -> None:
    await create(cluster, topic_name, 1, 5)
    slow = ConsumerSettings(auto_offset_reset="earliest", session_timeout=30.0)

    async def consume(*, task_status: trio.TaskStatus[trio.CancelScope]) -> None:
        with trio.CancelScope() as scope:
            async with (
                open_cluster(address, QUICK) as own,
                open_consumer(own, topic_name, topics=[topic_name], settings=slow) as consumer,
            ):
                await take(consumer, 5)
                task_status.started(scope)
                await anext(aiter(consumer))

    async with trio.open_nursery() as nursery:
        scope: trio.CancelScope = await nursery.start(consume)
        await wait_all_tasks_blocked(0.05)
        with trio.fail_after(15):
            scope.cancel()

            async def gone() -> bool:
                found = (await admin.describe_groups([topic_name]))[topic_name]
                return isinstance(found, GroupDescription) and found.state == "Empty"

            await until(gone)
    assert offsets(await admin.group_offsets(topic_name)) == {0: 5}


async def test_consumer_seeks_pauses_and_knows_its_lag(cluster: Cluster, topic_name: str) -> None:
    await create(cluster, topic_name, 2, 10)
    first, second = TopicPartition(topic_name, 0), TopicPartition(topic_name, 1)
    async with open_consumer(
        cluster, assignment={first: Start(offset=8), second: Start(timestamp=9)}
    ) as consumer:
        found = {(each.partition, each.offset) for each in await take(consumer, 3)}
        assert found == {(0, 8), (0, 9), (1, 9)}
        consumer.pause(second)
        consumer.seek_to_time(first, 7)
        consumer.seek(second, 0)
        assert [each.offset for each in await take(consumer, 3)] == [7, 8, 9]
        consumer.seek_to_time(first, LATEST)
        consumer.resume(second)
        assert [each.offset for each in await take(consumer, 4)] == [0, 1, 2, 3]
        assert consumer.position(second) == 4
        assert consumer.lag().partitions[second] == 6
        consumer.seek_to_time(second, EARLIEST)
        assert (await anext(aiter(consumer))).offset == 0


async def test_consumer_follows_topics_that_match_its_pattern(
    cluster: Cluster, topic_name: str
) -> None:
    await create(cluster, f"{topic_name}-a", 1, 1)
    await create(cluster, f"not-{topic_name}", 1, 1)
    async with open_consumer(
        cluster, topic_name, pattern=f"{topic_name}-.*", settings=LIVELY
    ) as consumer:
        (record,) = await take(consumer, 1)
        assert record.topic == f"{topic_name}-a"
        await create(cluster, f"{topic_name}-b", 2, 1)
        found = {(each.topic, each.partition) for each in await take(consumer, 2)}
        assert found == {(f"{topic_name}-b", 0), (f"{topic_name}-b", 1)}
        assert consumer.subscription == {f"{topic_name}-a", f"{topic_name}-b"}


async def test_consumer_goes_on_when_an_offset_is_not_in_the_log_any_more(
    cluster: Cluster, admin: Admin, topic_name: str
) -> None:
    await create(cluster, topic_name, 1, 10)
    part = TopicPartition(topic_name, 0)
    await admin.alter_group_offsets(topic_name, {part: 2})
    await admin.delete_records({part: 6})
    async with joined(cluster, topic_name, topic_name) as member:
        await until(lambda: len(member.seen) == 4)
        assert [record.offset for record in member.seen] == [6, 7, 8, 9]


# -- together --------------------------------------------------------------------------------


async def test_members_rebalance_without_stopping_what_they_keep(
    cluster: Cluster, admin: Admin, topic_name: str
) -> None:
    await create(cluster, topic_name, 4, 5)
    async with joined(cluster, topic_name, topic_name) as one:
        await until(lambda: len(one.seen) == 20)
        async with joined(cluster, topic_name, topic_name) as two:
            await until(lambda: len(one.owned) == len(two.owned) == 2)
            assert one.owned | two.owned == {0, 1, 2, 3}
            (given_up,) = one.revoked  # what it keeps was never taken from it
            assert {each.partition for each in given_up} == two.owned
            await send(cluster, topic_name, 4, 3)
            await until(lambda: len(one.seen) + len(two.seen) == 32)
        await until(lambda: one.owned == {0, 1, 2, 3})
        await send(cluster, topic_name, 4, 1)
        await until(lambda: len(one.seen) + len(two.seen) == 36)
    times = Counter((record.partition, record.offset) for record in (*one.seen, *two.seen))
    assert times == {(part, offset): 1 for part in range(4) for offset in range(9)}
    assert offsets(await admin.group_offsets(topic_name)) == dict.fromkeys(range(4), 9)


@pytest.mark.parametrize(
    ("assignor", "theirs"),
    [
        ("range", "range,roundrobin"),
        ("roundrobin", "roundrobin"),
        ("cooperative-sticky", "cooperative-sticky"),
    ],
)
@pytest.mark.parametrize("leader", ["native leads", "confluent leads"])
async def test_members_share_a_group_with_confluent_kafka(
    cluster: Cluster,
    admin: Admin,
    topic_name: str,
    foreign: Callable[..., Any],
    assignor: str,
    theirs: str,
    leader: str,
) -> None:
    await create(cluster, topic_name, 4, 5)
    settings = ConsumerSettings(
        auto_offset_reset="earliest",
        session_timeout=10.0,
        heartbeat_interval=0.2,
        auto_commit_interval=0.1,
        assignors=(assignor,),
    )

    def another() -> Any:
        return foreign(topic_name, topic_name, partition_assignment_strategy=theirs)

    async def both(native: Member, other: Any) -> None:
        await until(lambda: len(native.owned) == len(other.owned) == 2)
        assert native.owned | other.owned == {0, 1, 2, 3}
        described = (await admin.describe_groups([topic_name]))[topic_name]
        assert isinstance(described, GroupDescription)
        assert described.protocol == assignor
        await send(cluster, topic_name, 4, 3)
        await until(lambda: {o for p, o in positions(native, other) if o >= 5} == {5, 6, 7})

    def positions(native: Member, other: Any) -> set[tuple[int, int]]:
        mine = {(record.partition, record.offset) for record in native.seen}
        return mine | {(part, offset) for part, offset, _ in other.seen}

    everything = {(part, offset) for part in range(4) for offset in range(8)}
    if leader == "native leads":
        async with joined(cluster, topic_name, topic_name, settings) as native:
            await until(lambda: len(native.owned) == 4)
            other = another()
            await both(native, other)
            await until(lambda: positions(native, other) == everything)
            await trio.to_thread.run_sync(other.leave)
            await until(lambda: native.owned == {0, 1, 2, 3})
    else:
        other = another()
        await until(lambda: len(other.owned) == 4)
        async with joined(cluster, topic_name, topic_name, settings) as native:
            await both(native, other)
            await until(lambda: positions(native, other) == everything)
        await until(lambda: other.owned == {0, 1, 2, 3})
        await trio.to_thread.run_sync(other.leave)
    assert offsets(await admin.group_offsets(topic_name)) == dict.fromkeys(range(4), 8)


async def test_static_member_comes_back_to_its_partitions_without_a_rebalance(
    cluster: Cluster, admin: Admin, topic_name: str
) -> None:
    await create(cluster, topic_name, 2, 3)

    def static(name: str) -> ConsumerSettings:
        return ConsumerSettings(
            auto_offset_reset="earliest",
            group_instance_id=name,
            session_timeout=10.0,
            heartbeat_interval=0.2,
        )

    async with joined(cluster, topic_name, topic_name, static("a")) as stays:
        async with joined(cluster, topic_name, topic_name, static("b")) as comes:
            await until(lambda: len(stays.owned) == len(comes.owned) == 1)
            owned, generation = comes.owned, stays.consumer.health.generation
        before = len(stays.assigned), len(stays.revoked)
        async with joined(cluster, topic_name, topic_name, static("b")) as back:
            await until(lambda: back.owned == owned)
        assert (len(stays.assigned), len(stays.revoked)) == before
        assert stays.consumer.health.generation == generation


async def test_static_member_that_was_replaced_is_told_so(
    cluster: Cluster, topic_name: str
) -> None:
    await create(cluster, topic_name, 1)
    settings = ConsumerSettings(
        group_instance_id="one", session_timeout=10.0, heartbeat_interval=0.1
    )
    async with open_consumer(
        cluster, topic_name, topics=[topic_name], settings=settings
    ) as replaced:
        await until(lambda: replaced.assignment)
        async with joined(cluster, topic_name, topic_name, settings) as newer:
            await until(lambda: newer.owned == {0})
            with pytest.raises(KafkaError) as refused:
                await anext(aiter(replaced))
            assert refused.value.code == ErrorCode.FENCED_INSTANCE_ID


async def test_member_without_a_common_assignor_is_refused(
    cluster: Cluster, topic_name: str
) -> None:
    await create(cluster, topic_name, 1)
    other = ConsumerSettings(assignors=("range",))
    async with joined(cluster, topic_name, topic_name) as member:
        await until(lambda: member.owned)
        async with open_consumer(
            cluster, topic_name, topics=[topic_name], settings=other
        ) as consumer:
            with pytest.raises(KafkaError) as refused:
                await anext(aiter(consumer))
    assert refused.value.code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
