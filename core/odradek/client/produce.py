"""A producer: records in, acknowledgements out; batches, retries and order are its own affair."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager

import trio

from odradek.client.cluster import Cluster
from odradek.client.delivery import BatchOutcome, Delivery, RecordMetadata
from odradek.client.errors import ClientClosed
from odradek.client.metadata import TopicInfo, TopicPartition
from odradek.client.partitioner import StickyPartition, partition_for_key
from odradek.client.sender import Sender
from odradek.client.settings import ProducerSettings
from odradek.contracts.background import open_tasks
from odradek.errors import ErrorCode, KafkaError

__all__ = ["BatchOutcome", "Delivery", "Producer", "RecordMetadata", "open_producer"]

Header = tuple[str, bytes | None]

_YIELD_AFTER = 64
"""`send` yields at least once in so many calls: doing it in each would double what it costs."""
_RECORD_OVERHEAD = 24
"""Bytes that a record without headers takes besides key and value, about."""


@asynccontextmanager
async def open_producer(
    cluster: Cluster,
    settings: ProducerSettings | None = None,
    *,
    observer: Callable[[BatchOutcome], None] | None = None,
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
) -> AsyncIterator[Producer]:
    """Give a `Producer` and own its tasks; leaving flushes, leaving by an exception gives up.

    `observer` is called for every batch that ends; it must not raise. `now_ms` stamps records
    that have no timestamp.
    """
    async with open_tasks() as nursery:
        producer = Producer(cluster, settings or ProducerSettings(), nursery, observer, now_ms)
        nursery.start_soon(producer._sender.run)
        try:
            yield producer
            await producer.flush()
        finally:
            producer._sender.give_up(ClientClosed("the producer was closed"))


class Producer:
    """Sends records in batches; made by `open_producer`. Any number of tasks may use it.

    Records of one partition arrive in the order of their `send` calls. With `idempotent` none is
    written twice by a retry.
    """

    def __init__(
        self,
        cluster: Cluster,
        settings: ProducerSettings,
        nursery: trio.Nursery,
        observer: Callable[[BatchOutcome], None] | None,
        now_ms: Callable[[], int],
    ) -> None:
        self.settings = settings
        self._cluster = cluster
        self._sender = Sender(cluster, settings, nursery, observer)
        self._batches = self._sender.batches
        self._now_ms = now_ms
        self._sticky: dict[str, StickyPartition] = {}
        self._since_yield = 0

    @property
    def buffered_bytes(self) -> int:
        """Bytes of records that `send` took and whose fate is open."""
        return self._batches.buffered

    async def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Iterable[Header] = (),
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> Delivery:
        """Take a record to send; wait only for room, and for a topic's metadata the first time.

        Without `partition`, the key decides as in the Java client, and without a key one
        partition gets whole batches in turn. `timestamp` in ms, now by default. Cancelled: the
        record was not taken.

        Raises KafkaError for an unknown topic or partition and for a record that is too large
        (MESSAGE_TOO_LARGE), NotReachable while no broker ever answered, ClientClosed.
        """
        headers = tuple(headers)
        known = self._cluster.metadata.topics.get(topic)
        if known is None or (partition is not None and partition >= len(known.partitions)):
            known = await self._topic(topic, partition)
        size = len(value or b"") + len(key or b"") + _RECORD_OVERHEAD
        while not self._batches.has_room(size):
            self._batches.seal_all()
            self._sender.notify()
            await self._sender.settled.wait()
        self._since_yield += 1
        if self._since_yield >= _YIELD_AFTER:
            self._since_yield = 0
            await trio.lowlevel.checkpoint()
        else:
            await trio.lowlevel.checkpoint_if_cancelled()
        if self._sender.closed is not None:
            raise ClientClosed(f"the producer is closed: {self._sender.closed}")
        if partition is None:
            partition = self._choose(known, key, size)
        if timestamp is None:
            timestamp = self._now_ms()
        batch = self._batches.append(
            TopicPartition(topic, partition), timestamp, key, value, headers, trio.current_time()
        )
        if batch.records == 1:
            self._sender.notify()
        return Delivery(batch, batch.records - 1, timestamp)

    async def flush(self) -> None:
        """Return when the fate of every record taken before is known; lingers for none of them.

        Raises nothing on their account: the deliveries and the observer tell.
        """
        waiting = self._batches.seal_all()
        self._sender.notify()
        for batch in waiting:
            await batch.done.wait()

    async def _topic(self, topic: str, partition: int | None) -> TopicInfo:
        found = await self._cluster.topic(topic, create=self.settings.create_topics)
        if partition is not None and not 0 <= partition < len(found.partitions):
            generation = self._cluster.metadata.generation
            image = await self._cluster.renew((topic,), newer_than=generation)
            found = image.topics.get(topic, found)
            if not 0 <= partition < len(found.partitions):
                raise KafkaError(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    f"topic {topic!r} has partitions 0 to {len(found.partitions) - 1}, "
                    f"not {partition}",
                )
        return found

    def _choose(self, topic: TopicInfo, key: bytes | None, size: int) -> int:
        if key is not None:
            return partition_for_key(key, len(topic.partitions))
        sticky = self._sticky.get(topic.name)
        if sticky is None:
            sticky = self._sticky[topic.name] = StickyPartition()
        chosen = sticky.choose(topic.available or range(len(topic.partitions)))
        if not sticky.fresh and not self._batches.goes_on(TopicPartition(topic.name, chosen), size):
            chosen = sticky.move_on()
        sticky.fresh = False
        return chosen
