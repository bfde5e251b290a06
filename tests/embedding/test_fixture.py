"""The fixture `odradek`, as a project's tests use it."""

from __future__ import annotations

import socket
from importlib.util import find_spec

import pytest

from odradek.errors import ErrorCode, KafkaError
from odradek.testing.fixture import Odradek, Workshop

pytestmark = pytest.mark.skipif(
    find_spec("odradek_transport_tcp") is None, reason="the tcp transport is not installed"
)


def values(odradek: Odradek, topic: str, partition: int | None = None) -> list[bytes | None]:
    return [record.value for record in odradek.records(topic, partition)]


def test_test_begins_with_nothing(odradek: Odradek) -> None:
    assert odradek.topics() == {}
    assert odradek.faults.requests == {}
    odradek.create_topic("left", 2)
    odradek.faults.fail("Produce", "REQUEST_TIMED_OUT", times=None)


def test_nothing_is_left_by_the_test_before(odradek: Odradek) -> None:
    assert odradek.topics() == {}
    assert odradek.faults.pending == 0


def test_topics_have_the_partitions_and_settings_asked_for(odradek: Odradek) -> None:
    odradek.create_topic("orders", 3, cleanup_policy="compact", retention_ms=1000)
    odradek.create_topic("other")
    assert odradek.topics() == {"orders": 3, "other": 1}
    with pytest.raises(KafkaError) as caught:
        odradek.create_topic("orders")
    assert caught.value.code == ErrorCode.TOPIC_ALREADY_EXISTS
    with pytest.raises(KafkaError) as caught:
        odradek.create_topic("odd", no_such_setting=1)
    assert caught.value.code == ErrorCode.INVALID_CONFIG


def test_records_come_back_as_they_were_produced(odradek: Odradek) -> None:
    written = odradek.produce("t", [b"bytes", "text é", None], keys=["a", None, b"c"])
    assert [each.offset for each in written] == [0, 1, 2]
    records = odradek.records("t")
    assert [(each.key, each.value) for each in records] == [
        (b"a", b"bytes"),
        (None, "text é".encode()),
        (b"c", None),
    ]


def test_records_are_in_order_of_partition_and_offset(odradek: Odradek) -> None:
    odradek.create_topic("t", 2)
    for partition in (1, 0, 1):
        odradek.produce("t", [f"in {partition}"], partition=partition)
    assert values(odradek, "t") == [b"in 0", b"in 1", b"in 1"]
    assert values(odradek, "t", 1) == [b"in 1", b"in 1"]


def test_records_of_no_topic_are_an_error(odradek: Odradek) -> None:
    with pytest.raises(KafkaError) as caught:
        odradek.records("missing")
    assert caught.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_keys_without_values_are_refused(odradek: Odradek) -> None:
    with pytest.raises(ValueError, match="longer than"):
        odradek.produce("t", ["a", "b"], keys=["a"])


def test_restart_keeps_address_and_records(odradek: Odradek) -> None:
    odradek.produce("t", ["before"])
    address = odradek.bootstrap
    odradek.restart()
    odradek.produce("t", ["after"])
    assert odradek.bootstrap == address
    assert values(odradek, "t") == [b"before", b"after"]


def test_stopped_broker_refuses_connections_until_it_starts(odradek: Odradek) -> None:
    host, _, port = odradek.bootstrap.partition(":")
    with socket.create_connection((host, int(port))) as connection:
        odradek.stop()
        assert connection.recv(1) == b""
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)))
    odradek.start()
    socket.create_connection((host, int(port))).close()


def test_faults_do_not_meet_the_conveniences(odradek: Odradek) -> None:
    odradek.faults.fail("Produce", "REQUEST_TIMED_OUT", times=None)
    odradek.produce("t", ["x"])
    assert values(odradek, "t") == [b"x"]
    assert odradek.faults.requests == {}


def test_faults_outlive_a_restart(odradek: Odradek) -> None:
    odradek.faults.fail("Produce", "REQUEST_TIMED_OUT")
    odradek.restart()
    assert odradek.faults.pending == 1


@pytest.mark.odradek(partitions=4, settings={"broker.id": 7})
class TestMarked:
    def test_marker_sets_up_the_broker(self, odradek: Odradek) -> None:
        odradek.create_topic("t")
        assert odradek.topics() == {"t": 4}
        assert odradek.broker.config.broker.id == 7

    @pytest.mark.odradek(partitions=2)
    def test_closest_marker_wins(self, odradek: Odradek) -> None:
        odradek.create_topic("t")
        assert odradek.topics() == {"t": 2}
        assert odradek.broker.config.broker.id == 7


@pytest.mark.odradek(auto_create_topics=False)
def test_topics_may_be_left_uncreated(odradek: Odradek) -> None:
    with pytest.raises(KafkaError) as caught:
        odradek.produce("missing", ["x"])
    assert caught.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.skipif(
    find_spec("odradek_storage_file") is None, reason="the file storage is not installed"
)
@pytest.mark.odradek(storage="file")
def test_records_may_be_kept_in_files(odradek: Odradek) -> None:
    odradek.produce("t", ["x"])
    odradek.restart()
    assert values(odradek, "t") == [b"x"]
    assert odradek.broker.config.storage.scheme == "file"


def test_workshop_makes_more_brokers(odradek: Odradek, odradek_workshop: Workshop) -> None:
    with odradek_workshop.broker(partitions=2) as other:
        other.create_topic("t")
        assert other.topics() == {"t": 2}
        assert odradek.topics() == {}
        assert other.bootstrap != odradek.bootstrap


async def test_async_tests_use_it_as_it_is(odradek: Odradek) -> None:
    import trio

    await trio.to_thread.run_sync(lambda: odradek.produce("t", ["from a thread"]))
    assert values(odradek, "t") == [b"from a thread"]
