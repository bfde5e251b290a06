"""Compaction by a running broker: which logs, when, and what its clients see of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar, TypeVarTuple

import pytest
import trio
from attrs import evolve
from tests.broker.conftest import MockTime
from tests.broker.peer import FixedHost, Peer, batch, connected, running

import odradek.broker.cleaning
from odradek.broker import Broker
from odradek.broker.cleaning import BUSY, MAX_PAUSE_S, POLITENESS, Cleaning, Courtesy
from odradek.contracts.storage import Full
from odradek.log.cleaner import compact, state_of
from odradek.log.partition import PartitionLog
from odradek.log.worker import InlineWorker
from odradek.record import BatchBuilder, Record, iter_records, scan

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

SOON = {"backoff_ms": 5}
COMPACT = {
    "cleanup.policy": "compact",
    "segment.bytes": "1000",
    "min.cleanable.dirty.ratio": "0",  # what is left after an early pass is enough
}


def storage(kind: str, tmp_path: Path) -> str:
    if kind == "memory":
        return "memory:"
    pytest.importorskip("odradek_storage_file")
    return f"file://{tmp_path}"


async def cleaned(log: PartitionLog, offset: int) -> None:
    """Wait until the log is compacted up to an offset."""
    with trio.fail_after(30):
        while state_of(log).cleaned_to < offset:  # noqa: ASYNC110  # nothing tells of it
            await trio.sleep(0.002)


async def consumed(peer: Peer, topic: str, start: int, end: int) -> list[Record]:
    """Read a topic as a client does: by the offset behind the last batch it was given."""
    found: list[Record] = []
    offset = start
    with trio.fail_after(30):
        while offset < end:
            data = await peer.fetch(topic, offset)
            assert data.error_code == 0
            view = memoryview(data.records or b"")  # type: ignore[arg-type]  # decoded: bytes-like
            batches = scan(view)
            assert batches.problem is None
            assert batches.metas, f"nothing to read at {offset}, before the end at {end}"
            found += [record for record in iter_records(view) if record.offset >= offset]
            offset = batches.metas[-1].next_offset
    return found


@pytest.mark.parametrize("kind", ["memory", "file"])
async def test_compacted_topic_keeps_the_newest_record_of_each_key(
    kind: str, tmp_path: Path
) -> None:
    async with (
        running(storage=storage(kind, tmp_path), cleaner=SOON, scrub={"bytes_per_s": 0}) as broker,
        connected(broker) as peer,
    ):
        await broker.create_topic("t", partitions=1, configs=COMPACT)
        log = broker.topic("t").log(0)
        sent: dict[bytes, int] = {}
        for number in range(50):
            keys = [f"k{(7 * number + i) % 20}".encode() for i in range(3)]
            result = await peer.produce("t", batch(3, keys=keys))
            for i, key in enumerate(keys):
                sent[key] = result.base_offset + i
        log.roll()
        await cleaned(log, 150)
        found = await consumed(peer, "t", 0, 150)
        assert {record.key: record.offset for record in found} == sent
        assert len(found) == len(sent)


# -- which logs, and when ----------------------------------------------------------------------


async def fill(broker: Broker, peer: Peer, topic: str, count: int, **configs: str) -> PartitionLog:
    """Make a topic with `count` batches of the same key, all but the active segment sealed."""
    config = {key.replace("_", "."): value for key, value in configs.items()}
    await broker.create_topic(topic, partitions=1, configs=config)
    for _ in range(count):
        assert (await peer.produce(topic, batch(1, keys=[b"k"]))).error_code == 0
    log = broker.topic(topic).log(0)
    log.roll()
    return log


class Uptime(FixedHost):
    """A machine on which time passes; `now` alone may jump."""

    def pass_by(self, ms: int) -> None:
        self.now += ms
        self.up += ms


def cleaning(broker: Broker) -> Cleaning:
    (found,) = (chore for chore in broker.upkeep.chores if isinstance(chore, Cleaning))
    return found


async def test_log_with_the_largest_dirty_share_comes_first() -> None:
    async with running(cleaner={"enabled": False}) as broker, connected(broker) as peer:
        worker = InlineWorker()
        config = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": "0"}
        old = await fill(broker, peer, "old", 10, **config)
        assert await cleaning(broker).clean(worker)
        for _ in range(5):
            assert (await peer.produce("old", batch(1, keys=[b"k"]))).error_code == 0
        old.roll()
        new = await fill(broker, peer, "new", 2, **config)
        await fill(broker, peer, "other", 2)
        assert await cleaning(broker).clean(worker)
        assert (state_of(old).cleaned_to, state_of(new).cleaned_to) == (10, 2)
        assert await cleaning(broker).clean(worker)
        assert (state_of(old).cleaned_to, state_of(new).cleaned_to) == (15, 2)
        assert not await cleaning(broker).clean(worker)


async def test_turned_off_nothing_is_compacted() -> None:
    async with (
        running(cleaner={"enabled": False, "backoff_ms": 1}) as broker,
        connected(broker) as peer,
    ):
        await fill(broker, peer, "t", 3, cleanup_policy="compact")
        with trio.fail_after(5):
            await cleaning(broker).run()  # returns


async def test_topic_that_nobody_writes_to_is_rolled_and_compacted() -> None:
    host = FixedHost()
    async with (
        running(host=host, cleaner={"enabled": False}, retention={"trust_clock": True}) as broker,
        connected(broker) as peer,
    ):
        config = {"cleanup_policy": "compact", "max_compaction_lag_ms": "60000"}
        log = await fill(broker, peer, "t", 0, **config)
        for _ in range(3):
            assert (await peer.produce("t", batch(1, keys=[b"k"]))).error_code == 0
        assert not await cleaning(broker).clean(InlineWorker())
        host.now += 61_000
        assert await cleaning(broker).clean(InlineWorker())
        assert state_of(log).cleaned_to == 3
        assert [r.offset for r in await consumed(peer, "t", 0, 3)] == [2]


async def test_trusting_the_clock_makes_no_tombstone_older(tmp_path: Path) -> None:
    """The documented way out after a month in which the machine was off."""
    day = 24 * 3600 * 1000
    host = Uptime()
    name = f"vouched-{tmp_path.name}"

    @asynccontextmanager
    async def serving(trust: bool) -> AsyncIterator[Broker]:
        async with running(
            host=host,
            cleaner={"enabled": False},
            retention={"trust_clock": trust},
            storage=f"memory:{name}",
            coordinator=f"memory:{name}",
        ) as broker:
            yield broker

    async def left(broker: Broker) -> list[bytes | None]:
        """Compact what is due; return the values of what is left."""
        while await cleaning(broker).clean(InlineWorker()):
            pass
        log = broker.topic("t").log(0)
        async with connected(broker) as peer:
            return [r.value for r in await consumed(peer, "t", 0, log.log_end_offset)]

    async with serving(trust=False) as broker, connected(broker) as peer:
        await fill(broker, peer, "t", 1, cleanup_policy="compact", delete_retention_ms=str(day))
        for key, value in ((b"k", None), (b"l", b"1")):
            builder = BatchBuilder(1000)
            assert builder.append(host.now, key, value)
            assert (await peer.produce("t", builder.build())).error_code == 0
        broker.topic("t").log(0).roll()
        assert await left(broker) == [None, b"1"]
    host.now += 30 * day
    async with serving(trust=True) as broker:
        assert broker.upkeep.now_ms() == host.now_ms()
        assert await left(broker) == [None, b"1"]
        host.pass_by(day - 60_000)
        assert await left(broker) == [None, b"1"]
    async with serving(trust=False) as broker:
        host.pass_by(60_000)
        assert await left(broker) == [b"1"]


@pytest.mark.parametrize("what", ["survey", "compact"])
async def test_log_that_meets_a_defect_does_not_keep_the_others(
    what: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    right = getattr(odradek.broker.cleaning, what)

    async def wrong(log: PartitionLog, *args: Any, **more: Any) -> Any:
        if log.topic == "bad":
            raise RuntimeError("a mistake of ours")
        return await right(log, *args, **more)

    monkeypatch.setattr(odradek.broker.cleaning, what, wrong)
    async with running(cleaner={"enabled": False}) as broker, connected(broker) as peer:
        bad = await fill(broker, peer, "bad", 9, cleanup_policy="compact")
        good = await fill(broker, peer, "good", 2, cleanup_policy="compact")
        for _ in range(3):
            while await cleaning(broker).clean(InlineWorker()):
                pass
        assert (state_of(bad).cleaned_to, state_of(good).cleaned_to) == (0, 2)
        assert bad.damage is None
    told = [r for r in caplog.records if "cannot be compacted" in r.getMessage()]
    assert len(told) == 1
    assert told[0].exc_info is not None
    assert "repair" not in told[0].getMessage()


def test_log_without_room_is_left_alone_for_longer_each_time(
    mock_time: MockTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = []

    async def without_room(log: PartitionLog, *args: Any, **more: Any) -> Any:
        tried.append(trio.current_time())
        raise Full("no room")

    monkeypatch.setattr(odradek.broker.cleaning, "compact", without_room)

    async def main() -> None:
        async with running(cleaner={"enabled": False}) as broker, connected(broker) as peer:
            await fill(broker, peer, "t", 9, cleanup_policy="compact")
            while len(tried) < 10:
                if not await cleaning(broker).clean(InlineWorker()):
                    await trio.sleep(15)

    mock_time(main)
    waits = [round(later - before) for before, later in pairwise(tried)]
    assert waits == [60, 120, 240, 480, 960, 1920, 3600, 3600, 3600]


async def test_batch_that_cannot_be_opened_is_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    right = compact

    async def opaque(*args: Any, **more: Any) -> Any:
        done = await right(*args, **more)
        assert done is not None
        assert done.opaque_from is None
        return evolve(done, opaque_from=3)

    monkeypatch.setattr(odradek.broker.cleaning, "compact", opaque)
    async with running(cleaner={"enabled": False}) as broker, connected(broker) as peer:
        log = await fill(broker, peer, "t", 9, cleanup_policy="compact")
        for passes in range(2):
            assert await cleaning(broker).clean(InlineWorker()), passes
            assert (await peer.produce("t", batch(1, keys=[b"k"]))).error_code == 0
            log.roll()
    told = [r.getMessage() for r in caplog.records if "cannot open a batch" in r.getMessage()]
    assert len(told) == 1
    assert "partition 0 of topic t" in told[0]
    assert "behind offset 3" in told[0]


def damage(store: Path, log: PartitionLog) -> None:
    """Change two bytes in the first segment's file."""
    (file,) = (
        file
        for file in store.rglob("00000000000000000000.log")
        if str(log.key.topic_id) in str(file) or log.key.topic_id.hex in str(file)
    )
    with file.open("r+b") as opened:
        opened.seek(100)
        opened.write(b"\xff\xff")


async def test_damaged_log_is_named_once_and_left_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("odradek_storage_file")
    async with (
        running(storage=f"file://{tmp_path}", cleaner={"enabled": False}) as broker,
        connected(broker) as peer,
    ):
        config = {"cleanup_policy": "compact"}
        log = await fill(broker, peer, "bad", 5, **config)
        good = await fill(broker, peer, "good", 5, **config)
        damage(tmp_path, log)
        while await cleaning(broker).clean(InlineWorker()):
            pass
        assert log.damage is not None
        assert (state_of(log).cleaned_to, state_of(good).cleaned_to) == (0, 5)
        told = [r.getMessage() for r in caplog.records if "cannot be compacted" in r.getMessage()]
        assert len(told) == 1
        assert f"odradek log repair {log.key} --storage file://{tmp_path} --how skip" in told[0]
        assert "topic bad" in told[0]


async def test_topic_may_be_deleted_while_it_is_compacted() -> None:
    async with running(cleaner={"enabled": False}) as broker, connected(broker) as peer:
        await fill(broker, peer, "t", 50, cleanup_policy="compact", segment_bytes="300")

        class Deleting(InlineWorker):
            deleted = False

            async def run(self, function: Callable[[*Ts], T], *args: *Ts) -> T:
                if not self.deleted:
                    self.deleted = True
                    await broker.delete_topic(broker.topic("t").image)
                return await super().run(function, *args)

        worker = Deleting()
        assert await cleaning(broker).clean(worker)
        assert worker.deleted
        assert not await cleaning(broker).clean(worker)


# -- the pace ----------------------------------------------------------------------------------


class BusyHost(FixedHost):
    """A machine whose event loop is at work for a share of the time."""

    share = 0.0

    def cpu_s(self) -> float:
        return self.share * trio.current_time()


@pytest.mark.parametrize(
    ("share", "limit", "expected"),
    [
        (0.0, 0, 0.0),
        (0.2, 0, 0.0),
        (0.4, 0, POLITENESS * 0.4 * 0.04),
        (1.0, 0, MAX_PAUSE_S),
        (0.0, 2**20, 0.5),
        (1.0, 2**20, 0.5),
    ],
)
def test_compaction_pauses_for_a_busy_broker_and_for_its_limit(
    mock_time: MockTime, share: float, limit: int, expected: float
) -> None:
    host = BusyHost()
    host.share = share

    async def main() -> None:
        async with running(
            host=host, cleaner={"enabled": False, "io_max_bytes_per_s": limit}
        ) as broker:
            gate = Courtesy(broker)
            await gate(2**20)  # what may go at once
            await trio.sleep(0.04)  # a window's work
            began = trio.current_time()
            await gate(2**19)
            slack = 0.05 if limit else 1e-9  # by then some of what was taken is paid for
            assert trio.current_time() - began == pytest.approx(expected, abs=slack)

    mock_time(main)


def test_documentation_names_the_share_from_which_on_compaction_pauses() -> None:
    page = Path(__file__).parents[2].joinpath("docs/compaction.md").read_text()
    assert f"at work for more than {BUSY * 100:.0f} % of the time" in page
