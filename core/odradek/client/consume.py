"""A reader: the records of assigned partitions, from a position on, in order, without a group."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from odradek.client.cluster import Cluster
from odradek.client.consumer_buffers import PartitionBuffers
from odradek.client.consumer_fetcher import Fetcher
from odradek.client.consumer_stream import RecordStream
from odradek.client.errors import ClientClosed
from odradek.client.metadata import TopicPartition
from odradek.client.positions import (
    ConsumerRecord,
    FetchedBatch,
    Position,
    Start,
    find_positions,
)
from odradek.client.settings import ReaderSettings
from odradek.contracts.background import open_tasks

__all__ = ["ConsumerRecord", "FetchedBatch", "Position", "Reader", "Start", "open_reader"]


@asynccontextmanager
async def open_reader(
    cluster: Cluster,
    assignment: Mapping[TopicPartition, Start],
    settings: ReaderSettings | None = None,
    *,
    until_end: bool = False,
    reset: int | None = None,
) -> AsyncIterator[Reader]:
    """Give a `Reader` of these partitions and own its tasks.

    `until_end`: iteration ends where the partitions end now. `reset`: where to go on (EARLIEST
    or LATEST) when a position is not in the log, or None: then OFFSET_OUT_OF_RANGE is raised.

    Raises KafkaError for a topic or partition that does not exist, and what `list_offsets`
    raises.
    """
    settings = settings or ReaderSettings()
    positions = await find_positions(cluster, assignment, until_end)
    buffers = PartitionBuffers(settings, endless=False)
    buffers.add(positions)
    async with open_tasks() as nursery:
        timeout = settings.missing_timeout
        fetcher = Fetcher(cluster, buffers, nursery, reset=reset, missing_timeout=timeout)
        nursery.start_soon(fetcher.run)
        try:
            yield Reader(buffers)
        finally:
            buffers.failure = ClientClosed("the reader was closed")


class Reader:
    """Fetches ahead, within a bound of memory, and hands out batches or records.

    Made by `open_reader`; one task iterates at a time. Offsets of a partition strictly increase.
    Batches of control records are left out. Whether a transaction was aborted is not looked at:
    this is Kafka's read_uncommitted.
    """

    def __init__(self, buffers: PartitionBuffers) -> None:
        self.settings = buffers.settings
        self.positions = buffers.positions
        self._buffers = buffers
        self._stream = RecordStream(buffers)

    @property
    def buffered_bytes(self) -> int:
        """Bytes of batches that were fetched and not taken yet."""
        return self._buffers.buffered

    @property
    def finished(self) -> bool:
        """Whether every partition's end, where one was set, was reached and taken."""
        return self._buffers.finished

    def __aiter__(self) -> RecordStream:
        """Iterate over records; within a partition in order. Raises as `RecordStream`."""
        return self._stream

    def batches(self) -> AsyncIterator[FetchedBatch]:
        """Iterate over batches; within a partition in order. Raises as `RecordStream`."""
        return self._stream.batches()

    async def next_batch(self) -> FetchedBatch | None:
        """Return the next batch, or None at the end. Cancelled: none was taken.

        Raises as `RecordStream`.
        """
        return await self._stream.next_batch()
