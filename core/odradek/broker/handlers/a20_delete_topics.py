"""DeleteTopics (key 20), versions 1 to 6; by id from version 6 on.

The name is free again when this returns; the bytes are removed then or, if the broker is stopped
in between, when it starts again. `__consumer_offsets` can be deleted too, as in Kafka.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING
from uuid import UUID

import trio

from odradek.broker.guard import as_kafka_error, told
from odradek.cluster.image import TopicImage
from odradek.cluster.topics import OFFSETS_TOPIC
from odradek.errors import ErrorCode, KafkaError
from odradek.wire import NULL_UUID, Message
from odradek.wire.api.a20_delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)

if TYPE_CHECKING:
    from odradek.broker.broker import Broker
    from odradek.broker.serve import Caller

__all__ = ["handle"]

logger = logging.getLogger(__name__)

STATES_FROM = 6


async def handle(caller: Caller, request: DeleteTopicsRequest, version: int) -> Message:
    """Delete the topics, one after the other, within the client's time."""
    broker = caller.broker
    wanted: list[tuple[str | None, UUID]]
    if version >= STATES_FROM:
        wanted = [(state.name, state.topic_id) for state in request.topics]
    else:
        wanted = [(name, NULL_UUID) for name in request.topic_names]
    response = DeleteTopicsResponse()
    timeout = min(max(request.timeout_ms, 0), broker.config.limits.wait_max_ms) / 1000
    with trio.move_on_after(timeout):
        for name, topic_id in wanted:
            response.responses.append(await _delete(broker, name, topic_id))
    for name, topic_id in wanted[len(response.responses) :]:
        response.responses.append(_failed(name, topic_id, KafkaError(ErrorCode.REQUEST_TIMED_OUT)))
    return response


async def _delete(broker: Broker, name: str | None, topic_id: UUID) -> DeletableTopicResult:
    try:
        topic = _find(broker, name, topic_id)
        async with as_kafka_error():
            await broker.delete_topic(topic)
        if topic.name == OFFSETS_TOPIC:
            logger.warning("topic %s was deleted: every group begins anew", topic.name)
    except KafkaError as error:
        return _failed(name, topic_id, error)
    return DeletableTopicResult(name=topic.name, topic_id=topic.id)


def _find(broker: Broker, name: str | None, topic_id: UUID) -> TopicImage:
    image = broker.image
    if name is not None and topic_id != NULL_UUID:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "name a topic by its name or its id, not both")
    if name is not None:
        topic = image.topics.get(name)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return topic
    if topic_id == NULL_UUID:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "neither a name nor an id was given")
    found = image.topic_by_id(topic_id)
    if found is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
    return found


def _failed(name: str | None, topic_id: UUID, error: KafkaError) -> DeletableTopicResult:
    return DeletableTopicResult(
        name=name,
        topic_id=topic_id,
        error_code=error.code,
        error_message=told(error),
    )
