"""What is done to a broker, and what is read off it.

Each workload returns figures by name; higher is better for those that end in `/s`, lower for the
others. The client is librdkafka, whose own limit is part of every throughput figure: that is the
point of measuring the broker's CPU time beside it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from itertools import count
from statistics import quantiles
from typing import Any
from uuid import uuid4

from attrs import frozen
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # it has no __all__
    AdminClient,
    NewTopic,
)

from bench.target import Target

__all__ = ["WORKLOADS", "Workload", "latency", "produce"]

Figures = dict[str, float]

PATIENCE = 120.0
"""Seconds after which a run is given up: every loop here is bounded by it."""

QUEUE = {"queue.buffering.max.messages": 1_000_000, "queue.buffering.max.kbytes": 1_048_576}


@frozen
class Workload:
    """One row of the report. `messages` are per run, of `size` bytes each."""

    name: str
    what: str
    messages: int
    size: int
    run: Callable[[Target, Workload], Figures]
    settings: Mapping[str, Any] = {}

    @property
    def gigabytes(self) -> float:
        """Bytes of payload per run, in 10^9."""
        return self.messages * self.size / 1e9


def fresh_topic(target: Target, partitions: int = 1) -> str:
    """Create a topic nobody has used."""
    topic = f"bench-{uuid4().hex[:12]}"
    admin = AdminClient({"bootstrap.servers": target.bootstrap})
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(30)
    return topic


def drop_topic(target: Target, topic: str) -> None:
    """Delete it again, so that runs do not fill the disk."""
    admin = AdminClient({"bootstrap.servers": target.bootstrap})
    admin.delete_topics([topic])[topic].result(30)


def _producer(target: Target, settings: Mapping[str, Any]) -> Producer:
    return Producer(
        {"bootstrap.servers": target.bootstrap, "log_level": 0, "acks": 1, **QUEUE, **settings}
    )


def produce(target: Target, topic: str, load: Workload) -> Figures:
    """Send as fast as the client can, until everything is acknowledged."""
    producer = _producer(target, load.settings)
    value = bytes(load.size)
    producer.produce(topic, value)
    if producer.flush(PATIENCE):
        raise RuntimeError(f"{target.name} acknowledges nothing")
    cpu = target.cpu_seconds()
    begun = time.perf_counter()
    for number in range(load.messages):
        while True:
            try:
                producer.produce(topic, value)
            except BufferError:
                producer.poll(0.01)
            else:
                break
        if not number % 1000:
            producer.poll(0)
    left = producer.flush(PATIENCE)
    took = time.perf_counter() - begun
    if left:
        raise RuntimeError(f"{target.name}: {left} messages not acknowledged after {PATIENCE} s")
    figures = {"messages/s": load.messages / took, "MB/s": load.gigabytes * 1000 / took}
    if cpu is not None:
        used = (target.cpu_seconds() or 0) - cpu
        figures["broker CPU s/GB"] = used / load.gigabytes
        figures["broker CPU us/message"] = used / load.messages * 1e6
    resident = target.resident_bytes()
    if resident is not None:
        figures["resident MB"] = resident / 1e6
    return figures


def consume(target: Target, topic: str, load: Workload) -> Figures:
    """Read a topic from its beginning as fast as the client can."""
    consumer = Consumer(
        {
            "bootstrap.servers": target.bootstrap,
            "log_level": 0,
            "group.id": "bench",
            "enable.auto.commit": False,
            "check.crcs": False,
        }
    )
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        cpu = target.cpu_seconds()
        begun = time.perf_counter()
        received = 0
        while received < load.messages:
            received += len(consumer.consume(10_000, 1.0))
            if time.perf_counter() - begun > PATIENCE:
                raise RuntimeError(f"{target.name}: {received} of {load.messages} messages came")
        took = time.perf_counter() - begun
    finally:
        consumer.close()
    figures = {"messages/s": received / took, "MB/s": load.gigabytes * 1000 / took}
    if cpu is not None:
        figures["broker CPU s/GB"] = ((target.cpu_seconds() or 0) - cpu) / load.gigabytes
    resident = target.resident_bytes()
    if resident is not None:
        figures["resident MB"] = resident / 1e6
    return figures


def _run_produce(target: Target, load: Workload) -> Figures:
    topic = fresh_topic(target)
    try:
        return produce(target, topic, load)
    finally:
        drop_topic(target, topic)


def _run_consume(target: Target, load: Workload) -> Figures:
    topic = fresh_topic(target)
    try:
        produce(target, topic, load)
        return consume(target, topic, load)
    finally:
        drop_topic(target, topic)


def latency(target: Target, load: Workload) -> Figures:
    """Time from handing a message to the client to its acknowledgement, at a fixed rate.

    The rate is `load.messages` spread over ten seconds. The client's own queueing (linger 0) is
    part of it, as it is for an application.
    """
    topic = fresh_topic(target)
    producer = _producer(target, {"linger.ms": 0, **load.settings})
    value = bytes(load.size)
    times: list[float] = []

    def acknowledged(sent: float) -> Callable[[KafkaError | None, Message], None]:
        def note(error: KafkaError | None, _: Message) -> None:
            if error is None:
                times.append(time.perf_counter() - sent)

        return note

    try:
        producer.produce(topic, value)
        producer.flush(PATIENCE)
        interval = 10.0 / load.messages
        begun = time.perf_counter()
        for number in count():
            due = begun + number * interval
            while (left := due - time.perf_counter()) > 0:
                producer.poll(min(left, 0.001))
            if number == load.messages:
                break
            producer.produce(topic, value, on_delivery=acknowledged(time.perf_counter()))
        producer.flush(PATIENCE)
    finally:
        drop_topic(target, topic)
    if len(times) < load.messages:
        raise RuntimeError(f"{target.name}: {load.messages - len(times)} were not acknowledged")
    cut = quantiles(times, n=1000)
    return {
        "ack p50 us": cut[499] * 1e6,
        "ack p99 us": cut[989] * 1e6,
        "ack p99.9 us": cut[998] * 1e6,
    }


WORKLOADS: dict[str, Workload] = {
    load.name: load
    for load in (
        Workload(
            "produce-default",
            "200-byte messages, librdkafka's own batching",
            3_000_000,
            200,
            _run_produce,
        ),
        Workload(
            "produce-1",
            "the paper's: 200-byte messages, batches of 1, pipelined",
            200_000,
            200,
            _run_produce,
            {"batch.num.messages": 1, "linger.ms": 0},
        ),
        Workload(
            "produce-50",
            "the paper's: 200-byte messages, batches of 50",
            1_000_000,
            200,
            _run_produce,
            {"batch.num.messages": 50},
        ),
        Workload(
            "consume", "the paper's: 200-byte messages, one consumer", 3_000_000, 200, _run_consume
        ),
        Workload(
            "produce-1k",
            "1 KB messages, large batches",
            600_000,
            1024,
            _run_produce,
            {"linger.ms": 20, "batch.size": 1_000_000, "batch.num.messages": 100_000},
        ),
        Workload("consume-1k", "1 KB messages, one consumer", 600_000, 1024, _run_consume),
        Workload(
            "latency",
            "acknowledgement of 200-byte messages at 3,000 a second: a tenth of produce-1",
            30_000,
            200,
            latency,
        ),
    )
}
