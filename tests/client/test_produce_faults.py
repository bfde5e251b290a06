"""The producer through what brokers and networks do: restarts, refusals, silence, lost answers."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio
import trio.testing
from attrs import evolve
from tests.client.conftest import url_of
from tests.client.test_produce import read

from odradek.broker import Broker, open_broker
from odradek.broker.faults import Faults
from odradek.client import (
    Admin,
    BatchOutcome,
    ClientSettings,
    Cluster,
    Delivery,
    DeliveryTimedOut,
    NewTopic,
    NotReachable,
    ProducerSettings,
    RecordMetadata,
    open_cluster,
    open_producer,
)
from odradek.config import Config, config_from_options
from odradek.errors import ErrorCode, KafkaError
from odradek.wire.api.a00_produce import ProduceRequest

QUICK = ClientSettings(retry_backoff=0.01, retry_backoff_max=0.05, connect_timeout=2.0)
_numbers = count()


@pytest.fixture
def faults(broker: Broker) -> Faults:
    """Faults of the broker of the test."""
    made = Faults()
    made.attach(broker)
    return made


class Restarting:
    """A broker whose records outlive it, at one address."""

    def __init__(self, scheme: str, directory: Path, nursery: trio.Nursery) -> None:
        self._url = f"memory://restarts-{next(_numbers)}" if scheme == "memory" else ""
        self._directory = directory
        self._nursery = nursery
        self._stop = trio.Event()
        self._stopped = trio.Event()

    @property
    def url(self) -> str:
        return self._url

    def _config(self) -> Config:
        return config_from_options(
            listen=[self._url or "tcp://127.0.0.1:0"],
            storage=f"file://{self._directory}/log",
            coordinator=f"embedded:{self._directory}/coordinator",
            overrides=("storage.durability=none",),
        )

    async def _run(self, *, task_status: trio.TaskStatus[str]) -> None:
        async with open_broker(self._config()) as broker:
            task_status.started(url_of(broker))
            await self._stop.wait()
        self._stopped.set()

    async def start(self) -> None:
        self._stop, self._stopped = trio.Event(), trio.Event()
        self._url = await self._nursery.start(self._run)

    async def stop(self) -> None:
        self._stop.set()
        await self._stopped.wait()


@pytest.fixture(params=["memory", "tcp"])
async def restarting(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Restarting]:
    """A broker that can be stopped and started again, over each transport."""
    pytest.importorskip("odradek_storage_file")
    if request.param == "tcp":
        pytest.importorskip("odradek_transport_tcp")
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            broker = Restarting(request.param, tmp_path, nursery)
            await broker.start()
            yield broker
            await broker.stop()


@asynccontextmanager
async def producing(
    cluster: Cluster, settings: ProducerSettings
) -> AsyncIterator[tuple[list[Delivery], trio.Event]]:
    """Send numbers to topic "t" until the event is set; the deliveries are given as they come."""
    deliveries: list[Delivery] = []
    enough = trio.Event()

    async def send() -> None:
        async with open_producer(cluster, settings) as producer:
            while not enough.is_set():
                deliveries.append(await producer.send("t", b"%d" % len(deliveries)))
                if not len(deliveries) % 50:
                    await deliveries[-1].wait()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        yield deliveries, enough


async def until(deliveries: list[Delivery], number: int) -> None:
    """Wait until so many records were acknowledged."""
    while len(deliveries) < number:
        await trio.lowlevel.checkpoint()
    await deliveries[number - 1].wait()


async def test_producer_goes_on_when_the_broker_comes_back_and_writes_each_record_once(
    restarting: Restarting,
) -> None:
    settings = ProducerSettings(batch_bytes=500, linger=0.0)
    async with open_cluster(restarting.url, QUICK) as cluster:
        await Admin(cluster).create_topic(NewTopic(name="t"))
        async with producing(cluster, settings) as (deliveries, enough):
            await until(deliveries, 200)
            await restarting.stop()
            await restarting.start()
            await until(deliveries, len(deliveries) + 200)
            enough.set()
        offsets = [(await delivery.wait()).offset for delivery in deliveries]
        assert offsets == list(range(len(deliveries)))
        values = [record.value for record in await read(cluster, "t")]
    assert values == [b"%d" % n for n in range(len(deliveries))]


async def test_producer_waits_for_a_broker_that_is_not_there_yet(restarting: Restarting) -> None:
    await restarting.stop()
    delivered: list[RecordMetadata] = []

    async def produce() -> None:
        async with (
            open_cluster(restarting.url, evolve(QUICK, request_timeout=20.0)) as cluster,
            open_producer(cluster) as producer,
        ):
            delivered.append(await (await producer.send("t", b"x")).wait())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(produce)
        await trio.testing.wait_all_tasks_blocked()
        await restarting.start()
    assert delivered[0].offset == 0


async def test_producer_says_that_nobody_can_be_reached() -> None:
    settings = evolve(QUICK, request_timeout=0.1)
    with pytest.raises(NotReachable, match="nobody"):
        async with open_producer("memory://nobody", client_settings=settings) as producer:
            await producer.send("t", b"x")


async def test_producer_expires_records_while_the_broker_is_away(restarting: Restarting) -> None:
    settings = ProducerSettings(delivery_timeout=0.2)
    async with (
        open_cluster(restarting.url, QUICK) as cluster,
        open_producer(cluster, settings) as producer,
    ):
        await (await producer.send("t", b"first")).wait()
        await restarting.stop()
        lost = await producer.send("t", b"lost")
        with pytest.raises(DeliveryTimedOut, match="was not acknowledged within"):
            await lost.wait()
        health = producer.health
        assert not health.connected
        assert health.last_error is not None
        await restarting.start()
        found = await (await producer.send("t", b"last")).wait()
        assert producer.health.connected
        values = [record.value for record in await read(cluster, "t")]
    assert values == [b"first", b"last"]
    assert found.offset == 1


async def test_producer_expires_a_record_whose_answer_does_not_come(
    cluster: Cluster, faults: Faults
) -> None:
    settings = ProducerSettings(delivery_timeout=0.1)
    async with open_producer(cluster, settings) as producer:
        await (await producer.send("t", b"first")).wait()
        faults.delay("Produce", 3600.0)
        silent = await producer.send("t", b"silent")
        with pytest.raises(DeliveryTimedOut, match="it may have been written"):
            await silent.wait()
        faults.release()
    values = [record.value for record in await read(cluster, "t")]
    assert values in ([b"first"], [b"first", b"silent"])


@pytest.mark.parametrize("given", [{}, {"key": b"k"}, {"partition": 0}])
async def test_producer_waits_for_the_partitions_of_a_topic_that_is_being_created(
    cluster: Cluster, faults: Faults, given: dict[str, Any]
) -> None:
    faults.fail("Metadata", ErrorCode.LEADER_NOT_AVAILABLE, times=2)
    async with open_producer(cluster) as producer:
        with trio.fail_after(10):
            assert (await (await producer.send("t", b"x", **given)).wait()).offset == 0


async def test_send_many_waits_for_the_partitions_of_a_topic_that_is_being_created(
    cluster: Cluster, faults: Faults
) -> None:
    faults.fail("Metadata", ErrorCode.LEADER_NOT_AVAILABLE, times=2)
    async with open_producer(cluster) as producer:
        with trio.fail_after(10):
            deliveries = await producer.send_many("t", [b"x", b"y"], keys=[b"k", None])
            await deliveries.wait()


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.REQUEST_TIMED_OUT,
    ],
)
async def test_producer_repeats_what_may_pass(
    cluster: Cluster, faults: Faults, error: ErrorCode
) -> None:
    async with open_producer(cluster) as producer:
        await (await producer.send("t", b"0")).wait()
        faults.forget()
        faults.fail("Produce", error, times=2)
        delivery = await producer.send("t", b"1")
        assert (await delivery.wait()).offset == 1
        assert faults.seen("Produce") == 3
        assert isinstance(producer.health.last_error, KafkaError)


async def test_producer_fetches_metadata_where_the_leader_is_said_to_be_another(
    cluster: Cluster, faults: Faults
) -> None:
    async with open_producer(cluster) as producer:
        await (await producer.send("t", b"0")).wait()
        faults.forget()
        faults.fail("Produce", ErrorCode.NOT_LEADER_OR_FOLLOWER)
        await (await producer.send("t", b"1")).wait()
    assert faults.seen("Metadata") >= 1


async def test_producer_does_not_repeat_what_is_refused_for_good(
    cluster: Cluster, faults: Faults
) -> None:
    async with open_producer(cluster) as producer:
        await (await producer.send("t", b"0")).wait()
        faults.forget()
        faults.fail("Produce", ErrorCode.INVALID_RECORD)
        with pytest.raises(KafkaError) as caught:
            await (await producer.send("t", b"refused")).wait()
        assert caught.value.code == ErrorCode.INVALID_RECORD
        assert faults.seen("Produce") == 1
        assert (await (await producer.send("t", b"1")).wait()).offset == 1


@pytest.mark.parametrize("idempotent", [True, False])
@pytest.mark.parametrize("seed", range(3))
async def test_producer_keeps_the_order_when_requests_fail_with_several_in_flight(
    cluster: Cluster, faults: Faults, idempotent: bool, seed: int
) -> None:
    random = Random(seed)
    await Admin(cluster).create_topic(NewTopic(name="t", partitions=2))
    settings = ProducerSettings(batch_bytes=300, linger=0.0, idempotent=idempotent)

    def sometimes(_: object) -> bool:
        return random.random() < 0.3

    faults.fail("Produce", ErrorCode.NOT_ENOUGH_REPLICAS, times=None, when=sometimes)
    async with open_producer(cluster, settings) as producer:
        for n in range(600):
            await producer.send("t", b"%d" % n, partition=n % 2)
        await producer.flush()
    for partition in (0, 1):
        values = [int(r.value or b"") for r in await read(cluster, "t") if r.partition == partition]
        assert values == list(range(partition, 600, 2))


@pytest.mark.parametrize("after", [True, False])
async def test_producer_writes_once_though_connections_end_before_or_after_the_request(
    cluster: Cluster, faults: Faults, after: bool
) -> None:
    random = Random(7)

    def sometimes(request: object) -> bool:
        assert isinstance(request, ProduceRequest)
        return random.random() < 0.2

    faults.disconnect("Produce", times=None, when=sometimes, after=after)
    settings = ProducerSettings(batch_bytes=300, linger=0.0)
    async with open_producer(cluster, settings) as producer:
        deliveries = [await producer.send("t", b"%d" % n) for n in range(400)]
        await producer.flush()
    faults.clear()
    assert all(delivery.done for delivery in deliveries)
    assert [r.value for r in await read(cluster, "t")] == [b"%d" % n for n in range(400)]


@pytest.mark.parametrize("error", ["OUT_OF_ORDER_SEQUENCE_NUMBER", "UNKNOWN_PRODUCER_ID"])
async def test_producer_begins_anew_when_the_broker_forgot_it(
    cluster: Cluster, faults: Faults, error: str
) -> None:
    async with open_producer(cluster) as producer:
        await (await producer.send("t", b"0")).wait()
        faults.forget()
        faults.fail("Produce", error)
        assert (await (await producer.send("t", b"1")).wait()).offset == 1
        assert faults.seen("InitProducerId") == 1


async def test_producer_gets_its_identity_when_the_broker_is_ready(
    cluster: Cluster, faults: Faults
) -> None:
    faults.fail("InitProducerId", ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, times=3)
    async with open_producer(cluster) as producer:
        assert (await (await producer.send("t", b"0")).wait()).offset == 0


async def test_producer_that_gets_no_identity_says_so_and_is_closed(
    cluster: Cluster, faults: Faults
) -> None:
    faults.fail("InitProducerId", ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    async with open_producer(cluster) as producer:
        with pytest.raises(KafkaError) as caught:
            await (await producer.send("t", b"0")).wait()
        assert caught.value.code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        assert producer.health.closed


async def test_send_that_is_cancelled_while_it_waits_for_room_took_nothing(
    cluster: Cluster, faults: Faults
) -> None:
    settings = ProducerSettings(buffer_bytes=5_000, batch_bytes=5_000, linger=0.0)
    async with open_producer(cluster, settings) as producer:
        await (await producer.send("t", b"first")).wait()
        faults.delay("Produce", 3600.0)
        taken = 0
        with trio.move_on_after(0.1):
            while True:
                await producer.send("t", b"%d" % taken + b"." * 1000)
                taken += 1
        assert 0 < taken <= 5
        faults.release()
    values = [(record.value or b"").partition(b".")[0] for record in await read(cluster, "t")]
    assert values == [b"first", *(b"%d" % n for n in range(taken))]


async def test_send_waits_for_room_and_goes_on_when_there_is_some(
    cluster: Cluster, faults: Faults
) -> None:
    settings = ProducerSettings(buffer_bytes=5_000, batch_bytes=5_000, linger=0.0)
    async with open_producer(cluster, settings) as producer:
        await (await producer.send("t", b"first")).wait()
        faults.delay("Produce", 3600.0)
        sent: list[int] = []

        async def send() -> None:
            for n in range(30):
                await producer.send("t", b"x" * 1000)
                sent.append(n)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            await trio.testing.wait_all_tasks_blocked(0.05)
            assert len(sent) < 6
            assert producer.buffered_bytes <= 5_000
            faults.release()
        assert len(sent) == 30


async def test_record_larger_than_the_buffer_waits_for_it_to_be_empty(cluster: Cluster) -> None:
    settings = ProducerSettings(buffer_bytes=1_000, batch_bytes=500, linger=0.0)
    async with open_producer(cluster, settings) as producer:
        for size in (100, 5_000, 100):
            await producer.send("t", b"x" * size)
    assert [len(r.value or b"") for r in await read(cluster, "t")] == [100, 5_000, 100]


async def test_flush_with_a_timeout_tells_how_many_records_are_open(
    cluster: Cluster, faults: Faults
) -> None:
    async with open_producer(cluster) as producer:
        await (await producer.send("t", b"first")).wait()
        assert await producer.flush(timeout=5.0) == 0
        faults.delay("Produce", 3600.0)
        for _ in range(3):
            await producer.send("t", b"x")
        assert await producer.flush(timeout=0.05) == 3
        faults.release()
        assert await producer.flush() == 0


async def test_delivery_whose_waiting_is_cancelled_arrives_all_the_same(
    cluster: Cluster, faults: Faults
) -> None:
    async with open_producer(cluster) as producer:
        await (await producer.send("t", b"first")).wait()
        faults.delay("Produce", 3600.0)
        delivery = await producer.send("t", b"second")
        with trio.move_on_after(0.05) as scope:
            await delivery.wait()
        assert scope.cancelled_caught
        faults.release()
        assert (await delivery.wait()).offset == 1


async def test_producer_reports_each_batch_to_its_observer_once(
    cluster: Cluster, faults: Faults
) -> None:
    outcomes: list[BatchOutcome] = []
    async with open_producer(cluster, observer=outcomes.append) as producer:
        await (await producer.send("t", b"0")).wait()
        faults.fail("Produce", ErrorCode.NOT_LEADER_OR_FOLLOWER, times=2)
        faults.fail("Produce", ErrorCode.INVALID_RECORD)
        await producer.send("t", b"refused")
        await producer.flush()
    assert [(each.records, each.error is None) for each in outcomes] == [(1, True), (1, False)]


async def test_producer_with_a_cluster_of_its_own_closes_it(broker: Broker) -> None:
    async with open_producer(url_of(broker), client_settings=QUICK) as producer:
        assert (await (await producer.send("t", b"x")).wait()).offset == 0
        cluster = producer.cluster
        states = [(cluster.connected, cluster.closed)]
    states.append((cluster.connected, cluster.closed))
    assert states == [(True, False), (False, True)]


async def test_producer_takes_no_settings_for_a_cluster_that_has_some(cluster: Cluster) -> None:
    with pytest.raises(TypeError, match="already"):
        async with open_producer(cluster, client_settings=QUICK):
            pytest.fail("it was opened")
