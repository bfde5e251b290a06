"""ElectLeaders (API key 43): elect leaders of partitions, preferred or unclean.

Versions 0 to 2; flexible from 2.

    v0   preferred leaders only (KIP-183)
    v1   election_type; a top-level error_code (KIP-460)
    v2   flexible
"""

from __future__ import annotations

from odradek.wire.schema import Message, Struct, array, int8, int16, int32, string

__all__ = [
    "ElectLeadersRequest",
    "ElectLeadersResponse",
    "PartitionResult",
    "ReplicaElectionResult",
    "TopicPartitions",
]


class TopicPartitions(Struct):
    """An element of `ElectLeadersRequest.topic_partitions`."""

    topic: str = string("0+")
    partitions: list[int] = array(int32, "0+")


class ElectLeadersRequest(Message, api_key=43, versions="0-2", flexible="2+"):
    """What a client sends."""

    election_type: int = int8("1+")  # 0 preferred, 1 unclean
    # Null is all of them.
    topic_partitions: list[TopicPartitions] | None = array(TopicPartitions, "0+", nullable="0+")
    timeout_ms: int = int32("0+", default=60000)


class PartitionResult(Struct):
    """An element of `ReplicaElectionResult.partition_result`."""

    partition_id: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+")


class ReplicaElectionResult(Struct):
    """An element of `ElectLeadersResponse.replica_election_results`."""

    topic: str = string("0+")
    partition_result: list[PartitionResult] = array(PartitionResult, "0+")


class ElectLeadersResponse(Message, api_key=43, versions="0-2", flexible="2+"):
    """What a broker answers."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("1+")
    replica_election_results: list[ReplicaElectionResult] = array(ReplicaElectionResult, "0+")
