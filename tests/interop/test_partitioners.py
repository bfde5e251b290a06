"""Keys go where other clients put them: to one partition, whoever writes."""

from __future__ import annotations

import warnings
from importlib import import_module
from random import Random
from types import ModuleType
from typing import Any
from uuid import uuid4

import pytest
import trio
from tests.interop.conftest import missing
from tests.interop.process import BrokerProcess

from odradek.client import (
    Admin,
    NewTopic,
    Partitioner,
    consistent,
    open_cluster,
    open_producer,
)

PARTITIONS = 7
KEYS = [Random(size).randbytes(size) for size in (*range(1, 40), 63, 64, 65, 255, 256, 257, 5000)]


def imported(name: str) -> ModuleType:
    """Import a client, or say that it is missing."""
    try:
        return import_module(name)
    except ModuleNotFoundError:
        missing(name)
        raise


def confluent(partitioner: str) -> Any:
    """Where librdkafka puts the keys, by one of its partitioners."""

    def place(address: str, topic: str) -> list[int]:
        confluent_kafka = imported("confluent_kafka")
        found: dict[bytes, int] = {}

        def note(error: object, message: Any) -> None:
            assert error is None
            found[message.key()] = message.partition()

        settings = {"bootstrap.servers": address, "partitioner": partitioner, "log_level": 0}
        producer = confluent_kafka.Producer(settings)
        for key in KEYS:
            producer.produce(topic, b"", key, on_delivery=note)
        assert producer.flush(30) == 0
        return [found[key] for key in KEYS]

    return place


def kafka_python(address: str, topic: str) -> list[int]:
    """Where kafka-python puts the keys."""
    with warnings.catch_warnings():
        # kafka-python 3.0 reads its schemas by importlib.resources.read_text, deprecated in 3.11.
        warnings.simplefilter("ignore", DeprecationWarning)
        producer = imported("kafka").KafkaProducer(bootstrap_servers=address)
    try:
        futures = [producer.send(topic, b"", key=key) for key in KEYS]
        return [future.get(30).partition for future in futures]
    finally:
        producer.close()


@pytest.mark.parametrize(
    ("place", "partitioner"),
    [
        pytest.param(confluent("murmur2_random"), None, id="librdkafka-murmur2_random"),
        pytest.param(confluent("murmur2"), None, id="librdkafka-murmur2"),
        pytest.param(confluent("consistent_random"), consistent, id="librdkafka-default"),
        pytest.param(kafka_python, None, id="kafka-python"),
    ],
)
def test_native_producer_puts_keys_where_other_clients_do(
    shared_broker: BrokerProcess, place: Any, partitioner: Partitioner | None
) -> None:
    topic = f"keys-{uuid4().hex[:8]}"

    async def ours() -> list[int]:
        async with open_cluster(shared_broker.address) as cluster:
            await Admin(cluster).create_topic(NewTopic(name=topic, partitions=PARTITIONS))
            async with open_producer(cluster, partitioner=partitioner) as producer:
                sent = [await producer.send(topic, b"", key=key) for key in KEYS]
                many = await producer.send_many(topic, [b""] * len(KEYS), keys=KEYS)
                places = [(await delivery.wait()).partition for delivery in sent]
                by_index = {
                    index: found.partition for found in await many.wait() for index in found.indexes
                }
        assert [by_index[index] for index in range(len(KEYS))] == places
        return places

    found = trio.run(ours)
    assert len(set(found)) > 3  # or agreeing would say little
    assert place(shared_broker.address, topic) == found
