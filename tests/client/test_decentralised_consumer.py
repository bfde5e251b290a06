"""Consumers in decentralised groups, end to end: a broker in process, several coordinators."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest
import trio
from tests.client.consuming import write

from odradek.broker import Broker
from odradek.client import (
    Admin,
    Cluster,
    Consumer,
    ConsumerSettings,
    NewTopic,
    TopicPartition,
    open_consumer,
)
from odradek.contracts.background import open_tasks
from odradek.contracts.coordinator import Coordinator
from odradek.embedded.coordinator import open_embedded_coordinator
from odradek.memory.coordinator import open_memory_coordinator

SETTINGS = ConsumerSettings(
    group_protocol="decentralised",
    session_timeout=2.0,
    heartbeat_interval=0.5,
    auto_commit_interval=0.05,
    auto_offset_reset="earliest",
    max_wait=0.05,
)
PARTITIONS = 4


def _memory(path: Path) -> AbstractAsyncContextManager[Coordinator]:
    return open_memory_coordinator(f"groups at {path}")


def _journal(path: Path) -> AbstractAsyncContextManager[Coordinator]:
    from odradek.plugins import load

    factory = load().coordinator("journal")
    return factory.open(path.as_uri().replace("file", "journal"), factory.settings())


@pytest.fixture(
    params=[
        _memory,
        open_embedded_coordinator,
        pytest.param(
            _journal,
            marks=pytest.mark.skipif(
                find_spec("odradek_coord_journal") is None,
                reason="the example of a coordinator is not installed",
            ),
        ),
    ],
    ids=["memory", "embedded", "journal"],
)
async def coordinator(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Coordinator]:
    async with request.param(tmp_path / "coordinator") as coordinator:
        yield coordinator


@pytest.fixture
async def topic(cluster: Cluster, broker: Broker) -> Cluster:
    if "memory" not in broker.urls:
        pytest.skip("one transport is enough")
    await Admin(cluster).create_topic(NewTopic(name="t", partitions=PARTITIONS))
    return cluster


class Reading:
    """A consumer in a task of its own, and what it has read."""

    def __init__(self) -> None:
        self.consumer: Consumer
        self.values: list[int] = []
        self.stop = trio.Event()
        self.stopped = trio.Event()

    async def run(
        self, cluster: Cluster, coordinator: Coordinator, task_status: trio.TaskStatus[None]
    ) -> None:
        async with (
            open_consumer(
                cluster, "g", topics=["t"], settings=SETTINGS, coordinator=coordinator
            ) as self.consumer,
            open_tasks() as tasks,
        ):
            tasks.start_soon(self._read)
            task_status.started()
            await self.stop.wait()
        self.stopped.set()

    async def _read(self) -> None:
        async for record in self.consumer:
            self.values.append(int(record.value or b""))


async def until(reached: Callable[[], bool], seconds: float = 20.0) -> float:
    """Wait for what has no event; return how long it took."""
    begun = trio.current_time()
    with trio.fail_after(seconds):
        while not reached():  # noqa: ASYNC110  # see above
            await trio.sleep(0.01)
    return trio.current_time() - begun


def shared(*members: Reading) -> bool:
    """Whether the members own all partitions, none of them twice."""
    owned = [each for member in members for each in member.consumer.assignment]
    return len(owned) == PARTITIONS == len(set(owned)) and all(
        member.consumer.health.state == "stable" for member in members
    )


async def test_consumers_share_a_topic_and_go_on_where_others_stopped(
    topic: Cluster, coordinator: Coordinator
) -> None:
    async def fill(start: int) -> None:
        for number in range(PARTITIONS):
            values = range(start + number, start + 400, PARTITIONS)
            await write(topic, TopicPartition("t", number), values, batch=7)

    async with open_tasks() as tasks:
        first, second = Reading(), Reading()
        await tasks.start(first.run, topic, coordinator)
        await fill(0)
        await until(lambda: len(first.values) == 400)
        await tasks.start(second.run, topic, coordinator)
        await until(lambda: shared(first, second))
        assert len(second.consumer.assignment) == PARTITIONS / 2
        await fill(400)
        await until(lambda: len(first.values) + len(second.values) >= 800)
        assert second.values
        first.stop.set()
        await first.stopped.wait()
        assert await until(lambda: shared(second)) < 1, "a clean leave moves partitions at once"
        await fill(800)
        both = first.values + second.values
        await until(lambda: {*first.values, *second.values} >= set(range(1200)))
        assert len(both) <= 1200 + 2, "what was in hand, at most, was read twice"
        second.stop.set()
        await second.stopped.wait()
        assert not [
            key
            for directory in ("group-members.g", "group-owners.g")
            for key in await coordinator.list(directory)
        ]
        assert len(await coordinator.list("group-offsets.g")) == PARTITIONS


async def test_records_of_a_member_that_dies_are_read_by_another(topic: Cluster) -> None:
    """Cut off from the coordinator it stops by its own clock; another has them a moment later."""

    @asynccontextmanager
    async def coordinator() -> AsyncIterator[Coordinator]:
        async with open_memory_coordinator("dying") as coordinator:
            yield coordinator

    async with coordinator() as one, coordinator() as other, open_tasks() as tasks:
        first, second = Reading(), Reading()
        await tasks.start(first.run, topic, one)
        await tasks.start(second.run, topic, other)
        await until(lambda: shared(first, second))
        one.disconnect()  # type: ignore[attr-defined]
        taken = await until(lambda: shared(second))
        assert SETTINGS.session_timeout - 0.5 < taken < SETTINGS.session_timeout + 1
        await until(lambda: not first.consumer.assignment)
        for number in range(PARTITIONS):
            await write(topic, TopicPartition("t", number), [number])
        await until(lambda: sorted(second.values) == list(range(PARTITIONS)))
        assert not first.values
        one.reconnect()  # type: ignore[attr-defined]
        await until(lambda: shared(first, second))


async def test_decentralised_group_needs_a_coordinator(topic: Cluster) -> None:
    with pytest.raises(ValueError, match="coordinator"):
        async with open_consumer(topic, "g", topics=["t"], settings=SETTINGS):
            await trio.sleep(1)
