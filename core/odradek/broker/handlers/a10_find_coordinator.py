"""FindCoordinator (key 10), versions 0 to 6: the broker to ask for a group; several from version 4.

It is the leader of the partition of `__consumer_offsets` that the group's id falls to. The topic is
created when it is missing, whatever `auto_create_topics` says, and the request waits for that
(Kafka answers COORDINATOR_NOT_AVAILABLE instead, and the client comes back). A partition that is
offline, here or everywhere, is COORDINATOR_NOT_AVAILABLE.

Left out: transaction coordinators and share groups. COORDINATOR_NOT_AVAILABLE would make clients
ask for ever, so they are told INVALID_REQUEST.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from odradek.broker.guard import check_count, told
from odradek.broker.portions import Turns
from odradek.cluster.topics import OFFSETS_TOPIC
from odradek.errors import ErrorCode, KafkaError
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


async def handle(caller: Caller, request: FindCoordinatorRequest, version: int) -> Message:
    """Name the coordinator of each key."""
    keys = request.coordinator_keys if version >= BATCHED_FROM else [request.key]
    check_count(len(keys))
    failure = None
    if request.key_type != GROUP:
        failure = KafkaError(
            ErrorCode.INVALID_REQUEST, "this broker coordinates consumer groups only"
        )
    elif OFFSETS_TOPIC not in caller.broker.hosting.by_name:
        try:
            await caller.broker.groups.create_topic()
        except KafkaError as error:
            # Whatever it is, it may have passed when the client asks again.
            failure = KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, told(error))
    found = []
    turns = Turns()
    for key in keys:
        found.append(_find(caller, key, failure))
        await turns.spend(characters=len(key))
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


def _find(caller: Caller, key: str, failure: KafkaError | None) -> Coordinator:
    try:
        if failure is not None:
            raise failure
        live = caller.broker.groups.coordinator_of(key)
        endpoint = live.endpoint(caller.listener)
        if endpoint is None:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    except KafkaError as error:
        return Coordinator(
            key=key, node_id=-1, port=-1, error_code=error.code, error_message=told(error)
        )
    # Kafka's message for no error is empty, and not null.
    return Coordinator(
        key=key, node_id=live.id, host=endpoint.host, port=endpoint.port, error_message=""
    )
