"""Topics, partitions and settings, as administrators' clients see and change them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from tests.interop.drivers.base import AdminDriver, Driver, Record, Refused
from tests.interop.probe import Probe
from tests.interop.process import BrokerProcess

from odradek.errors import ErrorCode

if TYPE_CHECKING:
    from tests.interop.drivers.java import Java


def refused(
    code: ErrorCode, call: Callable[..., object], *arguments: object, **named: object
) -> None:
    """Expect exactly this error."""
    with pytest.raises(Refused) as error:
        call(*arguments, **named)
    assert error.value.code is code, error.value


def test_a_topic_lives_from_its_creation_to_its_deletion(
    admin: AdminDriver, topic_name: str
) -> None:
    admin.create_topic(topic_name, partitions=3, configs={"retention.ms": "123456"})
    assert topic_name in admin.topics()
    found = admin.describe_topic(topic_name)
    assert found.partitions == 3
    assert (found.id is not None) == admin.by_id
    admin.create_partitions(topic_name, 7)
    assert admin.describe_topic(topic_name).partitions == 7
    admin.delete_topic(topic_name)
    assert topic_name not in admin.topics()
    refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, admin.describe_topic, topic_name)
    refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, admin.delete_topic, topic_name)


def test_a_topic_of_the_same_name_is_another_topic(admin: AdminDriver, topic_name: str) -> None:
    ids = set()
    for number in range(2):
        admin.create_topic(topic_name)
        ids.add(admin.describe_topic(topic_name).id)
        admin.produce(topic_name, [Record(f"{number}".encode(), b"k")])
        (got,) = admin.consume(topic_name, 1)
        assert (got.offset, got.value) == (0, f"{number}".encode())
        admin.delete_topic(topic_name)
    assert len(ids) == (2 if admin.by_id else 1)


def test_a_dry_run_creates_nothing(admin: AdminDriver, topic_name: str) -> None:
    admin.create_topic(topic_name, validate_only=True)
    assert topic_name not in admin.topics()
    refused(
        ErrorCode.INVALID_REPLICATION_FACTOR,
        admin.create_topic,
        topic_name,
        replication_factor=3,
        validate_only=True,
    )


@pytest.mark.parametrize("name", ["two words", "a/b", "x" * 250, "..", "ümlaut"])
def test_names_that_kafka_does_not_allow_are_refused(name: str, admin: AdminDriver) -> None:
    refused(ErrorCode.INVALID_TOPIC_EXCEPTION, admin.create_topic, name)


def test_what_cannot_be_created_is_refused_with_kafkas_codes(
    admin: AdminDriver, topic: str, topic_name: str
) -> None:
    other = f"{topic_name}-other"
    create = admin.create_topic
    refused(ErrorCode.TOPIC_ALREADY_EXISTS, create, topic)
    refused(ErrorCode.INVALID_REPLICATION_FACTOR, create, other, replication_factor=3)
    refused(ErrorCode.INVALID_CONFIG, create, other, configs={"no.such.setting": "1"})
    refused(ErrorCode.INVALID_CONFIG, create, other, configs={"retention.ms": "soon"})
    refused(ErrorCode.INVALID_CONFIG, create, other, configs={"preallocate": "true"})
    if admin.name in ("kafka-python", "aiokafka"):  # the others refuse it themselves
        refused(ErrorCode.INVALID_PARTITIONS, create, other, partitions=0)
    refused(ErrorCode.INVALID_PARTITIONS, admin.create_partitions, topic, 1)
    refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, admin.create_partitions, other, 5)
    assert other not in admin.topics()


def test_settings_are_told_set_and_reset(admin: AdminDriver, topic: str) -> None:
    if admin.name == "aiokafka":
        pytest.skip("it has no IncrementalAlterConfigs")
    before = admin.configs("topic", topic)
    assert before["retention.ms"] == "604800000"
    assert before["cleanup.policy"] == "delete"
    admin.alter_configs(topic, {"retention.ms": "1000", "max.message.bytes": "2000"})
    after = admin.configs("topic", topic)
    assert {key for key in after if after[key] != before[key]} == {
        "retention.ms",
        "max.message.bytes",
    }
    admin.alter_configs(topic, {"retention.ms": None})
    assert admin.configs("topic", topic) == {**before, "max.message.bytes": "2000"}
    refused(ErrorCode.INVALID_CONFIG, admin.alter_configs, topic, {"retention.ms": "x"})
    refused(ErrorCode.INVALID_CONFIG, admin.alter_configs, topic, {"no.such.setting": "x"})
    refused(ErrorCode.INVALID_CONFIG, admin.alter_configs, topic, {"flush.messages": "1"})
    assert admin.configs("topic", topic) == {**before, "max.message.bytes": "2000"}
    refused(ErrorCode.MESSAGE_TOO_LARGE, admin.produce, topic, [Record(b"x" * 3000, b"k")])


def test_settings_are_replaced_all_at_once(admin: AdminDriver, topic: str) -> None:
    if admin.name.startswith("java"):
        pytest.skip("Kafka 4 took AlterConfigs out of the client")
    before = admin.configs("topic", topic)
    admin.replace_configs(topic, {"retention.ms": "1000"})
    assert admin.configs("topic", topic) == {**before, "retention.ms": "1000"}
    admin.replace_configs(topic, {"retention.ms": "604800000", "segment.ms": "1000"})
    assert admin.configs("topic", topic) == {**before, "segment.ms": "1000"}


def test_a_broker_tells_its_settings(admin: AdminDriver) -> None:
    found = admin.configs("broker", "1")
    assert found["node.id"] == "1"
    assert found["auto.create.topics.enable"] == "true"
    if admin.name != "kafka-python":  # it takes the error for "no settings"
        refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, admin.configs, "topic", "no-such-topic")


def test_a_cluster_is_described(admin: AdminDriver, broker: BrokerProcess) -> None:
    found = admin.describe_cluster()
    assert found.brokers == {1: broker.address}
    assert found.controller == 1
    assert found.id is not None
    assert len(found.id) == 22


def test_records_are_deleted_up_to_an_offset(admin: AdminDriver, probe: Probe, topic: str) -> None:
    admin.produce(topic, [Record(f"{number}".encode(), b"k") for number in range(100)])
    assert admin.delete_records(topic, 30) == 30
    assert admin.offset_at(topic, "earliest") == 30
    (got,) = admin.consume(topic, 1, start=30)
    assert (got.offset, got.value) == (30, b"30")
    refused(ErrorCode.OFFSET_OUT_OF_RANGE, admin.delete_records, topic, 101)
    assert admin.delete_records(topic, 10) == 30, "what is gone stays gone"
    assert admin.delete_records(topic, -1) == 100, "-1 means all"
    assert admin.offset_at(topic, "earliest") == admin.offset_at(topic, "latest") == 100
    admin.produce(topic, [Record(b"after", b"k")])
    (got,) = admin.consume(topic, 1, start=100)
    assert got.value == b"after"


def test_log_directories_tell_the_size_of_partitions(
    admin: AdminDriver, broker: BrokerProcess, topic: str
) -> None:
    if "log_dirs" not in admin.offers:
        pytest.skip("it has no DescribeLogDirs")
    assert admin.log_dirs()[topic, 0] == 0
    admin.produce(topic, [Record(b"x" * 1000, b"k")])
    stored = sum(path.stat().st_size for path in broker.segments(topic))
    assert admin.log_dirs()[topic, 0] == sum(batch.size for batch in broker.batches(topic))
    assert stored >= 1000


def test_topics_are_found_and_deleted_by_id(java: Java, topic: str) -> None:
    topic_id = java.describe_topic(topic).id
    assert topic_id is not None
    assert java.describe_topic_by_id(topic_id).name == topic
    java.delete_topic_by_id(topic_id)
    refused(ErrorCode.UNKNOWN_TOPIC_ID, java.describe_topic_by_id, topic_id)
    refused(ErrorCode.UNKNOWN_TOPIC_ID, java.delete_topic_by_id, topic_id)


def test_lists_are_appended_to_and_subtracted_from(java: Java, topic: str) -> None:
    java.alter_configs(topic, {"cleanup.policy": "compact"}, "APPEND")
    assert java.configs("topic", topic)["cleanup.policy"] == "delete,compact"
    java.alter_configs(topic, {"cleanup.policy": "delete"}, "SUBTRACT")
    assert java.configs("topic", topic)["cleanup.policy"] == "compact"
    refused(ErrorCode.INVALID_CONFIG, java.alter_configs, topic, {"retention.ms": "1"}, "APPEND")


def test_a_topic_comes_into_being_when_it_is_written_to(driver: Driver, topic_name: str) -> None:
    driver.produce(topic_name, [Record(b"first", b"k")])
    (got,) = driver.consume(topic_name, 1)
    assert got.value == b"first"


def test_a_topic_with_a_bad_name_does_not_come_into_being(driver: Driver) -> None:
    if driver.name in ("kafka-python", "aiokafka"):
        pytest.skip("the client refuses such names itself")
    refused(ErrorCode.INVALID_TOPIC_EXCEPTION, driver.produce, "no such name", [Record(b"", b"k")])
