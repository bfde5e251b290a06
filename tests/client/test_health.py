"""What a client says of itself: who is connected since when, what failed, what waits."""

import pytest
import trio
from tests.client.conftest import url_of

from odradek.broker import Broker
from odradek.broker.faults import Faults
from odradek.client import (
    ClientSettings,
    Cluster,
    NotReachable,
    ProducerSettings,
    open_cluster,
    open_producer,
)
from odradek.client.errors import ClientClosed, Disconnected
from odradek.errors import ErrorCode, KafkaError
from odradek.wire.api.a03_metadata import MetadataRequest, MetadataResponse

NOBODY = ClientSettings(retry_backoff=0.01, connect_timeout=1.0, request_timeout=1.0)


async def test_health_of_a_cluster_that_nobody_asked_anything_is_unknown(broker: Broker) -> None:
    url = url_of(broker)
    async with open_cluster(url, NOBODY) as cluster:
        health = cluster.health
        assert not health.connected
        assert health.metadata_age is None
        assert health.brokers[url].since is None
        assert health.brokers[url].last_error is None


async def test_health_tells_who_is_connected_since_when_and_what_is_outstanding(
    broker: Broker, cluster: Cluster
) -> None:
    faults = Faults()
    faults.attach(broker)
    await cluster.renew()
    await trio.sleep(0.01)
    async with trio.open_nursery() as nursery:
        faults.delay("Metadata", 3600.0)
        nursery.start_soon(cluster.call, MetadataRequest(topics=[]), MetadataResponse)
        await faults.wait_seen("Metadata", 2)
        health = cluster.health
        faults.release()
    assert health.connected
    assert cluster.connected
    (state,) = health.brokers.values()
    assert (state.node_id, state.url, state.outstanding) == (1, url_of(broker), 1)
    assert state.since is not None
    assert state.since >= 0.01
    assert health.metadata_age is not None
    assert 0.01 <= health.metadata_age < 10
    assert health.metadata_error is None


async def test_health_names_the_error_of_an_address_that_cannot_be_reached() -> None:
    async with open_cluster("memory://nobody", NOBODY) as cluster:
        with pytest.raises(NotReachable):
            await cluster.renew()
        health = cluster.health
        assert not health.connected
        state = health.brokers["memory://nobody"]
        assert state.node_id is None
        assert isinstance(state.last_error, NotReachable)
        assert isinstance(health.metadata_error, NotReachable)


async def test_health_shows_a_lost_connection_and_keeps_its_error_when_it_is_back(
    broker: Broker, cluster: Cluster
) -> None:
    faults = Faults()
    faults.attach(broker)
    await cluster.renew()
    faults.disconnect("Metadata")
    with pytest.raises(Disconnected):
        await cluster.renew()
    (lost,) = cluster.health.brokers.values()
    assert not lost.connected
    assert isinstance(lost.last_error, Disconnected)
    assert lost.since is not None
    assert lost.since < 5
    assert isinstance(cluster.health.metadata_error, Disconnected)
    await cluster.renew()
    (back,) = cluster.health.brokers.values()
    assert back.connected
    assert back.last_error is not None
    assert cluster.health.metadata_error is None


async def test_health_of_a_closed_client_says_that_it_is_not_connected(broker: Broker) -> None:
    async with open_cluster(url_of(broker), NOBODY) as cluster:
        await cluster.renew()
    assert not cluster.health.connected


async def test_producer_health_tells_what_is_buffered_in_flight_and_failed(
    broker: Broker, cluster: Cluster
) -> None:
    faults = Faults()
    faults.attach(broker)
    async with open_producer(cluster, ProducerSettings(linger=0.0)) as producer:
        fresh = producer.health
        assert (fresh.buffered_bytes, fresh.requests_in_flight) == (0, 0)
        assert (fresh.last_error, fresh.last_error_age) == (None, None)
        await (await producer.send("t", b"x")).wait()
        faults.fail("Produce", ErrorCode.NOT_LEADER_OR_FOLLOWER)
        await (await producer.send("t", b"x")).wait()
        faults.forget()
        faults.delay("Produce", 3600.0)
        delivery = await producer.send("t", b"x" * 100)
        await faults.wait_seen("Produce")
        health = producer.health
        faults.release()
        await delivery.wait()
    assert health.connected
    assert health.buffered_bytes > 100
    assert health.requests_in_flight == 1
    assert isinstance(health.last_error, KafkaError)
    assert health.last_error_age is not None
    assert health.last_error_age < 5
    assert not health.closed
    assert isinstance(producer.health.last_error, ClientClosed)
    assert producer.health.closed
