"""ListOffsets (key 2), versions 1 to 10.

By timestamp (the first record at or after it, which opens one batch), or -1 latest (the high
watermark, so that read_committed and read_uncommitted agree until there are transactions),
-2 earliest, -3 the record with the largest timestamp (KIP-734), -4 the earliest local offset,
which is the earliest (KIP-405). -5, the latest tiered offset, is none: storage has one tier.
Each of the last three belongs to the version that brought it: 7, 8, 9.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from odradek.contracts.storage import StorageError
from odradek.errors import ErrorCode, KafkaError
from odradek.log.lookup import Found, first_at_or_after, newest
from odradek.wire import Message
from odradek.wire.api.a02_list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)

if TYPE_CHECKING:
    from odradek.broker.broker import Broker
    from odradek.broker.serve import Caller
    from odradek.log.partition import PartitionLog

__all__ = ["handle"]

EPOCHS_FROM = 4

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5

OFFERED_FROM = {LATEST: 1, EARLIEST: 1, MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9}
"""Lowest version that may ask for it, as Kafka's `ReplicaManager` has it."""


async def handle(caller: Caller, request: ListOffsetsRequest, version: int) -> Message:
    """Look up each partition."""
    response = ListOffsetsResponse()
    for topic in request.topics:
        results = [
            await _partition(caller.broker, topic.name, partition, version)
            for partition in topic.partitions
        ]
        response.topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=results))
    return response


async def _partition(
    broker: Broker, topic: str, partition: ListOffsetsPartition, version: int
) -> ListOffsetsPartitionResponse:
    result = ListOffsetsPartitionResponse(partition_index=partition.partition_index)
    try:
        log = broker.topic(topic).log(partition.partition_index)
        log.check_epoch(partition.current_leader_epoch)
        found = await _look_up(log, partition.timestamp, version)
    except KafkaError as error:
        result.error_code = error.code
    except StorageError:
        result.error_code = ErrorCode.KAFKA_STORAGE_ERROR
    else:
        if found is not None:
            result.offset, result.timestamp = found.offset, found.timestamp
            if version >= EPOCHS_FROM:
                result.leader_epoch = found.leader_epoch
    return result


async def _look_up(log: PartitionLog, timestamp: int, version: int) -> Found | None:
    if timestamp < 0 and version < OFFERED_FROM.get(timestamp, version + 1):
        raise KafkaError(
            ErrorCode.UNSUPPORTED_VERSION,
            f"no such kind of offset in version {version}: {timestamp}",
        )
    if timestamp == LATEST:
        return Found(log.high_watermark, -1, log.leader_epoch)
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        start = log.log_start_offset
        return Found(start, -1, log.epoch_of(start))
    if timestamp == MAX_TIMESTAMP:
        return await newest(log)
    if timestamp == LATEST_TIERED:
        return None
    return await first_at_or_after(log, timestamp)
