"""A member of a group that a broker coordinates: Kafka's classic protocol, client side.

    joining      JoinGroup is sent; the coordinator answers when all members have joined, or their
                 rebalance timeout is over. A new member is given its id first and asks again.
    syncing      one member, the leader, shares out the partitions and sends that with SyncGroup;
                 the others' SyncGroup is answered with their part of it.
    stable       heartbeats. An answer REBALANCE_IN_PROGRESS means: join again.

Eager: a member gives up everything before it joins. Cooperative (KIP-429): it keeps what it has,
learns what it has to give up, gives that up and joins once more, so that others can have it.

Heartbeats have a task and a connection of their own. They are sent while the application's
callbacks run, however long, but not while JoinGroup waits: the coordinator counts it as one.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from itertools import count

import trio

from odradek.client.cluster import Cluster
from odradek.client.consumer_settings import ConsumerSettings
from odradek.client.errors import is_retriable, raise_for
from odradek.client.member_offsets import GroupOffsets, Identity, coordinator_connection
from odradek.client.member_protocol import (
    assigned_partitions,
    assignments,
    members_of,
    protocols,
)
from odradek.client.membership import (
    CommitFailed,
    CommittedOffset,
    MembershipState,
    MembershipStatus,
    Subscriber,
)
from odradek.client.metadata import TopicPartition
from odradek.contracts.background import open_tasks
from odradek.errors import ErrorCode, KafkaError, OdradekError
from odradek.group.consumer_protocol import PROTOCOL_TYPE
from odradek.wire.api.a11_join_group import JoinGroupRequest, JoinGroupResponse
from odradek.wire.api.a12_heartbeat import HeartbeatRequest, HeartbeatResponse
from odradek.wire.api.a13_leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity
from odradek.wire.api.a14_sync_group import (
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)

__all__ = ["ClassicMember"]

_log = logging.getLogger(__name__)
_numbers = count()

_JOIN_LAPSE = 5.0
"""Seconds after the rebalance timeout for the answer to JoinGroup (as Kafka's Java client)."""
_LEAVING = 2.0
_MISSING_AGE = 5.0
"""Seconds after which the leader looks again for topics that the group wants and nobody has."""

_FENCED = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION})


class ClassicMember:
    """A `Membership` of `group`, by the classic protocol."""

    def __init__(self, cluster: Cluster, group: str, settings: ConsumerSettings) -> None:
        self.status = MembershipStatus()
        self._cluster = cluster
        self._group = group
        self._settings = settings
        self._subscriber: Subscriber | None = None
        self._offsets = GroupOffsets(cluster, group, self._identity, self._may_heal)
        number = next(_numbers)
        # brokers answer a connection's requests in order: JoinGroup would hold up the heartbeats
        self._purpose = f"join-{number}"
        self._beating = f"heartbeat-{number}"
        self._rejoin = trio.Event()
        self._joining = False
        self._calling = False  # the subscriber: what it awaits must not wait for a rebalance
        self._fenced = False
        self._left = False
        self._before: frozenset[TopicPartition] = frozenset()
        self._before_generation = -1
        self._counts: Mapping[str, int] | None = None  # what the leader shared out

    @property
    def alive(self) -> bool:
        """Always: who is not a member any more is told by an answer."""
        return True

    def subscription_changed(self) -> None:
        """Join again with the topics as they are now."""
        self._rejoin.set()

    # Offsets

    async def commit(self, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        """Store offsets; see `Membership.commit`."""
        await self._offsets.commit(offsets)

    async def committed(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, CommittedOffset]:
        """Return stored offsets; see `Membership.committed`."""
        return await self._offsets.committed(partitions)

    def _identity(self, partitions: Collection[TopicPartition]) -> Identity:
        owned = self._subscriber.owned if self._subscriber is not None else frozenset()
        foreign = sorted(set(partitions) - owned)
        if foreign:
            raise CommitFailed(f"partition {foreign[0]} is not assigned to this member")
        status = self.status
        if status.generation < 0:
            raise CommitFailed(f"this consumer is no member of group {self._group!r} at present")
        return Identity(status.generation, status.member_id, self._settings.group_instance_id)

    def _may_heal(self, error: KafkaError) -> bool:
        """Whether a commit refused for its generation or member id is worth repeating.

        ILLEGAL_GENERATION to a member that nobody fenced: the answer to its JoinGroup was lost.
        It joins again, by the same id, and has what it claimed; or it is told what it lost.
        """
        if self._calling:
            return False
        if error.code == ErrorCode.UNKNOWN_MEMBER_ID:
            if not self._joining:
                self._fence(error)
            return False
        return True

    # The life of a member

    async def run(
        self,
        subscriber: Subscriber,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Join, keep alive, rebalance; see `Membership.run`."""
        self._subscriber = subscriber
        self.status.state = MembershipState.JOINING
        self._rejoin.set()
        try:
            async with open_tasks() as tasks:
                tasks.start_soon(self._keep_alive)
                tasks.start_soon(self._watch_partitions)
                task_status.started()
                await self._follow(subscriber)
        except OdradekError as error:
            self.status.state, self.status.last_error = MembershipState.FAILED, error
            await subscriber.lost(subscriber.owned)
            raise

    async def _follow(self, subscriber: Subscriber) -> None:
        backoff = self._cluster.backoff()
        while True:
            await self._rejoin.wait()
            if self._left:
                return
            try:
                if await self._rebalance(subscriber):
                    backoff.reset()
                    continue
            except OdradekError as error:
                if self._has_left():
                    return  # leaving has ended the connections
                self.status.last_error = error
                if isinstance(error, KafkaError) and error.code in _FENCED:
                    self._fence(error)
                elif not is_retriable(error):
                    raise
                _log.info("group %s: joining again: %s", self._group, error)
            self._rejoin.set()
            await trio.sleep(backoff.next())

    def _fence(self, error: KafkaError) -> None:
        """Note that the group goes on without this member, whatever it owns."""
        self._fenced = True
        self.status.last_error = error
        self.status.generation = -1
        if error.code == ErrorCode.UNKNOWN_MEMBER_ID:
            self.status.member_id = ""
        self._rejoin.set()

    @contextmanager
    def _calling_the_subscriber(self) -> Iterator[None]:
        self._calling = True
        try:
            yield
        finally:
            self._calling = False

    def _has_left(self) -> bool:
        """Whether it left while something else was awaited."""
        return self._left

    def _out(self) -> bool:
        """Whether it was fenced while something else was awaited."""
        return self._fenced

    async def _rebalance(self, subscriber: Subscriber) -> bool:
        """Go through one generation; return whether it was stable when it began."""
        owned = subscriber.owned
        fenced, self._fenced = self._fenced, False
        known = self.status.member_id and not fenced
        self.status.state = MembershipState.REBALANCING if known else MembershipState.JOINING
        with self._calling_the_subscriber():
            if fenced:
                await subscriber.lost(owned)
            elif not self._settings.cooperative:
                await subscriber.revoked(owned)
            else:
                dropped = [each for each in owned if each.topic not in subscriber.topics]
                await subscriber.revoked(dropped)
        if self._out():
            return False
        joined = await self._join(subscriber)
        given = await self._sync(joined)
        if given is None:
            return False
        self._before, self._before_generation = given, joined.generation_id
        if self._settings.cooperative:
            surplus = subscriber.owned - given
            if surplus:
                with self._calling_the_subscriber():
                    await subscriber.revoked(surplus)
                self._rejoin.set()
        if self._out():
            return False
        with self._calling_the_subscriber():
            await subscriber.assigned(given - subscriber.owned)
        if not self._rejoin.is_set():
            self.status.state, self.status.last_error = MembershipState.STABLE, None
        return True

    async def _join(self, subscriber: Subscriber) -> JoinGroupResponse:
        self._counts = None
        self._rejoin = trio.Event()  # whatever asked for it until now is answered by this
        timeout = max(
            self._settings.rebalance_timeout + _JOIN_LAPSE, self._cluster.settings.request_timeout
        )
        self._joining = True
        try:
            while True:
                request = JoinGroupRequest(
                    group_id=self._group,
                    session_timeout_ms=int(self._settings.session_timeout * 1000),
                    rebalance_timeout_ms=int(self._settings.rebalance_timeout * 1000),
                    member_id=self.status.member_id,
                    group_instance_id=self._settings.group_instance_id,
                    protocol_type=PROTOCOL_TYPE,
                    protocols=protocols(
                        self._settings.assignors,
                        subscriber.topics,
                        subscriber.owned,
                        self._before,
                        self._before_generation,
                    ),
                )
                answer = await self._cluster.call_coordinator(
                    self._group, request, JoinGroupResponse, timeout=timeout, purpose=self._purpose
                )
                if answer.error_code != ErrorCode.MEMBER_ID_REQUIRED:
                    break
                self.status.member_id = answer.member_id
            raise_for(answer.error_code, f"joining group {self._group!r}")
        finally:
            self._joining = False
        self.status.member_id = answer.member_id
        self.status.generation = answer.generation_id
        return answer

    async def _sync(self, joined: JoinGroupResponse) -> frozenset[TopicPartition] | None:
        """Return what this member is given; None when the group has begun anew already."""
        work: list[SyncGroupRequestAssignment] = []
        if joined.leader == joined.member_id and joined.members:
            work = await self._share_out(joined)
        request = SyncGroupRequest(
            group_id=self._group,
            generation_id=joined.generation_id,
            member_id=joined.member_id,
            group_instance_id=self._settings.group_instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocol_name=joined.protocol_name,
            assignments=work,
        )
        timeout = max(self._settings.rebalance_timeout, self._cluster.settings.request_timeout)
        answer = await self._cluster.call_coordinator(
            self._group, request, SyncGroupResponse, timeout=timeout, purpose=self._purpose
        )
        if answer.error_code == ErrorCode.REBALANCE_IN_PROGRESS:
            return None
        raise_for(answer.error_code, f"synchronising with group {self._group!r}")
        return assigned_partitions(answer.assignment)

    async def _share_out(self, joined: JoinGroupResponse) -> list[SyncGroupRequestAssignment]:
        """Do the leader's work."""
        name = joined.protocol_name or ""
        members = members_of(name, joined.members)
        topics = {topic for member in members for topic in member.topics}
        if topics - self._cluster.metadata.topics.keys():
            await self._cluster.renew(topics)
        self._counts = self._partition_counts(topics)
        if joined.skip_assignment:  # KIP-814: a static member came back, the assignment stands
            return []
        return assignments(name, members, self._counts)

    def _partition_counts(self, topics: Collection[str]) -> dict[str, int]:
        known = self._cluster.metadata.topics
        return {name: len(known[name].partitions) if name in known else 0 for name in topics}

    async def _watch_partitions(self) -> None:
        """As leader, have the group share out anew when its topics get other partitions."""
        while True:
            changed = self._cluster.image_changed
            counts = self._counts
            if counts is not None and self._partition_counts(counts) != counts:
                _log.info("group %s: its topics changed", self._group)
                self._counts = None
                self._rejoin.set()
            age = self._cluster.settings.metadata_max_age
            if counts is not None and not all(counts.values()):
                age = min(age, _MISSING_AGE)
            with trio.move_on_after(age):
                await changed.wait()
                continue
            if counts is not None:
                try:
                    await self._cluster.renew(counts)
                except OdradekError as error:
                    self.status.last_error = error  # looked for again when the age is over

    # Keeping alive

    async def _keep_alive(self) -> None:
        backoff = self._cluster.backoff()
        wait = self._settings.heartbeat_interval
        while not self._left:
            await trio.sleep(wait)
            wait = self._settings.heartbeat_interval
            generation = self.status.generation
            if self._joining or generation < 0:
                continue
            try:
                await self._beat(generation)
            except KafkaError as error:
                if self._left or self._joining or generation != self.status.generation:
                    continue  # it speaks of a generation that is over
                if error.code == ErrorCode.REBALANCE_IN_PROGRESS:
                    self._rejoin.set()
                elif error.code in _FENCED:
                    _log.warning("group %s goes on without this member: %s", self._group, error)
                    self._fence(error)
                elif error.retriable:
                    self.status.last_error = error
                    wait = min(backoff.next(), wait)
                else:
                    raise
            except OdradekError as error:
                if self._has_left():
                    return  # leaving has ended the connections
                if not is_retriable(error):
                    raise
                self.status.last_error = error
                wait = min(backoff.next(), wait)
            else:
                backoff.reset()
                if self.status.state is MembershipState.STABLE:
                    self.status.last_error = None

    async def _beat(self, generation: int) -> None:
        request = HeartbeatRequest(
            group_id=self._group,
            generation_id=generation,
            member_id=self.status.member_id,
            group_instance_id=self._settings.group_instance_id,
        )
        timeout = min(self._settings.session_timeout / 3, self._cluster.settings.request_timeout)
        answer = await self._cluster.call_coordinator(
            self._group, request, HeartbeatResponse, timeout=timeout, purpose=self._beating
        )
        raise_for(answer.error_code, f"a heartbeat of group {self._group!r}")

    async def leave(self) -> None:
        """Leave the group, unless this is a static member; see `Membership.leave`."""
        self._left = True
        self._rejoin.set()
        failed = self.status.state is MembershipState.FAILED
        if self.status.member_id and self._settings.group_instance_id is None:
            with trio.move_on_after(_LEAVING):
                try:
                    await self._say_goodbye()
                except OdradekError as error:
                    _log.info("group %s: not told that a member left: %s", self._group, error)
        self._cluster.disconnect(self._purpose)
        self._cluster.disconnect(self._beating)
        self.status.generation = -1
        if not failed:
            self.status.state = MembershipState.LEFT

    async def _say_goodbye(self) -> None:
        async with coordinator_connection(self._cluster, self._group, self._beating) as connection:
            version = connection.version_of(LeaveGroupRequest)
            member_id = self.status.member_id
            request = LeaveGroupRequest(group_id=self._group)
            if version < 3:
                request.member_id = member_id
            else:
                request.members = [
                    MemberIdentity(member_id=member_id, reason="the consumer was closed")
                ]
            answer = await connection.call(request, LeaveGroupResponse, version=version)
            for code in (answer.error_code, *(each.error_code for each in answer.members)):
                raise_for(code, f"leaving group {self._group!r}")
