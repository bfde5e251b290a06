"""AlterPartitionReassignments (API key 45): move partitions to other replicas, or stop doing so.

Null replicas cancel the reassignment of a partition.

Versions 0 to 1; all are flexible.

    v0   the first one, flexible (KIP-455)
    v1   allow_replication_factor_change (KIP-860)
"""

from __future__ import annotations

from odradek.wire.schema import Message, Struct, array, bool_, int16, int32, string

__all__ = [
    "AlterPartitionReassignmentsRequest",
    "AlterPartitionReassignmentsResponse",
    "ReassignablePartition",
    "ReassignablePartitionResponse",
    "ReassignableTopic",
    "ReassignableTopicResponse",
]


class ReassignablePartition(Struct):
    """An element of `ReassignableTopic.partitions`."""

    partition_index: int = int32("0+")
    replicas: list[int] | None = array(int32, "0+", nullable="0+", default=None)


class ReassignableTopic(Struct):
    """An element of `AlterPartitionReassignmentsRequest.topics`."""

    name: str = string("0+")
    partitions: list[ReassignablePartition] = array(ReassignablePartition, "0+")


class AlterPartitionReassignmentsRequest(Message, api_key=45, versions="0-1", flexible="0+"):
    """What a client sends."""

    timeout_ms: int = int32("0+", default=60000)
    allow_replication_factor_change: bool = bool_("1+", default=True)
    topics: list[ReassignableTopic] = array(ReassignableTopic, "0+")


class ReassignablePartitionResponse(Struct):
    """An element of `ReassignableTopicResponse.partitions`."""

    partition_index: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+")


class ReassignableTopicResponse(Struct):
    """An element of `AlterPartitionReassignmentsResponse.responses`."""

    name: str = string("0+")
    partitions: list[ReassignablePartitionResponse] = array(ReassignablePartitionResponse, "0+")


class AlterPartitionReassignmentsResponse(Message, api_key=45, versions="0-1", flexible="0+"):
    """What a broker answers."""

    throttle_time_ms: int = int32("0+")
    allow_replication_factor_change: bool = bool_("1+", default=True, ignorable=True)
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+")
    responses: list[ReassignableTopicResponse] = array(ReassignableTopicResponse, "0+")
