"""Anything may come in by the port: the broker stays up, within its memory, and serves others.

A failure prints its seed; `ODRADEK_FUZZ_SEED=... pytest tests/faults/test_hostile_fuzz.py` repeats
the frames (not the moments at which tasks take turns).
"""

from __future__ import annotations

import logging
import os
import random as stdlib_random
import sys
from collections import Counter
from contextlib import suppress
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.broker.peer import (
    Peer,
    batch,
    code,
    connected,
    produce_request,
    records_of,
    running,
)
from tests.faults.hostile import frames, hostile_batch

from odradek.broker import Broker
from odradek.broker.shard import Shard
from odradek.contracts.transport import TransportError
from odradek.wire.api.a19_create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)

pytestmark = pytest.mark.faults

ATTACKERS = 6
PER_CONNECTION = 60

LIMITS = {"wait_max_ms": 200, "in_flight_bytes": 64 * 2**20}


class Alarm(logging.Handler):
    """Counts what is logged, and keeps what must never be: defects and unprintable lines."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.counts: Counter[str] = Counter()
        self.bad: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.counts[record.levelname] += 1
        line = record.getMessage()
        if record.levelno >= logging.ERROR or not line.isprintable() or len(line) > 1000:
            self.bad.append(f"{record.levelname} {line[:2000]!r} {record.exc_info}")


def resident() -> int:
    """Bytes of memory that this process occupies."""
    if sys.platform != "linux":
        return 0
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def attack(broker: Broker, random: Random, count: int) -> None:
    """Send `count` frames over as many connections as it takes."""
    source = frames(random)
    while count > 0:
        some = list(islice(source, min(count, random.randint(1, PER_CONNECTION))))
        count -= len(some)
        async with connected(broker) as peer, trio.open_nursery() as nursery:
            nursery.start_soon(swallow, peer)
            with suppress(TransportError):
                for frame in some:
                    with trio.move_on_after(1):
                        await peer.connection.send([frame])
                if random.random() < 0.3:
                    await trio.sleep(0.01)
            nursery.cancel_scope.cancel()


async def swallow(peer: Peer) -> None:
    """Read and drop whatever comes."""
    buffer = memoryview(bytearray(65536))
    with suppress(TransportError):
        while await peer.connection.receive_into(buffer):
            pass


async def serve_well(broker: Broker, done: trio.Event) -> None:
    """A healthy client: everything it sends is acknowledged, and comes back once, in order."""
    sent = 0
    async with connected(broker) as peer:
        while not done.is_set() or sent < 10:
            value = b"%d" % sent
            data = batch(
                1, 10, keys=[value], producer_id=10**9, producer_epoch=0, base_sequence=sent
            )
            result = await peer.produce("healthy", data, acks=-1)
            assert (code(result.error_code), result.base_offset) == ("NONE", sent)
            sent += 1
            await trio.sleep(0.01)
        offset = 0
        while offset < sent:
            for record in records_of(await peer.fetch("healthy", offset)):
                assert record.key == b"%d" % record.offset
                offset = record.offset + 1
        assert offset == sent


async def siege(seed: int, count: int, **where: Any) -> None:
    alarm = Alarm()
    logger = logging.getLogger("odradek")
    logger.addHandler(alarm)
    try:
        async with running(limits=LIMITS, **where) as broker:
            async with connected(broker) as peer:
                await peer.create("events", 3)
                await peer.create("other", cleanup_policy="compact")
                await peer.create("healthy")
            await attack(broker, Random(seed), 500)  # what is loaded and compiled once
            before = resident()
            done = trio.Event()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(serve_well, broker, done)
                async with trio.open_nursery() as attackers:
                    for number in range(ATTACKERS):
                        part = count // ATTACKERS
                        attackers.start_soon(attack, broker, Random(f"{seed}-{number}"), part)
                done.set()
            grown = resident() - before
            with trio.fail_after(30):
                await broker.server.quiet()
            assert broker.request_budget.used == 0
            assert broker.response_budget.used == 0
            held = sum(log.size for log in broker.hosting.logs())
            assert grown - held < 150 * 2**20, f"{grown} bytes more, {held} of them in logs"
            for log in broker.hosting.logs():
                clients = [w for w in log._watchers if not isinstance(w, Shard)]
                assert not clients
    finally:
        logger.removeHandler(alarm)
    assert not alarm.bad, "\n".join(sorted(set(alarm.bad)))
    assert alarm.counts["WARNING"] > count // 200, "hardly anything was refused: is it hostile?"


@pytest.fixture
def seed() -> int:
    chosen = os.environ.get("ODRADEK_FUZZ_SEED")
    value = int(chosen) if chosen else stdlib_random.SystemRandom().getrandbits(32)
    print(f"ODRADEK_FUZZ_SEED={value}")
    return value


@pytest.mark.timeout(120)
async def test_frames_of_all_kinds_hurt_nobody_else(seed: int) -> None:
    await siege(seed, 30_000)


@pytest.mark.timeout(120)
async def test_frames_over_tcp_into_files_hurt_nobody_else(seed: int, tmp_path: Path) -> None:
    pytest.importorskip("odradek_transport_tcp")
    pytest.importorskip("odradek_storage_file")
    await siege(
        seed,
        4_000,
        listen="tcp://127.0.0.1:0",
        storage=f"file://{tmp_path}/logs",
        coordinator=f"embedded:{tmp_path}/coordinator",
    )
    names = [name for _, directories, files in os.walk(tmp_path) for name in directories + files]
    assert not [n for n in names if "etc" in n or "events" in n or "\n" in n or "\x1b" in n]


@pytest.mark.nightly
@pytest.mark.timeout(3600)
async def test_a_million_frames_hurt_nobody_else(seed: int) -> None:
    await siege(seed, 1_000_000)


# -- what is made on purpose -------------------------------------------------------------------

texts = st.text(max_size=300) | st.sampled_from([".", "..", "a/b", "\x00", "a" * 249, "a" * 250])


@given(texts, st.dictionaries(texts, st.none() | texts, max_size=3), st.integers(-3, 5))
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
def test_no_name_and_no_setting_does_harm(
    name: str, configs: dict[str, str | None], partitions: int
) -> None:
    async def main() -> None:
        async with running() as broker, connected(broker) as peer:
            topic = CreatableTopic(
                name=name,
                num_partitions=partitions,
                replication_factor=1,
                configs=[CreatableTopicConfig(name=n, value=v) for n, v in configs.items()],
            )
            request = CreateTopicsRequest(topics=[topic], timeout_ms=5000)
            answer = await peer.ask(request, 7, CreateTopicsResponse)
            (result,) = answer.topics
            assert result.name == name
            created = result.error_code == 0
            assert created == (name in broker.image.topics)
            if created:
                assert name.isascii()
                assert set(name) <= set(
                    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"
                )
            found = await peer.produce(name)
            assert (found.error_code == 0) == created

    trio.run(main)


@given(st.lists(st.integers(0, 2**32), min_size=1, max_size=20))
@settings(deadline=None, max_examples=100)
def test_no_batch_does_harm(seeds: list[int]) -> None:
    """What is acknowledged can be read, and the log is as long as the acknowledgements say."""

    async def main() -> None:
        async with running() as broker, connected(broker) as peer:
            await peer.create("events")
            await peer.create("again", compression_type="gzip")
            await peer.create("compacted", cleanup_policy="compact")
            for topic in ("events", "again", "compacted"):
                expected = 0
                for seed in seeds:
                    request = produce_request(topic, hostile_batch(Random(seed)))
                    await peer.send(request, 9)
                    _, answer = await peer.receive()
                    (result,) = answer.responses[0].partition_responses  # type: ignore[attr-defined]  # Produce's
                    if result.error_code == 0 and result.base_offset == expected:
                        expected = broker.topic(topic).log(0).log_end_offset
                    assert broker.topic(topic).log(0).log_end_offset == expected
                offset = 0
                while offset < expected:
                    found = await peer.fetch(topic, offset)
                    assert code(found.error_code) == "NONE"
                    from tests.broker.peer import metas_of

                    offset = metas_of(found)[-1].next_offset
                assert offset == expected

    trio.run(main)
