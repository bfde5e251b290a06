"""A consumer as its membership sees it: what it is given, gives up and loses."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import Protocol

import trio

from odradek.client.cluster import Cluster
from odradek.client.consumer_buffers import PartitionBuffers
from odradek.client.consumer_settings import ConsumerSettings
from odradek.client.errors import is_retriable
from odradek.client.membership import CommittedOffset
from odradek.client.metadata import TopicPartition
from odradek.client.positions import Position
from odradek.errors import ErrorCode, KafkaError, OdradekError

__all__ = ["Callback", "GroupSubscriber", "Offsets"]

_log = logging.getLogger(__name__)

Callback = Callable[[frozenset[TopicPartition]], Awaitable[None]]


async def _nothing(_: frozenset[TopicPartition]) -> None:
    """Do nothing: no callback was given."""


class Offsets(Protocol):
    """Where offsets are kept: what a `Membership` offers of it."""

    async def commit(self, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        """See `Membership.commit`."""

    async def committed(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, CommittedOffset]:
        """See `Membership.committed`."""


class GroupSubscriber:
    """A `Subscriber` over `buffers`; for partitions assigned by hand too.

    `auto_commit`: whether finished offsets are committed when partitions are given up.
    """

    def __init__(
        self,
        cluster: Cluster,
        buffers: PartitionBuffers,
        settings: ConsumerSettings,
        offsets: Offsets,
        *,
        auto_commit: bool,
        on_assigned: Callback | None = None,
        on_revoked: Callback | None = None,
        on_lost: Callback | None = None,
    ) -> None:
        self.topics: frozenset[str] = frozenset()
        self.owned: frozenset[TopicPartition] = frozenset()
        self.last_error: OdradekError | None = None
        self._offsets = offsets
        self._cluster = cluster
        self._buffers = buffers
        self._settings = settings
        self._auto_commit = auto_commit
        self._on_assigned = on_assigned or _nothing
        self._on_revoked = on_revoked or _nothing
        self._on_lost = on_lost or _nothing
        self._stored: dict[TopicPartition, int] = {}  # as last committed
        self._turn = trio.Lock()  # of the membership and of whoever closes the consumer
        self._stopped = False
        self._waiting = trio.CancelScope()

    # For the membership

    async def assigned(self, partitions: Collection[TopicPartition]) -> None:
        """Take partitions over; see `Subscriber`."""
        async with self._turn:
            if not self._stopped:
                fresh = self.take_over(partitions)
                await self._call(self._on_assigned, frozenset(partitions))
                await self.place(fresh)

    def take_over(self, partitions: Iterable[TopicPartition]) -> frozenset[TopicPartition]:
        """Own partitions, whose positions are not known yet; return those not owned before."""
        fresh = frozenset(partitions) - self.owned
        self.owned |= fresh
        self._buffers.add([Position(partition) for partition in sorted(fresh)])
        return fresh

    async def place(self, partitions: Collection[TopicPartition]) -> None:
        """Begin at committed offsets, or after the settings, where nobody sought elsewhere."""
        unset = [each for each in partitions if self._is_unset(each)]
        committed = await self._committed(unset)
        for partition in unset:
            found = committed.get(partition)
            if found is not None:
                self._stored[partition] = found.offset
            if not self._is_unset(partition) or self._stopped:
                continue
            if found is not None:
                self._buffers.move(partition, found.offset, found.leader_epoch)
            elif self._settings.reset is not None:
                self._buffers.move_to_time(partition, self._settings.reset)
            else:
                detail = f"partition {partition} has no committed offset to begin at"
                self._buffers.fail(KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, detail))

    def _is_unset(self, partition: TopicPartition) -> bool:
        position = self._buffers.positions.get(partition)
        return position is not None and position.fetched < 0 and position.sought is None

    async def revoked(
        self, partitions: Collection[TopicPartition], *, drain: float | None = None
    ) -> None:
        """Give partitions up in order; see `Subscriber`."""
        async with self._turn:
            given_up = frozenset(partitions) & self.owned
            if not given_up:
                return
            drain = self._settings.drain_timeout if drain is None else drain
            if not await self._buffers.close(given_up, drain) and drain:
                _log.warning(
                    "what is in hand was not finished within %g s, and its partition is given "
                    "up: whoever owns that next processes it again",
                    drain,
                )
            if self._auto_commit:
                await self.commit_finished(given_up)
            await self._call(self._on_revoked, given_up)
            self._forget(given_up)

    async def lost(self, partitions: Collection[TopicPartition]) -> None:
        """Give up partitions that others may own; see `Subscriber`."""
        async with self._turn:
            given_up = frozenset(partitions) & self.owned
            if given_up:
                _log.warning("lost %s", ", ".join(map(str, sorted(given_up))))
                self._forget(given_up)
                await self._call(self._on_lost, given_up)

    async def _call(self, callback: Callback, partitions: frozenset[TopicPartition]) -> None:
        self._buffers.callback = trio.lowlevel.current_task()
        try:
            await callback(partitions)
        finally:
            self._buffers.callback = None

    def _forget(self, partitions: frozenset[TopicPartition]) -> None:
        self.owned -= partitions
        self._buffers.remove(partitions)
        for partition in partitions:
            self._stored.pop(partition, None)

    # For the consumer

    async def stop(self) -> None:
        """Give everything up, without waiting for what is in hand, and take over nothing more."""
        self._stopped = True
        self._waiting.cancel()
        self._buffers.stop_waiting()
        await self.revoked(self.owned, drain=0)

    # Offsets

    async def _committed(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, CommittedOffset]:
        """Return committed offsets, however long it takes to reach whoever keeps them."""
        backoff = self._cluster.backoff()
        with trio.CancelScope() as self._waiting:
            while partitions and not self._stopped:
                try:
                    return await self._offsets.committed(partitions)
                except OdradekError as error:
                    if not is_retriable(error):
                        raise
                    self.last_error = error
                await trio.sleep(backoff.next())
        return {}

    async def commit_finished(self, partitions: Collection[TopicPartition]) -> None:
        """Commit what is finished and was not committed; what fails is noted and not raised."""
        offsets: dict[TopicPartition, CommittedOffset] = {}
        for partition in partitions:
            position = self._buffers.positions.get(partition)
            if position is None or position.done_offset < 0 or self._is_of_the_past(position):
                continue
            done, stored = position.done_offset, self._stored.get(partition, -1)
            # what is in hand may have been committed on purpose: never go back behind that
            if done > stored or (done < stored and position.holder is None):
                offsets[partition] = CommittedOffset(done, position.taken_epoch)
        try:
            await self.commit(offsets)
        except OdradekError as error:
            self.last_error = error
            _log.warning("offsets were not committed: %s", error)

    def _is_of_the_past(self, position: Position) -> bool:
        """Whether its topic was deleted: its offset would be one of the next topic of that name."""
        name, metadata = position.partition.topic, self._cluster.metadata
        topic = metadata.topics.get(name)
        if topic is None:
            return metadata.errors.get(name) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return position.topic_id not in (None, topic.topic_id)

    async def committed(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, CommittedOffset]:
        """Return committed offsets. Raises as `Membership.committed`."""
        return await self._offsets.committed(partitions)

    async def commit(self, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        """Commit, and remember that it is done. Raises as `Membership.commit`."""
        if offsets:
            await self._offsets.commit(offsets)
            for partition in offsets.keys() & self.owned:
                self._stored[partition] = offsets[partition].offset
