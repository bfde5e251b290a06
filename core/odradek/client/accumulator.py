"""The producer's records on their way: collected into batches, in order, per partition.

No I/O and no clock: `now` is an argument, in seconds of any monotonic clock. One task or many may
call, within one trio run: nothing here awaits.

The buffer is charged by the step, not by the record: an open batch holds a piece of it ahead of
its records, and its builder's `max_bytes` is that piece. So a record that fits costs a call of
the builder and nothing else; `join` comes in when it does not. Sealing gives back what is left.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from odradek.client.batches import Identity, PartitionQueue, ProducerBatch
from odradek.client.errors import OutcomeUnknown
from odradek.client.metadata import TopicPartition
from odradek.client.settings import ProducerSettings
from odradek.errors import ErrorCode, KafkaError, OdradekError
from odradek.record import HEADER_SIZE, BatchBuilder, batch_size_bound

__all__ = ["Accumulator", "Identity", "PartitionQueue", "ProducerBatch"]

Header = tuple[str, bytes | None]

RECORD_OVERHEAD = batch_size_bound(None, None) - HEADER_SIZE
"""The most bytes that a record without headers takes besides its key and value."""
_FIRST_STEP = 2 * 1024
_STEP = 16 * 1024
"""What a batch is charged at once. In so many bytes of small records the task that sends yields
once, and a partition holds at most so much of the buffer without a use."""


class Accumulator:
    """Every partition's queue, under one bound of memory."""

    def __init__(self, settings: ProducerSettings) -> None:
        self.settings = settings
        self.queues: dict[TopicPartition, PartitionQueue] = {}
        self.active: dict[TopicPartition, PartitionQueue] = {}
        """The queues that are not empty: the only ones that need looking at."""
        self.buffered = 0
        """Bytes held by records that are not settled yet, and ahead for records to come."""
        self.identity_spent = False
        """Whether a partition waits for an identity other than the one `take` was given last."""
        self.largest = min(settings.batch_bytes, settings.max_request_bytes)
        """Bytes of a batch, unless a single record needs more."""
        self._serial = 0
        self._limit = settings.max_in_flight if settings.idempotent else 1

    def queue(self, partition: TopicPartition) -> PartitionQueue:
        """Return the partition's queue; it is there from now on."""
        found = self.queues.get(partition)
        if found is None:
            found = self.queues[partition] = PartitionQueue(partition)
        return found

    def has_room(self, size: int) -> bool:
        """Whether `size` more bytes may be buffered; into an empty buffer they always may."""
        return self.buffered == 0 or self.buffered + size <= self.settings.buffer_bytes

    # Records in

    def join(
        self,
        queue: PartitionQueue,
        timestamp: int,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[Header] = (),
    ) -> ProducerBatch | None:
        """Add a record to the open batch and return that.

        None: there is no open batch (any more). It was sealed, because it is full or because the
        buffer has no room for it to grow.
        """
        batch = queue.open
        if batch is None:
            return None
        builder = batch.builder
        assert builder is not None
        if builder.append(timestamp, key, value, headers):
            return batch
        if batch.charged < batch.limit:
            needed = builder.size + batch_size_bound(key, value, headers) - HEADER_SIZE
            step = max(needed, batch.charged + _STEP)
            grown = self._charge(batch, step) or self._charge(batch, needed)
            if grown and builder.append(timestamp, key, value, headers):
                return batch
        self.seal(queue)
        return None

    def start(
        self,
        queue: PartitionQueue,
        timestamp: int,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[Header],
        now: float,
    ) -> ProducerBatch | None:
        """Add a record to a new batch and return that; None while the buffer has no room.

        Only where there is no open batch. Raises KafkaError MESSAGE_TOO_LARGE for a record that
        no request may carry.
        """
        assert queue.open is None
        needed = batch_size_bound(key, value, headers)
        limit = self.largest
        if needed > limit:
            self.check_size(needed)
            limit = max(needed, limit)
        wanted = min(max(needed, _FIRST_STEP), limit)
        size = wanted if self.has_room(wanted) else needed
        if not self.has_room(size):
            return None
        builder = BatchBuilder(size, compression=self.settings.compression)
        if not builder.append(timestamp, key, value, headers):
            raise AssertionError("a batch made to measure has no room")
        batch = self._open(queue, builder, limit, now)
        batch.charged = size
        self.buffered += size
        return batch

    def extend(
        self,
        queue: PartitionQueue,
        timestamp: int,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None,
        start: int,
        now: float,
    ) -> tuple[ProducerBatch, int, int]:
        """Add records from `start` on to one batch, the open one or a new one, as many as fit.

        Return the batch, how many records it had before, and how many it took: at least one. The
        caller has seen that there is room for all, and that none is too large. A batch that takes
        no more is sealed.
        """
        while True:
            batch = queue.open
            if batch is None:
                limit = self.largest
                needed = batch_size_bound(keys[start] if keys else None, values[start])
                builder = BatchBuilder(max(limit, needed), compression=self.settings.compression)
                batch = self._open(queue, builder, max(limit, needed), now)
            opened = batch.builder
            assert opened is not None
            before = len(opened)
            opened.max_bytes = batch.limit
            taken = opened.extend(timestamp, values, keys, start)
            assert before + taken, "a batch made to measure has no room"
            self.buffered += opened.size - batch.charged
            batch.charged = opened.max_bytes = opened.size
            if start + taken < len(values):
                self.seal(queue)
            if taken:
                return batch, before, taken

    def check_size(self, needed: int) -> None:
        """Raise KafkaError MESSAGE_TOO_LARGE when `needed` bytes do not fit into a request."""
        largest = self.settings.max_request_bytes
        if needed > largest:
            raise KafkaError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"a record of {needed} bytes, and a request may have {largest}",
            )

    def _open(
        self, queue: PartitionQueue, builder: BatchBuilder, limit: int, now: float
    ) -> ProducerBatch:
        batch = queue.open = ProducerBatch(queue.partition, builder, now, self._serial, limit)
        self._serial += 1
        self.active[queue.partition] = queue
        return batch

    def _charge(self, batch: ProducerBatch, size: int) -> bool:
        """Let the batch grow to `size`, within its limit, if the buffer has room."""
        size = min(size, batch.limit)
        more = size - batch.charged
        if more > 0 and not self.has_room(more):
            return False
        self.buffered += more
        batch.charged = size
        assert batch.builder is not None
        batch.builder.max_bytes = size
        return True

    def seal(self, queue: PartitionQueue) -> None:
        """End the open batch, if there is one: it takes no more records and may be sent."""
        batch = queue.open
        if batch is not None:
            queue.open = None
            size = batch.size
            self.buffered -= batch.charged - size
            batch.charged = size
            queue.sealed_bytes += size
            queue.ready.append(batch)

    def seal_all(self) -> list[ProducerBatch]:
        """Seal every open batch; return all that is on its way."""
        for queue in self.active.values():
            self.seal(queue)
        return [batch for queue in self.active.values() for batch in queue.batches()]

    # Batches out

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
                self.seal(queue)
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
        self.buffered -= batch.charged
        batch.charged = 0
        if batch.base_sequence >= 0:
            queue.gap |= error is not None
            queue.proven |= error is None
        batch.settled(base_offset, append_time, error)

    def overdue(self, now: float) -> list[ProducerBatch]:
        """Return the batches whose delivery timeout is over, wherever they are."""
        oldest = now - self.settings.delivery_timeout
        return [
            batch
            for queue in self.active.values()
            for batch in queue.batches()
            if batch.created <= oldest
        ]

    def next_overdue(self) -> float:
        """Return when the delivery timeout of the oldest record ends; infinite without any."""
        oldest = min((queue.oldest() for queue in self.active.values()), default=float("inf"))
        return oldest + self.settings.delivery_timeout
