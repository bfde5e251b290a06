"""A full disk: writers are told to come back, readers are served, and it goes on by itself.

Fault F11: a small tmpfs that holds segments and the coordinator's database.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.faults.traffic import Writer, batch_of, create, read_back, until
from tests.faults.volumes import Volume, tmpfs
from tests.interop.probe import Probe
from tests.interop.process import BrokerProcess

from odradek.errors import ErrorCode
from odradek.wire.api.a20_delete_topics import (
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from odradek.wire.api.a21_delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from odradek.wire.api.a44_incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

pytestmark = [pytest.mark.faults, pytest.mark.timeout(120), pytest.mark.usefixtures("root")]

MIB = 1024 * 1024
SETTINGS = {
    "topics.segment.bytes": 512 * 1024,
    "storage.min_free_bytes": 2 * MIB,
    "storage.ballast_bytes": MIB,
}
RETRIABLE = {
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT,
}
BATCH = batch_of([b"x" * 1000] * 100)


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[Volume]:
    with tmpfs(tmp_path, 16 * MIB) as mounted:
        yield mounted


@pytest.fixture
def broker(volume: Volume, make_broker: Callable[..., BrokerProcess]) -> Iterator[BrokerProcess]:
    made = make_broker(SETTINGS, volume.path)
    made.start()
    with Probe(made.address) as probe:
        probe.create_topic("full", 2)
        probe.create_topic("other")
    yield made
    made.kill()  # before the volume is unmounted


def fill(broker: BrokerProcess, topic: str = "full") -> int:
    """Produce until the broker refuses; return how many batches it took."""
    with Probe(broker.address) as probe:
        for taken in range(10_000):
            answer = probe.produce(topic, BATCH)
            if answer.error_code:
                assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR
                assert "free" in (answer.error_message or "") or "space" in (
                    answer.error_message or ""
                )
                return taken
    raise AssertionError("the disk never filled")


def takes(broker: BrokerProcess, topic: str = "full", partition: int = 0) -> bool:
    """Whether a batch is accepted."""
    with Probe(broker.address) as probe:
        answer = probe.produce(topic, BATCH, partition)
    assert answer.error_code in (0, ErrorCode.KAFKA_STORAGE_ERROR)
    return answer.error_code == 0


def delete_records(broker: BrokerProcess, offset: int) -> int:
    where = DeleteRecordsPartition(partition_index=0, offset=offset)
    request = DeleteRecordsRequest(
        topics=[DeleteRecordsTopic(name="full", partitions=[where])], timeout_ms=10_000
    )
    with Probe(broker.address) as probe:
        answer = probe.call(request, 2, DeleteRecordsResponse)
    return answer.topics[0].partitions[0].error_code


def keep_bytes(broker: BrokerProcess, topic: str, size: int) -> None:
    """Set retention.bytes."""
    change = AlterableConfig(name="retention.bytes", config_operation=0, value=str(size))
    resource = AlterConfigsResource(resource_type=2, resource_name=topic, configs=[change])
    request = IncrementalAlterConfigsRequest(resources=[resource])
    with Probe(broker.address) as probe:
        (result,) = probe.call(request, 1, IncrementalAlterConfigsResponse).responses
    assert result.error_code == 0, result.error_message


def delete_topic(broker: BrokerProcess, name: str) -> int:
    request = DeleteTopicsRequest(topics=[DeleteTopicState(name=name)], timeout_ms=10_000)
    with Probe(broker.address) as probe:
        answer = probe.call(request, 6, DeleteTopicsResponse)
    return answer.responses[0].error_code


def test_producers_are_told_to_come_back_and_readers_are_served(broker: BrokerProcess) -> None:
    taken = fill(broker)
    assert taken > 10
    for _ in range(20):
        assert not takes(broker)
    assert len(read_back(broker.address, "full")) == taken * 100
    with Probe(broker.address) as probe:
        assert probe.fetch("other", 0, 0).error_code == 0


def test_deleting_records_frees_space_and_producing_resumes(broker: BrokerProcess) -> None:
    taken = fill(broker)
    half = taken * 100 // 2
    assert delete_records(broker, half) == 0
    until(lambda: takes(broker), "space is free again", 30)
    kept = read_back(broker.address, "full", start=half)
    assert min(kept) == half
    assert len(kept) >= taken * 100 - half


def test_deleting_a_topic_frees_space_and_producing_resumes(broker: BrokerProcess) -> None:
    fill(broker)
    assert delete_topic(broker, "full") == 0
    until(lambda: takes(broker, "other"), "space is free again", 30)


@pytest.mark.parametrize("leave", [0, 40_000], ids=["not a byte left", "a few pages left"])
def test_a_client_waits_for_room_and_loses_nothing(
    broker: BrokerProcess, volume: Volume, leave: int
) -> None:
    """Others fill the disk below the soft limit, to the last byte; a file less, and all is well."""
    with Writer(broker.address, "full", 2, size=1000) as writer:
        writer.send_until(200)
        filler = volume.fill(leave)
        writer.send(500)
        until(lambda: not takes(broker, "other"), "the disk is full", 30)
        writer.poll(0.5)
        assert len(writer.acknowledged) < sum(writer.sent)
        refused = create(broker.address, "late")  # or created, and has no room for its log
        assert refused in {0, *RETRIABLE}, ErrorCode(refused)
        filler.unlink()
        writer.settle()
        assert writer.failed == {}
        writer.send_until(len(writer.acknowledged) + 500)
        writer.settle()
        assert writer.misses(broker.address) == []
    until(lambda: takes(broker, "other"), "space is free again", 30)
    until(
        lambda: create(broker.address, "late") in (0, ErrorCode.TOPIC_ALREADY_EXISTS),
        "a topic can be created again",
        30,
    )
    until(lambda: takes(broker, "late"), "the new topic takes records", 30)
    broker.stop()


def test_deleting_records_works_without_a_byte_left(broker: BrokerProcess, volume: Volume) -> None:
    """The ballast makes room for the manifest that says what is deleted."""
    taken = fill(broker)
    volume.fill()
    assert not takes(broker)
    assert delete_records(broker, taken * 100) == 0
    until(lambda: takes(broker), "space is free again", 30)


@pytest.mark.parametrize("filled", [False, True], ids=["at the soft limit", "not a byte left"])
def test_retention_frees_space_and_producing_resumes(
    volume: Volume, make_broker: Callable[..., BrokerProcess], filled: bool
) -> None:
    """At once, though the bytes of removed segments linger for a minute where there is room."""
    settings = {**SETTINGS, "retention.check_interval_ms": 100}
    broker = make_broker(settings, volume.path).start()
    try:
        with Probe(broker.address) as probe:
            probe.create_topic("full", retention_ms="-1")
        taken = fill(broker)
        if filled:
            volume.fill()
        assert not takes(broker)
        keep_bytes(broker, "full", 2 * MIB)
        until(lambda: takes(broker), "space is free again", 30)
        with Probe(broker.address) as probe:
            answer = probe.fetch("full", 0, 0)
            assert answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        start = answer.log_start_offset
        kept = read_back(broker.address, "full", start=start)
        assert min(kept) == start
        assert 2 * MIB <= len(kept) * 1000 < len(BATCH) * taken
        assert broker.problems() == []
    finally:
        broker.kill()  # before the volume is unmounted


def test_a_broker_stops_and_starts_cleanly_on_a_full_disk_and_serves_reads(
    broker: BrokerProcess, volume: Volume
) -> None:
    taken = fill(broker)
    volume.fill()
    broker.stop()
    assert (broker.data / "clean-shutdown").exists()
    volume.fill()
    broker.start()
    assert len(read_back(broker.address, "full")) == taken * 100
    assert not takes(broker)
    volume.fill()
    assert delete_records(broker, taken * 100) == 0
    until(lambda: takes(broker), "space is free again", 30)


def test_a_broker_killed_on_a_full_disk_starts_and_serves_reads(
    broker: BrokerProcess, volume: Volume
) -> None:
    taken = fill(broker)
    volume.fill()
    broker.kill()
    volume.fill()
    broker.start()
    until(
        lambda: len(read_back(broker.address, "full")) == taken * 100, "the partition is served", 30
    )
    assert not takes(broker)
    volume.fill()
    assert delete_records(broker, taken * 100) == 0
    until(lambda: takes(broker), "space is free again", 30)
