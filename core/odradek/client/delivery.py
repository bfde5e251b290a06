"""What a producer says about the records it was given."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from odradek.client.batches import ProducerBatch
from odradek.client.metadata import TopicPartition
from odradek.errors import OdradekError

__all__ = ["BatchOutcome", "Deliveries", "Delivery", "FailedRange", "RecordMetadata", "RecordRange"]


class RecordMetadata(NamedTuple):
    """Where a record is. `offset` is -1 where the broker did not say: with acks = 0, and for the
    repetition of a batch that it had long before. `timestamp` in ms as the log has it."""

    topic: str
    partition: int
    offset: int
    timestamp: int


class RecordRange(NamedTuple):
    """Where neighbouring records are: `indexes[i]` is the place, among the values handed over, of
    the record at `base_offset + i`. `base_offset` is -1 where the broker did not say."""

    topic: str
    partition: int
    base_offset: int
    timestamp: int
    indexes: Sequence[int]


class FailedRange(NamedTuple):
    """Records that share a failure; `indexes` are their places among the values handed over."""

    topic: str
    partition: int
    error: OdradekError
    indexes: Sequence[int]


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
            raise batch.error.with_traceback(None)  # of whom it was raised to before
        topic, partition = batch.partition
        offset = batch.base_offset + self._index if batch.base_offset >= 0 else -1
        timestamp = batch.append_time if batch.append_time >= 0 else self._timestamp
        return RecordMetadata(topic, partition, offset, timestamp)


class Piece(NamedTuple):
    """Records handed over that lie in one batch, one after the other from `first` on."""

    batch: ProducerBatch
    first: int
    indexes: Sequence[int]


class Deliveries:
    """Records that were handed over at once, on their way in one batch or in several.

    Batches fail one by one, so that some of the records may be acknowledged and others not:
    `delivered` and `failed` tell which.
    """

    __slots__ = ("_pieces", "_timestamp")

    def __init__(self, pieces: Sequence[Piece], timestamp: int) -> None:
        self._pieces = pieces
        self._timestamp = timestamp

    def __len__(self) -> int:
        return sum(len(piece.indexes) for piece in self._pieces)

    @property
    def done(self) -> bool:
        """Whether the fate of every record is known."""
        return all(piece.batch.done.is_set() for piece in self._pieces)

    async def settled(self) -> None:
        """Return when the fate of every record is known, whatever it is."""
        for piece in self._pieces:
            await piece.batch.done.wait()

    async def wait(self) -> list[RecordRange]:
        """Return where the records are once all are acknowledged as `acks` says.

        Cancelling stops the waiting only. When any of them failed, raises what became of the
        first that did, as `Delivery.wait` would, when the fate of all is known; `delivered` and
        `failed` have the rest.
        """
        await self.settled()
        for failure in self._failed():
            raise failure.error.with_traceback(None)
        return self.delivered

    @property
    def delivered(self) -> list[RecordRange]:
        """The records acknowledged so far, in ranges; in each partition in order."""
        found = []
        for batch, first, indexes in self._pieces:
            if batch.done.is_set() and batch.error is None:
                topic, partition = batch.partition
                offset = batch.base_offset + first if batch.base_offset >= 0 else -1
                timestamp = batch.append_time if batch.append_time >= 0 else self._timestamp
                found.append(RecordRange(topic, partition, offset, timestamp, indexes))
        return found

    @property
    def failed(self) -> list[FailedRange]:
        """The records that failed so far, and why."""
        return list(self._failed())

    def _failed(self) -> Iterator[FailedRange]:
        for piece in self._pieces:
            if piece.batch.error is not None:
                topic, partition = piece.batch.partition
                yield FailedRange(topic, partition, piece.batch.error, piece.indexes)
