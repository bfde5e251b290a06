"""A consumer, blocking."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import TypeAlias

import trio

from odradek import client
from odradek.blocking.facade import Closable, blocking, in_its_thread
from odradek.blocking.records import Records
from odradek.client import (
    CommittedOffset,
    ConsumerHealth,
    ConsumerRecord,
    FetchedBatch,
    Lag,
    Start,
    TopicPartition,
)
from odradek.errors import OdradekError
from odradek.portal import Portal, PortalClosed, in_worker_thread

__all__ = ["Callback", "Consumer", "Hooks"]

logger = logging.getLogger(__name__)

CLOSING = 5.0
"""Seconds that a last commit may take."""

Assignment: TypeAlias = Iterable[TopicPartition] | Mapping[TopicPartition, Start]


class Consumer(Closable):
    """Reads partitions that its group gives it; see `odradek.client.Consumer`.

    Iterating yields records, for one thread at a time, or for several with `streams`. Every other
    method may be called from any thread, also while one iterates. With `auto_commit`, what is
    finished is committed every few seconds by whole batches, and to the record when a partition is
    given up and at the end.
    """

    _behind: client.Consumer

    def __init__(self, portal: Portal, hooks: Hooks, consumer: client.Consumer) -> None:
        super().__init__(portal, consumer)
        self._records = Records(portal, consumer, consumer.__aiter__())
        self._all = [self._records]
        # Committed on purpose, to be left as it is by commits of what is finished.
        self._said: dict[TopicPartition, int] = {}
        self._hooks = hooks
        hooks.belong_to(self)

    # Records

    def __iter__(self) -> Iterator[ConsumerRecord]:
        """Iterate over records: see `Records`."""
        return iter(self._records)

    def poll(self, timeout: float) -> ConsumerRecord | None:
        """Return the next record, or None when there is none for `timeout` seconds."""
        return self._records.poll(timeout)

    def batches(self) -> Iterator[FetchedBatch]:
        """Iterate over whole batches: the cheapest way to many records."""
        return self._records.batches()

    def streams(self, count: int) -> list[Records]:
        """Return `count` iterators that share the partitions, each for a thread of its own.

        Records of a partition are processed in order, whoever has them.
        """
        streams = self._portal.call_sync(self._behind.streams, count)
        made = [Records(self._portal, self._behind, stream) for stream in streams]
        self._all[:] = [self._records, *made]
        return made

    # What is read

    subscribe = in_its_thread(client.Consumer.subscribe)

    def assign(self, assignment: Assignment) -> None:
        """Read these partitions, without sharing them; no others any more.

        Otherwise as `odradek.client.Consumer.assign`.
        """

        def assign() -> None:
            dropped = self._behind.assignment - {TopicPartition(*each) for each in assignment}
            self._forget(dropped)
            self._behind.assign(assignment)

        self._portal.call_sync(assign)

    def unsubscribe(self) -> None:
        """Give up every partition, as at the end, and leave the group; read nothing."""
        self._portal.call(self._commit_finished)
        self._portal.call(self._behind.unsubscribe)
        self._forget(None)

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions that are read now."""
        return self._portal.call_sync(lambda: self._behind.assignment)

    @property
    def subscription(self) -> frozenset[str]:
        """The topics subscribed to; of a pattern those that match now."""
        return self._portal.call_sync(lambda: self._behind.subscription)

    # Where it is

    def position(self, partition: TopicPartition) -> int | None:
        """Return the offset after the last record handed out; None while it is looked up.

        Raises ValueError for a partition that is not read.
        """

        def position() -> int | None:
            reached = self._reached().get(TopicPartition(*partition))
            return self._behind.position(partition) if reached is None else reached.offset

        return self._portal.call_sync(position)

    def seek(
        self, partition: TopicPartition, offset: int | CommittedOffset, *, leader_epoch: int = -1
    ) -> None:
        """Go on at `offset`; nothing from before the call is handed out after it.

        Otherwise as `odradek.client.Consumer.seek`.
        """

        def seek() -> None:
            self._behind.seek(partition, offset, leader_epoch=leader_epoch)
            self._forget({TopicPartition(*partition)})

        self._portal.call_sync(seek)

    def seek_to_time(self, partition: TopicPartition, timestamp: int) -> None:
        """Go on at the first record with at least this timestamp (ms), or EARLIEST, or LATEST.

        Otherwise as `odradek.client.Consumer.seek_to_time`.
        """

        def seek() -> None:
            self._behind.seek_to_time(partition, timestamp)
            self._forget({TopicPartition(*partition)})

        self._portal.call_sync(seek)

    def pause(self, *partitions: TopicPartition) -> None:
        """Hand out nothing of these until `resume`, but for what is left of a batch in hand.

        Raises ValueError for a partition that is not read.
        """
        self._portal.call_sync(self._behind.pause, *partitions)

    resume = in_its_thread(client.Consumer.resume)

    @property
    def paused(self) -> frozenset[TopicPartition]:
        """The partitions that are paused."""
        return self._portal.call_sync(lambda: self._behind.paused)

    def lag(self) -> Lag:
        """Return how many records wait, as the brokers said with the last answer to a fetch.

        Without those of a batch in hand.
        """
        return self._portal.call_sync(self._behind.lag)

    @property
    def health(self) -> ConsumerHealth:
        """How the consumer is doing."""
        return self._portal.call_sync(lambda: self._behind.health)

    # Offsets of the group

    def commit(self, offsets: Mapping[TopicPartition, int | CommittedOffset] | None = None) -> None:
        """Store offsets of the group; durable when it returns.

        None: everything handed out is finished, the record in hand included. Otherwise as
        `odradek.client.Consumer.commit`.
        """

        async def commit() -> None:
            wanted = offsets
            reached = self._reached()
            if wanted is None and reached:
                consumer = self._behind
                positions = {each: consumer.position(each) for each in consumer.assignment}
                known = {each: at for each, at in positions.items() if at is not None}
                wanted = {**known, **reached}
            await self._behind.commit(wanted)
            for partition, offset in (wanted or {}).items():
                at = offset.offset if isinstance(offset, CommittedOffset) else offset
                self._said[TopicPartition(*partition)] = at

        self._portal.call(commit)

    committed = blocking(client.Consumer.committed)

    # Inside

    def _before_closing(self) -> None:
        with suppress(PortalClosed):  # it failed in the background, and says so when it is left
            self._portal.call(self._commit_finished)

    def _reached(self) -> dict[TopicPartition, CommittedOffset]:
        return {**self._hooks.reached, **dict(filter(None, [each.reached() for each in self._all]))}

    def _forget(self, partitions: Iterable[TopicPartition] | None) -> None:
        chosen = None if partitions is None else frozenset(partitions)
        for each in self._all:
            each.forget(chosen)
        for partition in self._said.keys() & (self._said.keys() if chosen is None else chosen):
            del self._said[partition]

    async def _commit_finished(self, only: frozenset[TopicPartition] | None = None) -> None:
        """Commit to the record what of the batches in hand is finished."""
        if not self._behind.settings.auto_commit or self._behind.group is None:
            return
        offsets = {
            partition: offset
            for partition, offset in filter(None, [each.finished() for each in self._all])
            if (only is None or partition in only) and offset.offset > self._said.get(partition, -1)
        }
        if offsets:
            with trio.move_on_after(CLOSING):
                try:
                    await self._behind.commit(offsets)
                except OdradekError as error:
                    logger.warning("offsets were not committed: %s", error)


Callback: TypeAlias = Callable[[Consumer, frozenset[TopicPartition]], None]
"""Called at a rebalance, with the consumer and the partitions in question."""


class Hooks:
    """The callbacks of a rebalance: those of the application, in a thread where they may block.

    Before `on_revoked` and `on_lost` nothing more of a batch in hand is handed out.
    """

    def __init__(
        self,
        outside: Portal,
        on_assigned: Callback | None,
        on_revoked: Callback | None,
        on_lost: Callback | None,
    ) -> None:
        self.reached: dict[TopicPartition, CommittedOffset] = {}
        self._outside = outside
        self._on_assigned = on_assigned
        self._on_revoked = on_revoked
        self._on_lost = on_lost
        self._consumer: Consumer | None = None
        self._known = trio.Event()

    def belong_to(self, consumer: Consumer) -> None:
        """Say whose callbacks these are; a rebalance that comes before waits for it."""
        # Callbacks may call when the consumer is being closed, and its own portal is shut.
        self._consumer = copy.copy(consumer)
        self._consumer._portal = self._outside
        self._outside.call_sync(self._known.set)

    async def _owner(self) -> Consumer:
        await self._known.wait()
        assert self._consumer is not None
        return self._consumer

    async def assigned(self, _: client.Consumer, partitions: frozenset[TopicPartition]) -> None:
        """See `open_consumer`."""
        await self._tell(self._on_assigned, partitions)

    async def revoked(self, _: client.Consumer, partitions: frozenset[TopicPartition]) -> None:
        """See `open_consumer`."""
        consumer = await self._owner()
        await consumer._commit_finished(partitions)
        self.reached = {
            each: offset for each, offset in consumer._reached().items() if each in partitions
        }
        consumer._forget(partitions)
        try:
            await self._tell(self._on_revoked, partitions)
        finally:
            self.reached = {}

    async def lost(self, _: client.Consumer, partitions: frozenset[TopicPartition]) -> None:
        """See `open_consumer`."""
        (await self._owner())._forget(partitions)
        await self._tell(self._on_lost, partitions)

    async def _tell(self, callback: Callback | None, partitions: frozenset[TopicPartition]) -> None:
        if callback is not None:
            await in_worker_thread(callback, await self._owner(), partitions)
