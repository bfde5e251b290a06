"""Heartbeat (API key 12): stay a member of a group.

Versions 0 to 4; flexible from 4.

    v0   the first one
    v1   throttle time
    v2   throttled responses are sent before the wait (KIP-219)
    v3   group_instance_id (KIP-345)
    v4   flexible
"""

from __future__ import annotations

from odradek.wire.schema import Message, int16, int32, string

__all__ = ["HeartbeatRequest", "HeartbeatResponse"]


class HeartbeatRequest(Message, api_key=12, versions="0-4", flexible="4+"):
    """What a client sends."""

    group_id: str = string("0+")
    generation_id: int = int32("0+")
    member_id: str = string("0+")
    group_instance_id: str | None = string("3+", nullable="3+", default=None)


class HeartbeatResponse(Message, api_key=12, versions="0-4", flexible="4+"):
    """What a broker answers."""

    throttle_time_ms: int = int32("1+", ignorable=True)
    error_code: int = int16("0+")
