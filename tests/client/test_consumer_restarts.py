"""Consumers with a cluster of their own, as an application has them, when the broker is restarted.

Nobody else renews that cluster's metadata: the consumer has to see the new leader epoch itself,
long before metadata grows old.
"""

from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import trio
from tests.client.conftest import QUICK
from tests.client.consuming import until, write

from odradek.broker import open_broker
from odradek.client import (
    Admin,
    ConsumerSettings,
    NewTopic,
    Start,
    TopicPartition,
    open_cluster,
    open_consumer,
    open_reader,
)
from odradek.config import config_from_options
from odradek.memory.coordinator import open_memory_coordinator

P0 = TopicPartition("t", 0)
SETTINGS: dict[str, Any] = {"auto_offset_reset": "earliest", "max_wait": 0.1}
RESTARTS = 2

_names = count()


class Restarting:
    """A broker whose records outlive it, at one address."""

    def __init__(self, directory: Path, nursery: trio.Nursery) -> None:
        self.url = f"memory://consumer-restarts-{next(_names)}"
        self._directory = directory
        self._nursery = nursery
        self._stop = trio.Event()
        self._stopped = trio.Event()

    async def _run(self, *, task_status: trio.TaskStatus[None]) -> None:
        config = config_from_options(
            listen=[self.url],
            storage=f"file://{self._directory}/log",
            coordinator=f"embedded:{self._directory}/coordinator",
            overrides=("storage.durability=none", "groups.initial_rebalance_delay_ms=0"),
        )
        async with open_broker(config):
            task_status.started()
            await self._stop.wait()
        self._stopped.set()

    async def start(self) -> None:
        self._stop, self._stopped = trio.Event(), trio.Event()
        await self._nursery.start(self._run)

    async def stop(self) -> None:
        self._stop.set()
        await self._stopped.wait()

    async def write(self, *values: int) -> None:
        """Append records, over a connection that nobody else has."""
        async with open_cluster(self.url, QUICK) as cluster:
            await write(cluster, P0, values)

    async def epoch(self) -> int:
        """The leader epoch of the partition now."""
        async with open_cluster(self.url, QUICK) as cluster:
            return (await cluster.leader(P0)).epoch


@pytest.fixture
async def restarting(tmp_path: Path) -> AsyncIterator[Restarting]:
    pytest.importorskip("odradek_storage_file")
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            broker = Restarting(tmp_path, nursery)
            await broker.start()
            async with open_cluster(broker.url, QUICK) as cluster:
                await Admin(cluster).create_topic(NewTopic(name="t", partitions=1))
            yield broker
            await broker.stop()


async def _reads_on(restarting: Restarting, **options: Any) -> None:
    got: list[int] = []

    async with (
        open_consumer(restarting.url, client_settings=QUICK, **options) as consumer,
        trio.open_nursery() as nursery,
    ):

        async def read() -> None:
            async for record in consumer:
                got.append(int(record.value or b""))  # noqa: PERF401  # one at a time

        nursery.start_soon(read)
        await restarting.write(0)
        await until(lambda: got == [0], 10)
        epoch = await restarting.epoch()
        for number in range(1, RESTARTS + 1):
            await restarting.stop()
            await restarting.start()
            assert await restarting.epoch() > epoch, "it is the epoch that has to be learned"
            await restarting.write(number)
            await until(lambda: got[-1] == number, 10)  # noqa: B023  # awaited at once
        assert got == list(range(RESTARTS + 1))
        nursery.cancel_scope.cancel()


async def test_member_of_a_group_reads_on(restarting: Restarting) -> None:
    settings = ConsumerSettings(**SETTINGS)
    await _reads_on(restarting, group="g", topics=["t"], settings=settings)


async def test_member_that_subscribed_to_a_pattern_reads_on(restarting: Restarting) -> None:
    settings = ConsumerSettings(**SETTINGS)
    await _reads_on(restarting, group="g", pattern="t.*", settings=settings)


async def test_consumer_of_assigned_partitions_reads_on(restarting: Restarting) -> None:
    settings = ConsumerSettings(**SETTINGS)
    await _reads_on(restarting, assignment={P0: Start(offset=0)}, settings=settings)


async def test_member_of_a_decentralised_group_reads_on(restarting: Restarting) -> None:
    settings = ConsumerSettings(**SETTINGS, group_protocol="decentralised")
    async with open_memory_coordinator(f"of groups at {restarting.url}") as coordinator:
        await _reads_on(
            restarting, group="g", topics=["t"], settings=settings, coordinator=coordinator
        )


async def test_reader_that_reads_by_itself_reads_on(restarting: Restarting) -> None:
    async with (
        open_cluster(restarting.url, QUICK) as cluster,
        open_reader(cluster, {P0: Start(offset=0)}) as reader,
    ):
        cluster.forget("t")  # only what the reader does itself counts
        for number in range(RESTARTS):
            await restarting.write(number)
            with trio.fail_after(10):
                record = await anext(aiter(reader))
            assert record.value == b"%d" % number
            await restarting.stop()
            await restarting.start()


async def test_topics_that_a_consumer_left_are_not_asked_for_any_more(
    restarting: Restarting,
) -> None:
    async with open_cluster(restarting.url, QUICK) as cluster:
        for _ in range(2):
            async with open_consumer(cluster, assignment={P0: Start(offset=0)}) as consumer:
                await restarting.write(1)
                with trio.fail_after(10):
                    await anext(aiter(consumer))
                assert cluster._topics_of_interest() == {"t"}
            assert cluster._topics_of_interest() == set()
