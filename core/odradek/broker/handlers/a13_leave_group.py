"""LeaveGroup (key 13), versions 0 to 5: leave at once; several members from version 3 (KIP-345)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from odradek.broker.guard import check_count
from odradek.broker.waiting import Pending
from odradek.errors import ErrorCode
from odradek.wire import Message
from odradek.wire.api.a13_leave_group import LeaveGroupRequest, LeaveGroupResponse

if TYPE_CHECKING:
    from odradek.broker.serve import Caller

__all__ = ["handle"]

MEMBER_BYTES = 200
"""Memory that one member of a waiting request takes, about."""


def handle(caller: Caller, request: LeaveGroupRequest, version: int) -> Message | Pending:
    """Let the group know."""
    if not request.group_id:
        return LeaveGroupResponse(error_code=ErrorCode.INVALID_GROUP_ID)
    check_count(len(request.members))
    size = MEMBER_BYTES * len(request.members)
    return caller.broker.groups.ask(caller, request.group_id, request, version, size=size)
