"""Administration against a real broker."""

import pytest

from odradek.client import (
    EARLIEST,
    LATEST,
    Admin,
    Cluster,
    ConfigAlteration,
    ConfigResource,
    ConfigSource,
    CreatedTopic,
    NewTopic,
    TopicPartition,
    list_offsets,
    open_producer,
)
from odradek.errors import ErrorCode, KafkaError


@pytest.fixture
def admin(cluster: Cluster) -> Admin:
    return Admin(cluster, timeout=10.0)


async def fill(cluster: Cluster, topic: str, records: int, partition: int = 0) -> None:
    async with open_producer(cluster) as producer:
        for n in range(records):
            await producer.send(topic, b"%d" % n, partition=partition, timestamp=1000 + n)


async def test_admin_creates_topics_and_answers_for_each(admin: Admin) -> None:
    await admin.create_topic(NewTopic(name="there"))
    found = await admin.create_topics(
        [
            NewTopic(name="new", partitions=3, replication_factor=1),
            NewTopic(name="there"),
            NewTopic(name="in valid"),
            NewTopic(name="lonely", replication_factor=3),
        ]
    )
    new = found["new"]
    assert isinstance(new, CreatedTopic)
    assert (new.partitions, new.replication_factor) == (3, 1)
    codes = {name: each.code for name, each in found.items() if isinstance(each, KafkaError)}
    assert codes == {
        "there": ErrorCode.TOPIC_ALREADY_EXISTS,
        "in valid": ErrorCode.INVALID_TOPIC_EXCEPTION,
        "lonely": ErrorCode.INVALID_REPLICATION_FACTOR,
    }
    listed = await admin.list_topics()
    assert list(listed) == ["new", "there"]
    assert listed["new"].topic_id == new.topic_id


async def test_admin_that_only_validates_creates_nothing(admin: Admin) -> None:
    found = await admin.create_topics([NewTopic(name="t")], validate_only=True)
    assert isinstance(found["t"], CreatedTopic)
    assert await admin.list_topics() == {}


async def test_admin_describes_what_there_is_and_says_what_there_is_not(admin: Admin) -> None:
    await admin.create_topic(NewTopic(name="t", assignments=[[1], [1]]))
    found = await admin.describe_topics(["t", "nope"])
    topic = found["t"]
    assert not isinstance(topic, KafkaError)
    assert [each.replicas for each in topic.partitions] == [(1,), (1,)]
    assert isinstance(found["nope"], KafkaError)


async def test_admin_deletes_topics_and_answers_for_each(admin: Admin) -> None:
    await admin.create_topic(NewTopic(name="t"))
    found = await admin.delete_topics(["t", "nope"])
    assert found["t"] is None
    missing = found["nope"]
    assert missing is not None
    assert missing.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert await admin.list_topics() == {}


async def test_admin_adds_partitions_and_never_takes_any_away(admin: Admin) -> None:
    await admin.create_topic(NewTopic(name="t", partitions=2))
    assert await admin.create_partitions({"t": 4}) == {"t": None}
    assert len((await admin.list_topics())["t"].partitions) == 4
    refused = (await admin.create_partitions({"t": 3}))["t"]
    assert refused is not None
    assert refused.code == ErrorCode.INVALID_PARTITIONS


async def test_admin_deletes_records_below_an_offset(admin: Admin) -> None:
    await admin.create_topic(NewTopic(name="t", partitions=2))
    await fill(admin.cluster, "t", 10)
    first, second = TopicPartition("t", 0), TopicPartition("t", 1)
    assert await admin.delete_records({first: 4, second: -1}) == {first: 4, second: 0}
    starts = await list_offsets(admin.cluster, {first: EARLIEST})
    assert starts[first].offset == 4
    impatient = Admin(admin.cluster, timeout=0.1)  # a partition may appear: it is waited for
    found = await impatient.delete_records({first: 11, TopicPartition("t", 9): 0})
    codes = {each: e.code for each, e in found.items() if isinstance(e, KafkaError)}
    assert codes == {
        first: ErrorCode.OFFSET_OUT_OF_RANGE,
        TopicPartition("t", 9): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }


async def test_admin_changes_single_settings_and_leaves_the_others(admin: Admin) -> None:
    topic = ConfigResource("topic", "t")
    await admin.create_topic(NewTopic(name="t", configs={"retention.ms": "1000"}))
    changes = [ConfigAlteration("max.message.bytes", "2000")]
    assert await admin.configs.alter({topic: changes}) == {topic: None}
    found = (await admin.configs.describe([topic]))[topic]
    assert not isinstance(found, KafkaError)
    assert found["retention.ms"].value == "1000"
    assert found["max.message.bytes"].value == "2000"
    assert found["max.message.bytes"].source is ConfigSource.DYNAMIC_TOPIC
    assert found["segment.bytes"].is_default
    await admin.configs.alter({topic: [ConfigAlteration("retention.ms", operation="delete")]})
    found = (await admin.configs.describe([topic]))[topic]
    assert not isinstance(found, KafkaError)
    assert found["retention.ms"].is_default


async def test_admin_says_what_is_wrong_with_a_setting(admin: Admin) -> None:
    topic = ConfigResource("topic", "t")
    await admin.create_topic(NewTopic(name="t"))
    error = (await admin.configs.alter({topic: [ConfigAlteration("retention.ms", "soon")]}))[topic]
    assert error is not None
    assert error.code == ErrorCode.INVALID_CONFIG
    assert "retention.ms" in str(error)


async def test_admin_describes_the_cluster_and_its_log_directories(admin: Admin) -> None:
    await admin.create_topic(NewTopic(name="t"))
    await fill(admin.cluster, "t", 3)
    cluster = await admin.describe_cluster()
    assert [broker.node_id for broker in cluster.brokers] == [1]
    assert cluster.controller_id == 1
    (directory,) = await admin.describe_log_dirs()
    (replica,) = directory.replicas
    assert replica.partition == TopicPartition("t", 0)
    assert replica.size > 60


async def test_list_offsets_finds_the_ends_and_the_first_record_of_a_time(admin: Admin) -> None:
    await admin.create_topic(NewTopic(name="t"))
    await fill(admin.cluster, "t", 10)
    part = TopicPartition("t", 0)
    for time, offset in ((EARLIEST, 0), (LATEST, 10), (1005, 5), (0, 0), (2000, -1)):
        found = await list_offsets(admin.cluster, {part: time})
        assert found[part].offset == offset
