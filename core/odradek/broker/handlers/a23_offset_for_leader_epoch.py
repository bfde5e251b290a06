"""OffsetForLeaderEpoch (key 23), versions 2 to 4: where an epoch ended (KIP-101, 279, 320).

A consumer or follower finds out by it where its log parts from the leader's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from odradek.errors import KafkaError
from odradek.wire import Message
from odradek.wire.api.a23_offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)

if TYPE_CHECKING:
    from odradek.broker.broker import Broker
    from odradek.broker.serve import Caller

__all__ = ["handle"]


def handle(caller: Caller, request: OffsetForLeaderEpochRequest, version: int) -> Message:
    """Look up each epoch."""
    return OffsetForLeaderEpochResponse(
        topics=[
            OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=[
                    _look_up(caller.broker, topic.topic, each) for each in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _look_up(broker: Broker, topic: str, partition: OffsetForLeaderPartition) -> EpochEndOffset:
    result = EpochEndOffset(partition=partition.partition)
    try:
        log = broker.topic(topic).log(partition.partition)
        log.check_epoch(partition.current_leader_epoch)
    except KafkaError as error:
        result.error_code = error.code
    else:
        result.leader_epoch, result.end_offset = log.epoch_end(partition.leader_epoch)
    return result
