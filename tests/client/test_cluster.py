"""Finding brokers and topics, and saying clearly when that fails."""

import pytest
import trio

from odradek.broker import Broker
from odradek.client import (
    Admin,
    ClientSettings,
    Cluster,
    NewTopic,
    NotReachable,
    bootstrap_urls,
    open_cluster,
)
from odradek.client.errors import Disconnected
from odradek.errors import ErrorCode, KafkaError

NOBODY = ClientSettings(retry_backoff=0.01, connect_timeout=1.0, request_timeout=1.0)


@pytest.mark.parametrize(
    ("given", "urls"),
    [
        ("localhost", ("tcp://localhost:9092",)),
        ("a:1, b:2,", ("tcp://a:1", "tcp://b:2")),
        ("::1", ("tcp://[::1]:9092",)),
        ("[::1]:5", ("tcp://[::1]:5",)),
        (["memory://x"], ("memory://x",)),
    ],
)
def test_bootstrap_urls_reads_hosts_ports_and_urls(given: str, urls: tuple[str, ...]) -> None:
    assert bootstrap_urls(given) == urls


@pytest.mark.parametrize("given", ["", " , ", "tcp://a:1,memory://b"])
def test_bootstrap_urls_refuses_nothing_and_mixtures(given: str) -> None:
    with pytest.raises(ValueError, match="bootstrap"):
        bootstrap_urls(given)


@pytest.mark.parametrize(
    "given",
    [
        "127.0.0.1:99999",
        "127.0.0.1:0",
        "127.0.0.1:",
        ":9",
        "a:b",
        "a:-1",
        "[::1",
        "a:1/b",
        "tcp://:9",
        "tcp://a:b",
        "good:1,a:b",
    ],
)
async def test_open_cluster_refuses_an_address_that_nobody_can_have(given: str) -> None:
    with pytest.raises(ValueError, match="bootstrap address"):
        async with open_cluster(given, NOBODY):
            pytest.fail("it was opened")


async def test_cluster_names_every_address_that_cannot_be_reached() -> None:
    async with open_cluster("memory://nobody,memory://no-one", NOBODY) as cluster:
        with pytest.raises(NotReachable, match=r"nobody.*no-one"):
            await cluster.any_connection()


async def test_cluster_finds_the_one_address_that_works(broker: Broker) -> None:
    (url,) = broker.urls.values()
    dead = "memory://nobody" if url.startswith("memory") else "tcp://127.0.0.1:1"
    async with open_cluster([dead, url], NOBODY) as cluster:
        assert (await cluster.renew()).brokers.keys() == {1}


async def test_cluster_shares_one_connection_among_concurrent_callers(cluster: Cluster) -> None:
    await cluster.renew()
    found = []

    async def connect() -> None:
        found.append(await cluster.connection(1, "purpose"))

    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(connect)
    assert len(set(found)) == 1


async def test_cluster_connects_again_after_a_connection_ended(cluster: Cluster) -> None:
    first = await cluster.any_connection()
    first.close()
    second = await cluster.any_connection()
    assert second is not first
    assert second.alive


async def test_cluster_shares_one_renewal_among_those_who_found_the_same_image_wrong(
    cluster: Cluster,
) -> None:
    image = await cluster.renew()
    async with trio.open_nursery() as nursery:
        for _ in range(5):

            async def renew() -> None:
                await cluster.renew(newer_than=image.generation)

            nursery.start_soon(renew)
    assert cluster.metadata.generation == image.generation + 1


async def test_cluster_says_which_topic_is_unknown_and_creates_none(cluster: Cluster) -> None:
    with pytest.raises(KafkaError, match="'nope'") as caught:
        await cluster.topic("nope", timeout=0)
    assert caught.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert "nope" not in await Admin(cluster).list_topics()


async def test_cluster_waits_for_a_topic_that_comes(cluster: Cluster) -> None:
    async with trio.open_nursery() as nursery:

        async def wait() -> None:
            found = await cluster.topic("soon", timeout=10)
            assert len(found.partitions) == 2

        nursery.start_soon(wait)
        with pytest.raises(KafkaError):
            await cluster.topic("soon", timeout=0)
        await Admin(cluster).create_topic(NewTopic(name="soon", partitions=2))


async def test_cluster_retries_what_may_pass_and_nothing_else(cluster: Cluster) -> None:
    tries = []

    async def flaky() -> str:
        tries.append(1)
        if len(tries) < 3:
            raise Disconnected("gone")
        return "done"

    assert await cluster.retrying(flaky, timeout=5.0) == "done"
    assert len(tries) == 3

    async def hopeless() -> None:
        tries.append(1)
        raise KafkaError(ErrorCode.INVALID_CONFIG)

    with pytest.raises(KafkaError):
        await cluster.retrying(hopeless, timeout=5.0)
    assert len(tries) == 4


async def test_cluster_raises_the_last_error_when_time_is_up(cluster: Cluster) -> None:
    async def never() -> None:
        raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, "still")

    with pytest.raises(KafkaError, match="still"):
        await cluster.retrying(never, timeout=0.05)


async def test_open_cluster_lets_the_bodys_error_out_as_it_is(broker: Broker) -> None:
    (url,) = broker.urls.values()

    async def body() -> None:
        async with open_cluster(url, NOBODY) as cluster:
            await cluster.renew()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await body()
