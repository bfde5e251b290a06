"""A producer: records in, acknowledgements out; batches, retries and order are its own affair."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

import trio

from odradek.client.accumulator import Accumulator, Identity, ProducerBatch
from odradek.client.cluster import Cluster, is_stale
from odradek.client.connection import Pending
from odradek.client.errors import (
    ClientClosed,
    DeliveryTimedOut,
    Disconnected,
    error_of,
    is_retriable,
    raise_for,
)
from odradek.client.metadata import TopicInfo, TopicPartition
from odradek.client.partitioner import StickyPartition, partition_for_key
from odradek.client.settings import ProducerSettings
from odradek.client.tasks import background_tasks
from odradek.errors import ErrorCode, KafkaError, OdradekError
from odradek.wire.api.a00_produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from odradek.wire.api.a22_init_producer_id import InitProducerIdRequest, InitProducerIdResponse

__all__ = ["BatchOutcome", "Delivery", "Producer", "RecordMetadata", "open_producer"]

Header = tuple[str, bytes | None]

_PURPOSE = "produce"
_YIELD_AFTER = 64
"""`send` yields at least once in so many calls: doing it in each would double what it costs."""

_RECORD_OVERHEAD = 24
"""Bytes that a record without headers takes besides key and value, about."""

_MAYBE_WRITTEN = frozenset(
    {ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, ErrorCode.REQUEST_TIMED_OUT}
)
_SEQUENCE_LOST = frozenset(
    {
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    }
)


class RecordMetadata(NamedTuple):
    """Where a record is. `offset` is -1 where the broker did not say: with acks = 0, and for the
    repetition of a batch that it had long before. `timestamp` in ms as the log has it."""

    topic: str
    partition: int
    offset: int
    timestamp: int


class BatchOutcome(NamedTuple):
    """What became of a batch: for progress and statistics.

    `size` in bytes, uncompressed; `seconds` from its first record to its end; `error` is None
    when it was acknowledged.
    """

    partition: TopicPartition
    records: int
    size: int
    base_offset: int
    seconds: float
    error: OdradekError | None


class Delivery:
    """A record on its way. Records of a batch share their fate."""

    __slots__ = ("_batch", "_index", "_timestamp")

    def __init__(self, batch: ProducerBatch, index: int, timestamp: int) -> None:
        self._batch = batch
        self._index = index
        self._timestamp = timestamp

    @property
    def partition(self) -> TopicPartition:
        """Where the record goes."""
        return self._batch.partition

    @property
    def done(self) -> bool:
        """Whether `wait` would return, or raise, at once."""
        return self._batch.done.is_set()

    async def wait(self) -> RecordMetadata:
        """Return where the record is once it is acknowledged as `acks` says.

        Cancelling stops the waiting only. Raises what became of it instead: KafkaError (refused),
        DeliveryTimedOut, OutcomeUnknown, ClientClosed.
        """
        batch = self._batch
        await batch.done.wait()
        if batch.error is not None:
            raise batch.error
        topic, partition = batch.partition
        offset = batch.base_offset + self._index if batch.base_offset >= 0 else -1
        timestamp = batch.append_time if batch.append_time >= 0 else self._timestamp
        return RecordMetadata(topic, partition, offset, timestamp)


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
    async with background_tasks() as nursery:
        producer = Producer(cluster, settings or ProducerSettings(), nursery, observer, now_ms)
        nursery.start_soon(producer._supervise)
        try:
            yield producer
            await producer.flush()
        finally:
            producer._give_up(ClientClosed("the producer was closed"))


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
        self._nursery = nursery
        self._observer = observer
        self._now_ms = now_ms
        self._batches = Accumulator(settings)
        self._sticky: dict[str, StickyPartition] = {}
        self._identity: Identity | None = None
        self._serving: set[int] = set()
        self._stale = False
        self._closed: OdradekError | None = None
        self._changed = trio.Event()
        self._settled = trio.Event()
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
            self._notify()
            await self._settled.wait()
        self._since_yield += 1
        if self._since_yield >= _YIELD_AFTER:
            self._since_yield = 0
            await trio.lowlevel.checkpoint()
        else:
            await trio.lowlevel.checkpoint_if_cancelled()
        if self._closed is not None:
            raise ClientClosed(f"the producer is closed: {self._closed}")
        if partition is None:
            partition = self._choose(known, key, size)
        if timestamp is None:
            timestamp = self._now_ms()
        batch = self._batches.append(
            TopicPartition(topic, partition), timestamp, key, value, headers, trio.current_time()
        )
        if batch.records == 1:
            self._notify()
        return Delivery(batch, batch.records - 1, timestamp)

    async def flush(self) -> None:
        """Return when the fate of every record taken before is known; lingers for none of them.

        Raises nothing on their account: the deliveries and the observer tell.
        """
        waiting = self._batches.seal_all()
        self._notify()
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

    def _notify(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    def _give_up(self, error: OdradekError) -> None:
        """Fail what is on its way and whatever comes: nothing can be sent any more."""
        if self._closed is None:
            self._closed = error
        for batch in self._batches.seal_all():
            self._settle(batch, error=error)
        self._notify()

    # Which broker gets what

    async def _supervise(self) -> None:
        """See that every partition with records has a broker that is served, or time out."""
        backoff = self._cluster.backoff()
        while self._closed is None:
            changed = self._changed
            now = trio.current_time()
            for batch in self._batches.overdue(now):
                self._settle(batch, error=self._overdue(batch))
            for node in self._by_leader():
                if node not in self._serving:
                    self._serving.add(node)
                    self._nursery.start_soon(self._serve, node)
            if self._stale or self._leaderless():
                self._stale = False
                try:
                    await self._cluster.renew(self._topics())
                except OdradekError as error:
                    if not is_retriable(error):
                        self._give_up(error)
                        return
                self._notify()
                if not self._leaderless():
                    backoff.reset()
                    continue
                await trio.sleep(backoff.next())
                continue
            with trio.move_on_after(self._until_overdue(now)):
                await changed.wait()

    def _topics(self) -> set[str]:
        return {partition.topic for partition in self._batches.active}

    def _leaderless(self) -> bool:
        leader = self._cluster.metadata.leader
        return any(leader(partition) is None for partition in self._batches.active)

    def _by_leader(self) -> dict[int, list[TopicPartition]]:
        groups: dict[int, list[TopicPartition]] = {}
        for partition in self._batches.active:
            leader = self._cluster.metadata.leader(partition)
            if leader is not None:
                groups.setdefault(leader.node_id, []).append(partition)
        return groups

    def _until_overdue(self, now: float) -> float:
        created = [
            batch.created for queue in self._batches.active.values() for batch in queue.batches()
        ]
        if not created:
            return float("inf")
        return max(min(created) + self.settings.delivery_timeout - now, 0.001)

    def _overdue(self, batch: ProducerBatch) -> DeliveryTimedOut:
        maybe = "it may have been written" if batch.outcome_unknown else "it was not written"
        return DeliveryTimedOut(
            f"a batch of {batch.records} records for partition {batch.partition} was not "
            f"acknowledged within {self.settings.delivery_timeout:g} s ({batch.attempts} "
            f"attempts); {maybe}"
        )

    async def _serve(self, node: int) -> None:
        """Send to one broker what it leads, in order, several requests at a time."""
        slots = trio.Semaphore(self.settings.max_in_flight)
        backoff = self._cluster.backoff()
        while True:
            await slots.acquire()
            try:
                identity = await self._get_identity() if self.settings.idempotent else None
            except OdradekError as error:
                self._give_up(error)
                return
            batches = await self._next(node, identity)
            if not batches:  # a new identity is needed
                slots.release()
                continue
            try:
                connection = await self._cluster.connection(node, _PURPOSE)
                request = self._request(batches)
                response = ProduceResponse if self.settings.acks else None
                pending = await connection.submit(request, response)
            except OdradekError as error:
                for batch in batches:
                    self._failed(batch, error)
                slots.release()
                await trio.sleep(backoff.next())
            else:
                backoff.reset()
                self._nursery.start_soon(self._conclude, batches, pending, slots)

    async def _next(self, node: int, identity: Identity | None) -> Sequence[ProducerBatch]:
        """Wait for batches to send to `node`; none when another identity is needed first."""
        while True:
            changed = self._changed
            mine = self._by_leader().get(node, ())
            batches, again = self._batches.take(mine, trio.current_time(), identity)
            if batches:
                return batches
            if self._batches.identity_spent:
                self._batches.identity_spent = False
                if self._identity == identity:
                    self._identity = None
                return ()
            with trio.move_on_at(again):
                await changed.wait()

    async def _get_identity(self) -> Identity:
        """Return the producer id and epoch; from the cluster, where there is none (any more)."""

        async def attempt() -> Identity:
            request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0)
            answer = await self._cluster.call(request, InitProducerIdResponse)
            raise_for(answer.error_code)
            return Identity(answer.producer_id, answer.producer_epoch)

        while self._identity is None:
            try:
                got = await self._cluster.retrying(attempt, timeout=self.settings.delivery_timeout)
            except OdradekError as error:
                if not is_retriable(error):
                    raise
            else:
                self._identity = self._identity or got  # another broker's task may be first
        return self._identity

    def _request(self, batches: Sequence[ProducerBatch]) -> ProduceRequest:
        topics: dict[str, TopicProduceData] = {}
        for batch in batches:
            name, partition = batch.partition
            topic = topics.get(name)
            if topic is None:
                topic_id = self._cluster.metadata.topics[name].topic_id
                topic = topics[name] = TopicProduceData(name=name, topic_id=topic_id)
            assert batch.builder is not None
            topic.partition_data.append(
                PartitionProduceData(index=partition, records=batch.builder.build())
            )
        return ProduceRequest(
            acks=self.settings.acks,
            timeout_ms=int(self._cluster.settings.request_timeout * 1000),
            topic_data=list(topics.values()),
        )

    # What became of it

    async def _conclude(
        self,
        batches: Sequence[ProducerBatch],
        pending: Pending[ProduceResponse],
        slots: trio.Semaphore,
    ) -> None:
        try:
            if pending.expected is None:
                await pending.left()
                for batch in batches:
                    self._settle(batch)
                return
            answer = await pending.answer(self._cluster.settings.request_timeout)
        except OdradekError as error:
            for batch in batches:
                self._failed(batch, error)
        else:
            names = self._cluster.metadata.names
            parts = {
                TopicPartition(topic.name or names.get(topic.topic_id, ""), part.index): part
                for topic in answer.responses
                for part in topic.partition_responses
            }
            for batch in batches:
                part = parts.get(batch.partition)
                if part is None:
                    self._failed(batch, Disconnected(f"no answer for {batch.partition}"))
                else:
                    self._answered(batch, part)
        finally:
            slots.release()
            self._notify()

    def _answered(self, batch: ProducerBatch, part: PartitionProduceResponse) -> None:
        if part.error_code == ErrorCode.NONE:
            self._settle(batch, base_offset=part.base_offset, append_time=part.log_append_time_ms)
        elif part.error_code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
            self._settle(batch)  # written before, longer ago than the broker remembers offsets
        else:
            details = [each.batch_index_error_message for each in part.record_errors]
            detail = "; ".join(each for each in (part.error_message, *details) if each)
            where = f"partition {batch.partition}"
            self._failed(
                batch, error_of(part.error_code, f"{where}: {detail}" if detail else where)
            )

    def _failed(self, batch: ProducerBatch, error: OdradekError) -> None:
        """Decide what a batch that was not acknowledged does next."""
        if batch.done.is_set():
            return
        if isinstance(error, Disconnected):
            batch.outcome_unknown |= error.sent
        elif isinstance(error, KafkaError) and error.code in _MAYBE_WRITTEN:
            batch.outcome_unknown = True
        queue = self._batches.queues[batch.partition]
        if self._closed is not None:
            self._settle(batch, error=self._closed)
        elif self._sequence_lost(error) or is_retriable(error):
            first = min(queue.batches(), key=lambda each: each.serial)
            if self._sequence_lost(error) and batch is first:
                queue.gap = True  # no batch before it is missing: the broker forgot the producer
            if is_stale(error):
                self._stale = True
            queue.put_back(batch)
            queue.not_before = trio.current_time() + self._cluster.settings.retry_backoff
        else:
            self._settle(batch, error=error)
        self._notify()

    def _sequence_lost(self, error: OdradekError) -> bool:
        return (
            self.settings.idempotent
            and isinstance(error, KafkaError)
            and error.code in _SEQUENCE_LOST
        )

    def _settle(
        self,
        batch: ProducerBatch,
        *,
        base_offset: int = -1,
        append_time: int = -1,
        error: OdradekError | None = None,
    ) -> None:
        if batch.done.is_set():
            return
        self._batches.settle(batch, base_offset=base_offset, append_time=append_time, error=error)
        self._settled.set()
        self._settled = trio.Event()
        if self._observer is not None:
            seconds = trio.current_time() - batch.created
            self._observer(
                BatchOutcome(
                    batch.partition, batch.records, batch.size, base_offset, seconds, error
                )
            )
