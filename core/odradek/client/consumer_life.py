"""How a consumer comes by its partitions: as a member of a group, or by being told."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext

import trio

from odradek.client.cluster import Cluster
from odradek.client.consumer_buffers import PartitionBuffers
from odradek.client.consumer_fetcher import Fetcher
from odradek.client.consumer_settings import ConsumerSettings
from odradek.client.consumer_subscription import Callback, GroupSubscriber, Offsets
from odradek.client.consumer_topics import TopicWatch
from odradek.client.member_classic import ClassicMember
from odradek.client.member_offsets import GroupOffsets
from odradek.client.membership import CommitFailed, CommittedOffset, Membership
from odradek.client.metadata import TopicPartition
from odradek.client.positions import Start
from odradek.contracts.coordinator import Coordinator
from odradek.errors import OdradekError

__all__ = ["Assignment", "ConsumerLife"]

Assignment = Iterable[TopicPartition] | Mapping[TopicPartition, Start]

_CLOSING = 5.0
"""Seconds for what is committed, and for the application's callbacks, when a consumer is left."""


class ConsumerLife:
    """Subscribed, with a membership; or assigned by hand; or neither: one after the other.

    What its tasks raise and waiting cannot heal fails `buffers`, where whoever iterates finds it.
    """

    def __init__(
        self,
        cluster: Cluster,
        group: str | None,
        settings: ConsumerSettings,
        nursery: trio.Nursery,
        buffers: PartitionBuffers,
        fetcher: Fetcher,
        coordinator: Coordinator | None,
        callbacks: Mapping[str, Callback | None],
    ) -> None:
        self._cluster = cluster
        self._group = group
        self._settings = settings
        self._nursery = nursery
        self._buffers = buffers
        self._fetcher = fetcher
        self._coordinator = coordinator
        self._callbacks = callbacks
        self._watch: TopicWatch | None = None
        self._watching = trio.CancelScope()
        self._membership: Membership | None = None
        self._living: trio.CancelScope | None = None
        self._subscriber: GroupSubscriber | None = None
        buffers.gate = self._may_hand_out

    # What it is

    @property
    def topics(self) -> frozenset[str]:
        """The topics subscribed to; of a pattern those that match now."""
        return (self._watch and self._watch.topics) or frozenset()

    @property
    def state(self) -> str:
        """As `ConsumerHealth.state`."""
        if self._membership is not None:
            return self._membership.status.state.value
        if self._subscriber is not None:
            return "assigned"
        return "idle" if self._watch is None else "joining"

    @property
    def member_id(self) -> str:
        """Of the membership; "" without one."""
        return "" if self._membership is None else self._membership.status.member_id

    @property
    def generation(self) -> int:
        """Of the membership; -1 without one."""
        return -1 if self._membership is None else self._membership.status.generation

    @property
    def errors(self) -> list[OdradekError | None]:
        """What failed last, of each part."""
        return [
            None if self._membership is None else self._membership.status.last_error,
            None if self._watch is None else self._watch.last_error,
            None if self._subscriber is None else self._subscriber.last_error,
        ]

    @property
    def offsets(self) -> Offsets:
        """Where the group's offsets are. Raises ValueError without a group, and CommitFailed."""
        if self._group is None:
            raise ValueError("offsets are a group's, and this consumer has none")
        if self._subscriber is None:
            raise CommitFailed(f"this consumer is no member of group {self._group!r} at present")
        return self._subscriber

    # What it is told

    def subscribe(
        self, topics: Iterable[str] | None, pattern: str | re.Pattern[str] | None
    ) -> None:
        """See `Consumer.subscribe`."""
        if self._group is None:
            raise ValueError("to subscribe, a consumer needs a group")
        if self._settings.group_protocol == "decentralised" and self._coordinator is None:
            raise ValueError("a decentralised group needs a coordinator")
        if self._subscriber is not None and self._membership is None:
            raise ValueError("partitions were assigned by hand: unsubscribe first")
        watch = TopicWatch(self._cluster, topics, pattern, self._topics_changed)
        self._watching.cancel()
        self._watch, self._watching = watch, trio.CancelScope()
        self._fetcher.missing_timeout = float("inf")
        self._nursery.start_soon(self._watch_topics, watch, self._watching)

    def assign(self, assignment: Assignment) -> None:
        """See `Consumer.assign`."""
        if self._watch is not None:
            raise ValueError("topics are subscribed to: unsubscribe first")
        if self._group is not None and self._settings.group_protocol == "decentralised":
            raise ValueError("the offsets of a decentralised group are its members': subscribe")
        if self._subscriber is None:
            offsets: Offsets = _NoOffsets()
            if self._group is not None:
                offsets = GroupOffsets(self._cluster, self._group)
            self._subscriber = self._new_subscriber(offsets, {})
        self._fetcher.missing_timeout = self._settings.missing_timeout
        starts = assignment if isinstance(assignment, Mapping) else {}
        wanted = {TopicPartition(*each) for each in assignment}
        dropped = self._subscriber.owned - wanted
        fresh = self._subscriber.take_over(wanted)
        for each in fresh & starts.keys():
            start = starts[each]
            if start.offset is not None:
                self._buffers.move(each, start.offset)
            elif start.timestamp is not None:
                self._buffers.move_to_time(each, start.timestamp)
        self._nursery.start_soon(self._change, self._subscriber, dropped, fresh)

    async def end(self) -> None:
        """Give up every partition and leave the group. For a shielded scope: within seconds.

        Raises what the application's callback raises, when all that is done.
        """
        self._watching.cancel()
        subscriber, membership = self._subscriber, self._membership
        try:
            if subscriber is not None:
                with trio.move_on_after(_CLOSING):
                    await subscriber.stop()
        finally:
            if membership is not None:
                await membership.leave()
            if self._living is not None:
                self._living.cancel()
            self._buffers.remove(list(self._buffers.positions))
            self._watch = self._living = self._membership = self._subscriber = None

    # Tasks

    async def commit_from_time_to_time(self) -> None:
        """Commit what is finished, if the settings say so, until cancelled."""
        while self._settings.auto_commit and self._group is not None:
            await trio.sleep(self._settings.auto_commit_interval)
            if self._subscriber is not None:
                await self._subscriber.commit_finished(self._subscriber.owned)

    def _may_hand_out(self) -> bool:
        return self._membership is None or self._membership.alive

    def _topics_changed(self, topics: frozenset[str]) -> None:
        if self._living is None:
            self._living = trio.CancelScope()
            self._nursery.start_soon(self._live, self._living)
        elif self._subscriber is not None and self._membership is not None:
            self._subscriber.topics = topics
            self._membership.subscription_changed()

    async def _watch_topics(self, watch: TopicWatch, scope: trio.CancelScope) -> None:
        with scope:
            try:
                await watch.run()
            except OdradekError as error:
                self._buffers.fail(error)

    async def _live(self, scope: trio.CancelScope) -> None:
        """Be a member of the group, until cancelled."""
        with scope:
            try:
                async with self._open_membership() as membership:
                    subscriber = self._new_subscriber(membership, self._callbacks)
                    subscriber.topics = self.topics
                    self._membership, self._subscriber = membership, subscriber
                    await membership.run(subscriber)
                    await trio.sleep_forever()  # it was left; whoever did that cancels
            except OdradekError as error:
                self._buffers.fail(error)

    def _open_membership(self) -> AbstractAsyncContextManager[Membership]:
        assert self._group is not None
        if self._settings.group_protocol == "classic":
            return nullcontext(ClassicMember(self._cluster, self._group, self._settings))
        assert self._coordinator is not None
        from odradek.client.decentralised import open_membership

        return open_membership(self._cluster, self._coordinator, self._group, self._settings)

    def _new_subscriber(
        self, offsets: Offsets, callbacks: Mapping[str, Callback | None]
    ) -> GroupSubscriber:
        return GroupSubscriber(
            self._cluster,
            self._buffers,
            self._settings,
            offsets,
            auto_commit=self._settings.auto_commit and self._group is not None,
            **callbacks,
        )

    async def _change(
        self,
        subscriber: GroupSubscriber,
        dropped: Collection[TopicPartition],
        fresh: Collection[TopicPartition],
    ) -> None:
        """Follow a change of what is assigned by hand."""
        try:
            await subscriber.revoked(dropped, drain=0)
            await subscriber.place(fresh)
        except OdradekError as error:
            self._buffers.fail(error)


class _NoOffsets:
    """The offsets of a consumer without a group: there are none."""

    async def commit(self, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        """Refuse."""
        raise ValueError("offsets are a group's, and this consumer has none")

    async def committed(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, CommittedOffset]:
        """Know none."""
        await trio.lowlevel.checkpoint()
        return {}
