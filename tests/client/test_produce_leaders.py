"""The producer follows the leaders of partitions: moved, missing, found by somebody else."""

from typing import Any

import pytest
import trio
import trio.testing
from attrs import evolve
from tests.client.conftest import url_of

from odradek.broker import Broker
from odradek.broker.faults import Faults
from odradek.client import Admin, Cluster, NewTopic, ProducerSettings, open_cluster, open_producer
from odradek.client.metadata import Broker as KnownBroker
from odradek.client.metadata import Leader, Metadata

GONE = 99
"""A broker that metadata names and nobody can reach."""


async def image_with(cluster: Cluster, leaders: dict[int, int | None]) -> Metadata:
    """An image of topic "t" in which some partitions have other leaders, or none."""
    await cluster.topic("t")
    image = cluster.metadata
    topic = image.topics["t"]
    partitions = []
    for partition in topic.partitions:
        node = leaders.get(partition.partition, 1)
        assert partition.leader is not None
        leader = None if node is None else Leader(node, partition.leader.epoch)
        partitions.append(evolve(partition, leader=leader))
    host, port = ("127.0.0.1", 1) if image.brokers[1].port else ("nobody", 0)
    return evolve(
        image,
        brokers={**image.brokers, GONE: KnownBroker(GONE, host, port)},
        topics={**image.topics, "t": evolve(topic, partitions=tuple(partitions))},
    )


@pytest.fixture
async def topic(cluster: Cluster) -> str:
    """A topic of two partitions."""
    await Admin(cluster).create_topic(NewTopic(name="t", partitions=2))
    return "t"


@pytest.mark.parametrize("leader", [GONE, None])
async def test_producer_finds_the_leader_where_metadata_is_out_of_date(
    cluster: Cluster, topic: str, leader: int | None
) -> None:
    cluster.metadata = await image_with(cluster, {0: leader})
    async with open_producer(cluster) as producer:
        with trio.fail_after(10):
            for partition in (0, 1):
                delivery = await producer.send(topic, b"x", partition=partition)
                assert (await delivery.wait()).offset == 0


async def test_producer_keeps_the_order_when_the_leader_moves_under_way(
    cluster: Cluster, topic: str
) -> None:
    stale = await image_with(cluster, {0: GONE, 1: GONE})
    settings = ProducerSettings(batch_bytes=300, linger=0.0)
    async with open_producer(cluster, settings) as producer:
        deliveries = []
        for number in range(500):
            if number % 100 == 50:
                cluster.metadata = stale
            deliveries.append(await producer.send(topic, b"%d" % number, partition=number % 2))
        with trio.fail_after(20):
            offsets = [(await delivery.wait()).offset for delivery in deliveries]
    assert offsets == [number // 2 for number in range(500)]


async def test_producer_goes_on_when_somebody_else_found_the_leader(
    cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stale = await image_with(cluster, {0: GONE})
    renew = cluster.renew
    found = trio.Event()

    async def nothing_new(*_: Any, **__: Any) -> Metadata:
        await found.wait()
        return cluster.metadata

    async with open_producer(cluster, ProducerSettings(linger=0.0)) as producer:
        cluster.metadata = stale
        monkeypatch.setattr(cluster, "renew", nothing_new)
        delivery = await producer.send(topic, b"x", partition=0)
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert not delivery.done
        await renew((topic,))
        with trio.fail_after(10):
            assert (await delivery.wait()).offset == 0
        found.set()


async def test_producer_finds_a_new_partition_while_brokers_come_and_go(
    broker: Broker, cluster: Cluster, topic: str
) -> None:
    async with open_producer(cluster) as producer:
        await (await producer.send(topic, b"x", partition=0)).wait()
        async with open_cluster(url_of(broker)) as other:
            await Admin(other).create_partitions({topic: 3})
        faults = Faults()
        faults.attach(broker)
        faults.disconnect("Metadata", times=3)
        with trio.fail_after(20):
            delivery = await producer.send(topic, b"x", partition=2)
            assert (await delivery.wait()).offset == 0
