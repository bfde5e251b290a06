"""SyncGroup (key 14), versions 0 to 5: the leader's assignment comes, every member's own goes.

The response waits for the leader, and until the assignment is committed to `__consumer_offsets`.
From version 5 on a request has to repeat the protocol that it believes in (KIP-559).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from odradek.broker.guard import check_count
from odradek.broker.waiting import Pending
from odradek.errors import ErrorCode
from odradek.wire import Message
from odradek.wire.api.a14_sync_group import SyncGroupRequest, SyncGroupResponse

if TYPE_CHECKING:
    from odradek.broker.serve import Caller

__all__ = ["handle"]

PROTOCOL_FROM = 5


def handle(caller: Caller, request: SyncGroupRequest, version: int) -> Message | Pending:
    """Answer when the assignment is there."""
    if version >= PROTOCOL_FROM and (
        request.protocol_type is None or request.protocol_name is None
    ):
        return SyncGroupResponse(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    if not request.group_id:
        return SyncGroupResponse(error_code=ErrorCode.INVALID_GROUP_ID)
    check_count(len(request.assignments))
    size = 0
    for each in request.assignments:
        size += len(each.member_id) + len(each.assignment)
    return caller.broker.groups.ask(caller, request.group_id, request, version, size=size)
