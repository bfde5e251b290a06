"""A rebalance on demand, brought about as any member could: by joining a group and leaving it."""

from __future__ import annotations

import trio

from odradek.client import Cluster
from odradek.client.connection import BrokerConnection
from odradek.contracts.background import open_tasks
from odradek.errors import ErrorCode, KafkaError
from odradek.wire.api.a11_join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
)
from odradek.wire.api.a13_leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
)
from odradek.wire.api.a15_describe_groups import (
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)

__all__ = ["rebalance"]

PATIENCE = 10.0
PAUSE = 0.005
STABLE = "Stable"
GONE = ("Dead", "Empty", "")

JOINING = "join"
"""The purpose of the connection on which the join waits; `LeaveGroup` has to get past it."""


async def rebalance(cluster: Cluster, group: str) -> None:
    """Have a group that one broker alone coordinates rebalance once.

    A member that speaks the group's protocol joins, which makes the others rejoin, and leaves
    before it is given anything. Raises KafkaError GROUP_ID_NOT_FOUND for a group without members,
    REBALANCE_IN_PROGRESS for one that does not settle within 10 s.
    """
    await cluster.renew()
    (node,) = cluster.metadata.brokers
    connection = await cluster.connection(node)
    described = await _settled(connection, group)
    join = JoinGroupRequest(
        group_id=group,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        protocol_type=described.protocol_type,
        protocols=[
            JoinGroupRequestProtocol(
                name=described.protocol_data, metadata=described.members[0].member_metadata
            )
        ],
    )
    first = await connection.call(join, JoinGroupResponse)
    if first.error_code != ErrorCode.MEMBER_ID_REQUIRED:
        raise KafkaError(ErrorCode.of(first.error_code), f"joining group {group!r}")
    join.member_id = first.member_id
    waiting = await cluster.connection(node, JOINING)
    async with open_tasks() as tasks:
        tasks.start_soon(_join, waiting, join)
        while True:
            if (await _describe(connection, group)).group_state != STABLE:
                break  # the join has arrived, and waits for the others
            await trio.sleep(PAUSE)
        leave = LeaveGroupRequest(
            group_id=group, members=[MemberIdentity(member_id=join.member_id)]
        )
        await connection.call(leave, LeaveGroupResponse)
    cluster.disconnect(JOINING)


async def _join(connection: BrokerConnection, request: JoinGroupRequest) -> None:
    await connection.call(request, JoinGroupResponse)


async def _settled(connection: BrokerConnection, group: str) -> DescribedGroup:
    with trio.move_on_after(PATIENCE):
        while True:
            described = await _describe(connection, group)
            if described.group_state in GONE:
                raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"group {group!r} has no members")
            if described.group_state == STABLE:
                return described
            await trio.sleep(PAUSE)
    raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS, f"group {group!r} does not settle")


async def _describe(connection: BrokerConnection, group: str) -> DescribedGroup:
    answer = await connection.call(DescribeGroupsRequest(groups=[group]), DescribeGroupsResponse)
    (described,) = answer.groups
    return described
