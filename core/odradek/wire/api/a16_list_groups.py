"""ListGroups (API key 16): list the groups a broker coordinates.

Versions 0 to 5; flexible from 3.

    v0   the first one
    v1   throttle time
    v2   throttled responses are sent before the wait (KIP-219)
    v3   flexible
    v4   states_filter, and group_state in the response (KIP-518)
    v5   types_filter, and group_type in the response (KIP-848)
"""

from __future__ import annotations

from odradek.wire.schema import Message, Struct, array, int16, int32, string

__all__ = ["ListGroupsRequest", "ListGroupsResponse", "ListedGroup"]


class ListGroupsRequest(Message, api_key=16, versions="0-5", flexible="3+"):
    """What a client sends."""

    states_filter: list[str] = array(string, "4+")
    types_filter: list[str] = array(string, "5+")


class ListedGroup(Struct):
    """An element of `ListGroupsResponse.groups`."""

    group_id: str = string("0+")
    protocol_type: str = string("0+")
    group_state: str = string("4+", ignorable=True)
    group_type: str = string("5+", ignorable=True)


class ListGroupsResponse(Message, api_key=16, versions="0-5", flexible="3+"):
    """What a broker answers."""

    throttle_time_ms: int = int32("1+", ignorable=True)
    error_code: int = int16("0+")
    groups: list[ListedGroup] = array(ListedGroup, "0+")
