"""DescribeGroups (API key 15): state and members of classic groups.

Versions 0 to 6; flexible from 5.

    v0   the first one
    v1   throttle time
    v2   throttled responses are sent before the wait (KIP-219)
    v3   authorised operations (KIP-430)
    v4   group_instance_id of members (KIP-345)
    v5   flexible
    v6   GROUP_ID_NOT_FOUND and error_message in place of a Dead group (KIP-1043)
"""

from __future__ import annotations

from odradek.wire.schema import Message, Struct, array, bool_, bytes_, int16, int32, string

__all__ = [
    "DescribeGroupsRequest",
    "DescribeGroupsResponse",
    "DescribedGroup",
    "DescribedGroupMember",
]


class DescribeGroupsRequest(Message, api_key=15, versions="0-6", flexible="5+"):
    """What a client sends."""

    groups: list[str] = array(string, "0+")
    include_authorized_operations: bool = bool_("3+")


class DescribedGroupMember(Struct):
    """An element of `DescribedGroup.members`."""

    member_id: str = string("0+")
    group_instance_id: str | None = string("4+", nullable="4+", default=None, ignorable=True)
    client_id: str = string("0+")
    client_host: str = string("0+")
    member_metadata: bytes = bytes_("0+")
    member_assignment: bytes = bytes_("0+")


class DescribedGroup(Struct):
    """An element of `DescribeGroupsResponse.groups`."""

    error_code: int = int16("0+")
    error_message: str | None = string("6+", nullable="6+", default=None)
    group_id: str = string("0+")
    group_state: str = string("0+")
    protocol_type: str = string("0+")
    protocol_data: str = string("0+")
    members: list[DescribedGroupMember] = array(DescribedGroupMember, "0+")
    authorized_operations: int = int32("3+", default=-(2**31))  # bits; the default is "not asked"


class DescribeGroupsResponse(Message, api_key=15, versions="0-6", flexible="5+"):
    """What a broker answers."""

    throttle_time_ms: int = int32("1+", ignorable=True)
    groups: list[DescribedGroup] = array(DescribedGroup, "0+")
