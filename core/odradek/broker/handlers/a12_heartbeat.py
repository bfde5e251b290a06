"""Heartbeat (key 12), versions 0 to 4: a member is alive, and hears of a rebalance.

While the group is still being loaded the answer is no error, as from Kafka: the member need not
know, and its session begins anew when that is done.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from odradek.broker.waiting import Pending
from odradek.errors import ErrorCode
from odradek.wire import Message
from odradek.wire.api.a12_heartbeat import HeartbeatRequest, HeartbeatResponse

if TYPE_CHECKING:
    from odradek.broker.serve import Caller

__all__ = ["handle"]


def handle(caller: Caller, request: HeartbeatRequest, version: int) -> Message | Pending:
    """Let the group know."""
    if not request.group_id:
        return HeartbeatResponse(error_code=ErrorCode.INVALID_GROUP_ID)
    answer = caller.broker.groups.ask(caller, request.group_id, request, version)
    if (
        isinstance(answer, HeartbeatResponse)
        and answer.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    ):
        return HeartbeatResponse()
    return answer
