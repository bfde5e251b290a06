"""FindCoordinator (API key 10): find the broker that coordinates a group or a transactional id.

Versions 0 to 6; flexible from 3.

    v0   groups only
    v1   key_type (0 group, 1 transaction); throttle time, error_message (KIP-98)
    v2   throttled responses are sent before the wait (KIP-219)
    v3   flexible
    v4   several keys in one request (KIP-699)
    v5   TRANSACTION_ABORTABLE may be answered (KIP-890)
    v6   key_type 2: share groups (KIP-932)
"""

from __future__ import annotations

from odradek.wire.schema import Message, Struct, array, int8, int16, int32, string

__all__ = ["Coordinator", "FindCoordinatorRequest", "FindCoordinatorResponse"]


class FindCoordinatorRequest(Message, api_key=10, versions="0-6", flexible="3+"):
    """What a client sends."""

    key: str = string("0-3")
    key_type: int = int8("1+")  # 0 group, 1 transaction, 2 share group
    coordinator_keys: list[str] = array(string, "4+")


class Coordinator(Struct):
    """An element of `FindCoordinatorResponse.coordinators`."""

    key: str = string("4+")
    node_id: int = int32("4+")
    host: str = string("4+")
    port: int = int32("4+")
    error_code: int = int16("4+")
    error_message: str | None = string("4+", nullable="4+", ignorable=True)


class FindCoordinatorResponse(Message, api_key=10, versions="0-6", flexible="3+"):
    """What a broker answers."""

    throttle_time_ms: int = int32("1+", ignorable=True)
    error_code: int = int16("0-3")
    error_message: str | None = string("1-3", nullable="1-3", ignorable=True)
    node_id: int = int32("0-3")
    host: str = string("0-3")
    port: int = int32("0-3")
    coordinators: list[Coordinator] = array(Coordinator, "4+")
