"""A reader: the records of assigned partitions, from a position on, in order, without a group."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import NamedTuple, cast

import trio

from odradek.client.cluster import Cluster, is_stale
from odradek.client.errors import ClientClosed, error_of, is_retriable, raise_for
from odradek.client.metadata import Leader, TopicPartition
from odradek.client.offsets import EARLIEST, LATEST, list_offsets
from odradek.client.settings import ReaderSettings
from odradek.client.tasks import background_tasks
from odradek.errors import CorruptBatch, ErrorCode, KafkaError, OdradekError
from odradek.record import BatchMeta, Record, decode_records, scan
from odradek.types import Buffer
from odradek.wire.api.a01_fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)

__all__ = ["ConsumerRecord", "FetchedBatch", "Position", "Reader", "Start", "open_reader"]

_PURPOSE = "fetch"
_SHORT_WAIT = 0.02
"""How long a broker may wait while some of its partitions are left out of the fetch because
their records are not taken yet: they should not wait for the others' news."""


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
    positions = await _positions(cluster, assignment, until_end)
    async with background_tasks() as nursery:
        reader = Reader(cluster, positions, settings or ReaderSettings(), nursery, reset)
        nursery.start_soon(reader._supervise)
        try:
            yield reader
        finally:
            reader._failure = ClientClosed("the reader was closed")


async def _positions(
    cluster: Cluster, assignment: Mapping[TopicPartition, Start], until_end: bool
) -> list[Position]:
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


class Reader:
    """Fetches ahead, within a bound of memory, and hands out batches or records.

    Made by `open_reader`; one task iterates at a time. Offsets of a partition strictly increase.
    Batches of control records are left out. Whether a transaction was aborted is not looked at:
    this is Kafka's read_uncommitted.
    """

    def __init__(
        self,
        cluster: Cluster,
        positions: Iterable[Position],
        settings: ReaderSettings,
        nursery: trio.Nursery,
        reset: int | None,
    ) -> None:
        self.settings = settings
        self.positions = {position.partition: position for position in positions}
        self._cluster = cluster
        self._nursery = nursery
        self._reset = reset
        self._ready: deque[FetchedBatch] = deque()
        self._buffered = 0
        self._fetching: set[int] = set()
        self._stale = False
        self._failure: OdradekError | None = None
        self._changed = trio.Event()
        self._arrived = trio.Event()

    @property
    def buffered_bytes(self) -> int:
        """Bytes of batches that were fetched and not taken yet."""
        return self._buffered

    @property
    def finished(self) -> bool:
        """Whether every partition's end, where one was set, was reached and taken."""
        return not self._ready and all(each.finished for each in self.positions.values())

    async def __aiter__(self) -> AsyncIterator[ConsumerRecord]:
        """Yield records; within a partition in order. Raises as `next_batch`."""
        while (batch := await self.next_batch()) is not None:
            for record in batch:
                yield record

    async def batches(self) -> AsyncIterator[FetchedBatch]:
        """Yield batches; within a partition in order. Raises as `next_batch`."""
        while (batch := await self.next_batch()) is not None:
            yield batch

    async def next_batch(self) -> FetchedBatch | None:
        """Return the next batch, or None at the end. Cancelled: none was taken.

        What was fetched before a failure is handed out first. Raises KafkaError
        (OFFSET_OUT_OF_RANGE without `reset`, UNKNOWN_TOPIC_OR_PARTITION, ...), CorruptBatch, and
        ClientClosed. What may pass is retried and not raised.
        """
        await trio.lowlevel.checkpoint()
        while not self._ready:
            if self._failure is not None:
                raise self._failure
            if self.finished:
                return None
            await self._arrived.wait()
        batch = self._ready.popleft()
        size = batch.meta.size
        position = self.positions[batch.partition]
        position.buffered -= size
        self._buffered -= size
        self._notify()
        return batch

    def _notify(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    def _announce(self) -> None:
        self._arrived.set()
        self._arrived = trio.Event()

    async def _supervise(self) -> None:
        """Keep one fetch with every leader whose partitions want more."""
        backoff = self._cluster.backoff()
        while self._failure is None:
            changed = self._changed
            now = trio.current_time()
            wanted, again, leaderless = self._wanted(now)
            for node, positions in wanted.items():
                if node not in self._fetching and self._has_room():
                    self._fetching.add(node)
                    for position in positions:
                        position.in_flight = True
                    self._nursery.start_soon(self._fetch, node, positions)
            if self._stale or leaderless:
                self._stale = False
                try:
                    await self._cluster.renew(leaderless)
                except OdradekError as error:
                    if not is_retriable(error):
                        self._fail(error)
                        return
                self._check_missing(leaderless)
                await trio.sleep(backoff.next())
                continue
            backoff.reset()
            with trio.move_on_at(again):
                await changed.wait()

    def _wanted(self, now: float) -> tuple[dict[int, list[Position]], float, set[str]]:
        """Return what may be fetched, by leader; when to look again; topics without a leader."""
        wanted: dict[int, list[Position]] = {}
        leaderless: set[str] = set()
        again = float("inf")
        for position in self.positions.values():
            if position.finished or position.in_flight:
                continue
            if position.buffered >= self.settings.partition_bytes:
                continue
            if position.not_before > now:
                again = min(again, position.not_before)
                continue
            leader = self._cluster.metadata.leader(position.partition)
            if leader is None:
                leaderless.add(position.partition.topic)
                continue
            wanted.setdefault(leader.node_id, []).append(position)
        return wanted, again, leaderless

    def _has_room(self) -> bool:
        reserved = len(self._fetching) * self.settings.fetch_bytes
        return self._buffered == 0 or self._buffered + reserved < self.settings.buffer_bytes

    def _check_missing(self, topics: set[str]) -> None:
        """Give up on partitions that the cluster has not known for too long."""
        now = trio.current_time()
        for position in self.positions.values():
            if position.partition.topic not in topics:
                continue
            if self._cluster.metadata.leader(position.partition) is not None:
                position.missing_since = None
                continue
            code = self._cluster.metadata.errors.get(position.partition.topic)
            if code is not None and not code.retriable:
                self._fail(KafkaError(code, f"topic {position.partition.topic!r}"))
            self._missing(position, now)

    def _missing(self, position: Position, now: float) -> None:
        if position.missing_since is None:
            position.missing_since = now
        elif now - position.missing_since > self.settings.missing_timeout:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            where = f"partition {position.partition}"
            if position.partition.topic in self._cluster.metadata.topics:
                code = ErrorCode.LEADER_NOT_AVAILABLE
            waited = self.settings.missing_timeout
            self._fail(KafkaError(code, f"{where} had no leader for {waited:g} s"))

    def _fail(self, error: OdradekError) -> None:
        if self._failure is None:
            self._failure = error
        self._announce()
        self._notify()

    async def _fetch(self, node: int, positions: list[Position]) -> None:
        """Fetch once from one broker and sort in what came."""
        try:
            connection = await self._cluster.connection(node, _PURPOSE)
            leaders = {each: self._cluster.metadata.leader(each.partition) for each in positions}
            request = self._request(node, positions, leaders)
            timeout = self.settings.max_wait + self._cluster.settings.request_timeout
            answer = await connection.call(request, FetchResponse, timeout=timeout)
            raise_for(answer.error_code)
            self._take(answer)
        except OdradekError as error:
            if not is_retriable(error):
                self._fail(error)
            self._stale = True
            wait = trio.current_time() + self._cluster.settings.retry_backoff
            for position in positions:
                position.not_before = wait
        finally:
            self._fetching.discard(node)
            for position in positions:
                position.in_flight = False
            self._announce()
            self._notify()

    def _request(
        self, node: int, positions: list[Position], leaders: Mapping[Position, Leader | None]
    ) -> FetchRequest:
        topics: dict[str, FetchTopic] = {}
        for position in positions:
            name = position.partition.topic
            topic = topics.get(name)
            if topic is None:
                known = self._cluster.metadata.topics[name]
                topic = topics[name] = FetchTopic(topic=name, topic_id=known.topic_id)
            leader = leaders[position]
            topic.partitions.append(
                FetchPartition(
                    partition=position.partition.partition,
                    current_leader_epoch=leader.epoch if leader is not None else -1,
                    fetch_offset=position.fetched,
                    partition_max_bytes=self.settings.partition_bytes,
                )
            )
        asked = set(positions)
        left_out = any(
            each not in asked and not each.finished and self._leads(node, each)
            for each in self.positions.values()
        )
        wait = min(_SHORT_WAIT, self.settings.max_wait) if left_out else self.settings.max_wait
        return FetchRequest(
            max_wait_ms=int(wait * 1000),
            min_bytes=self.settings.min_bytes,
            max_bytes=self.settings.fetch_bytes,
            topics=list(topics.values()),
        )

    def _leads(self, node: int, position: Position) -> bool:
        leader = self._cluster.metadata.leader(position.partition)
        return leader is not None and leader.node_id == node

    def _take(self, answer: FetchResponse) -> None:
        names = self._cluster.metadata.names
        for topic in answer.responses:
            name = topic.topic or names.get(topic.topic_id, "")
            for part in topic.partitions:
                position = self.positions.get(TopicPartition(name, part.partition_index))
                if position is None:
                    continue
                if part.error_code:
                    self._refused(position, part)
                else:
                    position.missing_since = None
                    position.high_watermark = part.high_watermark
                    position.log_start = part.log_start_offset
                    self._sort_in(position, memoryview(cast("Buffer", part.records or b"")))

    def _sort_in(self, position: Position, view: memoryview) -> None:
        found = scan(view, verify=False)  # the CRC is checked when the batch is decoded
        for meta, at in zip(found.metas, found.positions, strict=True):
            if meta.last_offset < position.fetched:
                continue
            if position.finished:
                return
            if not meta.control:
                end = meta.last_offset + 1
                if position.end is not None:
                    end = min(end, position.end)
                batch = FetchedBatch(
                    position.partition,
                    meta,
                    view[at : at + meta.size],
                    max(position.fetched, meta.base_offset),
                    end,
                    self.settings.check_crcs,
                )
                self._ready.append(batch)
                position.buffered += meta.size
                self._buffered += meta.size
            position.fetched = meta.last_offset + 1
        if found.problem is not None and found.problem.kind == "corrupt":
            self._fail(
                CorruptBatch(
                    f"partition {position.partition} at offset {position.fetched}: "
                    f"{found.problem.text}"
                )
            )

    def _refused(self, position: Position, part: PartitionData) -> None:
        error = error_of(part.error_code, f"partition {position.partition}")
        now = trio.current_time()
        position.not_before = now + self._cluster.settings.retry_backoff
        if error.code == ErrorCode.OFFSET_OUT_OF_RANGE:
            if self._reset is None:
                detail = f"partition {position.partition} has no offset {position.fetched}"
                self._fail(KafkaError(error.code, detail))
            else:
                position.not_before = float("inf")
                self._nursery.start_soon(self._move, position, self._reset)
        elif not error.retriable:
            self._fail(error)
        elif is_stale(error):
            self._stale = True
            if error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                self._missing(position, now)

    async def _move(self, position: Position, reset: int) -> None:
        """Set a position that is not in the log to one end of it."""
        try:
            found = await list_offsets(self._cluster, {position.partition: reset})
            position.fetched = found[position.partition].offset
        except OdradekError as error:
            if not is_retriable(error):
                self._fail(error)
        position.not_before = trio.current_time() + self._cluster.settings.retry_backoff
        self._announce()
        self._notify()
