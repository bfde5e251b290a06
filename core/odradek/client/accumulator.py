"""The producer's records on their way: collected into batches, in order, per partition.

No I/O and no clock: `now` is an argument, in seconds of any monotonic clock. One task or many may
call, within one trio run: nothing here awaits.

A partition's records are in three places: the **open** batch, which still takes records; the
**ready** ones, sealed and waiting to be sent, or to be sent again; and those **in flight**. A
batch gets its sequence number when it is sent for the first time. When one comes back it returns
to its place among the ready ones, and nothing of that partition is sent until everything else in
flight has come back too: so retries never change the order, and an idempotent producer's sequence
numbers stay dense.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

import trio

from odradek.client.errors import OutcomeUnknown
from odradek.client.metadata import TopicPartition
from odradek.client.settings import ProducerSettings
from odradek.errors import ErrorCode, KafkaError, OdradekError
from odradek.record import BatchBuilder, batch_size_bound

__all__ = ["Accumulator", "Identity", "PartitionQueue", "ProducerBatch"]

Header = tuple[str, bytes | None]


class Identity(NamedTuple):
    """What an idempotent producer is known by."""

    producer_id: int
    epoch: int


class ProducerBatch:
    """Records that are sent, acknowledged and failed together.

    `outcome_unknown`: it was sent, and no answer came: it may be in the log.
    `last_error`: why the latest attempt failed.
    `base_offset` is -1 when the broker did not say (acks = 0, or a duplicate long past).
    """

    __slots__ = (
        "append_time",
        "attempts",
        "base_offset",
        "base_sequence",
        "builder",
        "created",
        "done",
        "error",
        "last_error",
        "outcome_unknown",
        "partition",
        "records",
        "serial",
        "size",
    )

    def __init__(
        self, partition: TopicPartition, builder: BatchBuilder, created: float, serial: int
    ) -> None:
        self.partition = partition
        self.builder: BatchBuilder | None = builder  # until it is settled
        self.created = created
        self.serial = serial
        self.attempts = 0
        self.outcome_unknown = False
        self.base_sequence = -1
        self.records = 0
        self.size = 0
        self.base_offset = -1
        self.append_time = -1
        self.error: OdradekError | None = None
        self.last_error: OdradekError | None = None
        self.done = trio.Event()


class PartitionQueue:
    """The batches of one partition."""

    __slots__ = (
        "failed",
        "gap",
        "identity",
        "in_flight",
        "next_sequence",
        "not_before",
        "open",
        "partition",
        "ready",
    )

    def __init__(self, partition: TopicPartition) -> None:
        self.partition = partition
        self.open: ProducerBatch | None = None
        self.ready: deque[ProducerBatch] = deque()
        self.in_flight: list[ProducerBatch] = []
        self.failed = False
        self.gap = False
        self.not_before = 0.0
        self.identity: Identity | None = None
        self.next_sequence = 0

    @property
    def empty(self) -> bool:
        """Whether nothing is on its way."""
        return self.open is None and not self.ready and not self.in_flight

    def batches(self) -> Iterator[ProducerBatch]:
        """Yield every batch on its way, oldest first."""
        yield from self.in_flight
        yield from self.ready
        if self.open is not None:
            yield self.open

    def seal(self) -> None:
        """End the open batch: it takes no more records and may be sent."""
        if self.open is not None:
            self.ready.append(self.open)
            self.open = None

    def may_send(self, limit: int) -> bool:
        """Whether another batch may go while `limit` may be in flight, time aside."""
        if (self.failed or self.gap) and self.in_flight:
            return False
        return len(self.in_flight) < limit

    def put_back(self, batch: ProducerBatch) -> None:
        """Return a batch that came back to its place among those to be sent."""
        self.in_flight.remove(batch)
        self.failed = True
        place = 0
        while place < len(self.ready) and self.ready[place].serial < batch.serial:
            place += 1
        self.ready.insert(place, batch)

    def renumber(self) -> list[ProducerBatch]:
        """Give up the identity: what is sent from now on counts from 0 under another one.

        Only when nothing is in flight. Returns the batches that must not be sent under a new
        identity, since they may be in the log under the old one: the caller settles them.
        """
        assert not self.in_flight
        self.identity = None
        self.gap = False
        for batch in self.ready:
            batch.base_sequence = -1
        return [batch for batch in self.ready if batch.outcome_unknown]


class Accumulator:
    """Every partition's queue, under one bound of memory."""

    def __init__(self, settings: ProducerSettings) -> None:
        self.settings = settings
        self.queues: dict[TopicPartition, PartitionQueue] = {}
        self.active: dict[TopicPartition, PartitionQueue] = {}
        """The queues that are not empty: the only ones that need looking at."""
        self.buffered = 0
        """Bytes of records accepted and not settled yet."""
        self.identity_spent = False
        """Whether a partition waits for an identity other than the one `take` was given last."""
        self._serial = 0
        self._limit = settings.max_in_flight if settings.idempotent else 1

    def has_room(self, size: int) -> bool:
        """Whether a record of `size` bytes may be taken; one always may."""
        return self.buffered == 0 or self.buffered + size <= self.settings.buffer_bytes

    def append(
        self,
        partition: TopicPartition,
        timestamp: int,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[Header],
        now: float,
    ) -> ProducerBatch:
        """Add a record to the partition's open batch, or to a new one, and return that.

        Raises KafkaError MESSAGE_TOO_LARGE for a record that no request may carry.
        """
        queue = self.queues.get(partition)
        if queue is None:
            queue = self.queues[partition] = PartitionQueue(partition)
        batch = queue.open
        builder = None if batch is None else batch.builder
        if builder is not None and not builder.append(timestamp, key, value, headers):
            queue.seal()
            builder = None
        if batch is None or builder is None:
            builder = self._builder(key, value, headers)
            if not builder.append(timestamp, key, value, headers):
                raise AssertionError("a batch made to measure has no room")
            batch = queue.open = ProducerBatch(partition, builder, now, self._serial)
            self._serial += 1
            self.active[partition] = queue
        grown = builder.size - batch.size
        batch.size += grown
        self.buffered += grown
        batch.records += 1
        return batch

    def goes_on(self, partition: TopicPartition, size: int) -> bool:
        """Whether a record of about `size` bytes would join others in an open batch.

        If not, a full one is sealed: whoever may choose another partition does so now.
        """
        queue = self.queues.get(partition)
        if queue is None or queue.open is None:
            return False
        builder = queue.open.builder
        if builder is not None and builder.size + size <= builder.max_bytes:
            return True
        queue.seal()
        return False

    def _builder(
        self, key: bytes | None, value: bytes | None, headers: Sequence[Header]
    ) -> BatchBuilder:
        largest = min(self.settings.batch_bytes, self.settings.max_request_bytes)
        plain = len(key or b"") + len(value or b"")
        if headers or plain + 256 > largest:
            needed = batch_size_bound(key, value, headers)
            if needed > self.settings.max_request_bytes:
                raise KafkaError(
                    ErrorCode.MESSAGE_TOO_LARGE,
                    f"a record of {needed} bytes, and a request may have "
                    f"{self.settings.max_request_bytes}",
                )
            largest = max(largest, needed)
        return BatchBuilder(largest, compression=self.settings.compression)

    def seal_all(self) -> list[ProducerBatch]:
        """Seal every open batch; return all that is on its way."""
        for queue in self.active.values():
            queue.seal()
        return [batch for queue in self.active.values() for batch in queue.batches()]

    def take(
        self, partitions: Collection[TopicPartition], now: float, identity: Identity | None
    ) -> tuple[list[ProducerBatch], float]:
        """Return what one request may carry now, and when to look again if that is nothing.

        At most one batch for each of `partitions`, in all up to the request's size. Each is in
        flight now, and has its identity and sequence number. The time is that of the next linger
        or back-off to end; infinite when only an event can change anything.
        """
        taken: list[ProducerBatch] = []
        room = self.settings.max_request_bytes
        again = float("inf")
        for partition in partitions:
            queue = self.active.get(partition)
            if queue is None or not queue.may_send(self._limit):
                continue
            if queue.not_before > now:
                again = min(again, queue.not_before)
                continue
            if not queue.ready and queue.open is not None:
                due = queue.open.created + self.settings.linger
                if due > now:
                    again = min(again, due)
                    continue
                queue.seal()
            if not queue.ready:
                continue
            if queue.gap:
                if queue.identity == identity:
                    self.identity_spent = True
                    continue
                self._renumber(queue)
                if not queue.ready:
                    continue
            batch = queue.ready[0]
            if taken and batch.size > room:
                again = now
                continue
            queue.ready.popleft()
            queue.failed = False
            room -= batch.size
            self._number(queue, batch, identity)
            queue.in_flight.append(batch)
            self.active[partition] = self.active.pop(partition)  # the others are next
            batch.attempts += 1
            taken.append(batch)
        return taken, again

    def _renumber(self, queue: PartitionQueue) -> None:
        for batch in queue.renumber():
            self.settle(
                batch,
                error=OutcomeUnknown(
                    f"{batch.records} records for partition {batch.partition} were sent, no "
                    "answer came, and the broker cannot recognise a repetition any more"
                ),
            )
        queue.gap = False

    def _number(
        self, queue: PartitionQueue, batch: ProducerBatch, identity: Identity | None
    ) -> None:
        if identity is None:
            return
        if queue.identity is None:
            queue.identity = identity
            queue.next_sequence = 0
        if batch.base_sequence < 0:
            batch.base_sequence = queue.next_sequence
            queue.next_sequence = (queue.next_sequence + batch.records) & 0x7FFFFFFF
        builder = batch.builder
        assert builder is not None
        builder.producer_id, builder.producer_epoch = queue.identity
        builder.base_sequence = batch.base_sequence

    def settle(
        self,
        batch: ProducerBatch,
        *,
        base_offset: int = -1,
        append_time: int = -1,
        error: OdradekError | None = None,
    ) -> None:
        """End a batch, in flight or not: acknowledged, or failed with `error`.

        A failed one that had a sequence number leaves a gap, which brokers do not accept: the
        partition's next batches count anew, under a new identity if the caller gets one.
        """
        queue = self.queues[batch.partition]
        if batch in queue.in_flight:
            queue.in_flight.remove(batch)
        elif batch in queue.ready:
            queue.ready.remove(batch)
        elif queue.open is batch:
            queue.open = None
        if queue.empty:
            self.active.pop(batch.partition, None)
        self.buffered -= batch.size
        batch.base_offset = base_offset
        batch.append_time = append_time
        batch.error = error
        batch.builder = None
        if error is not None and batch.base_sequence >= 0:
            queue.gap = True
        batch.done.set()

    def overdue(self, now: float) -> list[ProducerBatch]:
        """Return the batches, not in flight, whose delivery timeout is over."""
        oldest = now - self.settings.delivery_timeout
        return [
            batch
            for queue in self.active.values()
            for batch in (*queue.ready, *((queue.open,) if queue.open else ()))
            if batch.created <= oldest
        ]
