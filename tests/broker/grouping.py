"""A member of a group, request by request."""

from __future__ import annotations

from typing import Any

import trio
from tests.broker.peer import Peer, code

from odradek.wire.api.a08_offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from odradek.wire.api.a09_offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from odradek.wire.api.a10_find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from odradek.wire.api.a11_join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
)
from odradek.wire.api.a12_heartbeat import HeartbeatRequest, HeartbeatResponse
from odradek.wire.api.a13_leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity
from odradek.wire.api.a14_sync_group import (
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)

OFFSETS = "__consumer_offsets"
QUICK: dict[str, Any] = {"initial_rebalance_delay_ms": 0, "offsets_partitions": 4}


async def find(peer: Peer, group: str = "g") -> FindCoordinatorResponse:
    return await peer.ask(FindCoordinatorRequest(key=group), 2, FindCoordinatorResponse)


def commit_request(
    group: str, offsets: dict[tuple[str, int], int], **more: Any
) -> OffsetCommitRequest:
    metadata = more.pop("metadata", "")
    return OffsetCommitRequest(
        group_id=group,
        topics=[
            OffsetCommitRequestTopic(
                name=name,
                partitions=[
                    OffsetCommitRequestPartition(
                        partition_index=number, committed_offset=offset, committed_metadata=metadata
                    )
                ],
            )
            for (name, number), offset in offsets.items()
        ],
        **more,
    )


async def commit(
    peer: Peer, group: str, offsets: dict[tuple[str, int], int], version: int = 7, **more: Any
) -> list[str]:
    """Commit outside of a generation, unless `more` names one; return each partition's code."""
    request = commit_request(group, offsets, **more)
    answer = await peer.ask(request, version, OffsetCommitResponse)
    return [code(p.error_code) for topic in answer.topics for p in topic.partitions]


async def committed(
    peer: Peer, group: str, topic: str, *partitions: int, version: int = 7
) -> list[int]:
    wanted = list(partitions or [0])
    if version >= 8:
        named = OffsetFetchRequestTopics(name=topic, partition_indexes=wanted)
        request = OffsetFetchRequest(
            groups=[OffsetFetchRequestGroup(group_id=group, topics=[named])]
        )
        answer = await peer.ask(request, version, OffsetFetchResponse)
        assert code(answer.groups[0].error_code) == "NONE"
        return [p.committed_offset for p in answer.groups[0].topics[0].partitions]
    request = OffsetFetchRequest(
        group_id=group,
        topics=[OffsetFetchRequestTopic(name=topic, partition_indexes=wanted)],
    )
    answer = await peer.ask(request, version, OffsetFetchResponse)
    assert code(answer.error_code) == "NONE"
    return [p.committed_offset for p in answer.topics[0].partitions]


class Member:
    """One member, over a connection of its own; it remembers what it is told."""

    def __init__(self, peer: Peer, group: str = "g", **join: Any) -> None:
        self.peer = peer
        self.group = group
        self.id = ""
        self.generation = -1
        self.leads = False
        self.version = join.pop("version", 3)
        self._join = {"session_timeout_ms": 10_000, "rebalance_timeout_ms": 20_000, **join}

    def join_request(self) -> JoinGroupRequest:
        protocols = [JoinGroupRequestProtocol(name="range", metadata=b"what I read")]
        values = {"protocol_type": "consumer", "protocols": protocols, **self._join}
        return JoinGroupRequest(group_id=self.group, member_id=self.id, **values)

    async def send_join(self) -> None:
        await self.peer.send(self.join_request(), self.version)

    async def joined(self) -> JoinGroupResponse:
        """Receive the answer to a join."""
        _, answer = await self.peer.receive()
        assert isinstance(answer, JoinGroupResponse)
        self.id = answer.member_id
        self.generation = answer.generation_id
        self.leads = bool(self.id) and answer.leader == self.id
        return answer

    async def join(self) -> str:
        await self.send_join()
        return code((await self.joined()).error_code)

    async def sync(
        self, version: int = 3, assignments: dict[str, bytes] | None = None
    ) -> SyncGroupResponse:
        """As the leader: give `assignments`, by member id, or all to itself."""
        given = assignments or {}
        if self.leads and not given:
            given = {self.id: b"all of it"}
        protocol = {"protocol_type": "consumer", "protocol_name": "range"} if version >= 5 else {}
        request = SyncGroupRequest(
            group_id=self.group,
            generation_id=self.generation,
            member_id=self.id,
            assignments=[
                SyncGroupRequestAssignment(member_id=name, assignment=part)
                for name, part in given.items()
            ],
            **protocol,
        )
        return await self.peer.ask(request, version, SyncGroupResponse)

    async def heartbeat(self, version: int = 3) -> str:
        request = HeartbeatRequest(
            group_id=self.group, generation_id=self.generation, member_id=self.id
        )
        return code((await self.peer.ask(request, version, HeartbeatResponse)).error_code)

    async def leave(self, version: int = 3) -> str:
        if version >= 3:
            request = LeaveGroupRequest(
                group_id=self.group, members=[MemberIdentity(member_id=self.id)]
            )
        else:
            request = LeaveGroupRequest(group_id=self.group, member_id=self.id)
        answer = await self.peer.ask(request, version, LeaveGroupResponse)
        return code(answer.members[0].error_code if answer.members else answer.error_code)

    async def commit(self, offsets: dict[tuple[str, int], int], version: int = 7) -> list[str]:
        return await commit(
            self.peer,
            self.group,
            offsets,
            version,
            member_id=self.id,
            generation_id_or_member_epoch=self.generation,
        )

    async def enter(self) -> Member:
        """Find the coordinator, join and sync: a stable group of one."""
        assert code((await find(self.peer, self.group)).error_code) == "NONE"
        assert await self.join() == "NONE"
        assert code((await self.sync()).error_code) == "NONE"
        return self


async def sync_all(*members: Member) -> None:
    """Have the leader assign to each member its own id, and see that each gets it."""
    parts = {member.id: member.id.encode() for member in members}

    async def sync(member: Member) -> None:
        answer = await member.sync(assignments=parts if member.leads else None)
        assert code(answer.error_code) == "NONE"
        assert bytes(answer.assignment) == member.id.encode()

    async with trio.open_nursery() as nursery:
        for member in members:
            nursery.start_soon(sync, member)
