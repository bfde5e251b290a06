"""The project's own client against a broker of Apache Kafka, and against ours: it speaks the
protocol, not a dialect of it."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial
from importlib.util import find_spec
from typing import Any, TypeAlias

import pytest
import trio
from tests.interop.conftest import NewClient, missing
from tests.interop.drivers.base import Record
from tests.interop.kafka import KafkaBroker
from tests.interop.process import BrokerProcess

from odradek.client import (
    EARLIEST,
    LATEST,
    Admin,
    ClientSettings,
    Cluster,
    ConfigAlteration,
    ConfigResource,
    ConsumerRecord,
    CreatedTopic,
    GroupDescription,
    NewTopic,
    ProducerSettings,
    Start,
    TopicPartition,
    ToTime,
    list_offsets,
    open_cluster,
    open_producer,
    open_reader,
)
from odradek.client.membership import CommittedOffset
from odradek.errors import ErrorCode, KafkaError
from odradek.record import CompressionType

QUICK = ClientSettings(retry_backoff=0.02, retry_backoff_max=0.2, request_timeout=20.0)

Address: TypeAlias = str


@pytest.fixture(params=["kafka", "odradek"])
def address(request: pytest.FixtureRequest) -> Address:
    """A broker of each kind."""
    if request.param == "kafka":
        kafka: KafkaBroker = request.getfixturevalue("kafka")
        return kafka.address
    broker: BrokerProcess = request.getfixturevalue("broker")
    return broker.address


@pytest.fixture
async def cluster(address: Address) -> AsyncIterator[Cluster]:
    """The client's view of that broker."""
    with trio.fail_after(60):
        async with open_cluster(address, QUICK) as cluster:
            yield cluster


@pytest.fixture
def admin(cluster: Cluster) -> Admin:
    return Admin(cluster, timeout=20.0)


async def read(cluster: Cluster, topic: str, partitions: int = 1) -> list[ConsumerRecord]:
    """Everything that is in a topic now."""
    start = {TopicPartition(topic, each): Start(timestamp=EARLIEST) for each in range(partitions)}
    async with open_reader(cluster, start, until_end=True) as reader:
        return [record async for record in reader]


async def until(condition: Callable[[], Awaitable[object]]) -> None:
    """Return when the condition holds: what a broker knows a little later than it answers."""
    while True:
        if await condition():
            return
        await trio.sleep(0.01)


def codes(results: Mapping[str, object]) -> dict[str, ErrorCode]:
    return {name: each.code for name, each in results.items() if isinstance(each, KafkaError)}


# -- administration --------------------------------------------------------------------------


async def test_admin_creates_describes_grows_and_deletes_topics(
    admin: Admin, topic_name: str
) -> None:
    created = await admin.create_topic(
        NewTopic(name=topic_name, partitions=2, replication_factor=1)
    )
    assert isinstance(created, CreatedTopic)
    assert (created.partitions, created.replication_factor) == (2, 1)
    described = (await admin.describe_topics([topic_name]))[topic_name]
    assert not isinstance(described, KafkaError)
    assert described.topic_id == created.topic_id
    assert await admin.create_partitions({topic_name: 3}) == {topic_name: None}
    assert topic_name in await admin.list_topics()
    assert await admin.delete_topics([topic_name]) == {topic_name: None}
    gone = await admin.delete_topics([topic_name])
    assert codes(gone) == {topic_name: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


async def test_admin_is_refused_by_the_same_codes(admin: Admin, topic_name: str) -> None:
    await admin.create_topic(NewTopic(name=topic_name, partitions=2, replication_factor=1))
    results = await admin.create_topics(
        [
            NewTopic(name=topic_name),
            NewTopic(name="in valid"),
            NewTopic(name=f"{topic_name}-r", replication_factor=3),
            NewTopic(name=f"{topic_name}-c", configs={"no.such.setting": "1"}),
        ]
    )
    assert codes(results) == {
        topic_name: ErrorCode.TOPIC_ALREADY_EXISTS,
        "in valid": ErrorCode.INVALID_TOPIC_EXCEPTION,
        f"{topic_name}-r": ErrorCode.INVALID_REPLICATION_FACTOR,
        f"{topic_name}-c": ErrorCode.INVALID_CONFIG,
    }
    fewer = await admin.create_partitions({topic_name: 1})
    assert codes(fewer) == {topic_name: ErrorCode.INVALID_PARTITIONS}


async def test_admin_changes_settings(admin: Admin, topic_name: str) -> None:
    await admin.create_topic(NewTopic(name=topic_name, configs={"retention.ms": "60000"}))
    topic = ConfigResource("topic", topic_name)
    changes = [
        ConfigAlteration("max.message.bytes", "5000"),
        ConfigAlteration("retention.ms", operation="delete"),
    ]
    assert await admin.configs.alter({topic: changes}) == {topic: None}

    async def changed() -> bool:  # Kafka answers before its own image has the change
        found = (await admin.configs.describe([topic]))[topic]
        assert not isinstance(found, KafkaError)
        own = {name for name, entry in found.items() if not entry.is_default}
        return found["max.message.bytes"].value == "5000" and "retention.ms" not in own

    await until(changed)
    wrong = await admin.configs.alter({topic: [ConfigAlteration("retention.ms", "soon")]})
    assert [error.code for error in wrong.values() if error] == [ErrorCode.INVALID_CONFIG]


async def test_admin_deletes_records_and_finds_offsets(
    admin: Admin, cluster: Cluster, topic_name: str
) -> None:
    await admin.create_topic(NewTopic(name=topic_name))
    part = TopicPartition(topic_name, 0)
    async with open_producer(cluster) as producer:
        for n in range(10):
            await producer.send(topic_name, b"%d" % n, timestamp=1_000_000 + n)
    for at, offset in ((EARLIEST, 0), (LATEST, 10), (1_000_005, 5), (0, 0), (2_000_000, -1)):
        assert (await list_offsets(cluster, {part: at}))[part].offset == offset
    assert await admin.delete_records({part: 4}) == {part: 4}
    assert (await list_offsets(cluster, {part: EARLIEST}))[part].offset == 4
    assert [record.offset for record in await read(cluster, topic_name)] == list(range(4, 10))
    too_far = await admin.delete_records({part: 99})
    assert codes({"": too_far[part]}) == {"": ErrorCode.OFFSET_OUT_OF_RANGE}


async def test_admin_describes_the_cluster_and_its_log_directories(
    admin: Admin, cluster: Cluster, topic_name: str
) -> None:
    await admin.create_topic(NewTopic(name=topic_name))
    async with open_producer(cluster) as producer:
        await (await producer.send(topic_name, b"value")).wait()
    found = await admin.describe_cluster()
    assert [broker.node_id for broker in found.brokers] == [1]
    sizes = {
        replica.partition: replica.size
        for directory in await admin.describe_log_dirs()
        for replica in directory.replicas
    }
    assert sizes[TopicPartition(topic_name, 0)] > 60


# -- producer and reader ---------------------------------------------------------------------


@pytest.mark.parametrize("compression", list(CompressionType))
@pytest.mark.parametrize("idempotent", [True, False], ids=["idempotent", "plain"])
async def test_records_come_back_as_they_were_sent(
    admin: Admin, cluster: Cluster, topic_name: str, compression: CompressionType, idempotent: bool
) -> None:
    await admin.create_topic(NewTopic(name=topic_name))
    settings = ProducerSettings(compression=compression, idempotent=idempotent)
    now = int(time.time() * 1000)
    sent = [(b"k%d" % n, b"value %d " % n * 20, now + n) for n in range(500)]
    async with open_producer(cluster, settings) as producer:
        for key, value, at in sent:
            await producer.send(topic_name, value, key=key, timestamp=at, headers=[("h", b"1")])
        await producer.send(topic_name, None, key=None, headers=[("e", None), ("é", b"")])
    *found, last = await read(cluster, topic_name)
    assert [(each.key, each.value, each.timestamp) for each in found] == sent
    assert {each.headers for each in found} == {(("h", b"1"),)}
    assert (last.key, last.value, last.headers) == (None, None, (("e", None), ("é", b"")))


@pytest.mark.parametrize("acks", [1, 0, -1])
async def test_producer_gets_what_it_asked_for(
    admin: Admin, cluster: Cluster, topic_name: str, acks: int
) -> None:
    await admin.create_topic(NewTopic(name=topic_name))
    settings = ProducerSettings(acks=acks, idempotent=acks == -1)
    async with open_producer(cluster, settings) as producer:
        deliveries = [await producer.send(topic_name, b"%d" % n) for n in range(3)]
        offsets = [(await each.wait()).offset for each in deliveries]
    assert offsets == ([0, 1, 2] if acks else [-1, -1, -1])
    part = TopicPartition(topic_name, 0)
    async with open_reader(cluster, {part: Start(timestamp=EARLIEST)}) as reader:
        values: list[bytes | None] = []
        while len(values) < 3:
            batch = await reader.next_batch()
            assert batch is not None
            values += [record.value for record in batch]
    assert values == [b"0", b"1", b"2"]


async def test_keys_go_where_the_java_client_sends_them(
    admin: Admin,
    cluster: Cluster,
    topic_name: str,
    address: Address,
    new_client: NewClient,
) -> None:
    java = new_client("java-4.3.1", address)
    await admin.create_topic(NewTopic(name=topic_name, partitions=7, replication_factor=1))
    keys = [b"", b"a", b"key-%d" % 7, b"\xff\x00\x80", "ключ".encode(), b"x" * 1001]
    async with open_producer(cluster) as producer:
        deliveries = [await producer.send(topic_name, b"v", key=key) for key in keys]
        ours = [(await each.wait()).partition for each in deliveries]
    for key, partition in zip(keys, ours, strict=True):
        before = await list_offsets(cluster, {TopicPartition(topic_name, partition): LATEST})
        record = Record(key=key, value=b"j")
        await trio.to_thread.run_sync(partial(java.produce, topic_name, [record], partition=-1))
        after = await list_offsets(cluster, {TopicPartition(topic_name, partition): LATEST})
        (old,), (new,) = before.values(), after.values()
        assert new.offset == old.offset + 1, key


async def test_records_of_the_java_client_are_read(
    admin: Admin,
    cluster: Cluster,
    topic_name: str,
    address: Address,
    new_client: NewClient,
) -> None:
    java = new_client("java-4.3.1", address)
    await admin.create_topic(NewTopic(name=topic_name))
    for compression in ("none", "gzip", "snappy", "lz4", "zstd"):
        values = [Record(value=b"%s %d" % (compression.encode(), n)) for n in range(50)]
        send = partial(java.produce, topic_name, values, compression=compression, idempotent=True)
        await trio.to_thread.run_sync(send)
    found = await read(cluster, topic_name)
    assert [each.value for each in found] == [
        b"%s %d" % (name, n)
        for name in (b"none", b"gzip", b"snappy", b"lz4", b"zstd")
        for n in range(50)
    ]


async def test_producer_is_told_of_records_that_are_too_large(
    admin: Admin, cluster: Cluster, topic_name: str
) -> None:
    await admin.create_topic(NewTopic(name=topic_name, configs={"max.message.bytes": "1000"}))
    async with open_producer(cluster) as producer:
        large = await producer.send(topic_name, b"x" * 3000)
        with pytest.raises(KafkaError) as refused:
            await large.wait()
        assert refused.value.code == ErrorCode.MESSAGE_TOO_LARGE
        small = await producer.send(topic_name, b"x")
        assert (await small.wait()).offset == 0


async def test_reader_waits_for_new_records_and_starts_at_offsets_and_times(
    admin: Admin, cluster: Cluster, topic_name: str
) -> None:
    await admin.create_topic(NewTopic(name=topic_name, partitions=2, replication_factor=1))
    first, second = TopicPartition(topic_name, 0), TopicPartition(topic_name, 1)
    async with open_producer(cluster) as producer:
        for part in (first, second):
            for n in range(10):
                await producer.send(
                    topic_name, b"%d" % n, partition=part.partition, timestamp=5_000 + n
                )
        await producer.flush()
        start = {first: Start(offset=8), second: Start(timestamp=5_009)}
        async with open_reader(cluster, start) as reader:
            found: list[ConsumerRecord] = []
            while len(found) < 3:
                found += await reader.next_batch() or ()
            assert {(each.partition, each.offset) for each in found} == {(0, 8), (0, 9), (1, 9)}
            await producer.send(topic_name, b"new", partition=1)
            batch = await reader.next_batch()
            assert batch is not None
            (new,) = batch
            assert (new.partition, new.offset, new.value) == (1, 10, b"new")


async def test_reader_is_told_of_an_offset_that_is_not_there(
    admin: Admin, cluster: Cluster, topic_name: str
) -> None:
    await admin.create_topic(NewTopic(name=topic_name))
    start = {TopicPartition(topic_name, 0): Start(offset=99)}
    async with open_reader(cluster, start) as reader:
        with pytest.raises(KafkaError) as refused:
            await reader.next_batch()
    assert refused.value.code == ErrorCode.OFFSET_OUT_OF_RANGE


# -- groups ----------------------------------------------------------------------------------


@pytest.fixture
def member(address: Address) -> Callable[..., Any]:
    """Make members of groups with confluent-kafka: `member(group, topic, **settings)`."""
    if find_spec("confluent_kafka") is None:
        missing("confluent-kafka")
    from tests.interop.member import ConfluentMember

    return partial(ConfluentMember, address)


async def fill(cluster: Cluster, topic: str, partitions: int, records: int) -> None:
    """Create a topic with so many records in each partition; the time of each is its offset."""
    await Admin(cluster).create_topic(
        NewTopic(name=topic, partitions=partitions, replication_factor=1)
    )
    async with open_producer(cluster) as producer:
        for part in range(partitions):
            for n in range(records):
                await producer.send(topic, b"%d-%d" % (part, n), partition=part, timestamp=n)


async def test_admin_shows_the_members_of_a_group_and_leaves_its_offsets_to_them(
    admin: Admin, cluster: Cluster, topic_name: str, member: Callable[..., Any]
) -> None:
    await fill(cluster, topic_name, 2, 5)
    first = TopicPartition(topic_name, 0)
    with (
        member(topic_name, topic_name, client_id="one") as one,
        member(topic_name, topic_name, client_id="two", group_instance_id="static") as two,
    ):

        async def settled() -> object:
            # One may know of its partition before the other knows that it has it no more.
            return len(one.seen) + len(two.seen) >= 10 and len(one.owned) == len(two.owned) == 1

        await until(settled)
        found = (await admin.describe_groups([topic_name]))[topic_name]
        assert isinstance(found, GroupDescription)
        assert (found.state, found.protocol_type, found.protocol) == (
            "Stable",
            "consumer",
            "range",
        )
        described = {
            (each.client_id, each.instance_id, each.topics, each.partitions)
            for each in found.members
        }
        assert described == {
            ("one", None, (topic_name,), tuple(TopicPartition(topic_name, p) for p in one.owned)),
            (
                "two",
                "static",
                (topic_name,),
                tuple(TopicPartition(topic_name, p) for p in two.owned),
            ),
        }
        listed = {each.group_id: each for each in await admin.list_groups(states=["Stable"])}
        assert listed[topic_name].state == "Stable"
        assert listed[topic_name].type == "classic"
        refused = await admin.alter_group_offsets(topic_name, {first: 1})
        assert codes({"": refused[first]}) == {"": ErrorCode.UNKNOWN_MEMBER_ID}
        refused = await admin.delete_group_offsets(topic_name, [first])
        assert codes({"": refused[first]}) == {"": ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC}
        assert codes(await admin.delete_groups([topic_name])) == {
            topic_name: ErrorCode.NON_EMPTY_GROUP
        }


async def test_admin_changes_the_offsets_of_a_group_without_members(
    admin: Admin, cluster: Cluster, topic_name: str, member: Callable[..., Any]
) -> None:
    await fill(cluster, topic_name, 2, 5)
    first, second = TopicPartition(topic_name, 0), TopicPartition(topic_name, 1)
    with member(topic_name, topic_name) as one:

        async def consumed() -> bool:
            return len(one.seen) == 10

        await until(consumed)
    found = (await admin.describe_groups([topic_name]))[topic_name]
    assert isinstance(found, GroupDescription)
    assert (found.state, found.members) == ("Empty", ())
    committed = await admin.group_offsets(topic_name)
    assert {each: at.offset for each, at in committed.items()} == {first: 5, second: 5}
    missing_partition = TopicPartition(topic_name, 9)
    missing_topic = TopicPartition("no-such-topic", 0)
    assert await admin.group_offsets(topic_name, [first, missing_partition]) == {
        first: committed[first]
    }

    plan = await admin.plan_group_reset(topic_name, [first, second], ToTime(3))
    assert [(each.old, each.new) for each in plan] == [(5, 3), (5, 3)]
    results = await admin.alter_group_offsets(
        topic_name,
        {
            first: CommittedOffset(3, 0, "moved"),
            missing_partition: 0,
            missing_topic: 0,
        },
    )
    assert results[first] is None
    assert codes({str(each): error for each, error in results.items()}) == {
        str(missing_partition): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        str(missing_topic): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert (await admin.group_offsets(topic_name))[first] == CommittedOffset(3, 0, "moved")
    large = await admin.alter_group_offsets(topic_name, {first: CommittedOffset(0, -1, "x" * 5000)})
    assert codes({"": large[first]}) == {"": ErrorCode.OFFSET_METADATA_TOO_LARGE}
    with member(topic_name, topic_name) as again:

        async def consumed_again() -> bool:
            return len(again.seen) == 2

        await until(consumed_again)
        assert again.seen == [(0, 3, b"0-3"), (0, 4, b"0-4")]

    assert await admin.delete_group_offsets(topic_name, [second]) == {second: None}
    assert list(await admin.group_offsets(topic_name)) == [first]
    assert await admin.delete_groups([topic_name]) == {topic_name: None}
    assert await admin.group_offsets(topic_name) == {}


async def test_admin_is_told_that_there_is_no_such_group(admin: Admin, topic_name: str) -> None:
    absent = ErrorCode.GROUP_ID_NOT_FOUND
    assert codes(await admin.describe_groups([topic_name])) == {topic_name: absent}
    assert codes(await admin.delete_groups([topic_name, "other"])) == {
        topic_name: absent,
        "other": absent,
    }
    assert await admin.group_offsets(topic_name) == {}
    with pytest.raises(KafkaError) as refused:
        await admin.delete_group_offsets(topic_name, [TopicPartition("t", 0)])
    assert refused.value.code == absent
