"""OffsetCommit (API key 8): store the offsets a group has consumed.

Versions 2 to 10; flexible from 8.

    v2   the first one here: generation, member, retention time
    v3   throttle time
    v4   throttled responses are sent before the wait (KIP-219)
    v5   without the retention time: the broker's setting rules (KIP-211)
    v6   committed_leader_epoch (KIP-320)
    v7   group_instance_id (KIP-345)
    v8   flexible
    v9   usable with the consumer protocol of KIP-848: STALE_MEMBER_EPOCH,
         GROUP_ID_NOT_FOUND
    v10  topic ids in place of names (KIP-848)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from odradek.wire.schema import Message, Struct, array, int16, int32, int64, string, uuid

if TYPE_CHECKING:
    from uuid import UUID

__all__ = [
    "OffsetCommitRequest",
    "OffsetCommitRequestPartition",
    "OffsetCommitRequestTopic",
    "OffsetCommitResponse",
    "OffsetCommitResponsePartition",
    "OffsetCommitResponseTopic",
]


class OffsetCommitRequestPartition(Struct):
    """An element of `OffsetCommitRequestTopic.partitions`."""

    partition_index: int = int32("0+")
    committed_offset: int = int64("0+")
    committed_leader_epoch: int = int32("6+", default=-1, ignorable=True)
    committed_metadata: str | None = string("0+", nullable="0+")


class OffsetCommitRequestTopic(Struct):
    """An element of `OffsetCommitRequest.topics`."""

    name: str = string("0-9", ignorable=True)
    topic_id: UUID = uuid("10+", ignorable=True)
    partitions: list[OffsetCommitRequestPartition] = array(OffsetCommitRequestPartition, "0+")


class OffsetCommitRequest(Message, api_key=8, versions="2-10", flexible="8+"):
    """What a client sends."""

    group_id: str = string("0+")
    # -1 outside of a group.
    generation_id_or_member_epoch: int = int32("1+", default=-1, ignorable=True)
    member_id: str = string("1+", ignorable=True)
    group_instance_id: str | None = string("7+", nullable="7+", default=None)
    retention_time_ms: int = int64("2-4", default=-1, ignorable=True)  # -1 is the broker's
    topics: list[OffsetCommitRequestTopic] = array(OffsetCommitRequestTopic, "0+")


class OffsetCommitResponsePartition(Struct):
    """An element of `OffsetCommitResponseTopic.partitions`."""

    partition_index: int = int32("0+")
    error_code: int = int16("0+")


class OffsetCommitResponseTopic(Struct):
    """An element of `OffsetCommitResponse.topics`."""

    name: str = string("0-9", ignorable=True)
    topic_id: UUID = uuid("10+", ignorable=True)
    partitions: list[OffsetCommitResponsePartition] = array(OffsetCommitResponsePartition, "0+")


class OffsetCommitResponse(Message, api_key=8, versions="2-10", flexible="8+"):
    """What a broker answers."""

    throttle_time_ms: int = int32("3+", ignorable=True)
    topics: list[OffsetCommitResponseTopic] = array(OffsetCommitResponseTopic, "0+")
