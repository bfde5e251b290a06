"""SyncGroup, Heartbeat and LeaveGroup to a classic group; what it says to OffsetCommit."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from odradek.errors import ErrorCode
from odradek.group.classic import ClassicGroup, Event, State
from odradek.group.consumer_protocol import PROTOCOL_TYPE
from odradek.wire.api.a08_offset_commit import OffsetCommitRequest
from odradek.wire.api.a12_heartbeat import HeartbeatRequest, HeartbeatResponse
from odradek.wire.api.a13_leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
)
from odradek.wire.api.a14_sync_group import SyncGroupRequest, SyncGroupResponse

if TYPE_CHECKING:
    from odradek.group.classic_rebalance import Rebalancing
    from odradek.group.context import Context
    from odradek.group.effects import Request

__all__ = ["MemberRequests", "nobody_left", "offset_delete_error"]


class MemberRequests:
    """Handles what members of a generation send."""

    def __init__(self, context: Context, rebalancing: Rebalancing) -> None:
        self._context = context
        self._rebalancing = rebalancing

    def sync(self, group: ClassicGroup, request: Request) -> None:
        """Handle a SyncGroup; it is answered now, or once the leader's assignment is stored."""
        message = cast("SyncGroupRequest", request.message)
        error = self._sync_error(group, message, request.version)
        if error:
            self._context.reply(request.ticket, SyncGroupResponse(error_code=error))
            return
        member = group.members[message.member_id]
        size = sum([len(each.assignment) for each in message.assignments])
        if group.state is not State.STABLE and not self._context.weights.fits(size, known=True):
            error = ErrorCode.COORDINATOR_NOT_AVAILABLE
            self._context.reply(request.ticket, SyncGroupResponse(error_code=error))
            return
        self._rebalancing.settled(group, member)
        if group.state is State.STABLE:
            self._context.reply(request.ticket, self._rebalancing.synced(group, member))
            return
        self._rebalancing.wait_for_sync(member, request.ticket)
        # A leader that sends its assignment again while the first is being stored gets the
        # first: the log and the members must not be told different things.
        if member.member_id == group.leader and group.storing != group.generation:
            given = {each.member_id: each.assignment for each in message.assignments}
            self._rebalancing.assign(group, given)

    def _sync_error(
        self, group: ClassicGroup, message: SyncGroupRequest, version: int
    ) -> ErrorCode:
        if version >= 5 and (message.protocol_type is None or message.protocol_name is None):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        error = group.member_error(message.member_id, message.group_instance_id)
        if error:
            return error
        if message.generation_id != group.generation:
            return ErrorCode.ILLEGAL_GENERATION
        if message.protocol_type not in (None, group.protocol_type):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if group.protocol is not None and message.protocol_name not in (None, group.protocol):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if group.state is State.PREPARING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def heartbeat(self, group: ClassicGroup, request: Request) -> None:
        """Handle a Heartbeat."""
        message = cast("HeartbeatRequest", request.message)
        error = group.member_error(message.member_id, message.group_instance_id)
        if not error:
            if message.generation_id != group.generation:
                error = ErrorCode.ILLEGAL_GENERATION
            else:
                self._rebalancing.keep_alive(group.members[message.member_id])
                if group.state is State.PREPARING_REBALANCE:
                    error = ErrorCode.REBALANCE_IN_PROGRESS
        self._context.reply(request.ticket, HeartbeatResponse(error_code=error))

    def leave(self, group: ClassicGroup, request: Request) -> None:
        """Handle a LeaveGroup, of one member or of several."""
        message = cast("LeaveGroupRequest", request.message)
        size = len(group.members)
        results = [
            MemberResponse(
                member_id=identity.member_id,
                group_instance_id=identity.group_instance_id,
                error_code=self._leave(group, identity),
            )
            for identity in leaving(message, request.version)
        ]
        if len(group.members) < size:
            self._rebalancing.after_removal(group, Event.LEFT)
        else:
            self._rebalancing.maybe_complete(group)  # a pending member may have been the last
        self._context.reply(request.ticket, left(results, request.version))

    def _leave(self, group: ClassicGroup, identity: MemberIdentity) -> ErrorCode:
        member_id = identity.member_id
        instance_id = identity.group_instance_id
        if not member_id:
            # An administrator removes a static member by its instance id alone.
            if instance_id is None or instance_id not in group.instances:
                return ErrorCode.UNKNOWN_MEMBER_ID
            member_id = group.instances[instance_id]
        elif member_id in group.pending:
            self._rebalancing.remove_pending(group, member_id)
            return ErrorCode.NONE
        error = group.member_error(member_id, instance_id)
        if not error:
            self._rebalancing.remove(group, group.members[member_id])
        return error

    def commit_error(self, group: ClassicGroup, message: OffsetCommitRequest) -> ErrorCode:
        """Say whether the group lets this commit pass; if so the member counts as heard of.

        While a group has no members anybody may commit: consumers that assign themselves, and
        administrators. Otherwise members of the generation alone, until its successor's
        assignment is awaited: a member may commit what it read before a rebalance took it away.
        """
        generation = message.generation_id_or_member_epoch
        if generation < 0 and group.state is State.EMPTY:
            return ErrorCode.NONE
        error = group.member_error(message.member_id, message.group_instance_id)
        if error:
            return error
        if generation != group.generation:
            return ErrorCode.ILLEGAL_GENERATION
        if group.state is State.COMPLETING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        self._rebalancing.keep_alive(group.members[message.member_id])
        return ErrorCode.NONE


def offset_delete_error(group: ClassicGroup) -> ErrorCode:
    """Say whether offsets may be deleted: where members' topics cannot be known, only if Empty."""
    if group.state is State.EMPTY or group.protocol_type == PROTOCOL_TYPE:
        return ErrorCode.NONE
    return ErrorCode.NON_EMPTY_GROUP


def leaving(message: LeaveGroupRequest, version: int) -> list[MemberIdentity]:
    """Return who leaves: one member before version 3."""
    if version < 3:
        return [MemberIdentity(member_id=message.member_id)]
    return message.members


def left(results: list[MemberResponse], version: int) -> LeaveGroupResponse:
    """Return the answer: before version 3 the one member's error is that of the response."""
    if version < 3:
        return LeaveGroupResponse(error_code=results[0].error_code)
    return LeaveGroupResponse(members=results)


def nobody_left(message: LeaveGroupRequest, version: int) -> LeaveGroupResponse:
    """Return the answer of a group that does not exist: none of them is a member."""
    results = [
        MemberResponse(
            member_id=identity.member_id,
            group_instance_id=identity.group_instance_id,
            error_code=ErrorCode.UNKNOWN_MEMBER_ID,
        )
        for identity in leaving(message, version)
    ]
    return left(results, version)
