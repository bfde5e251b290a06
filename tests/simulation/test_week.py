"""A week of retention and compaction in a few seconds: each seed is another history.

A broker whose topics are kept by time, by size, by both, by key, and for ever; it is stopped, its
machine is switched off, and its wall clock jumps. Records are produced all the while, and read by
consumers that are quick or too slow. At any time what must be there is there, and what must be gone
is gone as soon as its segment and the checks allow. Nobody who reads is led past a record in
silence, unless a newer one of its key has taken its place.

    ODRADEK_SEEDS=100 pytest tests/simulation/test_week.py        seeds 0 to 99
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import attrs
import pytest
import trio
from tests.broker.peer import NOW, Peer, batch, code, connected, metas_of, records_of, running

from odradek.broker import Broker, Host
from odradek.broker.host import Boot
from odradek.contracts.storage import DataRef
from odradek.contracts.transport import ConnectFailed, ConnectionLost
from odradek.log.partition import PartitionLog
from odradek.log.worker import InlineWorker, Worker
from odradek.memory import storage as memory
from odradek.memory.transport import MemoryTransport
from odradek.record import iter_records, scan
from odradek.testing.simulation import simulate

SEEDS = range(int(os.environ.get("ODRADEK_SEEDS", "1")))
MINUTE = 60
HOUR = 60 * MINUTE
DAY = 24 * HOUR
WEEK = 7 * DAY

PRODUCE_EVERY = 10 * MINUTE
CHECK_EVERY = 5 * MINUTE
OFF = 15 * MINUTE
"""The longest that the broker is away."""
WRONG = 40 * MINUTE
"""For how long the wall clock is wrong after a jump."""
SLACK = CHECK_EVERY + 2 * OFF + 2 * WRONG + HOUR + MINUTE
"""How much later than it is due a segment may go: at the next check, which may be away as long as
the broker, and time that the machine was off is caught up with in as long again. While the wall
clock is back nothing is removed and nothing rolled, and what was written in the hour before it
went back an hour cannot be told from what was written then."""


@attrs.frozen
class Kept:
    """How a topic is kept: seconds and bytes, None for any number."""

    seconds: int | None = None
    size: int | None = None
    segment_seconds: int = WEEK
    segment_size: int = 2000
    jitter: int = 0
    policy: str = "delete"

    @property
    def configs(self) -> dict[str, Any]:
        return {
            "cleanup_policy": self.policy,
            "retention_ms": "-1" if self.seconds is None else str(self.seconds * 1000),
            "retention_bytes": "-1" if self.size is None else str(self.size),
            "segment_ms": str(self.segment_seconds * 1000),
            "segment_jitter_ms": str(self.jitter * 1000),
            "segment_bytes": str(self.segment_size),
            "min_cleanable_dirty_ratio": "0.3",
            "message_timestamp_after_max_ms": str(2**62),  # the broker's clock may be back a year
        }


TOPICS = {
    "time": Kept(seconds=6 * HOUR, segment_seconds=HOUR, segment_size=10**6),
    "size": Kept(size=10_000),
    "both": Kept(seconds=12 * HOUR, size=16_000),
    "jitter": Kept(seconds=9 * HOUR, segment_seconds=3 * HOUR, jitter=2 * HOUR),
    "ever": Kept(),
    "compact": Kept(seconds=HOUR, size=1000, segment_seconds=HOUR, policy="compact"),
    "mixed": Kept(seconds=12 * HOUR, segment_seconds=HOUR, policy="compact,delete"),
}
KEYS = [b"a", b"b", b"c", b"d", b"e", b"f"]


class Machine(Host):
    """A machine on trio's clock, whose wall clock is off by `error` seconds."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.error = 0
        self.boots = 0

    def now_ms(self) -> int:
        return NOW + int((trio.current_time() + self.error) * 1000)

    def boot(self) -> Boot:
        return Boot(f"boot {self.boots}", int(trio.current_time() * 1000))

    def cpu_s(self) -> float:
        return 0.0

    def worker(self, name: str) -> Worker:
        return InlineWorker()

    def new_id(self) -> UUID:
        return UUID(int=self.random.getrandbits(128), version=4)


@attrs.frozen
class Stored:
    """An acknowledged batch: its offsets, bytes, value, and the second in which it was sent."""

    base: int
    end: int
    size: int
    at: float


@attrs.define(eq=False)
class World:
    """One history, and what must hold in it."""

    name: str
    random: Random
    machine: Machine
    broker: Broker | None = None
    peers: dict[str, Peer] = attrs.Factory(dict)
    stored: dict[str, list[Stored]] = attrs.Factory(lambda: {topic: [] for topic in TOPICS})
    keys: dict[str, list[bytes]] = attrs.Factory(lambda: {topic: [] for topic in TOPICS})
    newest: dict[str, dict[bytes, int]] = attrs.Factory(lambda: {topic: {} for topic in TOPICS})
    starts: dict[str, int] = attrs.Factory(lambda: dict.fromkeys(TOPICS, 0))
    ahead_since: float | None = None
    believed: float = 0.0
    up_since: float = 0.0
    events: list[str] = attrs.Factory(list)
    cleaned: dict[str, float] = attrs.Factory(dict)
    lost: int = 0
    passed: int = 0
    held: int = 0

    def note(self, text: str) -> None:
        self.events.append(f"{trio.current_time() / HOUR:.2f} h: {text}")

    def log(self, topic: str) -> PartitionLog:
        assert self.broker is not None
        return self.broker.topic(topic).log(0)

    async def ask(self, who: str, what: Callable[[Peer], Awaitable[None]]) -> None:
        """Ask the broker over the connection of `who`, or not, if it is away."""
        broker = self.broker
        if broker is None:
            return
        try:
            peer = self.peers.get(who)
            if peer is None:
                url = next(iter(broker.urls.values()))
                peer = self.peers[who] = Peer(await MemoryTransport().connect(url))
            await what(peer)
        except (ConnectFailed, ConnectionLost):
            self.peers.pop(who, None)

    # What happens

    async def run(self) -> None:
        """Run brokers, one after the other."""
        sections: dict[str, Any] = {
            "coordinator": f"memory:{self.name}",
            "storage": f"memory://{self.name}",
            "cleaner": {"backoff_ms": 600_000},
            "scrub": {"bytes_per_s": 0},
            "limits": {"idle_timeout_s": float(DAY)},
        }
        while True:
            async with running(host=self.machine, **sections) as broker:
                if not broker.image.topics:
                    async with connected(broker) as peer:
                        for topic, kept in TOPICS.items():
                            result = await peer.create(topic, **kept.configs)
                            assert code(result.error_code) == "NONE", result.error_message
                self.broker = broker
                self.up_since = trio.current_time()
                await trio.sleep((2 + 20 * self.random.random()) * HOUR)
                self.broker = None
                self.peers.clear()
            off = self.random.random() * OFF
            if self.random.random() < 0.5:
                self.machine.boots += 1
                self.note(f"the machine is off for {off:.0f} s")
            else:
                self.note(f"the broker is away for {off:.0f} s")
            await trio.sleep(off)

    async def jump(self) -> None:
        """Let the wall clock be wrong from time to time."""
        while True:
            await trio.sleep((6 + 18 * self.random.random()) * HOUR)
            self.machine.error = self.random.choice((HOUR, 365 * DAY, -HOUR, -DAY, -365 * DAY))
            self.note(f"the wall clock jumps by {self.machine.error / HOUR:.0f} h")
            self.ahead_since = trio.current_time() if self.machine.error > 0 else None
            await trio.sleep(self.random.random() * WRONG)
            self.believe()
            self.machine.error = 0
            self.ahead_since = None
            self.note("the wall clock is right again")

    async def produce(self, topic: str) -> None:
        """Send a batch now and then, stamped with the true time by its producer."""
        while True:
            await trio.sleep(PRODUCE_EVERY * (0.5 + self.random.random()))
            await self.ask(f"producer of {topic}", partial(self.send, topic))

    async def send(self, topic: str, peer: Peer) -> None:
        count = self.random.randint(1, 3)
        began = trio.current_time()
        stamp = NOW + int(began * 1000)
        keys = self.random.choices(KEYS, k=count)
        if topic == "mixed" and self.random.random() < 0.5:
            # All of a few keys would stay in one segment, which is as young as the newest of them.
            keys = [b"%d" % self.random.getrandbits(64) for _ in keys]
        data = batch(count, self.random.randint(1, 300), stamp, keys=keys)
        size = len(data)
        result = await peer.produce(topic, data)
        assert code(result.error_code) == "NONE", result.error_message
        base = result.base_offset
        assert base == len(self.keys[topic]), "offsets are not dense"
        self.stored[topic].append(Stored(base, base + count, size, began))
        self.keys[topic] += keys
        self.newest[topic].update(zip(keys, range(base, base + count), strict=True))

    async def consume(self, topic: str, every: float) -> None:
        """Read one batch at a time, always the next."""
        position = 0

        async def fetch(peer: Peer) -> None:
            nonlocal position
            answer = await peer.fetch(topic, position, partition_max_bytes=1)
            if code(answer.error_code) == "OFFSET_OUT_OF_RANGE":
                assert position < answer.log_start_offset, "a reader was sent away for nothing"
                self.lost += 1
                position = answer.log_start_offset
                return
            assert code(answer.error_code) == "NONE"
            if not answer.records:
                return
            there = {record.offset for record in records_of(answer)}
            end = metas_of(answer)[-1].last_offset + 1  # of the batch: its last records may be gone
            for offset in range(position, end):
                if offset not in there:
                    assert self.replaced(topic, offset), f"{topic}: {offset} is passed in silence"
            self.passed += end - position
            position = end

        while True:
            await trio.sleep(every * (0.5 + self.random.random()))
            await self.ask(f"consumer of {topic}, {every}", fetch)

    async def hold(self, topic: str) -> None:
        """Hold what was read until it is long gone, and look at it then."""
        while True:
            await trio.sleep(HOUR * self.random.random())
            if self.broker is None or not self.stored[topic]:
                continue
            log = self.log(topic)
            data = (await log.read(log.log_start_offset, 2**20)).data
            if data is not None:
                await self.look_again(data, log.log_start_offset)

    async def look_again(self, data: DataRef, offset: int) -> None:
        with data:
            before = b"".join(bytes(view) for view in data.views())
            await trio.sleep((1 + 23 * self.random.random()) * HOUR)
            assert b"".join(data.views()) == before
            self.held += 1

    # What must hold

    def replaced(self, topic: str, offset: int) -> bool:
        """Whether a record may be missing because there is a newer one of its key."""
        key = self.keys[topic][offset]
        return "compact" in TOPICS[topic].policy and self.newest[topic][key] > offset

    async def check_keys(self, topic: str) -> None:
        """Read a whole topic every few hours, and look for the newest record of each key."""
        while True:
            await trio.sleep((2 + 4 * self.random.random()) * HOUR)
            if self.broker is None or not self.stored[topic]:
                continue
            log = self.log(topic)
            start, end = log.log_start_offset, log.high_watermark
            newest = dict(self.newest[topic])
            found: list[int] = []
            position = start
            while position < end:
                result = await log.read(position, 2**20)
                assert result.data is not None
                with result.data as data:
                    read = b"".join(data.views())
                for record in iter_records(read):
                    if record.offset >= position:
                        assert record.key == self.keys[topic][record.offset]
                        found.append(record.offset)
                position = scan(memoryview(read)).metas[-1].last_offset + 1
            assert found == sorted(set(found))
            for key, offset in newest.items():
                assert offset < log.log_start_offset or offset in found, f"{topic}: {key!r} is lost"
            self.cleaned[topic] = len(found) / max(end - start, 1)

    def believe(self) -> None:
        """Bring up to date how late it may have been for retention so far.

        A wall clock that is ahead is caught up with for as long as it is.
        """
        now = trio.current_time()
        ahead = now - self.ahead_since if self.ahead_since is not None else 0.0
        self.believed = max(self.believed, now + ahead)

    async def check(self) -> None:
        """Look at every topic, more often than each hour."""
        while True:
            await trio.sleep(25 * MINUTE)
            if self.broker is not None:
                for topic, kept in TOPICS.items():
                    self.check_topic(topic, kept)

    def check_topic(self, topic: str, kept: Kept) -> None:
        now = trio.current_time()
        log = self.log(topic)
        start = log.log_start_offset
        batches = self.stored[topic]
        assert start >= self.starts[topic], f"{topic}: the log start went back"
        assert not batches or log.log_end_offset >= batches[-1].end
        self.starts[topic] = start
        if "delete" not in kept.policy or (kept.seconds is None and kept.size is None):
            assert start == 0
            return
        self.believe()
        checked = now - self.up_since > CHECK_EVERY + MINUTE
        bytes_after = 0
        for stored in reversed(batches):
            bytes_after += stored.size
            age = now - stored.at
            may_go = (kept.seconds is not None and self.believed - stored.at > kept.seconds) or (
                kept.size is not None and bytes_after > kept.size
            )
            if not may_go and start > stored.base:
                gone = range(stored.base, min(start, stored.end))
                replaced = all(self.replaced(topic, offset) for offset in gone)
                assert replaced, f"{topic}: {stored} is gone after {age} s"
            # Compaction puts segments together, and the newest record of each counts.
            if kept.seconds is not None and checked and "compact" not in kept.policy:
                longest = kept.seconds + kept.segment_seconds + SLACK
                assert age <= longest or start >= stored.end, f"{topic}: {stored} after {age} s"
            if stored.end <= start:
                break
        if kept.size is not None and checked:
            since = sum(s.size for s in batches[-40:] if s.at >= now - CHECK_EVERY - MINUTE)
            assert log.size <= kept.size + kept.segment_size + since, f"{topic}: {log.size} bytes"


async def history(name: str, random: Random) -> World:
    machine = Machine(random)
    world = World(name, random, machine)
    with trio.move_on_after(WEEK):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.run)
            nursery.start_soon(world.jump)
            nursery.start_soon(world.check)
            for topic in TOPICS:
                nursery.start_soon(world.produce, topic)
            for topic in ("compact", "mixed"):
                nursery.start_soon(world.check_keys, topic)
            for topic in ("time", "size", "jitter", "mixed"):
                nursery.start_soon(world.consume, topic, PRODUCE_EVERY * 0.7)
                nursery.start_soon(world.consume, topic, PRODUCE_EVERY * 1.3)
                nursery.start_soon(world.hold, topic)
    return world


@pytest.mark.parametrize("seed", SEEDS)
def test_a_week_of_retention(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"week-{seed}"
    worlds: list[World] = []

    async def main(random: Random) -> None:
        # Segments remember when they were made: by the same clock as everything else here.
        wall = SimpleNamespace(time_ns=lambda: (NOW + int(trio.current_time() * 1000)) * 10**6)
        monkeypatch.setattr(memory, "time", wall)
        worlds.append(await history(name, random))

    try:
        simulate(seed, main, limit=WEEK + DAY)
    finally:
        memory.forget_memory_store(name)
    (world,) = worlds
    # It happened what was to be tried.
    assert len(world.events) > 20
    assert world.lost > 0, "no consumer was too slow"
    assert world.passed > 3000
    assert world.held > 20
    assert world.cleaned["compact"] < 0.2, "the share of records that are left"
    assert world.cleaned["mixed"] < 0.9
    for topic, kept in TOPICS.items():
        assert (world.starts[topic] > 0) == (
            "delete" in kept.policy and (kept.seconds is not None or kept.size is not None)
        ), topic
