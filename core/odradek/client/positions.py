"""What a reader hands out, and where it is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from odradek.client.cluster import Cluster
from odradek.client.metadata import TopicPartition
from odradek.client.offsets import EARLIEST, LATEST, list_offsets
from odradek.errors import ErrorCode, KafkaError
from odradek.record import BatchMeta, Record, decode_records

__all__ = ["ConsumerRecord", "FetchedBatch", "Position", "Start", "find_positions"]


class Start(NamedTuple):
    """Where to begin: at an offset, or at the first record with at least this timestamp (ms).

    One of the two is None. `EARLIEST` and `LATEST` are timestamps in this sense.
    """

    offset: int | None = None
    timestamp: int | None = None


class ConsumerRecord(NamedTuple):
    """A record with the partition it came from. `timestamp` in ms or -1; None is Kafka's null."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


class FetchedBatch:
    """A record batch as it came, decoded when it is iterated over.

    `meta` is its header. Iterating yields the records from `first_offset` on and below
    `end_offset`: the position of the reader, and where it was told to stop, may lie inside of a
    batch. Keeping a batch keeps the whole answer it came in.
    """

    __slots__ = ("_verify", "_view", "end_offset", "first_offset", "meta", "partition")

    def __init__(
        self,
        partition: TopicPartition,
        meta: BatchMeta,
        view: memoryview,
        first_offset: int,
        end_offset: int,
        verify: bool,
    ) -> None:
        self.partition = partition
        self.meta = meta
        self.first_offset = first_offset
        self.end_offset = end_offset
        self._view = view
        self._verify = verify

    @property
    def view(self) -> memoryview:
        """The bytes of the batch, header included."""
        return self._view

    def records(self) -> list[Record]:
        """Return the records. Raises CorruptBatch, and KafkaError for an unknown compression."""
        records = decode_records(self._view, verify=self._verify)
        first, end = self.first_offset, self.end_offset
        if first > self.meta.base_offset or end <= self.meta.last_offset:
            return [record for record in records if first <= record.offset < end]
        return records

    def __iter__(self) -> Iterator[ConsumerRecord]:
        topic, partition = self.partition
        for offset, timestamp, key, value, headers in self.records():
            yield ConsumerRecord(topic, partition, offset, timestamp, key, value, headers)


class Position:
    """Where the reader is in one partition. Read it, do not change it.

    `fetched`: the next offset to fetch. `high_watermark`, `log_start`: as the broker said last,
    -1 before. `end`: stop there, or None. `buffered`: bytes fetched and not taken yet.
    """

    __slots__ = (
        "buffered",
        "end",
        "fetched",
        "high_watermark",
        "in_flight",
        "log_start",
        "missing_since",
        "not_before",
        "partition",
    )

    def __init__(self, partition: TopicPartition, offset: int, end: int | None) -> None:
        self.partition = partition
        self.fetched = offset
        self.end = end
        self.high_watermark = -1
        self.log_start = -1
        self.buffered = 0
        self.in_flight = False
        self.not_before = 0.0
        self.missing_since: float | None = None

    @property
    def finished(self) -> bool:
        """Whether everything up to `end` was fetched."""
        return self.end is not None and self.fetched >= self.end


async def find_positions(
    cluster: Cluster, assignment: Mapping[TopicPartition, Start], until_end: bool
) -> list[Position]:
    """Return where to begin in each partition, and with `until_end` where each ends now.

    Raises KafkaError for a topic or partition that does not exist, and as `list_offsets` does.
    """
    for partition in sorted(assignment):
        topic = await cluster.topic(partition.topic)
        if not 0 <= partition.partition < len(topic.partitions):
            detail = f"topic {topic.name!r} has {len(topic.partitions)} partitions"
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"partition {partition}: {detail}"
            )
    times = {
        partition: EARLIEST if start.timestamp is None else start.timestamp
        for partition, start in assignment.items()
        if start.offset is None
    }
    found = await list_offsets(cluster, times) if times else {}
    late = {partition: LATEST for partition, at in found.items() if at.offset < 0}
    after = assignment if until_end else late
    ends = await list_offsets(cluster, dict.fromkeys(after, LATEST)) if after else {}
    positions = []
    for partition, start in assignment.items():
        offset = start.offset
        if offset is None:  # a time after every record's stands for the end
            offset = found[partition].offset if partition not in late else ends[partition].offset
        end = ends[partition].offset if until_end else None
        positions.append(Position(partition, offset, end))
    return positions
