"""CreateTopics (key 19), versions 2 to 7.

Each topic succeeds or fails by itself. A topic named twice in one request fails twice, as in
Kafka. The response tells the settings in force (KIP-525) from version 5 on.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import trio

from odradek.broker.configs import topic_configs
from odradek.broker.guard import as_kafka_error, told
from odradek.errors import ErrorCode, KafkaError
from odradek.wire import Message
from odradek.wire.api.a19_create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)

if TYPE_CHECKING:
    from odradek.broker.broker import Broker
    from odradek.broker.serve import Caller

__all__ = ["handle"]


async def handle(caller: Caller, request: CreateTopicsRequest, version: int) -> Message:
    """Create the topics, one after the other, within the client's time."""
    broker = caller.broker
    seen = Counter(topic.name for topic in request.topics)
    response = CreateTopicsResponse()
    timeout = min(max(request.timeout_ms, 0), broker.config.limits.wait_max_ms) / 1000
    with trio.move_on_after(timeout):
        for topic in request.topics:
            if seen[topic.name] > 1:
                result = _failed(
                    topic, KafkaError(ErrorCode.INVALID_REQUEST, "named twice in the request")
                )
            else:
                result = await _create(broker, topic, request.validate_only)
            response.topics.append(result)
    for topic in request.topics[len(response.topics) :]:
        response.topics.append(_failed(topic, KafkaError(ErrorCode.REQUEST_TIMED_OUT)))
    return response


async def _create(
    broker: Broker, topic: CreatableTopic, validate_only: bool
) -> CreatableTopicResult:
    try:
        async with as_kafka_error():
            created = await broker.create_topic(
                topic.name,
                partitions=topic.num_partitions,
                replication_factor=topic.replication_factor,
                configs=_configs(topic),
                assignment=_assignment(topic),
                validate_only=validate_only,
            )
    except KafkaError as error:
        return _failed(topic, error)
    result = CreatableTopicResult(
        name=topic.name,
        topic_id=created.id,
        error_message=None,
        num_partitions=created.partitions,
        replication_factor=created.replication_factor,
        configs=[],
    )
    for row in topic_configs(broker.config, created.configs):
        assert result.configs is not None
        result.configs.append(
            CreatableTopicConfigs(
                name=row.name,
                value=row.value,
                read_only=False,
                config_source=row.source,
                is_sensitive=False,
            )
        )
    return result


def _configs(topic: CreatableTopic) -> dict[str, str]:
    configs: dict[str, str] = {}
    for config in topic.configs:
        if config.value is None:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"{config.name}: no value was given")
        if config.name in configs:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"{config.name} is given twice")
        configs[config.name] = config.value
    return configs


def _assignment(topic: CreatableTopic) -> list[tuple[int, ...]] | None:
    if not topic.assignments:
        return None
    if topic.num_partitions != -1 or topic.replication_factor != -1:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            "give either an assignment or the numbers of partitions and replicas, not both",
        )
    by_number = {each.partition_index: tuple(each.broker_ids) for each in topic.assignments}
    if sorted(by_number) != list(range(len(topic.assignments))):
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, "partitions must be numbered from 0, each once"
        )
    return [by_number[number] for number in range(len(by_number))]


def _failed(topic: CreatableTopic, error: KafkaError) -> CreatableTopicResult:
    return CreatableTopicResult(
        name=topic.name,
        error_code=error.code,
        error_message=told(error),
        configs=None,
    )
