"""OffsetDelete (API key 47): delete committed offsets of a group.

Version 0; none is flexible.

    v0   the only one (KIP-496)
"""

from __future__ import annotations

from odradek.wire.schema import Message, Struct, array, int16, int32, string

__all__ = [
    "OffsetDeleteRequest",
    "OffsetDeleteRequestPartition",
    "OffsetDeleteRequestTopic",
    "OffsetDeleteResponse",
    "OffsetDeleteResponsePartition",
    "OffsetDeleteResponseTopic",
]


class OffsetDeleteRequestPartition(Struct):
    """An element of `OffsetDeleteRequestTopic.partitions`."""

    partition_index: int = int32("0+")


class OffsetDeleteRequestTopic(Struct):
    """An element of `OffsetDeleteRequest.topics`."""

    name: str = string("0+")
    partitions: list[OffsetDeleteRequestPartition] = array(OffsetDeleteRequestPartition, "0+")


class OffsetDeleteRequest(Message, api_key=47, versions="0"):
    """What a client sends."""

    group_id: str = string("0+")
    topics: list[OffsetDeleteRequestTopic] = array(OffsetDeleteRequestTopic, "0+")


class OffsetDeleteResponsePartition(Struct):
    """An element of `OffsetDeleteResponseTopic.partitions`."""

    partition_index: int = int32("0+")
    error_code: int = int16("0+")


class OffsetDeleteResponseTopic(Struct):
    """An element of `OffsetDeleteResponse.topics`."""

    name: str = string("0+")
    partitions: list[OffsetDeleteResponsePartition] = array(OffsetDeleteResponsePartition, "0+")


class OffsetDeleteResponse(Message, api_key=47, versions="0"):
    """What a broker answers."""

    error_code: int = int16("0+")
    throttle_time_ms: int = int32("0+", ignorable=True)
    topics: list[OffsetDeleteResponseTopic] = array(OffsetDeleteResponseTopic, "0+")
