"""Every group of one partition of `__consumer_offsets`: the group machine as its host sees it.

    shard = GroupShard(settings, new_id)
    for key, value, timestamp_ms in log: shard.replay(key, value, timestamp_ms)
    effects = shard.start(now, now_ms)          # carry out: append the writes, send the replies
    effects = shard.handle(request, now, now_ms)
    effects = shard.stored(write.id, now, now_ms)
    effects = shard.tick(now, now_ms)           # not later than shard.next_deadline

Promises:

    G1  every ticket is answered exactly once, at the latest by `resign`
    G2  a reply that depends on a write comes from `stored` or `failed` of that write
    G3  replaying the stored writes gives the committed offsets and the generations of this shard
    G4  an assignment, and an offset, that anybody was told of is stored
    G5  nothing happens by time but in `tick`, and `next_deadline` is never later than what is due
    G6  memory is bounded by the members, pending members, offsets and writes under way
"""

from __future__ import annotations

from functools import partial
from math import inf
from typing import TYPE_CHECKING, cast

from odradek.errors import ErrorCode
from odradek.group import classic_describe
from odradek.group.classic import ClassicGroup, Event, State
from odradek.group.classic_join import Joining
from odradek.group.classic_rebalance import Rebalancing
from odradek.group.classic_requests import MemberRequests, nobody_left, offset_delete_error
from odradek.group.context import Context
from odradek.group.effects import NOTHING, Effects, Request
from odradek.group.forgetting import Forgetting
from odradek.group.member_budget import MemberBudget
from odradek.group.offset_requests import OffsetRequests
from odradek.group.offsets import OffsetStore
from odradek.group.records import (
    GroupKey,
    GroupMetadataValue,
    OffsetKey,
    decode_group,
    decode_key,
    decode_offset,
)
from odradek.group.refusal import refused
from odradek.group.retention import Retention
from odradek.wire.api.a08_offset_commit import OffsetCommitRequest
from odradek.wire.api.a11_join_group import JoinGroupRequest
from odradek.wire.api.a12_heartbeat import HeartbeatRequest
from odradek.wire.api.a13_leave_group import LeaveGroupRequest
from odradek.wire.api.a14_sync_group import SyncGroupRequest
from odradek.wire.api.a42_delete_groups import DeletableGroupResult
from odradek.wire.api.a47_offset_delete import OffsetDeleteRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from odradek.group.settings import GroupSettings
    from odradek.wire.api.a09_offset_fetch import OffsetFetchRequestGroup, OffsetFetchResponseGroup
    from odradek.wire.api.a15_describe_groups import DescribedGroup
    from odradek.wire.api.a16_list_groups import ListedGroup
    from odradek.wire.schema import Message

__all__ = ["GroupShard", "partition_for_group"]


class GroupShard:
    """The groups of one partition, from its replay until another broker leads it.

    `new_id` returns an id that is never returned again by any broker (a UUID as text): member ids
    are made of it. `budget`, which all shards of a broker share, bounds what members keep: beyond
    it new ones are refused with COORDINATOR_NOT_AVAILABLE. Times are `now`, monotonic seconds, by
    which timers run, and `now_ms`, the wall clock in milliseconds since 1970, which stamps commits
    and expires offsets. `counts_from` is told what `now_ms` was once, and says what that moment is
    by the clock of now: later, where the clock was set ahead since. Calls must not overlap; none
    raises but for a mistake of its caller.
    """

    def __init__(
        self,
        settings: GroupSettings,
        new_id: Callable[[], str],
        budget: MemberBudget | None = None,
        counts_from: Callable[[int], int] = int,
    ) -> None:
        self._settings = settings
        budget = MemberBudget(2**63) if budget is None else budget
        self._context = context = Context(settings, new_id, budget)
        self._groups: dict[str, ClassicGroup] = {}
        self._offsets = OffsetStore()
        self._rebalancing = Rebalancing(context, self._drop_if_idle)
        self._joining = Joining(context, self._rebalancing)
        self._members = MemberRequests(context, self._rebalancing)
        self._offset_requests = OffsetRequests(context, self._offsets, self._drop_if_idle)
        self._retention = Retention(
            context,
            self._groups,
            self._offsets,
            self._rebalancing,
            self._offset_requests,
            counts_from,
        )
        self._forgetting = Forgetting(context, self._offsets, self._offset_requests)
        self._replayed: dict[str, GroupMetadataValue] = {}
        self._topics: set[str] = set()  # of which offsets were replayed
        self._refusing: ErrorCode = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS  # NONE while in office
        self._handlers: dict[type[Message], Callable[[Request], None]] = {
            JoinGroupRequest: self._join,
            SyncGroupRequest: self._sync,
            HeartbeatRequest: self._heartbeat,
            LeaveGroupRequest: self._leave,
            OffsetCommitRequest: self._commit,
            OffsetDeleteRequest: self._delete_offsets,
        }

    # Coming into office, and leaving it

    def replay(self, key: bytes, value: bytes | None, timestamp_ms: int) -> None:
        """Take in a record of the log; the order of the log matters for each key by itself.

        Types that are not known, such as those of KIP-848, are passed over. Raises
        MalformedMessage for a record that cannot be read: to pass over it could lose a commit.
        """
        kind = decode_key(key)
        if isinstance(kind, OffsetKey):
            offsets = self._offsets.to_change(kind.group)
            if value is None:
                offsets.remove(kind.topic, kind.partition)
                self._offsets.tidy(kind.group)
            else:
                offsets.put(kind.topic, kind.partition, decode_offset(value), 0)
                self._topics.add(kind.topic)
        elif isinstance(kind, GroupKey):
            if value is None:
                self._replayed.pop(kind.group, None)
            else:
                self._replayed[kind.group] = decode_group(value)

    def start(
        self, now: float, now_ms: int, exists: Callable[[str], bool] = lambda topic: True
    ) -> Effects:
        """Come into office: the replay is over, and each member begins a whole session.

        The offsets of topics that do not exist any more are deleted, as by `forget_topics`.
        """
        context = self._context
        context.begin(now, now_ms)
        self._refusing = ErrorCode.NONE
        for group_id, value in self._replayed.items():
            self._adopt(ClassicGroup.replayed(group_id, value))
        self._replayed.clear()
        for group_id in self._offsets.group_ids():
            if group_id not in self._groups:
                self._adopt(ClassicGroup(group_id, None))
        for group in self._groups.values():
            if len(group.members) > self._settings.max_size:
                self._rebalancing.prepare(group, Event.OVER_CAPACITY)
        self._retention.start()
        gone = {topic for topic in self._topics if not exists(topic)}
        self._topics.clear()
        if gone:
            self._forgetting.forget(gone)
        return context.end()

    def resign(self, error: ErrorCode) -> Effects:
        """Leave office: whatever waits is answered with `error`, NOT_COORDINATOR as a rule.

        From then on every request is refused with it, and nothing else happens; fates of writes
        may still be told. Writes that are under way may have been stored or not.
        """
        if self._refusing:
            return NOTHING
        self._refusing = error
        context = self._context
        context.weights.close()
        for group in self._groups.values():
            for member in group.members.values():
                self._rebalancing.refuse(group, member, member.member_id, error)
            self._rebalancing.release(group)
            group.step(Event.RESIGNED, context.now_ms)
        self._retention.stop()
        context.abandon(error)
        self._forgetting.stop()
        self._groups.clear()
        return context.end()

    # Requests

    def handle(self, request: Request, now: float, now_ms: int) -> Effects:
        """Handle JoinGroup, SyncGroup, Heartbeat, LeaveGroup, OffsetCommit or OffsetDelete.

        Raises TypeError for any other message.
        """
        handler = self._handlers.get(type(request.message))
        if handler is None:
            raise TypeError(f"{type(request.message).__name__} is not for a group")
        self._context.begin(now, now_ms)
        if self._refusing:
            self._refuse(request, self._refusing)
        else:
            handler(request)
        return self._context.end()

    def _refuse(self, request: Request, error: ErrorCode) -> None:
        self._context.reply(request.ticket, refused(request, error))

    def _find(self, request: Request, group_id: str, absent: ErrorCode) -> ClassicGroup | None:
        """Return the group, or refuse the request: with `absent` when there is no such group."""
        group = self._groups.get(group_id)
        if group is not None and not group.deleting:
            return group
        if not group_id:
            self._refuse(request, ErrorCode.INVALID_GROUP_ID)
        elif group is None:
            self._refuse(request, absent)
        else:
            self._refuse(request, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return None

    def _join(self, request: Request) -> None:
        message = cast("JoinGroupRequest", request.message)
        group_id = message.group_id
        timeout = message.session_timeout_ms
        settings = self._settings
        if group_id and not (
            settings.session_timeout_min_ms <= timeout <= settings.session_timeout_max_ms
        ):
            self._refuse(request, ErrorCode.INVALID_SESSION_TIMEOUT)
            return
        if group_id and not message.member_id:
            self._create(group_id)
        group = self._find(request, group_id, ErrorCode.UNKNOWN_MEMBER_ID)
        if group is not None:
            self._joining.join(group, request)
            self._drop_if_idle(group_id)

    def _sync(self, request: Request) -> None:
        message = cast("SyncGroupRequest", request.message)
        group = self._find(request, message.group_id, ErrorCode.UNKNOWN_MEMBER_ID)
        if group is not None:
            self._members.sync(group, request)

    def _heartbeat(self, request: Request) -> None:
        message = cast("HeartbeatRequest", request.message)
        group = self._find(request, message.group_id, ErrorCode.UNKNOWN_MEMBER_ID)
        if group is not None:
            self._members.heartbeat(group, request)

    def _leave(self, request: Request) -> None:
        message = cast("LeaveGroupRequest", request.message)
        if message.group_id and message.group_id not in self._groups:
            self._context.reply(request.ticket, nobody_left(message, request.version))
            return
        group = self._find(request, message.group_id, ErrorCode.UNKNOWN_MEMBER_ID)
        if group is not None:
            self._members.leave(group, request)
            self._drop_if_idle(message.group_id)

    def _commit(self, request: Request) -> None:
        message = cast("OffsetCommitRequest", request.message)
        group = self._groups.get(message.group_id)
        if group is None:
            if message.generation_id_or_member_epoch >= 0:
                error = ErrorCode.ILLEGAL_GENERATION
                if request.version >= 9:
                    error = ErrorCode.GROUP_ID_NOT_FOUND
                self._refuse(request, error)
                return
            group = self._create(message.group_id)
        if group.deleting:
            self._refuse(request, ErrorCode.COORDINATOR_NOT_AVAILABLE)
            return
        error = self._members.commit_error(group, message)
        if error:
            self._refuse(request, error)
        else:
            self._offset_requests.commit(request.ticket, group.group_id, message)
        self._drop_if_idle(group.group_id)

    def _delete_offsets(self, request: Request) -> None:
        message = cast("OffsetDeleteRequest", request.message)
        group = self._find(request, message.group_id, ErrorCode.GROUP_ID_NOT_FOUND)
        if group is not None:
            error = offset_delete_error(group)
            if error:
                self._refuse(request, error)
            else:
                self._offset_requests.delete(request.ticket, group, message)

    def delete(self, ticket: int, group_id: str, now: float, now_ms: int) -> Effects:
        """Delete a group that has no members; the reply carries a `DeletableGroupResult`."""
        self._context.begin(now, now_ms)
        group = self._groups.get(group_id)
        if self._refusing:
            error = self._refusing
        elif group is None:
            error = ErrorCode.GROUP_ID_NOT_FOUND
        elif group.deleting:
            error = ErrorCode.COORDINATOR_NOT_AVAILABLE
        elif group.state is not State.EMPTY:
            error = ErrorCode.NON_EMPTY_GROUP
        else:
            self._retention.delete(group, Event.DELETED, partial(self._deleted, ticket, group_id))
            return self._context.end()
        self._deleted(ticket, group_id, error)
        return self._context.end()

    def _deleted(self, ticket: int, group_id: str, error: ErrorCode) -> None:
        self._context.reply(ticket, DeletableGroupResult(group_id=group_id, error_code=error))

    def forget_topics(self, names: Collection[str], now: float, now_ms: int) -> Effects:
        """Delete the offsets of topics that were deleted, in every group.

        They are out of force at once. They leave the log in portions, and what cannot be written
        is tried again until it is. Commits from now on are to other topics of the same name.
        """
        self._context.begin(now, now_ms)
        if not self._refusing:
            self._forgetting.forget(names)
        return self._context.end()

    @property
    def forgetting(self) -> int:
        """How many groups' offsets of deleted topics could not be removed from the log yet."""
        return self._forgetting.unfinished

    # Fates of writes, and time

    def stored(self, write_id: int, now: float, now_ms: int) -> Effects:
        """A write is committed: what depends on it happens now.

        Fates may be told in any order; each takes effect after those of the writes before it.
        Raises ValueError for a write that was never asked for, or whose fate was told before.
        """
        return self.failed(write_id, ErrorCode.NONE, now, now_ms)

    def failed(self, write_id: int, error: ErrorCode, now: float, now_ms: int) -> Effects:
        """A write was not appended, and will not be: the log is as before it.

        Raises as `stored` does.
        """
        if self._refusing:
            return NOTHING  # everybody has been answered
        self._context.begin(now, now_ms)
        self._context.settle(write_id, error)
        return self._context.end()

    @property
    def next_deadline(self) -> float:
        """When `tick` wants to be called, in monotonic seconds; inf when nothing is to come."""
        return inf if self._refusing else self._context.timers.next_deadline

    def tick(self, now: float, now_ms: int) -> Effects:
        """Do what is due by `now`."""
        context = self._context
        context.begin(now, now_ms)
        if not self._refusing:
            while (timer := context.timers.due(now)) is not None:
                timer.fire()
        return context.end()

    # What can be seen

    def fetch_offsets(
        self, group: OffsetFetchRequestGroup, version: int, now_ms: int
    ) -> OffsetFetchResponseGroup:
        """Return committed offsets; -1, without an error, for what was never committed.

        Topics of the request are looked up by name; names and ids are given back as they came.
        """
        response = self._offset_requests.fetch(group, self._offsets.of(group.group_id))
        response.error_code = self._refusing
        return response

    def describe(self, group_id: str, version: int) -> DescribedGroup:
        """Describe a group, or say as `version` of DescribeGroups does that there is none."""
        group = self._groups.get(group_id)
        if group is None or self._refusing:
            described = classic_describe.absent(group_id, version)
            if self._refusing:
                described.error_code = self._refusing
                described.error_message = None
            return described
        return classic_describe.described(group)

    def listed(
        self, states: Collection[str] = (), types: Collection[str] = ()
    ) -> Iterator[ListedGroup]:
        """List the groups in one of these states and of one of these types, in any case.

        An empty filter lets all pass.
        """
        if types and classic_describe.GROUP_TYPE not in map(str.lower, types):
            return
        wanted = {state.strip().lower() for state in states}
        for group in self._groups.values():
            if not wanted or group.state.value.lower() in wanted:
                yield classic_describe.listed(group)

    def __len__(self) -> int:
        return len(self._groups)

    # Groups come and go

    def _create(self, group_id: str) -> ClassicGroup:
        group = self._groups.get(group_id)
        return group or self._adopt(ClassicGroup(group_id, self._context.now_ms))

    def _adopt(self, group: ClassicGroup) -> ClassicGroup:
        self._groups[group.group_id] = group
        self._rebalancing.adopt(group)
        return group

    def _drop_if_idle(self, group_id: str) -> None:
        self._retention.drop_if_idle(group_id)


def partition_for_group(group_id: str, partitions: int) -> int:
    """Return the partition of `__consumer_offsets`, out of `partitions`, that a group lives in.

    As in Kafka: the absolute value of Java's `String.hashCode`, 0 for the one that has none. That
    is a polynomial in 31 over the id's UTF-16 units, modulo 2**32. Evaluated in lanes of one long
    integer: a loop over the units takes 6.5 ms for an id of 32,000, this 0.4 ms.
    """
    units = group_id.encode("utf-16-be", "surrogatepass")
    units = units.rjust(-(-len(units) // _BLOCK_BYTES) * _BLOCK_BYTES, b"\0")  # 0 adds nothing
    lanes = 0
    for at in range(0, len(units), _BLOCK_BYTES):
        block = int.from_bytes(units[at : at + _BLOCK_BYTES], "big")
        block = (block >> 16 & _PAIRS) * 31 + (block & _PAIRS)  # below 2**21, in 32 bits
        block = (block >> 32 & _QUADS) * 31**2 + (block & _QUADS)  # below 2**31, in 64 bits
        lanes = lanes * _BLOCK_POWER + block & _QUADS  # below 2**64 before it is cut
    for bits, mask, power in _FOLDS:
        lanes = (lanes >> bits) * power + (lanes & mask) & _QUADS
    digest = lanes
    if digest >= 0x80000000:
        digest = 0 if digest == 0x80000000 else 0x100000000 - digest
    return digest % partitions


_BLOCK_BYTES = 512
_PAIRS = int.from_bytes(b"\x00\x00\xff\xff" * (_BLOCK_BYTES // 4), "big")
_QUADS = int.from_bytes(b"\x00\x00\x00\x00\xff\xff\xff\xff" * (_BLOCK_BYTES // 8), "big")
_BLOCK_POWER = pow(31, _BLOCK_BYTES // 2, 1 << 32)
_FOLDS = tuple(
    # Half of the lanes, 64 bits and 4 units each, is laid upon the other half, down to one lane.
    (half * 64, (1 << half * 64) - 1, pow(31, half * 4, 1 << 32))
    for half in (_BLOCK_BYTES // 8 >> shift for shift in range(1, (_BLOCK_BYTES // 8).bit_length()))
)
