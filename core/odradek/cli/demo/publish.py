"""The demo's first half: the machine's data into the broker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import trio
from attrs import define, field

from odradek.cli.demo.checksum import PartitionSum
from odradek.cli.demo.metrics import Sampler
from odradek.cli.demo.sources import LONGEST_LINE, PARTITIONS, LogSource
from odradek.client import (
    Admin,
    BatchOutcome,
    Delivery,
    NewTopic,
    Producer,
    ProducerSettings,
    TopicPartition,
    open_producer,
)
from odradek.errors import KafkaError
from odradek.record import CompressionType

if TYPE_CHECKING:
    from odradek.client import Cluster

__all__ = ["METRICS", "Published", "create_topics", "publish"]

METRICS = "metrics"
_INTERVAL = 0.1
_PROCESSES_EVERY = 5
_AT_ONCE = 500


@define
class Published:
    """What was published: to compare with what comes back, and to show."""

    sums: dict[TopicPartition, PartitionSum] = field(factory=dict)
    records: dict[str, int] = field(factory=dict)
    sizes: dict[str, int] = field(factory=dict)
    """Bytes of keys and values, by topic; `records` likewise."""
    finished: dict[str, int] = field(factory=dict)
    """Records of the topics that get no more."""
    seconds: float = 0.0
    log_seconds: float = 0.0
    latencies: list[float] = field(factory=list)
    """Seconds from sending a sample of the metrics to its acknowledgement."""
    samples: int = 0
    unreadable: list[str] = field(factory=list)
    cut: int = 0
    """Lines of which only the first LONGEST_LINE bytes were published."""

    def add(self, delivery: Delivery, key: bytes | None, value: bytes) -> None:
        """Count a record that was sent."""
        partition = delivery.partition
        total = self.sums.get(partition)
        if total is None:
            total = self.sums[partition] = PartitionSum()
        total.add(key, value)
        topic = partition.topic
        self.records[topic] = self.records.get(topic, 0) + 1
        self.sizes[topic] = self.sizes.get(topic, 0) + len(key or b"") + len(value)


async def create_topics(cluster: Cluster, names: Sequence[str]) -> dict[str, int]:
    """Create the demo's topics; return their numbers of partitions. Raises KafkaError."""
    topics = [NewTopic(name=name, partitions=PARTITIONS, replication_factor=1) for name in names]
    for result in (await Admin(cluster).create_topics(topics)).values():
        if isinstance(result, KafkaError):
            raise result
    return dict.fromkeys(names, PARTITIONS)


async def publish(
    cluster: Cluster,
    logs: Sequence[LogSource],
    seconds: float,
    published: Published,
    finished: Callable[[str], None],
) -> None:
    """Send all logs, and samples of the metrics for `seconds`; return when all is acknowledged.

    Raises the first delivery's error, if one fails.
    """
    started = trio.current_time()
    failures: list[Exception] = []

    def observe(outcome: BatchOutcome) -> None:
        if outcome.error is not None:
            failures.append(outcome.error)

    packed = ProducerSettings(compression=CompressionType.ZSTD, linger=0.1)
    prompt = ProducerSettings(compression=CompressionType.ZSTD, linger=0.0)
    async with (
        open_producer(cluster, packed, observer=observe) as bulk,
        open_producer(cluster, prompt, observer=observe) as single,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(_metrics, single, seconds, published, finished)
        for source in logs:
            await _log(bulk, source, published)
            finished(source.topic)
        await bulk.flush()
        published.log_seconds = trio.current_time() - started
    published.seconds = trio.current_time() - started
    if failures:
        raise failures[0]


async def _log(producer: Producer, source: LogSource, published: Published) -> None:
    lines = source.lines()
    while True:
        try:
            some = await trio.to_thread.run_sync(_take, lines)
        except (OSError, EOFError) as error:
            published.unreadable.append(f"{source.note}: {error}")
            return
        if not some:
            return
        for key, line in some:
            value = line[:LONGEST_LINE]
            published.cut += len(value) < len(line)
            delivery = await producer.send(source.topic, value, key=key)
            published.add(delivery, key, value)


def _take(lines: object) -> list[tuple[bytes | None, bytes]]:
    from itertools import islice

    return list(islice(lines, _AT_ONCE))  # type: ignore[call-overload]  # an iterator of lines


async def _metrics(
    producer: Producer, seconds: float, published: Published, finished: Callable[[str], None]
) -> None:
    """Sample for a while, and see each sample acknowledged before the next."""
    sampler = await trio.to_thread.run_sync(Sampler)
    until = trio.current_time() + seconds
    due = trio.current_time()
    while due < until:
        await trio.sleep_until(due)
        due += _INTERVAL
        busiest = published.samples % _PROCESSES_EVERY == 0
        sample = await trio.to_thread.run_sync(lambda: sampler.sample(processes=busiest))  # noqa: B023
        sent = trio.current_time()
        deliveries = []
        for key, value in sample:
            delivery = await producer.send(METRICS, value, key=key)
            published.add(delivery, key, value)
            deliveries.append(delivery)
        for delivery in deliveries:
            await delivery.wait()
        published.latencies.append(trio.current_time() - sent)
        published.samples += 1
    finished(METRICS)
