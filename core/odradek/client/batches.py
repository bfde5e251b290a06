"""A producer's batches, and the queue of one partition. Sans-IO: no clock, nothing awaits.

A partition's records are in three places: the **open** batch, which still takes records; the
**ready** ones, sealed and waiting to be sent, or to be sent again; and those **in flight**. A
batch gets its sequence number when it is sent for the first time. When one comes back it returns
to its place among the ready ones, and nothing of that partition is sent until everything else in
flight has come back too: so retries never change the order, and an idempotent producer's sequence
numbers stay dense.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

import trio

from odradek.client.metadata import TopicPartition
from odradek.errors import OdradekError
from odradek.record import BatchBuilder

__all__ = ["Identity", "PartitionQueue", "ProducerBatch"]


class Identity(NamedTuple):
    """What an idempotent producer is known by."""

    producer_id: int
    epoch: int


class ProducerBatch:
    """Records that are sent, acknowledged and failed together.

    `limit`: the bytes it may grow to; `charged`: the bytes of the producer's buffer that it holds
    now, which its builder does not outgrow.
    `outcome_unknown`: it was sent, and no answer came: it may be in the log.
    `last_error`: why the latest attempt failed.
    `base_offset` is -1 when the broker did not say (acks = 0, or a duplicate long past).
    """

    __slots__ = (
        "_records",
        "_size",
        "append_time",
        "attempts",
        "base_offset",
        "base_sequence",
        "builder",
        "charged",
        "created",
        "done",
        "error",
        "last_error",
        "limit",
        "outcome_unknown",
        "partition",
        "serial",
    )

    def __init__(
        self,
        partition: TopicPartition,
        builder: BatchBuilder,
        created: float,
        serial: int,
        limit: int,
    ) -> None:
        self.partition = partition
        self.builder: BatchBuilder | None = builder  # until it is settled
        self.created = created
        self.serial = serial
        self.limit = limit
        self.charged = 0
        self.attempts = 0
        self.outcome_unknown = False
        self.base_sequence = -1
        self.base_offset = -1
        self.append_time = -1
        self.error: OdradekError | None = None
        self.last_error: OdradekError | None = None
        self.done = trio.Event()
        self._records = 0
        self._size = 0

    @property
    def records(self) -> int:
        """How many records it has."""
        return self._records if self.builder is None else len(self.builder)

    @property
    def size(self) -> int:
        """Bytes of the batch, uncompressed."""
        return self._size if self.builder is None else self.builder.size

    def settled(self, base_offset: int, append_time: int, error: OdradekError | None) -> None:
        """Take down what became of it, let go of its bytes, and wake who waits."""
        self._records, self._size = self.records, self.size
        self.builder = None
        self.base_offset = base_offset
        self.append_time = append_time
        self.error = error
        self.done.set()


class PartitionQueue:
    """The batches of one partition.

    `sealed_bytes` counts up for ever: by it the sticky partitioner sees what a partition got.
    `proven`: the broker acknowledged a batch under the present identity. Brokers accept any
    sequence number of a producer they have not heard of (KIP-360), so that until then a second
    batch in flight would be written before the first, should that one be refused.
    """

    __slots__ = (
        "failed",
        "gap",
        "identity",
        "in_flight",
        "next_sequence",
        "not_before",
        "open",
        "partition",
        "proven",
        "ready",
        "sealed_bytes",
    )

    def __init__(self, partition: TopicPartition) -> None:
        self.partition = partition
        self.open: ProducerBatch | None = None
        self.ready: deque[ProducerBatch] = deque()
        self.in_flight: list[ProducerBatch] = []
        self.failed = False
        self.gap = False
        self.proven = False
        self.not_before = 0.0
        self.identity: Identity | None = None
        self.next_sequence = 0
        self.sealed_bytes = 0

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

    def oldest(self) -> float:
        """Return when the oldest record on its way was taken; infinite when there is none."""
        return min((batch.created for batch in self.batches()), default=float("inf"))

    def may_send(self, limit: int) -> bool:
        """Whether another batch may go while `limit` may be in flight, time aside."""
        if (self.failed or self.gap or not self.proven) and self.in_flight:
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
        self.proven = False
        for batch in self.ready:
            batch.base_sequence = -1
        return [batch for batch in self.ready if batch.outcome_unknown]
