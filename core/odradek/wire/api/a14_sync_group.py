"""SyncGroup (API key 14): hand out the leader's assignment, and receive one's own.

Versions 0 to 5; flexible from 4.

    v0   the first one
    v1   throttle time
    v2   throttled responses are sent before the wait (KIP-219)
    v3   group_instance_id (KIP-345)
    v4   flexible
    v5   protocol_type and protocol_name, in both directions (KIP-559)
"""

from __future__ import annotations

from odradek.wire.schema import Message, Struct, array, bytes_, int16, int32, string

__all__ = ["SyncGroupRequest", "SyncGroupRequestAssignment", "SyncGroupResponse"]


class SyncGroupRequestAssignment(Struct):
    """An element of `SyncGroupRequest.assignments`."""

    member_id: str = string("0+")
    assignment: bytes = bytes_("0+")


class SyncGroupRequest(Message, api_key=14, versions="0-5", flexible="4+"):
    """What a client sends."""

    group_id: str = string("0+")
    generation_id: int = int32("0+")
    member_id: str = string("0+")
    group_instance_id: str | None = string("3+", nullable="3+", default=None)
    protocol_type: str | None = string("5+", nullable="5+", default=None, ignorable=True)
    protocol_name: str | None = string("5+", nullable="5+", default=None, ignorable=True)
    # The leader's work; empty from the others.
    assignments: list[SyncGroupRequestAssignment] = array(SyncGroupRequestAssignment, "0+")


class SyncGroupResponse(Message, api_key=14, versions="0-5", flexible="4+"):
    """What a broker answers."""

    throttle_time_ms: int = int32("1+", ignorable=True)
    error_code: int = int16("0+")
    protocol_type: str | None = string("5+", nullable="5+", default=None, ignorable=True)
    protocol_name: str | None = string("5+", nullable="5+", default=None, ignorable=True)
    assignment: bytes = bytes_("0+")
