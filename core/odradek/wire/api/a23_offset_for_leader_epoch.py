"""OffsetForLeaderEpoch (API key 23): find where a leader epoch ends (KIP-101).

Versions 2 to 4; flexible from 4.

    v2   the first one here: current_leader_epoch, throttle time (KIP-320)
    v3   replica_id in the request
    v4   flexible
"""

from __future__ import annotations

from odradek.wire.schema import Message, Struct, array, int16, int32, int64, string

__all__ = [
    "EpochEndOffset",
    "OffsetForLeaderEpochRequest",
    "OffsetForLeaderEpochResponse",
    "OffsetForLeaderPartition",
    "OffsetForLeaderTopic",
    "OffsetForLeaderTopicResult",
]


class OffsetForLeaderPartition(Struct):
    """An element of `OffsetForLeaderTopic.partitions`."""

    partition: int = int32("0+")
    current_leader_epoch: int = int32("2+", default=-1, ignorable=True)
    leader_epoch: int = int32("0+")


class OffsetForLeaderTopic(Struct):
    """An element of `OffsetForLeaderEpochRequest.topics`."""

    topic: str = string("0+")
    partitions: list[OffsetForLeaderPartition] = array(OffsetForLeaderPartition, "0+")


class OffsetForLeaderEpochRequest(Message, api_key=23, versions="2-4", flexible="4+"):
    """What a client sends."""

    # A follower's broker id; -1 consumer, -2 debugging.
    replica_id: int = int32("3+", default=-2, ignorable=True)
    topics: list[OffsetForLeaderTopic] = array(OffsetForLeaderTopic, "0+")


class EpochEndOffset(Struct):
    """An element of `OffsetForLeaderTopicResult.partitions`."""

    error_code: int = int16("0+")
    partition: int = int32("0+")
    # The largest not above the one asked for; -1 is none.
    leader_epoch: int = int32("1+", default=-1, ignorable=True)
    end_offset: int = int64("0+", default=-1)  # where it ends, exclusive; -1 is none


class OffsetForLeaderTopicResult(Struct):
    """An element of `OffsetForLeaderEpochResponse.topics`."""

    topic: str = string("0+")
    partitions: list[EpochEndOffset] = array(EpochEndOffset, "0+")


class OffsetForLeaderEpochResponse(Message, api_key=23, versions="2-4", flexible="4+"):
    """What a broker answers."""

    throttle_time_ms: int = int32("2+", ignorable=True)
    topics: list[OffsetForLeaderTopicResult] = array(OffsetForLeaderTopicResult, "0+")
