"""The iterators that records come out of. Each is for one task; several may share the same buffers.

Records are handed out without a system call, a task switch or an object of trio's each: a stream
keeps the decoded batch, and reaches a checkpoint when a slice of time is over or the batch is at
its end. A stream is an object and not an async generator, because a generator that is cancelled
is at its end, and what it had in hand is lost.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from operator import length_hint
from time import perf_counter
from typing import TYPE_CHECKING

import trio

from odradek.client.positions import ConsumerRecord, FetchedBatch, Position
from odradek.errors import OdradekError

if TYPE_CHECKING:
    from odradek.client.consumer_buffers import PartitionBuffers

__all__ = ["RecordStream"]

_SLICE = 0.005
"""Seconds of records without a checkpoint: other tasks, heartbeats among them, run in between."""


class RecordStream:
    """An endless iterator over records; `batches` over whole batches of the same.

    Within a partition records come in order. Asking for the next one says that the one before is
    finished. Cancelled while it waits: nothing was handed out, and nothing is lost.

    Iteration raises KafkaError (OFFSET_OUT_OF_RANGE without a way to go on, FENCED_INSTANCE_ID,
    ...), CorruptBatch (asked again, the batch is fetched again) and ClientClosed. What may pass
    is retried and not raised. What was fetched before a failure is handed out first. In the
    consumer's callbacks: RuntimeError.
    """

    __slots__ = ("_batch", "_buffers", "_checkpoint_at", "_held", "_position", "_records", "_since")

    def __init__(self, buffers: PartitionBuffers) -> None:
        self._buffers = buffers
        self._position: Position | None = None
        self._batch: FetchedBatch | None = None
        self._records: Iterator[ConsumerRecord] = iter(())
        self._held: ConsumerRecord | None = None
        self._checkpoint_at = 0.0
        self._since = 0.0

    def __aiter__(self) -> RecordStream:
        return self

    async def __anext__(self) -> ConsumerRecord:
        now = self._since = perf_counter()
        if now < self._checkpoint_at:
            for record in self._records:
                self._held = record
                return record
        return await self._advance()

    def batches(self) -> AsyncIterator[FetchedBatch]:
        """Iterate over batches; the rest of one whose records were begun with comes first."""
        return _Batches(self)

    async def next_batch(self) -> FetchedBatch | None:
        """Return the next batch; None where every partition has an end and it is reached."""
        self._buffers.refuse_in_callback("reading")
        await trio.lowlevel.checkpoint()
        await self._buffers.wait_for_gate()
        rest = self.rest()
        if rest is not None:
            self._batch, self._held, self._records = rest, None, iter(())
        else:
            await self._take()
            rest = self._batch
        self._since = perf_counter()
        return rest

    @property
    def busy(self) -> float:
        """Seconds since what is in hand was handed out; 0 when nothing is."""
        return perf_counter() - self._since if self._position is not None else 0.0

    # For the buffers

    @property
    def unfinished(self) -> int:
        """The first offset in hand that is not finished."""
        if self._held is not None:
            return self._held.offset
        assert self._batch is not None
        return self._batch.first_offset

    @property
    def handed_out(self) -> int:
        """The offset after the last one that was handed out."""
        if self._held is not None and length_hint(self._records):
            return self._held.offset + 1
        assert self._batch is not None
        return self._batch.end_offset

    def rest(self) -> FetchedBatch | None:
        """Return the part of a batch in hand whose records were not handed out yet."""
        batch, held = self._batch, self._held
        if batch is None or held is None or not length_hint(self._records):
            return None
        return batch.since(held.offset + 1)

    def cut(self) -> None:
        """Hand out nothing more of what is in hand; what was handed out may be finished."""
        if self._position is not None and self._batch is not None:
            self._position.taken = self._batch.end_offset = self.handed_out
            self._records = iter(())

    def drop(self) -> None:
        """Forget what is in hand: the position was moved or removed."""
        self._position = self._batch = self._held = None
        self._records = iter(())

    async def _advance(self) -> ConsumerRecord:
        self._buffers.refuse_in_callback("reading")
        await trio.lowlevel.checkpoint()
        while True:
            await self._buffers.wait_for_gate()
            for record in self._records:
                self._held = record
                now = self._since = perf_counter()
                self._checkpoint_at = now + _SLICE
                return record
            await self._take()
            batch, position = self._batch, self._position
            if batch is None or position is None:
                raise StopAsyncIteration
            try:
                self._records = iter(batch.consumer_records())
            except OdradekError:
                self._buffers.put_back(position, batch)
                raise

    async def _take(self) -> None:
        """Finish what is in hand and take the next batch, if there is one to come."""
        if self._position is not None:
            position = self._position
            self.drop()
            self._buffers.release(position)
        taken = await self._buffers.take(self)
        if taken is not None:
            self._position, self._batch = taken


class _Batches:
    """What `RecordStream.batches` returns."""

    __slots__ = ("_stream",)

    def __init__(self, stream: RecordStream) -> None:
        self._stream = stream

    def __aiter__(self) -> _Batches:
        return self

    async def __anext__(self) -> FetchedBatch:
        batch = await self._stream.next_batch()
        if batch is None:
            raise StopAsyncIteration
        return batch
