"""Signals to a busy broker, and a second broker on its directories.

Stops in good order (the P part of F22 for a process of its own) and pauses (F6 for one broker).
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from threading import Event, Thread

import pytest
from tests.faults.traffic import Writer, until
from tests.interop.probe import Probe
from tests.interop.process import BrokerProcess

from odradek.errors import ErrorCode
from odradek.wire.api.a01_fetch import FetchResponse
from odradek.wire.api.a10_find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from odradek.wire.api.a11_join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
)
from odradek.wire.api.a15_describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from odradek.wire.api.a18_api_versions import ApiVersionsResponse

pytestmark = [pytest.mark.faults, pytest.mark.timeout(120)]

PAUSE = 3.0
SECONDS = 5.0
"""A stop in good order takes less; closing idle clients is most of it."""

MEMBERS = 200
READERS = 50
"""How many wait for an answer as the broker is told to stop."""

UNREAD = 16
"""Megabytes that a client leaves unread: more than the buffers of its socket and the broker's."""


@pytest.fixture
def broker(make_broker: Callable[..., BrokerProcess]) -> BrokerProcess:
    made = make_broker({"topics.segment.bytes": 64 * 1024})
    made.start()
    with Probe(made.address) as probe:
        probe.create_topic("busy", 3)
    return made


class SlowProbe(Probe):
    """One that does not read what it asked for."""

    def read_one_byte(self) -> None:
        self._exactly(1)


class Reader:
    """A librdkafka consumer of the whole topic in a thread; `seen` are values by place."""

    def __init__(self, address: str, topic: str, partitions: int) -> None:
        kafka = pytest.importorskip("confluent_kafka")
        self.seen: dict[tuple[int, int], bytes] = {}
        self.doubled: list[tuple[int, int]] = []
        self._consumer = kafka.Consumer(
            {
                "bootstrap.servers": address,
                "group.id": "none",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "reconnect.backoff.ms": 10,
                "reconnect.backoff.max.ms": 100,
                "fetch.wait.max.ms": 100,
                "log_level": 0,
            }
        )
        self._consumer.assign(
            [kafka.TopicPartition(topic, number, 0) for number in range(partitions)]
        )
        self._stop = Event()
        self._thread = Thread(target=self._run)

    def _run(self) -> None:
        while not self._stop.is_set():
            for message in self._consumer.consume(100, 0.05):
                if message.error() is not None:
                    continue  # the broker is away: librdkafka comes back by itself
                place = (message.partition(), message.offset())
                if place in self.seen:
                    self.doubled.append(place)
                self.seen[place] = message.value()

    def __enter__(self) -> Reader:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(30)
        self._consumer.close()


@contextmanager
def busy(broker: BrokerProcess) -> Iterator[tuple[Writer, Reader]]:
    with Writer(broker.address, "busy", 3) as writer, Reader(broker.address, "busy", 3) as reader:
        writer.send_until(500)
        until(lambda: reader.seen, "the consumer reads")
        yield writer, reader


def ends(broker: BrokerProcess, seconds: float) -> int:
    """Wait for the process to end by itself and return its exit code."""
    until(lambda: broker.exit_code is not None, "the broker ends", seconds)
    code = broker.exit_code
    assert code is not None
    broker.kill()  # for the bookkeeping: it is gone
    return code


def settled(broker: BrokerProcess, writer: Writer, reader: Reader) -> None:
    """Everything sent arrives, once, in order, for the log and for the consumer."""
    writer.send(100)
    writer.settle()
    assert writer.failed == {}
    assert len(writer.acknowledged) == sum(writer.sent)
    assert writer.misses(broker.address) == []
    until(lambda: len(reader.seen) == sum(writer.sent), "the consumer has everything")
    assert reader.doubled == []
    for (partition, number), offset in writer.acknowledged.items():
        assert reader.seen[partition, offset].startswith(b"%d." % number)


def joining(group: str) -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id=group,
        session_timeout_ms=60_000,
        rebalance_timeout_ms=300_000,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
    )


def coordinated(probe: Probe, group: str) -> bool:
    request = FindCoordinatorRequest(key=group)
    return probe.call(request, 2, FindCoordinatorResponse).error_code == ErrorCode.NONE


def members(probe: Probe, group: str) -> int:
    answer = probe.call(DescribeGroupsRequest(groups=[group]), 5, DescribeGroupsResponse)
    return len(answer.groups[0].members)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_a_busy_broker_in_good_order(broker: BrokerProcess, number: int) -> None:
    with busy(broker) as (writer, reader):
        for _ in range(3):
            writer.send(200)
            os.kill(broker.pid, number)
            assert ends(broker, SECONDS) == 0
            assert (broker.data / "clean-shutdown").exists()
            assert broker.problems() == []
            broker.start()
            writer.send_until(len(writer.acknowledged) + 200)
        settled(broker, writer, reader)
    broker.stop()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_answers_everybody_who_waits(broker: BrokerProcess, number: int) -> None:
    with ExitStack() as stack:
        probes = [stack.enter_context(Probe(broker.address)) for _ in range(1 + MEMBERS + READERS)]
        first, *late = probes[: 1 + MEMBERS]
        readers = probes[1 + MEMBERS :]
        until(lambda: coordinated(first, "g"), "the group has a coordinator")
        assert first.call(joining("g"), 3, JoinGroupResponse).error_code == ErrorCode.NONE
        for probe in late:
            probe.send(joining("g"), 3)  # waits for the first member, which stays away
        for probe in readers:
            probe.send(probe.fetch_request("busy", 0, 0, max_wait_ms=300_000), 12)
        until(lambda: members(first, "g") == 1 + MEMBERS, "all members wait")
        os.kill(broker.pid, number)
        answers = [probe.receive(3, JoinGroupResponse).error_code for probe in late]
        assert answers == [ErrorCode.NOT_COORDINATOR] * MEMBERS
        for probe in readers:
            (topic,) = probe.receive(12, FetchResponse).responses
            assert topic.partitions[0].error_code == ErrorCode.NONE
        for probe in probes:
            with pytest.raises(EOFError):
                probe.receive(0, ApiVersionsResponse)
        assert ends(broker, SECONDS) == 0
    assert (broker.data / "clean-shutdown").exists()
    assert broker.problems() == []


@pytest.mark.parametrize("again", [False, True], ids=["one signal", "two signals"])
def test_a_client_that_does_not_read_keeps_a_broker_for_seconds_or_until_a_second_signal(
    broker: BrokerProcess, again: bool
) -> None:
    probe = SlowProbe(broker.address)
    with probe:
        probe.create_topic("large", segment_bytes=str(1 << 30))
        for _ in range(UNREAD):
            probe.produce_values("large", [b"x" * 1_000_000])
        probe.send(probe.fetch_request("large", 0, 0, max_bytes=1 << 30), 12)
        probe.read_one_byte()
        os.kill(broker.pid, signal.SIGTERM)
        if again:
            os.kill(broker.pid, signal.SIGINT)
        code = ends(broker, 1.5 if again else 10)
    assert code in ({128 + signal.SIGINT, 128 + signal.SIGTERM} if again else {0})
    assert (broker.data / "clean-shutdown").exists() != again


def test_a_second_signal_ends_a_broker_at_once_and_nothing_acknowledged_is_lost(
    broker: BrokerProcess,
) -> None:
    with busy(broker) as (writer, reader):
        writer.send(500)
        os.kill(broker.pid, signal.SIGINT)
        os.kill(broker.pid, signal.SIGINT)
        assert ends(broker, 2) in {0, 128 + signal.SIGINT}
        broker.start()
        settled(broker, writer, reader)
    broker.stop()


def test_clients_go_on_after_a_pause(broker: BrokerProcess) -> None:
    with busy(broker) as (writer, reader):
        os.kill(broker.pid, signal.SIGSTOP)
        try:
            writer.send(200)
            time.sleep(PAUSE)  # this is the fault, not a wait for something
        finally:
            os.kill(broker.pid, signal.SIGCONT)
        settled(broker, writer, reader)
    broker.stop()
    assert broker.problems() == []


@pytest.mark.parametrize("shared", ["coordinator", "storage"])
def test_a_second_broker_on_the_same_directory_is_refused(
    broker: BrokerProcess, make_broker: Callable[..., BrokerProcess], shared: str
) -> None:
    second = make_broker({"broker.id": 2})
    if shared == "coordinator":
        second.directory = broker.directory
    else:
        second.data = broker.data
    with pytest.raises(RuntimeError, match=f"in use by process {broker.pid}"):
        second.start()
    assert "Traceback" not in second.log_file.read_text()
    with Writer(broker.address, "busy", 3) as writer:
        writer.send_until(100)
        writer.settle()
        assert writer.misses(broker.address) == []
    broker.stop()
    assert broker.problems() == []
