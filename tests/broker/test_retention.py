"""Retention in a running broker: in time, whatever the wall clock does, and in nobody's way."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import pytest
import trio
from tests.broker.conftest import MockTime
from tests.broker.grouping import Member, commit, committed, find
from tests.broker.peer import NOW, batch, code, connected, running

from odradek.broker import Broker, Host
from odradek.broker.host import Boot
from odradek.cluster import keys
from odradek.contracts.coordinator import Unavailable
from odradek.contracts.storage import Full, LogEdit, LogSnapshot
from odradek.log.partition import PartitionLog

SECOND = 1000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
YEAR = 365 * 24 * HOUR

names = count()


class Machine(Host):
    """A machine on trio's clock, whose wall clock is off by `error` ms."""

    def __init__(self) -> None:
        self.error = 0
        self.boots = 0

    @property
    def up(self) -> int:
        return int(trio.current_time() * 1000)

    def now_ms(self) -> int:
        return NOW + self.up + self.error

    def boot(self) -> Boot:
        return Boot(f"boot {self.boots}", self.up)


class World:
    """A broker on a machine. It checks every 5 minutes, as by default.

    Each request has a connection of its own: one that is idle for hours is closed.
    """

    def __init__(self, broker: Broker, machine: Machine) -> None:
        self.broker = broker
        self.machine = machine

    async def create(self, topic: str, **configs: Any) -> None:
        async with connected(self.broker) as peer:
            result = await peer.create(topic, **configs)
        assert code(result.error_code) == "NONE", result.error_message

    async def produce(self, topic: str, timestamp: int | None = None) -> None:
        """One record in a segment of its own, of now by the true time."""
        when = NOW + self.machine.up if timestamp is None else timestamp
        async with connected(self.broker) as peer:
            result = await peer.produce(topic, batch(1, 200, when))
        assert code(result.error_code) == "NONE", result.error_message

    def log(self, topic: str) -> PartitionLog:
        return self.broker.topic(topic).log(0)

    def start(self, topic: str) -> int:
        return self.log(topic).log_start_offset


@asynccontextmanager
async def world(machine: Machine | None = None, **sections: Any) -> AsyncIterator[World]:
    machine = machine or Machine()
    name = f"retention-{next(names)}"
    where = {"coordinator": f"memory:{name}", "storage": f"memory://{name}"}
    async with running(host=machine, **{**where, **sections}) as broker:
        yield World(broker, machine)


TOPIC = {
    "segment_bytes": "300",
    "retention_ms": str(2 * HOUR),
    "message_timestamp_after_max_ms": str(2**62),
}


def test_old_records_go_at_the_next_check(mock_time: MockTime) -> None:
    async def main() -> None:
        async with world() as w:
            await w.create("t", **TOPIC)
            await w.create("kept", segment_bytes="300", retention_ms="-1")
            for _ in range(3):
                await w.produce("t")
                await w.produce("kept")
                await trio.sleep(3600)
            assert w.start("t") == 1
            await trio.sleep(301)
            assert w.start("t") == 2
            await trio.sleep(3600)
            assert w.start("t") == w.log("t").log_end_offset == 3
            assert w.start("kept") == 0
            async with connected(w.broker) as peer:
                answer = await peer.fetch("t", 0)
            assert code(answer.error_code) == "OFFSET_OUT_OF_RANGE"
            assert answer.log_start_offset == 3

    mock_time(main)


def test_large_logs_shrink_at_the_next_check(mock_time: MockTime) -> None:
    async def main() -> None:
        async with world(retention={"check_interval_ms": 60_000}) as w:
            await w.create("t", segment_bytes="300", retention_bytes="1000")
            for _ in range(20):
                await w.produce("t")
            await trio.sleep(61)
            log = w.log("t")
            assert 1000 <= log.size < 1000 + log.segments[0].size

    mock_time(main)


@pytest.mark.parametrize("jump", [HOUR, YEAR])
def test_jump_ahead_deletes_nothing(
    mock_time: MockTime, jump: int, caplog: pytest.LogCaptureFixture
) -> None:
    """F10: what goes within an hour after it would have gone within two hours anyway."""

    async def main() -> None:
        async with world() as w:
            await w.create("t", **TOPIC)
            await w.produce("t")
            await trio.sleep(90 * 60)
            await w.produce("t")
            w.machine.error = jump
            await trio.sleep(10 * 60)
            assert w.start("t") == 0, "100 minutes old, and 110 by twice real time"
            await trio.sleep(20 * 60)
            assert w.start("t") == 1
            await trio.sleep(25 * 60)
            w.machine.error = 0
            await trio.sleep(10 * 60)
            assert w.start("t") == 1, "65 minutes old"

    caplog.set_level(logging.INFO, "odradek.broker.timekeeping")
    mock_time(main)
    records = [r for r in caplog.records if r.name == "odradek.broker.timekeeping"]
    told = [record.getMessage() for record in records]
    assert "ahead of the time that is known to have passed" in told[0]
    assert "shows the time that retention goes by again" in told[-1]
    assert len(told) <= 3, "once an hour is enough"


@pytest.mark.parametrize("jump", [HOUR, YEAR])
def test_jump_back_deletes_nothing_on_the_way_home_either(mock_time: MockTime, jump: int) -> None:
    """The broker stamps the records, so that they look old once the clock is right again."""

    async def main() -> None:
        async with world() as w:
            await w.create("t", message_timestamp_type="LogAppendTime", **TOPIC)
            await trio.sleep(600)
            w.machine.error = -jump
            await w.produce("t")
            await trio.sleep(45 * 60)
            await w.produce("t")
            await trio.sleep(600)
            w.machine.error = 0
            await w.produce("t")
            await trio.sleep(600)
            oldest = w.log("t").segments[0]
            assert w.broker.upkeep.now_ms() - oldest.max_timestamp > 2 * HOUR, "it looks old"
            assert w.start("t") == 0, "65 minutes old"
            await trio.sleep(2 * 3600 + 600)
            assert w.start("t") == 3, "they are not kept for ever"

    mock_time(main)


@pytest.mark.parametrize("jump", [HOUR, YEAR, -YEAR])
def test_committed_offsets_outlive_a_jump(mock_time: MockTime, jump: int) -> None:
    async def main() -> None:
        settings = {"offsets_retention_minutes": 120, "offsets_partitions": 1}
        async with world(groups=settings) as w:
            await w.create("t")

            async def offsets() -> list[int]:
                async with connected(w.broker) as peer:
                    return await committed(peer, "g", "t")

            async with connected(w.broker) as peer:
                await find(peer)
                assert await commit(peer, "g", {("t", 0): 7}) == ["NONE"]
            await trio.sleep(600)
            w.machine.error = jump
            await trio.sleep(40 * 60)
            w.machine.error = 0
            await trio.sleep(40 * 60)
            assert await offsets() == [7]
            await trio.sleep(3600)
            assert await offsets() == [-1], "they are not kept for ever"

    mock_time(main)


def test_clock_is_kept_over_restarts_and_reboots(mock_time: MockTime) -> None:
    async def main() -> None:
        machine = Machine()
        name = f"restarts-{next(names)}"
        where = {"coordinator": f"memory:{name}", "storage": f"memory://{name}"}
        async with world(machine, **where) as w:
            await w.create("t", **TOPIC)
            await w.produce("t")
        await trio.sleep(3600)
        machine.error = YEAR
        async with world(machine, **where) as w:
            assert w.broker.upkeep.now_ms() == NOW + 70 * MINUTE, "10 minutes for the jump"
            await trio.sleep(15 * 60)
            assert w.broker.upkeep.now_ms() == NOW + 100 * MINUTE
        machine.boots = 1
        async with world(machine, **where) as w:
            await trio.sleep(300)
            assert w.start("t") == 0, "110 minutes old by twice real time"
            await trio.sleep(601)
            assert w.start("t") == 1

    mock_time(main)


def test_trusted_clock_is_believed_at_once(
    mock_time: MockTime, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with world(retention={"trust_clock": True}) as w:
            await w.create("t", **TOPIC)
            await w.produce("t")
            await trio.sleep(600)
            assert w.start("t") == 0
            w.machine.error = YEAR
            await trio.sleep(301)
            assert w.start("t") == 1

    mock_time(main)
    assert not [r for r in caplog.records if r.name == "odradek.broker.timekeeping"]


def test_clock_that_was_trusted_once_need_not_be_again(mock_time: MockTime) -> None:
    """The machine was off for a month, say: somebody vouches for the clock, and takes it back."""

    async def main() -> None:
        machine = Machine()
        where = {"coordinator": f"memory:trusted-{next(names)}"}
        month = 30 * 24 * HOUR
        async with world(machine, **where):
            await trio.sleep(60)
        machine.error = month
        machine.boots = 1
        async with world(machine, **where) as w:
            assert machine.now_ms() - w.broker.upkeep.now_ms() >= month - SECOND
        async with world(machine, retention={"trust_clock": True}, **where) as w:
            assert w.broker.upkeep.now_ms() == machine.now_ms()
        async with world(machine, **where) as w:
            assert w.broker.upkeep.now_ms() == machine.now_ms()

    mock_time(main)


def test_trusting_the_clock_makes_no_committed_offset_older(mock_time: MockTime) -> None:
    """The documented way out after a month in which the machine was off."""

    async def main() -> None:
        machine = Machine()
        name = f"vouched-{next(names)}"
        where: dict[str, Any] = {
            "coordinator": f"memory:{name}",
            "storage": f"memory://{name}",
            "groups": {"offsets_retention_minutes": 120, "offsets_partitions": 1},
        }

        async def offsets(broker: Broker) -> list[list[int]]:
            async with connected(broker) as peer:
                await find(peer)
                return [await committed(peer, group, "t") for group in ("g", "members")]

        async with world(machine, **where) as w:
            await w.create("t")
            async with connected(w.broker) as peer:
                await find(peer)
                assert await commit(peer, "g", {("t", 0): 7}) == ["NONE"]
                member = await Member(peer, "members").enter()
                assert await member.commit({("t", 0): 8}) == ["NONE"]
                await member.leave()
            await trio.sleep(60)
        machine.error = 30 * 24 * HOUR
        machine.boots = 1
        async with world(machine, retention={"trust_clock": True}, **where) as w:
            assert w.broker.upkeep.now_ms() == machine.now_ms()
            await trio.sleep(100 * 60)
            assert await offsets(w.broker) == [[7], [8]], "101 minutes old"
            machine.error += 30 * 24 * HOUR
            await trio.sleep(11 * 60)
            assert await offsets(w.broker) == [[7], [8]], "112 minutes old"
        async with world(machine, **where) as w:
            await trio.sleep(20 * 60)
            assert await offsets(w.broker) == [[-1], [-1]], "they are not kept for ever"

    mock_time(main)


def test_first_start_in_1970_deletes_nothing_and_recovers(
    mock_time: MockTime, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        machine = Machine()
        machine.error = MINUTE - NOW
        async with world(machine) as w:
            await w.create("t", message_timestamp_type="LogAppendTime", **TOPIC)
            await w.produce("t")
            await trio.sleep(20 * 60)
            assert w.log("t").segments[0].max_timestamp < HOUR
            machine.error = 0
            await w.produce("t")
            await trio.sleep(20 * 60)
            assert w.broker.upkeep.now_ms() == machine.now_ms()
            assert w.start("t") == 0, "40 minutes old"
            await trio.sleep(2 * 3600)
            assert w.start("t") == 2, "they are not kept for ever"

    caplog.set_level(logging.INFO, "odradek.broker.timekeeping")
    mock_time(main)
    told = [r.getMessage() for r in caplog.records if r.name == "odradek.broker.timekeeping"]
    assert "the wall clock shows 1970-01-01, which cannot be right" in told[0]
    assert "shows the time that retention goes by again" in told[-1]
    assert len(told) == 2


def test_clock_is_saved_for_operators_to_read(mock_time: MockTime) -> None:
    async def main() -> None:
        async with world() as w:
            await trio.sleep(601)
            entry = await w.broker.coordinator.get(keys.clock_key(w.broker.id))
            assert entry is not None
            assert json.loads(entry.value)["proven_ms"] == NOW + 600_000

    mock_time(main)


def test_clock_that_cannot_be_read_is_begun_anew(
    mock_time: MockTime, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        machine = Machine()
        where = {"coordinator": f"memory:anew-{next(names)}"}
        async with world(machine, **where) as w:
            key = keys.clock_key(w.broker.id)
            coordinator = w.broker.coordinator
            await trio.sleep(1)
            w.broker.upkeep.clock.aclose = trio.lowlevel.checkpoint  # type: ignore[method-assign]
            await coordinator.put(key, b"{}")
        async with world(machine, **where) as w:
            assert w.broker.upkeep.now_ms() == machine.now_ms()

    mock_time(main)
    assert "is not understood" in caplog.text


def test_retention_goes_on_without_the_coordinator(
    mock_time: MockTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with world() as w:
            await w.create("t", **TOPIC)
            await w.produce("t")
            tried = 0

            async def put(key: str, value: bytes) -> int:
                nonlocal tried
                tried += 1
                await trio.sleep(10)
                raise Unavailable("no answer")

            monkeypatch.setattr(w.broker.coordinator, "put", put)
            await trio.sleep(2 * 3600 + 301)
            assert w.start("t") == 1
            assert tried > 5

    mock_time(main)


def test_broker_survives_upkeep_that_fails(
    mock_time: MockTime, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with world() as w:
            await w.create("t", **TOPIC)
            await w.produce("t")

            def broken() -> None:
                raise RuntimeError("a mistake of ours")

            with monkeypatch.context() as patched:
                patched.setattr(w.broker.hosting, "logs", broken)
                await trio.sleep(3 * 3600)
                await w.produce("t")
                assert w.start("t") == 0
            await trio.sleep(660)
            assert w.start("t") == 1

    mock_time(main)
    told = [r.getMessage() for r in caplog.records if r.name == "odradek.broker.upkeep"]
    retention = [message for message in told if message.startswith("retention")]
    assert retention[0] == "retention failed, and begins again in 10 s"
    assert retention[-1] == "retention failed, and begins again in 600 s"
    assert len(retention) < 30


def test_log_that_fails_does_not_keep_the_others(
    mock_time: MockTime, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with world() as w:
            for topic in ("a", "b", "c"):
                await w.create(topic, **TOPIC)
                await w.produce(topic)

            async def broken(decide: object) -> bool:
                raise RuntimeError("a mistake of ours")

            monkeypatch.setattr(w.log("b"), "edit", broken)
            await trio.sleep(3 * 3600)
            assert [w.start(topic) for topic in ("a", "b", "c")] == [1, 0, 1]

    mock_time(main)
    told = [r for r in caplog.records if r.name == "odradek.broker.retaining"]
    failures = [record for record in told if record.levelno == logging.ERROR]
    assert len(failures) == 1
    assert failures[0].exc_info is not None


def test_what_keeps_segments_is_told_once(
    mock_time: MockTime, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with world() as w:
            await w.create("t", **TOPIC)
            await w.create("other", **TOPIC)
            await w.produce("t")
            await w.produce("t")
            await w.produce("other")

            async def full(edit: LogEdit) -> LogSnapshot:
                raise Full("no room for the manifest")

            with monkeypatch.context() as patched:
                patched.setattr(w.log("t").reader(), "commit", full)
                await trio.sleep(3 * 3600)  # more than thirty checks
                assert (w.start("t"), w.start("other")) == (0, 1)
            await trio.sleep(301)
            assert w.start("t") == 2

    mock_time(main)
    told = [r for r in caplog.records if r.name == "odradek.broker.retaining"]
    assert [r.getMessage() for r in told if r.levelno == logging.WARNING] == [
        "partition 0 of topic t: old segments cannot be removed for now: no room for the manifest"
    ]


def test_broker_that_is_closed_while_it_removes_leaves_whole_logs(
    mock_time: MockTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log is closed after the removal was given up, and the next broker does it."""

    async def main() -> None:
        machine = Machine()
        name = f"closed-{next(names)}"
        where = {"coordinator": f"memory:{name}", "storage": f"memory://{name}"}
        async with world(machine, **where) as w:
            await w.create("t", **TOPIC)
            for _ in range(3):
                await w.produce("t")
            log = w.log("t")
            commit = log.reader().commit
            begun = trio.Event()

            async def slow(edit: LogEdit) -> LogSnapshot:
                if edit.remove:
                    begun.set()
                    await trio.sleep_forever()
                return await commit(edit)

            monkeypatch.setattr(log.reader(), "commit", slow)
            await begun.wait()
            assert log.log_start_offset == 3
        assert log.log_start_offset == 0
        async with world(machine, **where) as w:
            assert w.start("t") == 0
            await trio.sleep(301)
            assert w.start("t") == 3

    mock_time(main)
