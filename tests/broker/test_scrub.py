"""Scrubbing: damage is found, told with the way out, remembered, and forgotten once repaired."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from tests.broker.conftest import MockTime
from tests.broker.peer import NOW, FixedHost, batch, connected, running

import odradek.broker.scrubbing
from odradek.broker import Broker
from odradek.broker.scrubbing import LOOK_S, Scrubbing
from odradek.contracts.storage import PartitionWriter
from odradek.hookspecs import StorageFactory
from odradek.log.partition import PartitionLog
from odradek.log.scrub import SCRUB_BLOB, Damage, ScrubState
from odradek.log.scrubber import WINDOW, scrub_segment
from odradek.log.worker import InlineWorker, Worker
from odradek.plugins import load

DAY_MS = 24 * 3600 * 1000
WEEK = {"bytes_per_s": 0, "interval_s": 7 * 24 * 3600}
"""The broker's own chore rests: the tests call one of theirs."""


@asynccontextmanager
async def serving(root: Path, host: FixedHost) -> AsyncIterator[Broker]:
    pytest.importorskip("odradek_storage_file")
    async with running(
        storage=(root / "logs").as_uri(),
        coordinator=f"memory:scrub-{root}",
        host=host,
        scrub=WEEK,
    ) as broker:
        yield broker


async def fill(broker: Broker, topic: str = "t", batches: int = 12) -> PartitionLog:
    """Make a topic with a log of several sealed segments."""
    async with connected(broker) as peer:
        assert (await peer.create(topic, segment_bytes="4096")).error_code == 0
        for _ in range(batches):
            assert (await peer.produce(topic, batch(2, 700))).error_code == 0
    return broker.topic(topic).log(0)


def files(root: Path) -> list[Path]:
    return sorted((root / "logs").glob("*-0/*.log"))


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR]
    caplog.clear()
    return found


def state_of(log: PartitionLog) -> ScrubState:
    return ScrubState.load(log.reader().snapshot.blobs[SCRUB_BLOB])


async def test_log_that_meets_a_defect_does_not_keep_the_others(
    tmp_path: Path,
    host: FixedHost,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving(tmp_path, host) as broker:
        first = await fill(broker, "first")
        second = await fill(broker, "second")
        wrong = {min(first.key, second.key)}

        async def scrub(reader: PartitionWriter, *args: Any) -> list[Damage]:
            for log in (first, second):
                if log.key in wrong and reader is log.reader():
                    raise RuntimeError("a mistake of ours")
            return await scrub_segment(reader, *args)

        monkeypatch.setattr(odradek.broker.scrubbing, "scrub_segment", scrub)
        for log in (first, second):
            wrong = {log.key}
            host.now += 8 * DAY_MS
            scrubbing = Scrubbing(broker)
            for _ in range(3):
                await scrubbing.once(InlineWorker())
            (said,) = errors(caplog)
            assert said == f"partition {log.key} cannot be scrubbed"
            other = second if log is first else first
            assert state_of(other).read_ms == host.now


async def test_damage_is_told_with_its_place_and_the_way_out(
    tmp_path: Path, host: FixedHost, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(tmp_path, host) as broker:
        log = await fill(broker)
        scrubbing = Scrubbing(broker)
        flip(files(tmp_path)[1], 1600)
        assert await scrubbing.once(InlineWorker())
        (said,) = errors(caplog)
        base = log.segments[1].base_offset
        assert "partition 0 of topic t is damaged" in said
        assert f"segment {base} (offsets up to {log.segments[1].end_offset - 1}), byte " in said
        url = (tmp_path / "logs").as_uri()
        assert f"`odradek log repair {log.key} --storage {url} --how cut|skip`" in said
        assert log.damage is not None
        assert "CRC" in log.damage
        (damage,) = state_of(log).damage
        assert damage.segment == base
        async with connected(broker) as peer:
            assert (await peer.fetch("t", 0)).error_code == 0, "what is sound is served"
            assert (await peer.produce("t", batch(1))).error_code == 0
        assert not await scrubbing.once(InlineWorker()), "nothing is due for a week"
        host.now += 8 * DAY_MS
        assert await scrubbing.once(InlineWorker())
        assert errors(caplog) == [], "it has been told"


async def test_damage_is_told_again_after_a_restart_and_forgotten_once_repaired(
    tmp_path: Path, host: FixedHost, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(tmp_path, host) as broker:
        log = await fill(broker)
        key = log.key
        flip(files(tmp_path)[1], 1600)
        await Scrubbing(broker).once(InlineWorker())
        assert errors(caplog)
    async with serving(tmp_path, host) as broker:
        log = broker.topic("t").log(0)
        scrubbing = Scrubbing(broker)
        assert await scrubbing.once(InlineWorker()), "at once, not in a week"
        assert len(errors(caplog)) == 1
        assert log.damage is not None
        assert not await scrubbing.once(InlineWorker())
    factory: StorageFactory = load().storage("file")
    assert factory.repair is not None
    url = (tmp_path / "logs").as_uri()
    factory.repair(url, factory.settings(), key, "skip")
    async with serving(tmp_path, host) as broker:
        log = broker.topic("t").log(0)
        scrubbing = Scrubbing(broker)
        await scrubbing.once(InlineWorker())
        assert log.damage is None
        assert state_of(log).damage == ()
        assert errors(caplog) == []


async def test_a_log_is_marked_before_anything_is_read_again(
    tmp_path: Path, host: FixedHost, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(tmp_path, host) as broker:
        await fill(broker)
        flip(files(tmp_path)[0], 100)
        await Scrubbing(broker).once(InlineWorker())
    async with serving(tmp_path, host) as broker:
        scrubbing = Scrubbing(broker)
        (known,) = scrubbing._due()
        assert known.log.damage is not None
    assert errors(caplog)


async def test_sound_logs_are_read_once_in_an_interval(
    tmp_path: Path, host: FixedHost, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(tmp_path, host) as broker:
        log = await fill(broker)
        scrubbing = Scrubbing(broker)
        assert await scrubbing.once(InlineWorker())
        assert state_of(log) == ScrubState(read_ms=NOW)
        assert not await scrubbing.once(InlineWorker())
    async with serving(tmp_path, host) as broker:
        scrubbing = Scrubbing(broker)
        assert not await scrubbing.once(InlineWorker()), "remembered over a restart"
        host.now += 8 * DAY_MS
        assert await scrubbing.once(InlineWorker())
        assert state_of(broker.topic("t").log(0)).read_ms == host.now
    assert errors(caplog) == []


async def test_a_reading_that_was_interrupted_goes_on_where_it_was(
    tmp_path: Path, host: FixedHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("odradek.broker.scrubbing.SAVE_S", -1.0)  # note every segment
    async with serving(tmp_path, host) as broker:
        log = await fill(broker)
        scrubbing = Scrubbing(broker)
        with trio.CancelScope() as scope:
            read = []

            async def throttle(size: int) -> None:
                read.append(size)
                if len(read) == 3:
                    scope.cancel()
                await trio.lowlevel.checkpoint()

            monkeypatch.setattr(scrubbing, "_throttle", throttle)
            await scrubbing.once(InlineWorker())
        assert scope.cancelled_caught
        assert state_of(log).next_offset == log.segments[2].base_offset
        whole = len(log.segments) - 1
    async with serving(tmp_path, host) as broker:
        scrubbing = Scrubbing(broker)
        rest = []

        async def count(size: int) -> None:
            rest.append(size)

        monkeypatch.setattr(scrubbing, "_throttle", count)
        assert await scrubbing.once(InlineWorker())
        assert len(rest) == whole - 2
        assert state_of(broker.topic("t").log(0)) == ScrubState(read_ms=NOW)


async def test_the_log_that_was_read_longest_ago_comes_first(
    tmp_path: Path, host: FixedHost
) -> None:
    async with serving(tmp_path, host) as broker:
        scrubbing = Scrubbing(broker)
        for name in ("first", "second"):
            await fill(broker, name)
            await scrubbing.once(InlineWorker())
            host.now += DAY_MS
        host.now += 30 * DAY_MS
        await fill(broker, "never")
        assert [known.log.topic for known in scrubbing._due()] == ["never", "first", "second"]


async def test_a_damaged_state_begins_anew(
    tmp_path: Path, host: FixedHost, caplog: pytest.LogCaptureFixture
) -> None:
    from odradek.contracts.storage import LogEdit

    async with serving(tmp_path, host) as broker:
        log = await fill(broker)
        await log.edit(lambda _: LogEdit(blobs={SCRUB_BLOB: b"not JSON"}))
        assert await Scrubbing(broker).once(InlineWorker())
        assert state_of(log) == ScrubState(read_ms=NOW)
    assert any("begins anew" in each.getMessage() for each in caplog.records)


async def test_a_topic_that_is_deleted_meanwhile_is_no_failure(
    tmp_path: Path, host: FixedHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path, host) as broker:
        await fill(broker)
        scrubbing = Scrubbing(broker)

        async def throttle(size: int) -> None:
            if "t" in broker.image.topics:
                await broker.delete_topic(broker.image.topics["t"])

        monkeypatch.setattr(scrubbing, "_throttle", throttle)
        assert await scrubbing.once(InlineWorker())
        assert not await scrubbing.once(InlineWorker())


class Simulated(FixedHost):
    def worker(self, name: str) -> Worker:
        return InlineWorker()


def test_the_broker_scrubs_by_itself_at_its_rate(mock_time: MockTime) -> None:
    async def main() -> None:
        host = Simulated()
        async with running(host=host, scrub={"bytes_per_s": 1000, "interval_s": 3600}) as broker:
            log = await fill(broker, batches=300)
            sealed = sum(segment.size for segment in log.segments[:-1])
            (scrubbing,) = (each for each in broker.upkeep.chores if isinstance(each, Scrubbing))
            began = trio.current_time()

            def unread() -> bool:
                return not any(known.state.read_ms >= 0 for known in scrubbing._known.values())

            while unread():  # noqa: ASYNC110  # on a clock that jumps, looking costs nothing
                await trio.sleep(1)
            took = trio.current_time() - began
            assert (sealed - WINDOW) / 1000 - 1 < took < sealed / 1000 + LOOK_S + 2
            assert sealed > 3 * WINDOW
            assert SCRUB_BLOB not in log.reader().snapshot.blobs, "memory does not last"

    mock_time(main)


async def test_zero_turns_scrubbing_off(broker: Broker) -> None:
    async with running(scrub={"bytes_per_s": 0}) as other:
        with trio.fail_after(10):
            await Scrubbing(other).run()
