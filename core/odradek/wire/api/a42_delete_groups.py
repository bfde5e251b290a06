"""DeleteGroups (API key 42): delete groups that have no members.

Versions 0 to 2; flexible from 2.

    v0   the first one (KIP-229)
    v1   throttled responses are sent before the wait (KIP-219)
    v2   flexible
"""

from __future__ import annotations

from odradek.wire.schema import Message, Struct, array, int16, int32, string

__all__ = ["DeletableGroupResult", "DeleteGroupsRequest", "DeleteGroupsResponse"]


class DeleteGroupsRequest(Message, api_key=42, versions="0-2", flexible="2+"):
    """What a client sends."""

    groups_names: list[str] = array(string, "0+")


class DeletableGroupResult(Struct):
    """An element of `DeleteGroupsResponse.results`."""

    group_id: str = string("0+")
    error_code: int = int16("0+")


class DeleteGroupsResponse(Message, api_key=42, versions="0-2", flexible="2+"):
    """What a broker answers."""

    throttle_time_ms: int = int32("0+")
    results: list[DeletableGroupResult] = array(DeletableGroupResult, "0+")
