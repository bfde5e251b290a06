"""CreatePartitions (key 37), versions 0 to 3: give a topic more partitions (KIP-195).

Only ever more: records stay where they are, so keys may move to other partitions from now on.
`__consumer_offsets` is not grown, other than by Kafka, where groups are lost by that: each would
be looked for in another partition than the one that its offsets are in.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import trio

from odradek.broker.guard import as_kafka_error, told
from odradek.cluster.topics import MAX_PARTITIONS, OFFSETS_TOPIC
from odradek.errors import ErrorCode, KafkaError
from odradek.wire import Message
from odradek.wire.api.a37_create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)

if TYPE_CHECKING:
    from odradek.broker.broker import Broker
    from odradek.broker.serve import Caller

__all__ = ["handle"]


async def handle(caller: Caller, request: CreatePartitionsRequest, version: int) -> Message:
    """Grow the topics, one after the other, within the client's time."""
    broker = caller.broker
    seen = Counter(topic.name for topic in request.topics)
    response = CreatePartitionsResponse()
    timeout = min(max(request.timeout_ms, 0), broker.config.limits.wait_max_ms) / 1000
    with trio.move_on_after(timeout):
        for topic in request.topics:
            result = CreatePartitionsTopicResult(name=topic.name)
            try:
                if seen[topic.name] > 1:
                    raise KafkaError(ErrorCode.INVALID_REQUEST, "named twice in the request")
                async with as_kafka_error():
                    await _grow(broker, topic, request.validate_only)
            except KafkaError as error:
                result.error_code = error.code
                result.error_message = told(error)
            response.results.append(result)
    for topic in request.topics[len(response.results) :]:
        response.results.append(
            CreatePartitionsTopicResult(
                name=topic.name,
                error_code=ErrorCode.REQUEST_TIMED_OUT,
                error_message=ErrorCode.REQUEST_TIMED_OUT.text,
            )
        )
    return response


async def _grow(broker: Broker, asked: CreatePartitionsTopic, validate_only: bool) -> None:
    topic = broker.image.topics.get(asked.name)
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if topic.name == OFFSETS_TOPIC:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS, "groups would not be found in their partitions any more"
        )
    more = asked.count - topic.partitions
    if more <= 0 or asked.count > MAX_PARTITIONS:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            f"topic {topic.name!r} has {topic.partitions} partitions; {asked.count} was asked "
            f"for, and the number can only grow, to at most {MAX_PARTITIONS}",
        )
    if asked.assignments is None:
        assignment = broker.assign(more, topic.replication_factor, first=topic.partitions)
    else:
        assignment = [tuple(each.broker_ids) for each in asked.assignments]
        if len(assignment) != more:
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"{more} new partitions need as many assignments, not {len(assignment)}",
            )
        broker.check_assignment(assignment)
    if not validate_only:
        await broker.add_partitions(topic, assignment)
