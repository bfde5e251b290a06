"""DeleteRecords (key 21), versions 0 to 2: move the log start offset (KIP-107).

-1 means up to the high watermark. Segments wholly below the new start are removed at once. An
internal topic's records cannot be deleted, which is INVALID_TOPIC_EXCEPTION, as in Kafka.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from odradek.contracts.storage import StorageError
from odradek.errors import ErrorCode, KafkaError
from odradek.wire import Message
from odradek.wire.api.a21_delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)

if TYPE_CHECKING:
    from odradek.broker.broker import Broker
    from odradek.broker.serve import Caller

__all__ = ["handle"]


async def handle(caller: Caller, request: DeleteRecordsRequest, version: int) -> Message:
    """Trim each partition."""
    response = DeleteRecordsResponse()
    for topic in request.topics:
        results = [
            await _trim(caller.broker, topic.name, partition) for partition in topic.partitions
        ]
        response.topics.append(DeleteRecordsTopicResult(name=topic.name, partitions=results))
    return response


async def _trim(
    broker: Broker, topic: str, partition: DeleteRecordsPartition
) -> DeleteRecordsPartitionResult:
    result = DeleteRecordsPartitionResult(
        partition_index=partition.partition_index, low_watermark=-1
    )
    try:
        hosted = broker.topic(topic)
        if hosted.internal:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION)
        if hosted.settings.cleanup_policy == ("compact",):
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION, "records of a compacted topic cannot be deleted"
            )
        log = hosted.log(partition.partition_index)
        result.low_watermark = await log.trim(partition.offset)
    except KafkaError as error:
        result.error_code = error.code
    except StorageError:
        result.error_code = ErrorCode.KAFKA_STORAGE_ERROR
    return result
