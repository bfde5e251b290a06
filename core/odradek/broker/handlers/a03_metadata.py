"""Metadata (key 3), versions 0 to 13.

Brokers, topics and leaders as this broker's image has them; addresses are those of the listener
that the question came in by. A topic asked for by name that does not exist is created when both
the broker ([broker] auto_create_topics) and the client allow it, and is then answered as it is:
creation takes milliseconds, so there is no need for LEADER_NOT_AVAILABLE and another round.

Left out: authorised operations, which nobody restricts yet: they are not reported.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import trio

from odradek.cluster.topics import INTERNAL_TOPICS, OFFSETS_TOPIC
from odradek.contracts.coordinator import CoordinatorError
from odradek.errors import ErrorCode, KafkaError
from odradek.types import PartitionKey
from odradek.wire import NULL_UUID, Message
from odradek.wire.api.a03_metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

if TYPE_CHECKING:
    from odradek.broker.serve import Caller
    from odradek.cluster.image import Image, TopicImage

__all__ = ["handle"]

logger = logging.getLogger(__name__)

BY_ID_FROM = 12
CREATION_PATIENCE = 10.0
TOPICS_PER_TURN = 256


async def handle(caller: Caller, request: MetadataRequest, version: int) -> Message:
    """Describe the cluster, creating topics on the way."""
    broker = caller.broker
    # Version 0 has no null array: an empty one means every topic there.
    everything = request.topics is None or (version == 0 and not request.topics)
    if everything:
        topics = [_topic(broker.image, topic) for topic in broker.image.topics.values()]
    else:
        topics = []
        for number, topic in enumerate(request.topics or (), 1):
            topics.append(await _asked(caller, topic, version, request.allow_auto_topic_creation))
            if number % TOPICS_PER_TURN == 0:  # a request may name a million
                await trio.lowlevel.checkpoint()
    image = broker.image
    brokers = []
    for live in image.brokers.values():
        endpoint = live.endpoint(caller.listener)
        if endpoint is not None:
            brokers.append(
                MetadataResponseBroker(
                    node_id=live.id, host=endpoint.host, port=endpoint.port, rack=live.rack
                )
            )
    return MetadataResponse(
        brokers=brokers,
        cluster_id=image.cluster_id,
        controller_id=image.controller,
        topics=topics,
    )


async def _asked(
    caller: Caller, asked: MetadataRequestTopic, version: int, may_create: bool
) -> MetadataResponseTopic:
    broker = caller.broker
    image = broker.image
    if version < BY_ID_FROM and (asked.topic_id != NULL_UUID or asked.name is None):
        # Versions 10 and 11 have the field, but no answer without a name: refused, as by Kafka.
        return MetadataResponseTopic(
            error_code=ErrorCode.INVALID_REQUEST, name=asked.name or "", topic_id=asked.topic_id
        )
    if asked.topic_id != NULL_UUID:
        found = image.topic_by_id(asked.topic_id)
        if found is None:
            return MetadataResponseTopic(
                error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=None, topic_id=asked.topic_id
            )
        return _topic(image, found)
    name = asked.name or ""
    topic = image.topics.get(name)
    if topic is None:
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if may_create and broker.config.broker.auto_create_topics:
            code = ErrorCode.LEADER_NOT_AVAILABLE
            try:
                with trio.move_on_after(CREATION_PATIENCE):
                    if name == OFFSETS_TOPIC:
                        await broker.groups.create_topic()
                        topic = broker.image.topics.get(name)
                    else:
                        topic = await broker.create_topic(name)
            except KafkaError as error:
                # Somebody else may have been faster, which is as good.
                topic = broker.image.topics.get(name)
                code = error.code
            except CoordinatorError as error:
                logger.warning("topic %r is not created: %s", name, error)
        else:
            code = _name_error(name) or code
        if topic is None:
            return MetadataResponseTopic(error_code=code, name=name)
    return _topic(broker.image, topic)


def _name_error(name: str) -> ErrorCode | None:
    from odradek.cluster.topics import check_name

    try:
        check_name(name)
    except KafkaError as error:
        return error.code
    return None


def _topic(image: Image, topic: TopicImage) -> MetadataResponseTopic:
    partitions = []
    for number in range(topic.partitions):
        state = image.partitions.get(PartitionKey(topic.id, number))
        if state is None or state.leader not in image.brokers:
            partitions.append(
                MetadataResponsePartition(
                    error_code=ErrorCode.LEADER_NOT_AVAILABLE,
                    partition_index=number,
                    leader_id=-1,
                    replica_nodes=list(state.replicas) if state else [],
                    isr_nodes=list(state.isr) if state else [],
                    offline_replicas=list(state.replicas) if state else [],
                )
            )
            continue
        partitions.append(
            MetadataResponsePartition(
                partition_index=number,
                leader_id=state.leader,
                leader_epoch=state.leader_epoch,
                replica_nodes=list(state.replicas),
                isr_nodes=list(state.isr),
                offline_replicas=[b for b in state.replicas if b not in image.brokers],
            )
        )
    return MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.id,
        is_internal=topic.name in INTERNAL_TOPICS,
        partitions=partitions,
    )
