"""DescribeGroups (key 15), versions 0 to 6: state, members and assignments of groups.

A group that does not exist is `Dead`, with GROUP_ID_NOT_FOUND from version 6 on (KIP-1043).

Left out: authorised operations, which nobody restricts yet: they are not reported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from odradek.broker.guard import check_count, told
from odradek.broker.portions import Turns
from odradek.errors import KafkaError
from odradek.wire import Message
from odradek.wire.api.a15_describe_groups import (
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)

if TYPE_CHECKING:
    from odradek.broker.serve import Caller

__all__ = ["handle"]

MESSAGE_FROM = 6


async def handle(caller: Caller, request: DescribeGroupsRequest, version: int) -> Message:
    """Describe each."""
    check_count(len(request.groups))
    response = DescribeGroupsResponse()
    turns = Turns()
    for group_id in request.groups:
        try:
            machine = caller.broker.groups.shard_of(group_id).machine
            described = machine.describe(group_id, version)
        except KafkaError as error:
            described = DescribedGroup(group_id=group_id, error_code=error.code)
            if version >= MESSAGE_FROM:
                described.error_message = told(error)
        response.groups.append(described)
        await turns.spend(1 + len(described.members), len(group_id))
    return response
