"""What a reader or consumer hands out, and where it is."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple, Protocol
from uuid import UUID

from odradek.client.cluster import Cluster
from odradek.client.metadata import TopicPartition
from odradek.client.offsets import EARLIEST, LATEST, FoundOffset, list_offsets
from odradek.errors import CorruptBatch, ErrorCode, KafkaError
from odradek.record import BatchMeta, Columns, Record, decode_columns, decode_records, widen_records

if TYPE_CHECKING:
    import trio

__all__ = [
    "ConsumerRecord",
    "FetchedBatch",
    "Holder",
    "Position",
    "Start",
    "find_positions",
    "locate",
]


class Start(NamedTuple):
    """Where to begin: at an offset, or at the first record with at least this timestamp (ms).

    One of the two is None. `EARLIEST` and `LATEST` are timestamps in this sense.
    """

    offset: int | None = None
    timestamp: int | None = None


class ConsumerRecord(NamedTuple):
    """A record with the partition it came from. `timestamp` in ms or -1; None is Kafka's null.

    `leader_epoch`: of the leader that appended it (KIP-320), -1 unknown.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    leader_epoch: int = -1


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
        """Return the records.

        Raises CorruptBatch, and KafkaError for an unknown compression, or for more than 128 MiB
        of records (MESSAGE_TOO_LARGE); the text says where, so that one can seek behind it.
        """
        try:
            records = decode_records(self._view, verify=self._verify)
        except KafkaError as error:
            raise self._located(error) from error
        first, end = self.first_offset, self.end_offset
        if first > self.meta.base_offset or end <= self.meta.last_offset:
            return [record for record in records if first <= record.offset < end]
        return records

    def columns(self, *, headers: bool = False) -> Columns:
        """Return the records as columns in Arrow's layout. Raises as `records`."""
        try:
            return decode_columns(
                self._view,
                start_offset=self.first_offset,
                end_offset=self.end_offset,
                headers=headers,
                verify=self._verify,
            )
        except KafkaError as error:
            raise self._located(error) from error

    def _located(self, error: KafkaError) -> KafkaError:
        """Return `error` with the place of the batch."""
        where = f"offsets {self.meta.base_offset} to {self.meta.last_offset}"
        detail = f"partition {self.partition}, {where}: {error.detail or error.code.text}"
        return (
            CorruptBatch(detail)
            if isinstance(error, CorruptBatch)
            else KafkaError(error.code, detail)
        )

    def consumer_records(self) -> list[ConsumerRecord]:
        """Return the records, each with the partition it came from. Raises as `records`."""
        where, epoch = tuple(self.partition), (self.meta.leader_epoch,)
        return widen_records(ConsumerRecord, where, self.records(), epoch)

    def __iter__(self) -> Iterator[ConsumerRecord]:
        return iter(self.consumer_records())

    def since(self, offset: int) -> FetchedBatch:
        """Return the part of this batch from `offset` on."""
        return FetchedBatch(
            self.partition, self.meta, self._view, offset, self.end_offset, self._verify
        )

    def detach(self) -> None:
        """Keep a copy of the batch's bytes in place of the answer that they came in."""
        self._view = memoryview(bytes(self._view))


class Holder(Protocol):
    """Whoever has a batch of a partition in hand: see `consumer_stream`."""

    @property
    def busy(self) -> float:
        """Seconds since what is in hand was handed out."""

    @property
    def unfinished(self) -> int:
        """The first offset in hand that is not finished."""

    @property
    def handed_out(self) -> int:
        """The offset after the last one that was handed out."""

    def rest(self) -> FetchedBatch | None:
        """Return the part of the batch in hand that was not handed out yet, if there is one."""

    def cut(self) -> None:
        """Hand out nothing more of what is in hand; what was handed out may be finished."""

    def drop(self) -> None:
        """Forget what is in hand."""


class Position:
    """Where a reader or consumer is in one partition. Read it, do not change it.

    `fetched`: the next offset to fetch, -1 while it is not known. `taken`: the end of what was
    taken out of the buffer. `high_watermark`, `log_start`: as the broker said last, -1 before.
    `end`: stop there, or None. `buffered`: bytes fetched and not taken yet. `epoch`: leader epoch
    of the record before `fetched`, -1 unknown; `taken_epoch`: likewise of `taken`. `checked`:
    the leader epoch under which `epoch` was last found to be in the log. `version` grows when the
    position is moved: answers to what was asked before are dropped. `sought`: the time to begin
    at, to be looked up. `holder` has a batch in hand; `closing`: nothing more is handed out.
    `topic_id`: of the topic that `fetched` is in, None until it is looked at: a topic may be
    deleted and created again under its name.
    """

    __slots__ = (
        "buffered",
        "checked",
        "closing",
        "end",
        "epoch",
        "fetched",
        "high_watermark",
        "holder",
        "in_flight",
        "log_start",
        "missing_since",
        "not_before",
        "offered",
        "partition",
        "paused",
        "ready",
        "released",
        "sought",
        "taken",
        "taken_epoch",
        "topic_id",
        "version",
    )

    def __init__(self, partition: TopicPartition, offset: int = -1, end: int | None = None) -> None:
        self.partition = partition
        self.fetched = self.taken = offset
        self.end = end
        self.high_watermark = -1
        self.log_start = -1
        self.buffered = 0
        self.epoch = -1
        self.taken_epoch = -1
        self.checked = -1
        self.topic_id: UUID | None = None
        self.version = 0
        self.sought: int | None = None
        self.paused = False
        self.closing = False
        self.in_flight = False
        self.not_before = 0.0
        self.missing_since: float | None = None
        self.ready: deque[FetchedBatch] = deque()
        self.offered = False
        self.holder: Holder | None = None
        self.released: trio.Event | None = None

    @property
    def finished(self) -> bool:
        """Whether everything up to `end` was fetched."""
        return self.end is not None and self.fetched >= self.end

    @property
    def next_offset(self) -> int:
        """The offset after the last record handed out; -1 while it is not known."""
        return self.taken if self.holder is None else self.holder.handed_out

    @property
    def done_offset(self) -> int:
        """The first offset that may not have been processed yet; -1 while it is not known."""
        return self.taken if self.holder is None else self.holder.unfinished

    @property
    def lag(self) -> int | None:
        """Records that are there and not handed out yet; None while it is not known."""
        if self.high_watermark < 0 or self.taken < 0:
            return None
        return max(self.high_watermark - self.next_offset, 0)


async def locate(
    cluster: Cluster, times: Mapping[TopicPartition, int]
) -> Mapping[TopicPartition, FoundOffset]:
    """Return the first offset at or after each time; a time after every record is the end.

    Raises as `list_offsets`.
    """
    found = await list_offsets(cluster, times) if times else {}
    late = {partition: LATEST for partition, at in found.items() if at.offset < 0}
    return {**found, **await list_offsets(cluster, late)} if late else found


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
    found = await locate(cluster, times)
    ends: Mapping[TopicPartition, FoundOffset] = {}
    if until_end:
        ends = await list_offsets(cluster, dict.fromkeys(assignment, LATEST))
    return [
        Position(
            partition,
            found[partition].offset if start.offset is None else start.offset,
            ends[partition].offset if until_end else None,
        )
        for partition, start in assignment.items()
    ]
