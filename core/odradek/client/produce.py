"""A producer: records in, acknowledgements out; batches, retries and order are its own affair."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from operator import index as as_index

import trio

from odradek.client.accumulator import RECORD_OVERHEAD
from odradek.client.batches import PartitionQueue
from odradek.client.cluster import Cluster, cluster_from
from odradek.client.delivery import (
    BatchOutcome,
    Deliveries,
    Delivery,
    FailedRange,
    Piece,
    RecordMetadata,
    RecordRange,
)
from odradek.client.errors import ClientClosed
from odradek.client.health import ProducerHealth
from odradek.client.metadata import TopicInfo
from odradek.client.partitioner import Partitioner, Queues, partition_for_key
from odradek.client.routes import Route, no_partition
from odradek.client.sender import Sender
from odradek.client.settings import ClientSettings, ProducerSettings
from odradek.contracts.background import open_tasks
from odradek.contracts.transport import Transport
from odradek.record import HEADER_SIZE, batch_size_bound
from odradek.record.builder import checked

__all__ = [
    "BatchOutcome",
    "Deliveries",
    "Delivery",
    "FailedRange",
    "Producer",
    "RecordMetadata",
    "RecordRange",
    "open_producer",
]

Header = tuple[str, bytes | None]

_BYTES: frozenset[type] = frozenset({bytes})
_BYTES_OR_NULL: frozenset[type] = frozenset({bytes, type(None)})
_FAR = 2**62


@asynccontextmanager
async def open_producer(
    cluster: Cluster | str | Iterable[str],
    settings: ProducerSettings | None = None,
    *,
    partitioner: Partitioner | None = None,
    observer: Callable[[BatchOutcome], None] | None = None,
    now_ms: Callable[[], int] | None = None,
    client_settings: ClientSettings | None = None,
    transport: Transport | None = None,
) -> AsyncIterator[Producer]:
    """Give a `Producer` and own its tasks; leaving flushes, leaving by an exception gives up.

    `cluster` is an open one, or bootstrap addresses: then the producer has one of its own, opened
    with `client_settings` and `transport` as by `open_cluster`, and closes it. `partitioner`
    chooses partitions instead of the key. `observer` is called for every batch that ends; it must
    not raise. `now_ms` stamps records that have no timestamp; the system's clock by default.

    Raises as `open_cluster` does.
    """
    async with cluster_from(cluster, client_settings, transport) as shared, open_tasks() as nursery:
        producer = Producer(
            shared,
            settings or ProducerSettings(),
            nursery,
            partitioner=partitioner,
            observer=observer,
            now_ms=now_ms or _system_clock_ms,
        )
        nursery.start_soon(producer._sender.run)
        try:
            yield producer
            await producer.flush()
        finally:
            producer._sender.give_up(ClientClosed("the producer was closed"))


def _system_clock_ms() -> int:
    return time.time_ns() // 1_000_000


class Producer:
    """Sends records in batches; made by `open_producer`. Any number of tasks may use it.

    Records of one partition arrive in the order in which they were taken: those of a call that
    began after another had returned come behind the other's. Of calls by several tasks that wait
    at the same time, for room or for metadata, any may be first. With `idempotent` none is written
    twice by a retry.
    """

    def __init__(
        self,
        cluster: Cluster,
        settings: ProducerSettings,
        nursery: trio.Nursery,
        *,
        partitioner: Partitioner | None,
        observer: Callable[[BatchOutcome], None] | None,
        now_ms: Callable[[], int],
    ) -> None:
        self.settings = settings
        self.cluster = cluster
        self._sender = Sender(cluster, settings, nursery, observer)
        self._batches = self._sender.batches
        self._now_ms = now_ms
        self._partitioner = partitioner
        self._routes: dict[str, Route] = {}
        self._direct: dict[str, Route] = {}  # the same, or none of them with a partitioner
        self._line = trio.Lock()  # fair: whoever waits longest for room gets it

    @property
    def buffered_bytes(self) -> int:
        """Bytes of the buffer that records hold whose fate is open; open batches hold some ahead
        of the records to come."""
        return self._batches.buffered

    @property
    def health(self) -> ProducerHealth:
        """How the producer is doing now."""
        return self._sender.health()

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
        partition gets a batch's worth in turn. `timestamp` in ms, now by default. Cancelled: the
        record was not taken. Yields once in 16 KiB of records, at the latest when a batch is full.

        Raises KafkaError for an unknown topic or partition and for a record that is too large
        (MESSAGE_TOO_LARGE), NotReachable while no broker ever answered, ClientClosed; TypeError
        for a key, value or header's value that is neither bytes nor None, and a partition or
        timestamp that is no whole number; OverflowError for a timestamp of more than 64 bits. Then
        too the record was not taken.
        """
        # Every line up to the call of `_send` runs for every record: this is the hot path.
        if timestamp is None:
            timestamp = self._now_ms()
        if headers.__class__ is not tuple:
            headers = tuple(headers)
        route = self._direct.get(topic)
        if route is not None:
            if partition is not None:
                queue = route.queues.get(partition)
            elif key is None:
                queue = route.sticky.current
            else:
                queue = route.queues.get(partition_for_key(key, route.count))
            if queue is not None and (batch := queue.open) is not None:
                builder = batch.builder
                index = len(builder)  # type: ignore[arg-type]  # an open batch has its builder
                if builder.append(timestamp, key, value, headers):  # type: ignore[union-attr]
                    return Delivery(batch, index, timestamp)
        return await self._send(topic, value, key, headers, partition, timestamp)

    async def _send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        headers: tuple[Header, ...],
        partition: int | None,
        timestamp: int,
    ) -> Delivery:
        """Take a record for which no open batch has room as it is."""
        timestamp = as_index(timestamp)
        headers = checked(key, value, headers)
        if partition is not None:
            partition = as_index(partition)
        self._check_open()
        route = await self._route(topic, partition)
        if self._partitioner is not None and partition is None:
            partition = route.ask(key, value)
        batches = self._batches
        needed = batch_size_bound(key, value, headers)
        async with self._line:
            while True:
                self._check_open()
                queue = route.queue(key, partition)
                batch = batches.join(queue, timestamp, key, value, headers)
                if batch is None:
                    queue = route.queue(key, partition)  # the sticky one may be another
                    now = trio.current_time()
                    batch = batches.join(queue, timestamp, key, value, headers) or batches.start(
                        queue, timestamp, key, value, headers, now
                    )
                    self._sender.notify(queue)
                if batch is not None:
                    return Delivery(batch, batch.records - 1, timestamp)
                await self._room(needed)

    async def send_many(
        self,
        topic: str,
        values: Sequence[bytes | None],
        *,
        keys: Sequence[bytes | None] | None = None,
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> Deliveries:
        """Take many records at once: all of them, or none when it raises or is cancelled.

        Like as many calls of `send`, at a fraction of the cost; `keys`, as many as `values`, are
        null without, and all get the same `timestamp`. Waits until the buffer has room for all,
        so that they have to fit into it (`buffer_bytes`). Does not yield while it takes them: 0.2
        microseconds each with the compiled codec, ten times as much without.

        Raises as `send` does; ValueError for keys of another number, a timestamp out of range, and
        records that do not fit into the buffer together.
        """
        if timestamp is None:
            timestamp = self._now_ms()
        timestamp = as_index(timestamp)
        if not -_FAR < timestamp < _FAR:
            raise ValueError(f"a timestamp of {timestamp} ms")
        if partition is not None:
            partition = as_index(partition)
        size = self._size_of(values, keys)
        self._check_open()
        route = await self._route(topic, partition)
        async with self._line:
            while True:
                self._check_open()
                if not values:
                    return Deliveries((), timestamp)
                if self._batches.has_room(size):
                    return Deliveries(
                        self._take(route, timestamp, values, keys, partition), timestamp
                    )
                await self._room(size)

    def _size_of(self, values: Sequence[bytes | None], keys: Sequence[bytes | None] | None) -> int:
        """Return an upper bound of what the records take, or raise what is wrong with them."""
        overhead = RECORD_OVERHEAD
        size = largest = 0
        for given in (values,) if keys is None else (values, keys):
            types = set(map(type, given))
            if types <= _BYTES:
                sizes = list(map(len, given))  # type: ignore[arg-type]
            elif types <= _BYTES_OR_NULL:
                sizes = [0 if each is None else len(each) for each in given]
            else:
                sizes = []
                for each in given:
                    checked(None, each)
                    sizes.append(len(each or b""))
            size += sum(sizes)
            largest += max(sizes, default=0)
        if keys is not None and len(keys) != len(values):
            raise ValueError(f"{len(keys)} keys for {len(values)} values")
        if largest + overhead + HEADER_SIZE > self.settings.max_request_bytes:
            for key, value in zip(keys or [None] * len(values), values, strict=True):
                self._batches.check_size(
                    HEADER_SIZE + overhead + len(key or b"") + len(value or b"")
                )
        size += len(values) * overhead
        size += (size // self._batches.largest + 1) * HEADER_SIZE
        if size > self.settings.buffer_bytes and len(values) > 1:
            raise ValueError(
                f"{len(values)} records of about {size} bytes at once, and the producer's buffer "
                f"has {self.settings.buffer_bytes}: hand over fewer"
            )
        return size

    def _take(
        self,
        route: Route,
        timestamp: int,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None,
        partition: int | None,
    ) -> list[Piece]:
        """Put all records into batches; there is room for them, and they are as they should be."""
        if partition is not None:
            return self._extend(route.queues[partition], timestamp, values, keys)
        if keys is None and self._partitioner is None:
            return self._extend(None, timestamp, values, None, route)
        pieces: list[Piece] = []
        for number, indexes in route.spread(values, keys).items():
            queue = None if number is None else route.queues[number]
            some = [values[index] for index in indexes]
            theirs = None if keys is None else [keys[index] for index in indexes]
            pieces += self._extend(queue, timestamp, some, theirs, route, indexes)
        return pieces

    def _extend(
        self,
        queue: PartitionQueue | None,
        timestamp: int,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None,
        route: Route | None = None,
        indexes: Sequence[int] | None = None,
    ) -> list[Piece]:
        """Put records into one partition's batches, or into those of the sticky one."""
        pieces: list[Piece] = []
        places = range(len(values)) if indexes is None else indexes
        now = trio.current_time()
        start = 0
        while start < len(values):
            target = queue
            if target is None:
                assert route is not None
                target = route.queue(None, None)
            batch, first, taken = self._batches.extend(target, timestamp, values, keys, start, now)
            pieces.append(Piece(batch, first, places[start : start + taken]))
            start += taken
            self._sender.notify(target)
        return pieces

    async def flush(self, timeout: float | None = None) -> int:
        """Wait until the fate of every record taken before is known, lingering for none of them;
        return 0, or after `timeout` seconds the number of records whose fate is still open.

        Raises nothing on their account: the deliveries and the observer tell. Cancelling stops
        the waiting only.
        """
        waiting = self._batches.seal_all()
        self._sender.notify_all()
        with trio.move_on_after(float("inf") if timeout is None else timeout):
            for batch in waiting:
                await batch.done.wait()
        return sum(batch.records for batch in waiting if not batch.done.is_set())

    # Where records go

    def _check_open(self) -> None:
        if self._sender.closed is not None:
            raise ClientClosed(f"the producer is closed: {self._sender.closed}")

    async def _room(self, size: int) -> None:
        """Send what there is, and wait until a batch is settled unless that made room."""
        self._batches.seal_all()
        self._sender.notify_all()
        if not self._batches.has_room(size):
            await self._sender.settled.wait()
        else:
            await trio.lowlevel.checkpoint()

    async def _route(self, topic: str, partition: int | None) -> Route:
        known = self.cluster.metadata.topics.get(topic)
        if known is None or (partition is not None and not 0 <= partition < len(known.partitions)):
            known = await self._find(topic, partition)
        route = self._routes.get(topic)
        if route is None:
            queues = Queues(topic, self._batches.queue)
            largest = self._batches.largest
            route = self._routes[topic] = Route(known, queues, largest, self._partitioner)
            if self._partitioner is None:
                self._direct[topic] = route
        route.update(known)
        return route

    async def _find(self, topic: str, partition: int | None) -> TopicInfo:
        found = await self.cluster.topic(topic, create=self.settings.create_topics)
        if partition is not None and not 0 <= partition < len(found.partitions):
            generation = self.cluster.metadata.generation
            image = await self.cluster.retrying(
                lambda: self.cluster.renew((topic,), newer_than=generation),
                timeout=self.cluster.settings.request_timeout,
            )
            found = image.topics.get(topic, found)
            if not 0 <= partition < len(found.partitions):
                raise no_partition(found, partition)
        return found
