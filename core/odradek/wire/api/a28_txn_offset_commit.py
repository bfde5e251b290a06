"""TxnOffsetCommit (API key 28): store offsets of a group as part of a transaction.

Versions 0 to 5; flexible from 3.

    v0   the first one (KIP-98)
    v1   throttled responses are sent before the wait (KIP-219)
    v2   committed_leader_epoch (KIP-320)
    v3   flexible; member_id, group_instance_id and generation_id (KIP-447)
    v4   TRANSACTION_ABORTABLE may be answered (KIP-890)
    v5   adds the group to the transaction by itself (KIP-890, part 2)
"""

from __future__ import annotations

from odradek.wire.schema import Message, Struct, array, int16, int32, int64, string

__all__ = [
    "TxnOffsetCommitRequest",
    "TxnOffsetCommitRequestPartition",
    "TxnOffsetCommitRequestTopic",
    "TxnOffsetCommitResponse",
    "TxnOffsetCommitResponsePartition",
    "TxnOffsetCommitResponseTopic",
]


class TxnOffsetCommitRequestPartition(Struct):
    """An element of `TxnOffsetCommitRequestTopic.partitions`."""

    partition_index: int = int32("0+")
    committed_offset: int = int64("0+")
    committed_leader_epoch: int = int32("2+", default=-1, ignorable=True)
    committed_metadata: str | None = string("0+", nullable="0+")


class TxnOffsetCommitRequestTopic(Struct):
    """An element of `TxnOffsetCommitRequest.topics`."""

    name: str = string("0+")
    partitions: list[TxnOffsetCommitRequestPartition] = array(TxnOffsetCommitRequestPartition, "0+")


class TxnOffsetCommitRequest(Message, api_key=28, versions="0-5", flexible="3+"):
    """What a client sends."""

    transactional_id: str = string("0+")
    group_id: str = string("0+")
    producer_id: int = int64("0+")
    producer_epoch: int = int16("0+")
    generation_id: int = int32("3+", default=-1)
    member_id: str = string("3+")
    group_instance_id: str | None = string("3+", nullable="3+", default=None)
    topics: list[TxnOffsetCommitRequestTopic] = array(TxnOffsetCommitRequestTopic, "0+")


class TxnOffsetCommitResponsePartition(Struct):
    """An element of `TxnOffsetCommitResponseTopic.partitions`."""

    partition_index: int = int32("0+")
    error_code: int = int16("0+")


class TxnOffsetCommitResponseTopic(Struct):
    """An element of `TxnOffsetCommitResponse.topics`."""

    name: str = string("0+")
    partitions: list[TxnOffsetCommitResponsePartition] = array(
        TxnOffsetCommitResponsePartition, "0+"
    )


class TxnOffsetCommitResponse(Message, api_key=28, versions="0-5", flexible="3+"):
    """What a broker answers."""

    throttle_time_ms: int = int32("0+")
    topics: list[TxnOffsetCommitResponseTopic] = array(TxnOffsetCommitResponseTopic, "0+")
