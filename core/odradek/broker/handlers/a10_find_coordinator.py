"""FindCoordinator (key 10), versions 0 to 6.

There is one broker, and it is the coordinator of every group; the answer is what clients need
to go on (librdkafka refuses lz4 to a broker without this API). Transaction coordinators and
share groups are not offered: COORDINATOR_NOT_AVAILABLE would make clients ask for ever, so they
are told INVALID_REQUEST.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from odradek.errors import ErrorCode
from odradek.wire import Message
from odradek.wire.api.a10_find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)

if TYPE_CHECKING:
    from odradek.broker.serve import Caller

__all__ = ["handle"]

GROUP = 0
BATCHED_FROM = 4


def handle(caller: Caller, request: FindCoordinatorRequest, version: int) -> Message:
    """Name the coordinator of each key."""
    keys = request.coordinator_keys if version >= BATCHED_FROM else [request.key]
    found = [_find(caller, key, request.key_type) for key in keys]
    if version >= BATCHED_FROM:
        return FindCoordinatorResponse(coordinators=found)
    only = found[0]
    return FindCoordinatorResponse(
        error_code=only.error_code,
        error_message=only.error_message,
        node_id=only.node_id,
        host=only.host,
        port=only.port,
    )


def _find(caller: Caller, key: str, key_type: int) -> Coordinator:
    broker = caller.broker
    if key_type != GROUP:
        return Coordinator(
            key=key,
            node_id=-1,
            port=-1,
            error_code=ErrorCode.INVALID_REQUEST,
            error_message="this broker coordinates consumer groups only",
        )
    live = broker.image.brokers.get(broker.id)
    endpoint = live.endpoint(caller.listener) if live is not None else None
    if endpoint is None:
        return Coordinator(
            key=key,
            node_id=-1,
            port=-1,
            error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE,
            error_message=ErrorCode.COORDINATOR_NOT_AVAILABLE.text,
        )
    return Coordinator(
        key=key, node_id=broker.id, host=endpoint.host, port=endpoint.port, error_message=None
    )
