"""ListOffsets (API key 2): find the offset for a timestamp, or the ends of a partition.

Timestamp -1 asks for the latest offset, -2 for the earliest.

Versions 1 to 11; flexible from 6.

    v1   the first one here: one offset per partition, with its timestamp (KIP-79)
    v2   isolation_level; throttle time (KIP-98)
    v3   throttled responses are sent before the wait (KIP-219)
    v4   current_leader_epoch, and leader_epoch in the response (KIP-320)
    v5   OFFSET_NOT_AVAILABLE may be answered (KIP-207)
    v6   flexible
    v7   timestamp -3: the record with the largest timestamp (KIP-734)
    v8   timestamp -4: the earliest local offset (KIP-405)
    v9   timestamp -5: the latest tiered offset (KIP-1005)
    v10  timeout_ms, for lookups in remote storage (KIP-1075)
    v11  timestamp -6: the earliest offset waiting for upload (KIP-1023)
"""

from __future__ import annotations

from odradek.wire.schema import Message, Struct, array, int8, int16, int32, int64, string

__all__ = [
    "ListOffsetsPartition",
    "ListOffsetsPartitionResponse",
    "ListOffsetsRequest",
    "ListOffsetsResponse",
    "ListOffsetsTopic",
    "ListOffsetsTopicResponse",
]


class ListOffsetsPartition(Struct):
    """An element of `ListOffsetsTopic.partitions`."""

    partition_index: int = int32("0+")
    current_leader_epoch: int = int32("4+", default=-1, ignorable=True)
    timestamp: int = int64("0+")  # in ms, or one of the negative ones above


class ListOffsetsTopic(Struct):
    """An element of `ListOffsetsRequest.topics`."""

    name: str = string("0+")
    partitions: list[ListOffsetsPartition] = array(ListOffsetsPartition, "0+")


class ListOffsetsRequest(Message, api_key=2, versions="1-11", flexible="6+"):
    """What a client sends."""

    # Kafka's files say 0, which is a broker's id; every consumer sends -1.
    replica_id: int = int32("0+", default=-1)
    isolation_level: int = int8("2+")  # 0 read_uncommitted, 1 read_committed
    topics: list[ListOffsetsTopic] = array(ListOffsetsTopic, "0+")
    timeout_ms: int = int32("10+", ignorable=True)


class ListOffsetsPartitionResponse(Struct):
    """An element of `ListOffsetsTopicResponse.partitions`."""

    partition_index: int = int32("0+")
    error_code: int = int16("0+")
    timestamp: int = int64("1+", default=-1)  # in ms; -1 where it is not a record's
    offset: int = int64("1+", default=-1)  # -1: no record is that late
    leader_epoch: int = int32("4+", default=-1)


class ListOffsetsTopicResponse(Struct):
    """An element of `ListOffsetsResponse.topics`."""

    name: str = string("0+")
    partitions: list[ListOffsetsPartitionResponse] = array(ListOffsetsPartitionResponse, "0+")


class ListOffsetsResponse(Message, api_key=2, versions="1-11", flexible="6+"):
    """What a broker answers."""

    throttle_time_ms: int = int32("2+", ignorable=True)
    topics: list[ListOffsetsTopicResponse] = array(ListOffsetsTopicResponse, "0+")
