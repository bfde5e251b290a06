"""A consumer: records of subscribed topics, shared with the other members of a group.

    async with open_consumer("127.0.0.1:9092", "billing", topics=["orders"]) as consumer:
        async for record in consumer:
            await handle(record)

Asking for the next record says that the one before is finished; with `auto_commit` that is what
is committed, every few seconds, when a partition is given up, and at the end. So a record whose
handling was cut short is handed out again, to this member or another: at least once.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from functools import partial

import trio

from odradek.client.cluster import Cluster, cluster_from
from odradek.client.consumer_buffers import PartitionBuffers
from odradek.client.consumer_fetcher import Fetcher
from odradek.client.consumer_health import ConsumerHealth, Lag
from odradek.client.consumer_life import Assignment, ConsumerLife
from odradek.client.consumer_settings import ConsumerSettings
from odradek.client.consumer_stream import RecordStream
from odradek.client.errors import ClientClosed
from odradek.client.membership import CommittedOffset
from odradek.client.metadata import TopicPartition
from odradek.client.positions import FetchedBatch, Position
from odradek.client.settings import ClientSettings
from odradek.contracts.background import open_lasting_tasks
from odradek.contracts.coordinator import Coordinator
from odradek.contracts.transport import Transport

__all__ = ["Consumer", "ConsumerCallback", "open_consumer"]

ConsumerCallback = Callable[["Consumer", frozenset[TopicPartition]], Awaitable[None]]
"""Called at a rebalance, with the consumer and the partitions in question."""


@asynccontextmanager
async def open_consumer(
    cluster: Cluster | str | Iterable[str],
    group: str | None = None,
    *,
    topics: Iterable[str] | None = None,
    pattern: str | re.Pattern[str] | None = None,
    assignment: Assignment | None = None,
    settings: ConsumerSettings | None = None,
    on_assigned: ConsumerCallback | None = None,
    on_revoked: ConsumerCallback | None = None,
    on_lost: ConsumerCallback | None = None,
    coordinator: Coordinator | None = None,
    client_settings: ClientSettings | None = None,
    transport: Transport | None = None,
) -> AsyncIterator[Consumer]:
    """Give a `Consumer` and own its tasks.

    `cluster` is an open one, or bootstrap addresses: then the consumer has one of its own, opened
    with `client_settings` and `transport` as by `open_cluster`, and closes it. `topics`, `pattern`
    or `assignment` are as for `Consumer.subscribe` and `Consumer.assign`; at most one of them.
    `coordinator` is for `group_protocol="decentralised"`.

    The callbacks are awaited while a rebalance waits for them, and heartbeats go on. `on_revoked`
    may commit: the partitions are still this member's, and nothing more of them is handed out.
    `on_lost` may not: others may own them. `on_assigned` is told what came in addition, which may
    be nothing; it may seek. None of them can iterate or unsubscribe: RuntimeError. What they raise
    ends the consumer, which leaves its group, and arrives where it was opened.

    Leaving commits what is finished (with `auto_commit`), calls `on_revoked`, and leaves the
    group, which takes up to a few seconds if brokers do not answer. The record or batch in hand
    is not finished then: `await consumer.commit()` before leaving says that it is. All that holds
    when the body was cancelled too.

    Raises ValueError for arguments that contradict each other, and as `open_cluster` does.
    """
    settings = settings or ConsumerSettings()
    if (topics is not None) + (pattern is not None) + (assignment is not None) > 1:
        raise ValueError("give topics, or a pattern, or an assignment")
    # The tasks outlast a cancellation, so that the member lives until it has taken its leave.
    async with (
        cluster_from(cluster, client_settings, transport) as shared,
        open_lasting_tasks() as nursery,
    ):
        consumer = Consumer(
            shared,
            group,
            settings,
            nursery,
            coordinator=coordinator,
            on_assigned=on_assigned,
            on_revoked=on_revoked,
            on_lost=on_lost,
        )
        if assignment is not None:
            consumer.assign(assignment)
        elif topics is not None or pattern is not None:
            consumer.subscribe(topics, pattern=pattern)
        nursery.start_soon(consumer._fetcher.run)
        nursery.start_soon(consumer._life.commit_from_time_to_time)
        try:
            yield consumer
        finally:
            consumer._buffers.failure = ClientClosed("the consumer was closed")
            with trio.CancelScope(shield=True):
                await consumer._life.end()


class Consumer:
    """Reads partitions that its group gives it, or that it is told to read.

    Made by `open_consumer`. Iterating yields records (`async for record in consumer`) or batches
    (`consumer.batches()`), as `RecordStream` says; one task iterates at a time, or several with
    `streams`. Every method may be called from any task of the trio run, also while another
    iterates. A wait that is cancelled loses nothing.
    """

    def __init__(
        self,
        cluster: Cluster,
        group: str | None,
        settings: ConsumerSettings,
        nursery: trio.Nursery,
        *,
        coordinator: Coordinator | None,
        on_assigned: ConsumerCallback | None,
        on_revoked: ConsumerCallback | None,
        on_lost: ConsumerCallback | None,
    ) -> None:
        self.settings = settings
        self.group = group
        self._cluster = cluster
        callbacks = {
            name: None if callback is None else partial(callback, self)
            for name, callback in (
                ("on_assigned", on_assigned),
                ("on_revoked", on_revoked),
                ("on_lost", on_lost),
            )
        }
        self._buffers = PartitionBuffers(settings, endless=True)
        self._fetcher = Fetcher(
            cluster,
            self._buffers,
            nursery,
            reset=settings.reset,
            missing_timeout=settings.missing_timeout,
        )
        self._life = ConsumerLife(
            cluster, group, settings, nursery, self._buffers, self._fetcher, coordinator, callbacks
        )
        self._stream = RecordStream(self._buffers)
        self._streams = [self._stream]

    # Records

    def __aiter__(self) -> RecordStream:
        """Iterate over records."""
        return self._stream

    def batches(self) -> AsyncIterator[FetchedBatch]:
        """Iterate over whole batches: the cheapest way to many records."""
        return self._stream.batches()

    def streams(self, count: int) -> list[RecordStream]:
        """Return `count` iterators that share the partitions, each for a task of its own.

        Of one partition at most one record or batch is in hand at a time, whoever has it: records
        of a partition are processed in order.
        """
        self._streams = [RecordStream(self._buffers) for _ in range(count)]
        self._streams.append(self._stream)
        return self._streams[:count]

    # What is read

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions that are read now."""
        return frozenset(self._buffers.positions)

    @property
    def subscription(self) -> frozenset[str]:
        """The topics subscribed to; of a pattern those that match now."""
        return self._life.topics

    def subscribe(
        self, topics: Iterable[str] | None = None, *, pattern: str | re.Pattern[str] | None = None
    ) -> None:
        """Share the partitions of topics with the other members of the group.

        In place of the topics or the pattern before. Topics need not exist yet. A pattern has to
        match a topic's whole name; it is resolved anew whenever metadata is renewed, at the
        latest after `metadata_max_age`. Raises ValueError without a group (or without the
        coordinator that a decentralised one needs), and with partitions assigned by hand.
        """
        self._life.subscribe(topics, pattern)

    def assign(self, assignment: Assignment) -> None:
        """Read these partitions, without sharing them; no others any more.

        Those that are read already go on where they are. A new one begins where its `Start` says;
        without one at the group's committed offset, or else after `auto_offset_reset`. Raises
        ValueError when topics are subscribed to, and for a decentralised group.
        """
        self._life.assign(assignment)

    async def unsubscribe(self) -> None:
        """Give up every partition, as at the end, and leave the group; read nothing.

        Cancelled: it is done all the same, within seconds. Raises what `on_revoked` raises, once
        the group is left, and RuntimeError in a callback.
        """
        self._buffers.refuse_in_callback("unsubscribing")
        with trio.CancelScope(shield=True):
            await self._life.end()

    # Where it is

    def position(self, partition: TopicPartition) -> int | None:
        """Return the offset after the last record handed out; None while it is looked up.

        Raises ValueError for a partition that is not read.
        """
        offset = self._position(partition).next_offset
        return None if offset < 0 else offset

    def seek(
        self, partition: TopicPartition, offset: int | CommittedOffset, *, leader_epoch: int = -1
    ) -> None:
        """Go on at `offset`; nothing from before the call is handed out after it.

        What is in hand counts as dropped, and is not committed. `leader_epoch` of the record in
        front of the offset has the broker asked whether its log is still the one that was read
        (KIP-320). Raises ValueError for a partition that is not read.
        """
        self._position(partition)
        at = (
            offset if isinstance(offset, CommittedOffset) else CommittedOffset(offset, leader_epoch)
        )
        if at.offset < 0:
            raise ValueError(f"offset {at.offset}; for the ends there is seek_to_time")
        self._buffers.move(partition, at.offset, at.leader_epoch)

    def seek_to_time(self, partition: TopicPartition, timestamp: int) -> None:
        """Go on at the first record with at least this timestamp (ms), or EARLIEST, or LATEST.

        After every record's: at the end. It is looked up in the background. Otherwise as `seek`.
        """
        self._position(partition)
        self._buffers.move_to_time(partition, timestamp)

    def pause(self, *partitions: TopicPartition) -> None:
        """Hand out nothing of these until `resume`; they stay this member's. ValueError."""
        for partition in partitions:
            self._position(partition)
        self._buffers.pause(partitions)

    def resume(self, *partitions: TopicPartition) -> None:
        """End the pause of these partitions. ValueError for one that is not read."""
        for partition in partitions:
            self._position(partition)
        self._buffers.resume(partitions)

    @property
    def paused(self) -> frozenset[TopicPartition]:
        """The partitions that are paused."""
        return frozenset(
            partition for partition, each in self._buffers.positions.items() if each.paused
        )

    def lag(self) -> Lag:
        """Return how many records wait, as the brokers said with the last answer to a fetch."""
        positions = self._buffers.positions.items()
        return Lag({partition: position.lag for partition, position in positions})

    def _position(self, partition: TopicPartition) -> Position:
        position = self._buffers.positions.get(partition)
        if position is None:
            raise ValueError(f"partition {TopicPartition(*partition)} is not assigned")
        return position

    # Offsets of the group

    async def commit(
        self, offsets: Mapping[TopicPartition, int | CommittedOffset] | None = None
    ) -> None:
        """Store offsets of the group; durable when it returns.

        None: the positions of all partitions, which says that everything handed out is finished,
        what is in hand included. An offset is that of the next record to process. What may pass
        is retried within the request timeout. Cancelled: they may be stored or not.

        Raises CommitFailed where a partition is not this member's any more, KafkaError
        (OFFSET_METADATA_TOO_LARGE, ...), NotReachable, Disconnected; ValueError without a group.
        """
        if offsets is None:
            offsets = {
                partition: CommittedOffset(position.next_offset, position.taken_epoch)
                for partition, position in self._buffers.positions.items()
                if position.next_offset >= 0
            }
        await self._life.offsets.commit(
            {
                TopicPartition(*partition): (
                    offset if isinstance(offset, CommittedOffset) else CommittedOffset(offset)
                )
                for partition, offset in offsets.items()
            }
        )

    async def committed(
        self, partitions: Iterable[TopicPartition] | None = None
    ) -> Mapping[TopicPartition, CommittedOffset]:
        """Return the group's offsets, of all partitions read by default; without those that have
        none. Raises KafkaError, NotReachable, Disconnected; ValueError without a group.
        """
        wanted = self.assignment if partitions is None else frozenset(partitions)
        return await self._life.offsets.committed(wanted)

    # Health

    @property
    def health(self) -> ConsumerHealth:
        """How the consumer is doing."""
        life = self._life
        errors = (self._buffers.failure, self._fetcher.last_error, *life.errors)
        lag = self.lag()
        return ConsumerHealth(
            connected=self._cluster.health.connected,
            state=life.state,
            member_id=life.member_id,
            generation=life.generation,
            assignment=self.assignment,
            lag=lag.total if lag.complete else None,
            buffered_bytes=self._buffers.buffered,
            busy=max(stream.busy for stream in self._streams),
            last_error=next((error for error in errors if error is not None), None),
        )
