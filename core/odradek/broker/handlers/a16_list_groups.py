"""ListGroups (key 16), versions 0 to 5: the groups that this broker coordinates.

By state from version 4 on, by type from version 5 on (KIP-518, KIP-848). While any of them is being
loaded the answer is COORDINATOR_LOAD_IN_PROGRESS, lest a list looks whole that is not.

Where a partition of `__consumer_offsets` cannot be loaded, the groups of the others come with an
error: COORDINATOR_NOT_AVAILABLE when it may pass, which Java's client repeats until its time is up,
and KAFKA_STORAGE_ERROR when an operator has to do something, which Java's client reports at once
for this broker, beside the groups of others. Kafka leaves such groups out without a word.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from odradek.contracts.storage import Full, Unavailable
from odradek.errors import ErrorCode
from odradek.wire import Message
from odradek.wire.api.a16_list_groups import ListGroupsRequest, ListGroupsResponse

if TYPE_CHECKING:
    from odradek.broker.serve import Caller

__all__ = ["handle"]


async def handle(caller: Caller, request: ListGroupsRequest, version: int) -> Message:
    """List them, shard by shard."""
    shards = tuple(caller.broker.groups.shards())
    if any(shard.loading for shard in shards):
        return ListGroupsResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    response = ListGroupsResponse(error_code=_error(caller.broker.groups.troubles()))
    for shard in shards:
        if shard.active:
            response.groups += shard.machine.listed(request.states_filter, request.types_filter)
            await trio.lowlevel.checkpoint()
    return response


def _error(troubles: dict[int, Exception]) -> ErrorCode:
    if not troubles:
        return ErrorCode.NONE
    if all(isinstance(each, (Full, Unavailable)) for each in troubles.values()):
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    return ErrorCode.KAFKA_STORAGE_ERROR
