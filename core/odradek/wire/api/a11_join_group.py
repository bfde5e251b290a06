"""JoinGroup (API key 11): enter a group and wait for its next generation.

Versions 0 to 9; flexible from 6.

    v0   the session timeout also bounds the rebalance
    v1   rebalance_timeout_ms (KIP-62)
    v2   throttle time
    v3   throttled responses are sent before the wait (KIP-219)
    v4   MEMBER_ID_REQUIRED: a new member joins twice (KIP-394)
    v5   group_instance_id (KIP-345)
    v6   flexible
    v7   protocol_type in the response (KIP-559)
    v8   reason (KIP-800)
    v9   skip_assignment in the response (KIP-814)
"""

from __future__ import annotations

from odradek.wire.schema import Message, Struct, array, bool_, bytes_, int16, int32, string

__all__ = [
    "JoinGroupRequest",
    "JoinGroupRequestProtocol",
    "JoinGroupResponse",
    "JoinGroupResponseMember",
]


class JoinGroupRequestProtocol(Struct):
    """An element of `JoinGroupRequest.protocols`."""

    name: str = string("0+")
    metadata: bytes = bytes_("0+")


class JoinGroupRequest(Message, api_key=11, versions="0-9", flexible="6+"):
    """What a client sends."""

    group_id: str = string("0+")
    session_timeout_ms: int = int32("0+")
    # Absent: the session timeout.
    rebalance_timeout_ms: int = int32("1+", default=-1, ignorable=True)
    member_id: str = string("0+")  # empty for a new member
    group_instance_id: str | None = string("5+", nullable="5+", default=None)
    protocol_type: str = string("0+")
    # The member's assignors, the preferred one first.
    protocols: list[JoinGroupRequestProtocol] = array(JoinGroupRequestProtocol, "0+")
    reason: str | None = string("8+", nullable="8+", default=None, ignorable=True)


class JoinGroupResponseMember(Struct):
    """An element of `JoinGroupResponse.members`."""

    member_id: str = string("0+")
    group_instance_id: str | None = string("5+", nullable="5+", default=None, ignorable=True)
    metadata: bytes = bytes_("0+")


class JoinGroupResponse(Message, api_key=11, versions="0-9", flexible="6+"):
    """What a broker answers."""

    throttle_time_ms: int = int32("2+", ignorable=True)
    error_code: int = int16("0+")
    generation_id: int = int32("0+", default=-1)
    protocol_type: str | None = string("7+", nullable="7+", default=None, ignorable=True)
    protocol_name: str | None = string("0+", nullable="7+")
    leader: str = string("0+")  # its member id
    skip_assignment: bool = bool_("9+")  # the leader need not assign (a static member came back)
    member_id: str = string("0+")
    # For the leader alone.
    members: list[JoinGroupResponseMember] = array(JoinGroupResponseMember, "0+")
