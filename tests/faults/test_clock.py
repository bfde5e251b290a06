"""The wall clock jumps under a running broker: an hour, a year, either way.

The broker looks for what is too old all the while, and must not take a jump for age.
Fault F10, by libfaketime, which changes what the process reads as wall clock and leaves the
monotonic clock alone, as a jump does.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.faults.needs import missing
from tests.faults.traffic import Writer, batch_of, produce, read_back, until
from tests.interop.probe import Probe
from tests.interop.process import BrokerProcess

from odradek.wire.api.a02_list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)

pytestmark = [pytest.mark.faults, pytest.mark.timeout(120)]

LIBRARIES = ("/usr/lib/*/faketime/libfaketimeMT.so.1", "/usr/lib/faketime/libfaketimeMT.so.1")
HOUR = 3600
YEAR = 365 * 24 * HOUR
JUMPS = (HOUR, YEAR, -HOUR, -YEAR, 0)
WAIT_MS = 300
EARLIEST = -2
CHECK_MS = 50
RETENTION_MS = 600_000
"""Twice as long as the test may last and more: a clock that is ahead is caught up with."""


class Clock:
    """The wall clock of a broker."""

    def __init__(self, directory: Path) -> None:
        found = [path for pattern in LIBRARIES for path in Path("/").glob(pattern[1:])]
        if not found:
            missing("libfaketime is missing: scripts/install_test_tools.sh installs it")
        self._file = directory / "faketime"
        self.jump(0)
        self.under = (
            "env",
            f"LD_PRELOAD={found[0]}",
            f"FAKETIME_TIMESTAMP_FILE={self._file}",
            "FAKETIME_NO_CACHE=1",
            "FAKETIME_DONT_FAKE_MONOTONIC=1",
        )

    def jump(self, seconds: int) -> None:
        """Set it so many seconds before or after the true time."""
        new = self._file.with_suffix(".new")
        new.write_text(f"{seconds:+d}\n")
        new.rename(self._file)


@pytest.fixture
def clock(tmp_path: Path) -> Clock:
    return Clock(tmp_path)


@pytest.fixture
def broker(clock: Clock, make_broker: Callable[..., BrokerProcess]) -> BrokerProcess:
    settings = {"topics.segment.bytes": 64 * 1024, "retention.check_interval_ms": CHECK_MS}
    made = make_broker(settings, under=clock.under)
    made.start()
    return made


def stamp_ms(address: str) -> int:
    """The time that the broker gives to a batch now."""
    answer = produce(address, "stamped", batch_of([b"x"]))
    assert answer.error_code == 0, answer.error_message
    return answer.log_append_time_ms


def offset_at(probe: Probe, timestamp: int, topic: str = "stamped") -> int:
    """The first offset of a batch as late as that, -1 for none."""
    where = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
    request = ListOffsetsRequest(
        replica_id=-1, topics=[ListOffsetsTopic(name=topic, partitions=[where])]
    )
    (found,) = probe.call(request, 7, ListOffsetsResponse).topics[0].partitions
    assert found.error_code == 0
    return found.offset


def earliest(broker: BrokerProcess, topic: str) -> int:
    """Where the log of a topic begins."""
    with Probe(broker.address) as probe:
        return offset_at(probe, EARLIEST, topic)


def test_clients_do_not_notice_jumps_and_nothing_is_deleted(
    broker: BrokerProcess, clock: Clock
) -> None:
    with Probe(broker.address) as probe:
        probe.create_topic(
            "jumps",
            2,
            retention_ms=str(RETENTION_MS),
            segment_ms="10000",
            # The clients' clocks do not jump: for the broker they are off by a year then
            message_timestamp_after_max_ms=str(2**62),
        )
        # Each batch in a segment of its own, with the time of the wrong clock as its age
        probe.create_topic(
            "stamped",
            message_timestamp_type="LogAppendTime",
            segment_bytes="100",
            retention_ms=str(RETENTION_MS),
        )
        probe.create_topic(
            "short",
            segment_bytes="100",
            retention_ms="1",
            message_timestamp_after_max_ms=str(2**62),
        )
    with Writer(broker.address, "jumps", 2) as writer:
        for jump in JUMPS:
            clock.jump(jump)
            assert produce(broker.address, "short", batch_of([b"x"])).error_code == 0
            now_ms = (time.time() + jump) * 1000
            assert abs(stamp_ms(broker.address) - now_ms) < 60_000, "the jump is not seen"
            writer.send_until(len(writer.acknowledged) + 300)
            waited = time.monotonic()
            with Probe(broker.address) as probe:
                end = probe.end_offset("stamped")
                answer = probe.fetch("stamped", 0, end, max_wait_ms=WAIT_MS)
            waited = time.monotonic() - waited
            assert answer.error_code == 0
            assert WAIT_MS / 1000 <= waited < 10, "a timeout follows the wall clock"
        assert produce(broker.address, "short", batch_of([b"x"])).error_code == 0
        # What is due goes: the others were looked at as often
        until(lambda: earliest(broker, "short") == len(JUMPS) + 1, "retention does nothing")
        writer.settle()
        assert writer.failed == {}
        assert writer.misses(broker.address) == []
        broker.stop()
        clock.jump(-YEAR)
        broker.start()
        assert writer.misses(broker.address) == []
        clock.jump(0)
        assert produce(broker.address, "short", batch_of([b"x"])).error_code == 0
        until(lambda: earliest(broker, "short") == len(JUMPS) + 2, "retention does nothing")
        assert len(read_back(broker.address, "stamped")) == len(JUMPS)
        clock.jump(YEAR)
        writer.send_until(len(writer.acknowledged) + 100)
        writer.settle()
        assert writer.misses(broker.address) == []
    assert broker.problems() == []
    broker.stop()


def test_first_start_in_1970_deletes_nothing_and_recovers(
    clock: Clock, make_broker: Callable[..., BrokerProcess]
) -> None:
    clock.jump(60 - int(time.time()))
    settings = {"retention.check_interval_ms": CHECK_MS}
    broker = make_broker(settings, under=clock.under).start()
    with Probe(broker.address) as probe:
        ahead = str(2**62)
        for topic, retention_ms in (("stamped", RETENTION_MS), ("right", RETENTION_MS), ("due", 1)):
            probe.create_topic(
                topic,
                message_timestamp_type="CreateTime" if topic == "right" else "LogAppendTime",
                message_timestamp_after_max_ms=ahead,
                segment_bytes="100",
                retention_ms=str(retention_ms),
            )
    assert stamp_ms(broker.address) < 600_000
    for topic in ("right", "due"):
        assert produce(broker.address, topic, batch_of([b"x"])).error_code == 0
    until(lambda: earliest(broker, "due") == 1, "retention does nothing")
    clock.jump(0)
    assert abs(stamp_ms(broker.address) - time.time() * 1000) < 60_000, "the jump is not seen"
    assert produce(broker.address, "due", batch_of([b"x"])).error_code == 0
    # It would stay for half a century by a clock that is still in 1970.
    until(lambda: earliest(broker, "due") == 2, "retention does nothing")
    assert [earliest(broker, topic) for topic in ("stamped", "right")] == [0, 0]
    assert len(read_back(broker.address, "stamped")) == 2
    broker.stop()


def test_jump_is_believed_where_the_clock_is_trusted(
    clock: Clock, make_broker: Callable[..., BrokerProcess]
) -> None:
    settings = {"retention.check_interval_ms": CHECK_MS, "retention.trust_clock": "true"}
    broker = make_broker(settings, under=clock.under).start()
    with Probe(broker.address) as probe:
        probe.create_topic("kept", retention_ms=str(HOUR * 1000 * 24 * 30))
    assert produce(broker.address, "kept", batch_of([b"x"])).error_code == 0
    assert earliest(broker, "kept") == 0
    clock.jump(YEAR)
    until(lambda: earliest(broker, "kept") == 1, "the jump is not believed")
    broker.stop()


def test_look_ups_by_time_work_over_jumps_back(broker: BrokerProcess, clock: Clock) -> None:
    """The first batch at or after a time is found, though later ones have earlier times."""
    with Probe(broker.address) as probe:
        probe.create_topic("stamped", message_timestamp_type="LogAppendTime")
        stamps = []
        for jump in (0, HOUR, -HOUR, 0):
            clock.jump(jump)
            stamps.append(stamp_ms(broker.address))
        assert stamps[1] > stamps[3] > stamps[0] > stamps[2]
        assert offset_at(probe, stamps[0] + 1) == 1
        assert offset_at(probe, stamps[2]) == 0
        assert offset_at(probe, stamps[1] + 1) == -1
    broker.stop()
