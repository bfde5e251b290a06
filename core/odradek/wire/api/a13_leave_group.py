"""LeaveGroup (API key 13): leave a group.

Versions 0 to 5; flexible from 4.

    v0   the first one
    v1   throttle time
    v2   throttled responses are sent before the wait (KIP-219)
    v3   several members in one request (KIP-345)
    v4   flexible
    v5   reason (KIP-800)
"""

from __future__ import annotations

from odradek.wire.schema import Message, Struct, array, int16, int32, string

__all__ = ["LeaveGroupRequest", "LeaveGroupResponse", "MemberIdentity", "MemberResponse"]


class MemberIdentity(Struct):
    """An element of `LeaveGroupRequest.members`."""

    member_id: str = string("3+")
    group_instance_id: str | None = string("3+", nullable="3+", default=None)
    reason: str | None = string("5+", nullable="5+", default=None, ignorable=True)


class LeaveGroupRequest(Message, api_key=13, versions="0-5", flexible="4+"):
    """What a client sends."""

    group_id: str = string("0+")
    member_id: str = string("0-2")
    members: list[MemberIdentity] = array(MemberIdentity, "3+")


class MemberResponse(Struct):
    """An element of `LeaveGroupResponse.members`."""

    member_id: str = string("3+")
    group_instance_id: str | None = string("3+", nullable="3+")
    error_code: int = int16("3+")


class LeaveGroupResponse(Message, api_key=13, versions="0-5", flexible="4+"):
    """What a broker answers."""

    throttle_time_ms: int = int32("1+", ignorable=True)
    error_code: int = int16("0+")
    members: list[MemberResponse] = array(MemberResponse, "3+")
