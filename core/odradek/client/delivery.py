"""What a producer says about the records it was given."""

from __future__ import annotations

from typing import NamedTuple

from odradek.client.accumulator import ProducerBatch
from odradek.client.metadata import TopicPartition
from odradek.errors import OdradekError

__all__ = ["BatchOutcome", "Delivery", "RecordMetadata"]


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
