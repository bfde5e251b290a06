"""CreateTopics, DeleteTopics, CreatePartitions, and the settings of topics and of the broker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

import pytest
import trio
from tests.broker.peer import Peer, batch, code, connected, records_of, running

from odradek.broker import Broker
from odradek.cluster import keys
from odradek.types import PartitionKey
from odradek.wire import NULL_UUID
from odradek.wire.api.a19_create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from odradek.wire.api.a20_delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from odradek.wire.api.a32_describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from odradek.wire.api.a33_alter_configs import AlterableConfig as Replaced
from odradek.wire.api.a33_alter_configs import AlterConfigsRequest, AlterConfigsResponse
from odradek.wire.api.a33_alter_configs import AlterConfigsResource as ReplacedResource
from odradek.wire.api.a35_describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from odradek.wire.api.a37_create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from odradek.wire.api.a44_incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

TOPIC, BROKER = 2, 4


def wanted(name: str, **more: Any) -> CreatableTopic:
    return CreatableTopic(name=name, **{"num_partitions": 1, "replication_factor": 1, **more})


async def create(
    peer: Peer, *topics: CreatableTopic, version: int = 7, **more: Any
) -> list[CreatableTopicResult]:
    request = CreateTopicsRequest(topics=list(topics), **{"timeout_ms": 5000, **more})
    return (await peer.ask(request, version, CreateTopicsResponse)).topics


# -- creating ----------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(2, 8))
async def test_created_topic_can_be_written_at_once(
    peer: Peer, broker: Broker, version: int
) -> None:
    (result,) = await create(peer, wanted("events", num_partitions=5), version=version)
    assert code(result.error_code) == "NONE"
    for partition in range(5):
        done = await peer.produce("events", partition=partition)
        assert code(done.error_code) == "NONE"
    if version >= 5:
        assert (result.num_partitions, result.replication_factor) == (5, 1)
        assert result.configs is not None
        assert {c.name: c.value for c in result.configs}["retention.ms"] == "604800000"
    if version >= 7:
        assert result.topic_id == broker.image.topics["events"].id


async def test_minus_one_takes_the_brokers_defaults() -> None:
    async with running(broker={"default_partitions": 4}) as broker, connected(broker) as peer:
        (result,) = await create(peer, wanted("events", num_partitions=-1, replication_factor=-1))
        assert (result.num_partitions, result.replication_factor) == (4, 1)


@pytest.mark.parametrize(
    ("topic", "error"),
    [
        (wanted(""), "INVALID_TOPIC_EXCEPTION"),
        (wanted(".."), "INVALID_TOPIC_EXCEPTION"),
        (wanted("a/../../etc"), "INVALID_TOPIC_EXCEPTION"),
        (wanted("x" * 250), "INVALID_TOPIC_EXCEPTION"),
        (wanted("a_b"), "INVALID_TOPIC_EXCEPTION"),  # collides with a.b
        (wanted("a.b"), "TOPIC_ALREADY_EXISTS"),
        (wanted("t", num_partitions=0), "INVALID_PARTITIONS"),
        (wanted("t", num_partitions=-2), "INVALID_PARTITIONS"),
        (wanted("t", num_partitions=10_001), "INVALID_PARTITIONS"),
        (wanted("t", num_partitions=2**31 - 1), "INVALID_PARTITIONS"),
        (wanted("t", replication_factor=0), "INVALID_REPLICATION_FACTOR"),
        (wanted("t", replication_factor=2), "INVALID_REPLICATION_FACTOR"),
        (wanted("t", replication_factor=-2), "INVALID_REPLICATION_FACTOR"),
    ],
)
async def test_topic_that_cannot_be_is_refused(
    peer: Peer, broker: Broker, topic: CreatableTopic, error: str
) -> None:
    await peer.create("a.b")
    (result,) = await create(peer, topic)
    assert code(result.error_code) == error
    assert result.error_message
    assert result.name == topic.name
    assert set(broker.image.topics) == {"a.b"}
    assert len(broker.image.partitions) == 1


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("retention.ms", "soon"),
        ("retention.ms", "-2"),
        ("retention.ms", None),
        ("retention.ms", ""),
        ("cleanup.policy", "shred"),
        ("cleanup.policy", "delete," * 4000 + "delete"),
        ("no.such.setting", "1"),
        ("segment.index.bytes", "1"),
        ("retention.ms", " " * 10_000 + "1"),
        ("n" * 32_767, "1"),
        ("n" * 32_767, None),
        ("compression.type", "x" * 32_000),
    ],
)
async def test_bad_settings_are_invalid_config(
    peer: Peer, broker: Broker, name: str, value: str | None
) -> None:
    topic = wanted("events", configs=[CreatableTopicConfig(name=name, value=value)])
    (result,) = await create(peer, topic)
    assert code(result.error_code) == "INVALID_CONFIG"
    assert name[:80] in (result.error_message or "")
    assert len(result.error_message or "") < 1010
    assert not broker.image.topics


async def test_setting_given_twice_is_invalid(peer: Peer) -> None:
    configs = [CreatableTopicConfig(name="retention.ms", value=str(n)) for n in (1, 2)]
    (result,) = await create(peer, wanted("events", configs=configs))
    assert code(result.error_code) == "INVALID_CONFIG"


async def test_topics_succeed_and_fail_by_themselves(peer: Peer, broker: Broker) -> None:
    results = await create(peer, wanted("a"), wanted(".."), wanted("b"), wanted("c"), wanted("c"))
    assert [code(r.error_code) for r in results] == [
        "NONE",
        "INVALID_TOPIC_EXCEPTION",
        "NONE",
        "INVALID_REQUEST",
        "INVALID_REQUEST",
    ]
    assert set(broker.image.topics) == {"a", "b"}


async def test_validate_only_creates_nothing(peer: Peer, broker: Broker) -> None:
    results = await create(
        peer, wanted("a", num_partitions=3), wanted("b", num_partitions=0), validate_only=True
    )
    assert [code(r.error_code) for r in results] == ["NONE", "INVALID_PARTITIONS"]
    assert results[0].num_partitions == 3
    assert not broker.image.topics


def placed(*replicas: list[int], **more: Any) -> CreatableTopic:
    return wanted(
        "events",
        assignments=[
            CreatableReplicaAssignment(partition_index=number, broker_ids=brokers)
            for number, brokers in enumerate(replicas)
        ],
        **{"num_partitions": -1, "replication_factor": -1, **more},
    )


@pytest.mark.parametrize(
    ("topic", "error"),
    [
        (placed([1], [1]), "NONE"),
        (placed([1], num_partitions=1), "INVALID_REQUEST"),
        (placed([]), "INVALID_REPLICA_ASSIGNMENT"),
        (placed([1], [1, 1]), "INVALID_REPLICA_ASSIGNMENT"),
        (placed([1, 1]), "INVALID_REPLICA_ASSIGNMENT"),
        (placed([2]), "INVALID_REPLICA_ASSIGNMENT"),
        (placed([-1]), "INVALID_REPLICA_ASSIGNMENT"),
        (
            wanted(
                "events",
                num_partitions=-1,
                replication_factor=-1,
                assignments=[CreatableReplicaAssignment(partition_index=1, broker_ids=[1])],
            ),
            "INVALID_REPLICA_ASSIGNMENT",
        ),
    ],
)
async def test_assignments_have_to_be_possible(
    peer: Peer, topic: CreatableTopic, error: str
) -> None:
    (result,) = await create(peer, topic)
    assert code(result.error_code) == error


@pytest.mark.parametrize("timeout_ms", [0, -1, -(2**31)])
async def test_creation_without_time_ends_the_request_and_not_the_connection(
    peer: Peer, broker: Broker, timeout_ms: int
) -> None:
    results = await create(peer, wanted("a"), wanted("b"), timeout_ms=timeout_ms)
    assert {code(r.error_code) for r in results} <= {"NONE", "REQUEST_TIMED_OUT"}
    assert [r.name for r in results] == ["a", "b"]
    for result in await create(peer, wanted("a"), wanted("b")):
        assert code(result.error_code) in ("NONE", "TOPIC_ALREADY_EXISTS")
    assert set(broker.image.topics) == {"a", "b"}


async def test_one_of_many_that_create_a_topic_at_once_succeeds(broker: Broker) -> None:
    codes: list[str] = []

    async def one() -> None:
        async with connected(broker) as peer:
            (result,) = await create(peer, wanted("events", num_partitions=3))
            codes.append(code(result.error_code))

    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(one)
    assert sorted(codes) == ["NONE"] + ["TOPIC_ALREADY_EXISTS"] * 19
    assert len(broker.image.partitions) == 3


async def test_topic_of_many_partitions_is_served_whole(peer: Peer) -> None:
    (result,) = await create(peer, wanted("events", num_partitions=500), timeout_ms=30_000)
    assert code(result.error_code) == "NONE"
    assert code((await peer.produce("events", partition=499)).error_code) == "NONE"


# -- deleting ----------------------------------------------------------------------------------


async def delete(
    peer: Peer, *names: str | UUID, version: int = 6, **more: Any
) -> list[DeletableTopicResult]:
    request = DeleteTopicsRequest(
        topics=[
            DeleteTopicState(name=None, topic_id=name)
            if isinstance(name, UUID)
            else DeleteTopicState(name=name)
            for name in names
        ]
        if version >= 6
        else [],
        topic_names=[str(name) for name in names] if version < 6 else [],
        **{"timeout_ms": 5000, **more},
    )
    return (await peer.ask(request, version, DeleteTopicsResponse)).responses


@pytest.mark.parametrize("version", range(1, 7))
async def test_deleted_topic_is_gone_with_its_logs(
    peer: Peer, broker: Broker, version: int
) -> None:
    await peer.create("events", 3)
    await peer.produce("events")
    (result,) = await delete(peer, "events", version=version)
    assert code(result.error_code) == "NONE"
    assert code((await peer.produce("events")).error_code) == "UNKNOWN_TOPIC_OR_PARTITION"
    with trio.fail_after(5):
        await broker.view.wait_until(lambda image: not image.deleted)
    assert list(await broker.store.partitions()) == []
    assert not broker.image.partitions


async def test_topic_is_deleted_by_its_id(peer: Peer) -> None:
    topic_id = (await peer.create("events")).topic_id
    (result,) = await delete(peer, topic_id)
    assert (code(result.error_code), result.name) == ("NONE", "events")
    (result,) = await delete(peer, topic_id)
    assert code(result.error_code) == "UNKNOWN_TOPIC_ID"


async def test_deletion_tells_what_is_not_there(peer: Peer) -> None:
    await peer.create("events")
    results = await delete(peer, "nowhere", "events", "events")
    assert [code(r.error_code) for r in results] == [
        "UNKNOWN_TOPIC_OR_PARTITION",
        "NONE",
        "UNKNOWN_TOPIC_OR_PARTITION",
    ]
    request = DeleteTopicsRequest(
        topics=[DeleteTopicState(), DeleteTopicState(name="a", topic_id=UUID(int=1))],
        timeout_ms=1000,
    )
    answer = await peer.ask(request, 6, DeleteTopicsResponse)
    assert [code(r.error_code) for r in answer.responses] == ["INVALID_REQUEST"] * 2
    assert answer.responses[0].topic_id == NULL_UUID


async def test_topic_recreated_under_its_name_begins_anew(peer: Peer, broker: Broker) -> None:
    for life in range(5):
        created = await peer.create("events")
        assert code(created.error_code) == "NONE"
        offsets = [(await peer.produce("events")).base_offset for _ in range(life + 1)]
        assert offsets == list(range(life + 1))
        found = await peer.fetch("", version=13, topic_id=created.topic_id)
        assert len(records_of(found)) == life + 1
        await delete(peer, "events")
    with trio.fail_after(5):
        await broker.view.wait_until(lambda image: not image.deleted)
    assert list(await broker.store.partitions()) == []


async def test_recreated_topic_is_not_written_by_its_old_id(peer: Peer) -> None:
    old = (await peer.create("events")).topic_id
    await delete(peer, "events")
    new = (await peer.create("events")).topic_id
    assert old != new
    result = await peer.produce("", version=13, topic_id=old)
    assert code(result.error_code) == "UNKNOWN_TOPIC_ID"


async def test_topics_created_and_deleted_by_many_at_once_end_clean(broker: Broker) -> None:
    async def storm(number: int) -> None:
        async with connected(broker) as peer:
            for _ in range(8):
                await create(peer, wanted("events", num_partitions=2))
                await peer.produce("events", partition=number % 2)
                await peer.fetch("events")
                await delete(peer, "events")

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            for number in range(6):
                nursery.start_soon(storm, number)
        async with connected(broker) as peer:
            await delete(peer, "events")
            await broker.view.wait_until(lambda image: not image.deleted)
            assert code((await peer.create("events")).error_code) == "NONE"
    (topic_id,) = broker.hosting.by_id
    assert set(await broker.store.partitions()) == {PartitionKey(topic_id, 0)}
    assert len(broker.image.partitions) == 1


# -- growing -----------------------------------------------------------------------------------


async def grow(
    peer: Peer, count: int, name: str = "events", version: int = 3, **more: Any
) -> tuple[str, str | None]:
    topic = CreatePartitionsTopic(name=name, count=count, assignments=more.pop("assignments", None))
    request = CreatePartitionsRequest(topics=[topic], **{"timeout_ms": 5000, **more})
    (result,) = (await peer.ask(request, version, CreatePartitionsResponse)).results
    return code(result.error_code), result.error_message


@pytest.mark.parametrize("version", range(4))
async def test_added_partitions_can_be_written_at_once(peer: Peer, version: int) -> None:
    await peer.create("events")
    await peer.produce("events", batch(3))
    assert (await grow(peer, 4, version=version))[0] == "NONE"
    for partition in range(4):
        done = await peer.produce("events", partition=partition)
        assert (code(done.error_code), done.base_offset) == ("NONE", 0 if partition else 3)


@pytest.mark.parametrize("count", [0, -1, 1, 2, 10_001, 2**31 - 1])
async def test_partitions_can_only_become_more(peer: Peer, count: int) -> None:
    await peer.create("events", 2)
    error, message = await grow(peer, count)
    assert error == "INVALID_PARTITIONS"
    assert message


async def test_growing_checks_what_is_asked(peer: Peer, broker: Broker) -> None:
    await peer.create("events")
    assert (await grow(peer, 3, "nowhere"))[0] == "UNKNOWN_TOPIC_OR_PARTITION"
    assert (await grow(peer, 3, validate_only=True))[0] == "NONE"
    one = CreatePartitionsAssignment(broker_ids=[1])
    other = CreatePartitionsAssignment(broker_ids=[9])
    assert (await grow(peer, 3, assignments=[one]))[0] == "INVALID_REPLICA_ASSIGNMENT"
    assert (await grow(peer, 2, assignments=[other]))[0] == "INVALID_REPLICA_ASSIGNMENT"
    assert broker.image.topics["events"].partitions == 1
    assert (await grow(peer, 2, assignments=[one]))[0] == "NONE"
    twice = [CreatePartitionsTopic(name="events", count=n) for n in (3, 4)]
    answer = await peer.ask(
        CreatePartitionsRequest(topics=twice, timeout_ms=1000), 3, CreatePartitionsResponse
    )
    assert [code(r.error_code) for r in answer.results] == ["INVALID_REQUEST"] * 2


async def test_growing_without_time_can_be_made_again(peer: Peer) -> None:
    await peer.create("events")
    await grow(peer, 300, timeout_ms=0)
    error, _ = await grow(peer, 300, timeout_ms=30_000)
    assert error in ("NONE", "INVALID_PARTITIONS")
    assert code((await peer.produce("events", partition=299)).error_code) == "NONE"


# -- settings ----------------------------------------------------------------------------------


async def described(
    peer: Peer, name: str = "events", kind: int = TOPIC, version: int = 4, **more: Any
) -> DescribeConfigsResult:
    resource = DescribeConfigsResource(
        resource_type=kind, resource_name=name, configuration_keys=more.pop("names", None)
    )
    answer = await peer.ask(
        DescribeConfigsRequest(resources=[resource], **more), version, DescribeConfigsResponse
    )
    return answer.results[0]


async def setting(peer: Peer, name: str) -> tuple[str | None, int]:
    (only,) = (await described(peer, names=[name])).configs
    return only.value, only.config_source


@pytest.mark.parametrize("version", range(1, 5))
async def test_settings_of_a_topic_are_described(peer: Peer, version: int) -> None:
    await peer.create("events", retention_ms="7")
    result = await described(peer, version=version)
    assert code(result.error_code) == "NONE"
    values = {c.name: (c.value, c.config_source, c.read_only) for c in result.configs}
    assert values["retention.ms"] == ("7", 1, False)
    assert values["cleanup.policy"] == ("delete", 5, False)
    result = await described(peer, version=version, names=["retention.ms", "nothing"])
    assert [c.name for c in result.configs] == ["retention.ms"]
    assert (await described(peer, version=version, names=[])).configs == []


async def test_synonyms_and_documentation_come_when_asked_for() -> None:
    async with running(topics={"retention.ms": 5}) as broker, connected(broker) as peer:
        await peer.create("events", retention_ms="7")
        plain = await described(peer, names=["retention.ms"])
        assert plain.configs[0].synonyms == []
        assert plain.configs[0].documentation is None
        full = await described(
            peer, names=["retention.ms"], include_synonyms=True, include_documentation=True
        )
        (only,) = full.configs
        assert [(s.value, s.source) for s in only.synonyms] == [
            ("7", 1),
            ("5", 4),
            ("604800000", 5),
        ]
        assert only.documentation


async def test_settings_of_the_broker_are_described_and_read_only(peer: Peer) -> None:
    result = await described(peer, "1", BROKER)
    values = {c.name: c.value for c in result.configs}
    assert values["node.id"] == "1"
    assert values["odradek.storage.durability"] == "none"
    assert all(c.read_only for c in result.configs)
    assert (await described(peer, "", BROKER)).configs == []


def test_passwords_in_urls_are_not_shown() -> None:
    from odradek.broker.configs import public_url

    assert public_url("s3://key:secret@bucket/a@b") == "s3://***@bucket/a@b"
    for url in ("file:///a@b/c", "memory:x", "zk://h1:1,h2:2/chroot"):
        assert public_url(url) == url


@pytest.mark.parametrize(
    ("name", "kind", "error"),
    [
        ("nowhere", TOPIC, "UNKNOWN_TOPIC_OR_PARTITION"),
        ("2", BROKER, "INVALID_REQUEST"),
        ("x\n", BROKER, "INVALID_REQUEST"),
        ("1", 8, "INVALID_REQUEST"),
        ("1", 0, "INVALID_REQUEST"),
    ],
)
async def test_settings_of_what_is_not_there_are_an_error(
    peer: Peer, name: str, kind: int, error: str
) -> None:
    result = await described(peer, name, kind)
    assert code(result.error_code) == error
    assert result.configs == []


async def replace(
    peer: Peer, configs: Mapping[str, str | None], version: int = 2, **more: Any
) -> str:
    resource = ReplacedResource(
        resource_type=more.pop("kind", TOPIC),
        resource_name=more.pop("name", "events"),
        configs=[Replaced(name=k, value=v) for k, v in configs.items()],
    )
    request = AlterConfigsRequest(resources=[resource], **more)
    (result,) = (await peer.ask(request, version, AlterConfigsResponse)).responses
    return code(result.error_code)


@pytest.mark.parametrize("version", range(3))
async def test_alter_configs_replaces_all_settings(peer: Peer, version: int) -> None:
    await peer.create("events", retention_ms="7")
    assert await replace(peer, {"max.message.bytes": "100"}, version) == "NONE"
    assert await setting(peer, "retention.ms") == ("604800000", 5)
    assert await setting(peer, "max.message.bytes") == ("100", 1)
    result = await peer.produce("events", batch(1, 100))
    assert code(result.error_code) == "MESSAGE_TOO_LARGE", "in force when it is answered"


async def test_alter_configs_refuses_what_cannot_be(peer: Peer) -> None:
    await peer.create("events", retention_ms="7")
    assert await replace(peer, {"retention.ms": "x"}) == "INVALID_CONFIG"
    assert await replace(peer, {"retention.ms": None}) == "INVALID_CONFIG"
    assert await replace(peer, {"n" * 32_767: None}) == "INVALID_CONFIG"
    assert await replace(peer, {}, name="nowhere") == "UNKNOWN_TOPIC_OR_PARTITION"
    assert await replace(peer, {}, kind=BROKER, name="1") == "INVALID_REQUEST"
    assert await replace(peer, {}, kind=99) == "INVALID_REQUEST"
    assert await replace(peer, {}, validate_only=True) == "NONE"
    assert await setting(peer, "retention.ms") == ("7", 1)


SET, DELETE, APPEND, SUBTRACT = range(4)


async def change(
    peer: Peer, *changes: tuple[int, str, str | None], version: int = 1, **more: Any
) -> str:
    resource = AlterConfigsResource(
        resource_type=TOPIC,
        resource_name=more.pop("name", "events"),
        configs=[AlterableConfig(name=n, config_operation=o, value=v) for o, n, v in changes],
    )
    request = IncrementalAlterConfigsRequest(resources=[resource], **more)
    (result,) = (await peer.ask(request, version, IncrementalAlterConfigsResponse)).responses
    return code(result.error_code)


@pytest.mark.parametrize("version", range(2))
async def test_settings_are_changed_one_by_one(peer: Peer, version: int) -> None:
    await peer.create("events", retention_ms="7")
    changes: list[tuple[int, str, str | None]]
    changes = [(SET, "max.message.bytes", "100"), (APPEND, "cleanup.policy", "compact")]
    assert await change(peer, *changes, version=version) == "NONE"
    assert await setting(peer, "retention.ms") == ("7", 1)
    assert await setting(peer, "max.message.bytes") == ("100", 1)
    assert await setting(peer, "cleanup.policy") == ("delete,compact", 1)
    changes = [(SUBTRACT, "cleanup.policy", "delete"), (DELETE, "retention.ms", None)]
    assert await change(peer, *changes, version=version) == "NONE"
    assert await setting(peer, "cleanup.policy") == ("compact", 1)
    assert await setting(peer, "retention.ms") == ("604800000", 5)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ([(SET, "retention.ms", None)], "INVALID_REQUEST"),
        ([(SET, "retention.ms", "x")], "INVALID_CONFIG"),
        ([(SET, "nothing", "1")], "INVALID_CONFIG"),
        ([(SET, "n" * 32_767, None)], "INVALID_REQUEST"),
        ([(APPEND, "n" * 32_767, "1")], "INVALID_CONFIG"),
        ([(APPEND, "retention.ms", "1")], "INVALID_CONFIG"),
        ([(APPEND, "nothing", "1")], "INVALID_CONFIG"),
        ([(SUBTRACT, "cleanup.policy", "delete")], "INVALID_CONFIG"),
        ([(9, "retention.ms", "1")], "INVALID_REQUEST"),
        ([(-1, "retention.ms", "1")], "INVALID_REQUEST"),
        ([(SET, "retention.ms", "1"), (DELETE, "retention.ms", None)], "INVALID_REQUEST"),
    ],
)
async def test_bad_changes_are_refused_whole(
    peer: Peer, broker: Broker, changes: list[tuple[int, str, str | None]], error: str
) -> None:
    await peer.create("events")
    assert await change(peer, (SET, "segment.ms", "5"), *changes) == error
    assert broker.image.topics["events"].configs == {}


async def test_changes_of_one_topic_by_many_at_once_all_count(broker: Broker) -> None:
    names = ["retention.ms", "segment.ms", "max.message.bytes", "segment.bytes"]
    async with connected(broker) as peer:
        await peer.create("events")

        async def one(name: str, value: str) -> None:
            async with connected(broker) as other:
                assert await change(other, (SET, name, value)) == "NONE"

        with trio.fail_after(20):
            async with trio.open_nursery() as nursery:
                for turn in range(3):
                    for name in names:
                        nursery.start_soon(one, name, str(1000 + turn))
        for name in names:
            value, source = await setting(peer, name)
            assert value in ("1000", "1001", "1002")
            assert source == 1


async def test_topic_with_settings_that_are_not_understood_is_served(
    peer: Peer, broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    """As a newer version may have written them."""
    await peer.create("events")
    entry = await broker.coordinator.get("topics/events")
    assert entry is not None
    value = keys.load(entry) | {"configs": {"from.the.future": "1"}}
    await broker.coordinator.put("topics/events", keys.dump(value))
    with trio.fail_after(5):
        await broker.view.wait_until(lambda image: bool(image.topics["events"].configs))
    assert code((await peer.produce("events")).error_code) == "NONE"
    assert code((await described(peer)).error_code) == "NONE"
    assert "events" in caplog.text


# -- where the log lies ------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(1, 5))
async def test_log_directory_is_described(peer: Peer, version: int) -> None:
    await peer.create("events", 2)
    await peer.create("other")
    await peer.produce("events", batch(1, 1000))
    answer = await peer.ask(DescribeLogDirsRequest(topics=None), version, DescribeLogDirsResponse)
    (result,) = answer.results
    sizes = {
        (topic.name, p.partition_index): p.partition_size
        for topic in result.topics
        for p in topic.partitions
    }
    assert sizes == {
        ("events", 0): len(batch(1, 1000)),
        ("events", 1): 0,
        ("other", 0): 0,
    }
    if version >= 4:
        assert result.total_bytes > result.usable_bytes > 0
    wanted = [DescribableLogDirTopic(topic="events", partitions=[1, 7])]
    answer = await peer.ask(DescribeLogDirsRequest(topics=wanted), version, DescribeLogDirsResponse)
    (topic,) = answer.results[0].topics
    assert [p.partition_index for p in topic.partitions] == [1]
