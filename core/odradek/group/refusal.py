"""The answers to requests that are refused as a whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

from odradek.group.classic_member import join_refused
from odradek.group.offset_requests import commit_refused
from odradek.wire.api.a08_offset_commit import OffsetCommitRequest
from odradek.wire.api.a11_join_group import JoinGroupRequest
from odradek.wire.api.a12_heartbeat import HeartbeatRequest, HeartbeatResponse
from odradek.wire.api.a13_leave_group import LeaveGroupRequest, LeaveGroupResponse
from odradek.wire.api.a14_sync_group import SyncGroupRequest, SyncGroupResponse
from odradek.wire.api.a47_offset_delete import OffsetDeleteResponse

if TYPE_CHECKING:
    from odradek.errors import ErrorCode
    from odradek.group.effects import Request
    from odradek.wire.schema import Struct

__all__ = ["refused"]


def refused(request: Request, error: ErrorCode) -> Struct:
    """Return the response to `request` that carries `error` in the place its API has for it."""
    message = request.message
    if isinstance(message, JoinGroupRequest):
        return join_refused(message.member_id, error, request.version)
    if isinstance(message, SyncGroupRequest):
        return SyncGroupResponse(error_code=error)
    if isinstance(message, HeartbeatRequest):
        return HeartbeatResponse(error_code=error)
    if isinstance(message, LeaveGroupRequest):
        return LeaveGroupResponse(error_code=error)
    if isinstance(message, OffsetCommitRequest):
        return commit_refused(message, error)
    return OffsetDeleteResponse(error_code=error)
