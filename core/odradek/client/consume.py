"""A reader: the records of assigned partitions, from a position on, in order, without a group."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import cast

import trio

from odradek.client.cluster import Cluster, is_stale
from odradek.client.errors import ClientClosed, error_of, is_retriable, raise_for
from odradek.client.metadata import Leader, TopicPartition
from odradek.client.offsets import list_offsets
from odradek.client.positions import (
    ConsumerRecord,
    FetchedBatch,
    Position,
    Start,
    find_positions,
)
from odradek.client.settings import ReaderSettings
from odradek.contracts.background import open_tasks
from odradek.errors import CorruptBatch, ErrorCode, KafkaError, OdradekError
from odradek.record import scan
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
    positions = await find_positions(cluster, assignment, until_end)
    async with open_tasks() as nursery:
        reader = Reader(cluster, positions, settings or ReaderSettings(), nursery, reset)
        nursery.start_soon(reader._supervise)
        try:
            yield reader
        finally:
            reader._failure = ClientClosed("the reader was closed")


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
