"""DeleteRecords (API key 21): drop the records of partitions before an offset.

Offset -1 means the high watermark.

Versions 0 to 2; flexible from 2.

    v0   the first one (KIP-107)
    v1   throttled responses are sent before the wait (KIP-219)
    v2   flexible
"""

from __future__ import annotations

from odradek.wire.schema import Message, Struct, array, int16, int32, int64, string

__all__ = [
    "DeleteRecordsPartition",
    "DeleteRecordsPartitionResult",
    "DeleteRecordsRequest",
    "DeleteRecordsResponse",
    "DeleteRecordsTopic",
    "DeleteRecordsTopicResult",
]


class DeleteRecordsPartition(Struct):
    """An element of `DeleteRecordsTopic.partitions`."""

    partition_index: int = int32("0+")
    offset: int = int64("0+")  # -1 is the high watermark


class DeleteRecordsTopic(Struct):
    """An element of `DeleteRecordsRequest.topics`."""

    name: str = string("0+")
    partitions: list[DeleteRecordsPartition] = array(DeleteRecordsPartition, "0+")


class DeleteRecordsRequest(Message, api_key=21, versions="0-2", flexible="2+"):
    """What a client sends."""

    topics: list[DeleteRecordsTopic] = array(DeleteRecordsTopic, "0+")
    timeout_ms: int = int32("0+")


class DeleteRecordsPartitionResult(Struct):
    """An element of `DeleteRecordsTopicResult.partitions`."""

    partition_index: int = int32("0+")
    low_watermark: int = int64("0+")
    error_code: int = int16("0+")


class DeleteRecordsTopicResult(Struct):
    """An element of `DeleteRecordsResponse.topics`."""

    name: str = string("0+")
    partitions: list[DeleteRecordsPartitionResult] = array(DeleteRecordsPartitionResult, "0+")


class DeleteRecordsResponse(Message, api_key=21, versions="0-2", flexible="2+"):
    """What a broker answers."""

    throttle_time_ms: int = int32("0+")
    topics: list[DeleteRecordsTopicResult] = array(DeleteRecordsTopicResult, "0+")
