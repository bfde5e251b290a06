"""DeleteGroups (key 42), versions 0 to 2: forget groups that have no members, and their offsets.

A group that is named twice is deleted and answered once, as by Kafka.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from odradek.broker.guard import check_count
from odradek.broker.portions import Several, Turns
from odradek.broker.shard import PendingReply
from odradek.broker.waiting import Pending
from odradek.errors import KafkaError
from odradek.wire import Message, Struct
from odradek.wire.api.a42_delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)

if TYPE_CHECKING:
    from odradek.broker.serve import Caller

__all__ = ["handle"]


async def handle(caller: Caller, request: DeleteGroupsRequest, version: int) -> Message | Pending:
    """Answer when all deletions are stored."""
    check_count(len(request.groups_names))
    groups = caller.broker.groups
    turns = Turns()
    deletions: list[PendingReply | Struct] = []
    for group_id in dict.fromkeys(request.groups_names):
        try:
            deletions.append(groups.shard_of(group_id).delete(group_id))
        except KafkaError as error:
            deletions.append(DeletableGroupResult(group_id=group_id, error_code=error.code))
        await turns.spend(characters=len(group_id))
    return await Several(deletions, _collect).response()


async def _collect(results: list[Struct]) -> Message:
    return DeleteGroupsResponse(results=cast("list[DeletableGroupResult]", results))
