"""Fetch (API key 1): read record batches of partitions, as a consumer or as a follower.

Records of a partition without news are empty, not null: librdkafka fails to read a negative
size. Hence their default in the response.

Versions 4 to 18; flexible from 12.

    v4   the first one here: isolation_level, aborted transactions (KIP-98)
    v5   log_start_offset, in both directions (KIP-107)
    v6   KAFKA_STORAGE_ERROR may be answered
    v7   fetch sessions (KIP-227)
    v8   throttled responses are sent before the wait (KIP-219)
    v9   current_leader_epoch in the request (KIP-320)
    v10  batches may be compressed with zstd (KIP-110)
    v11  rack_id in the request, preferred_read_replica in the response (KIP-392)
    v12  flexible; last_fetched_epoch in the request, diverging_epoch and current_leader in
         the response (KIP-595)
    v13  topic ids in place of names (KIP-516)
    v14  OFFSET_MOVED_TO_TIERED_STORAGE may be answered (KIP-405)
    v15  replica_state in place of replica_id (KIP-903)
    v16  node_endpoints in the response (KIP-951)
    v17  replica_directory_id in the request (KIP-853)
    v18  high_watermark in the request (KIP-1166)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from odradek.wire.schema import (
    Message,
    Struct,
    array,
    int8,
    int16,
    int32,
    int64,
    records_,
    string,
    struct,
    uuid,
)

if TYPE_CHECKING:
    from uuid import UUID

    from odradek.wire.schema import Records

__all__ = [
    "AbortedTransaction",
    "EpochEndOffset",
    "FetchPartition",
    "FetchRequest",
    "FetchResponse",
    "FetchTopic",
    "FetchableTopicResponse",
    "ForgottenTopic",
    "LeaderIdAndEpoch",
    "NodeEndpoint",
    "PartitionData",
    "ReplicaState",
    "SnapshotId",
]


class ReplicaState(Struct):
    """The value of `FetchRequest.replica_state`."""

    replica_id: int = int32("15+", default=-1)
    replica_epoch: int = int64("15+", default=-1)


class FetchPartition(Struct):
    """An element of `FetchTopic.partitions`."""

    partition: int = int32("0+")
    current_leader_epoch: int = int32("9+", default=-1, ignorable=True)  # -1 is not to be fenced
    fetch_offset: int = int64("0+")
    last_fetched_epoch: int = int32("12+", default=-1)  # of a follower's last record; -1 is unknown
    # A follower's own; -1 is a consumer.
    log_start_offset: int = int64("5+", default=-1, ignorable=True)
    partition_max_bytes: int = int32("0+")
    replica_directory_id: UUID = uuid("17+", tag=0, tagged="17+", ignorable=True)
    # As the follower knows it; the default is "not told".
    high_watermark: int = int64("18+", tag=1, tagged="18+", default=2**63 - 1, ignorable=True)


class FetchTopic(Struct):
    """An element of `FetchRequest.topics`."""

    topic: str = string("0-12", ignorable=True)
    topic_id: UUID = uuid("13+", ignorable=True)
    partitions: list[FetchPartition] = array(FetchPartition, "0+")


class ForgottenTopic(Struct):
    """An element of `FetchRequest.forgotten_topics_data`."""

    topic: str = string("7-12", ignorable=True)
    topic_id: UUID = uuid("13+", ignorable=True)
    partitions: list[int] = array(int32, "7+")


class FetchRequest(Message, api_key=1, versions="4-18", flexible="12+"):
    """What a client sends."""

    # Of a follower.
    cluster_id: str | None = string(
        "12+", nullable="12+", tag=0, tagged="12+", default=None, ignorable=True
    )
    replica_id: int = int32("0-14", default=-1)  # a follower's broker id; -1 is a consumer
    # The follower's, absent for a consumer.
    replica_state: ReplicaState | None = struct(ReplicaState, "15+", tag=1, tagged="15+")
    max_wait_ms: int = int32("0+")
    min_bytes: int = int32("0+")  # wait for as many, at most max_wait_ms
    max_bytes: int = int32("3+", default=2**31 - 1, ignorable=True)
    isolation_level: int = int8("4+", ignorable=True)  # 0 read_uncommitted, 1 read_committed
    session_id: int = int32("7+", ignorable=True)  # 0 is no session
    # 0 opens a session, -1 closes it or wants none.
    session_epoch: int = int32("7+", default=-1, ignorable=True)
    topics: list[FetchTopic] = array(FetchTopic, "0+")
    # To remove from the session.
    forgotten_topics_data: list[ForgottenTopic] = array(ForgottenTopic, "7+")
    rack_id: str = string("11+", ignorable=True)


class EpochEndOffset(Struct):
    """The value of `PartitionData.diverging_epoch`."""

    epoch: int = int32("12+", default=-1)
    end_offset: int = int64("12+", default=-1)


class LeaderIdAndEpoch(Struct):
    """The value of `PartitionData.current_leader`."""

    leader_id: int = int32("12+", default=-1)
    leader_epoch: int = int32("12+", default=-1)


class SnapshotId(Struct):
    """The value of `PartitionData.snapshot_id`."""

    end_offset: int = int64("0+", default=-1)
    epoch: int = int32("0+", default=-1)


class AbortedTransaction(Struct):
    """An element of `PartitionData.aborted_transactions`."""

    producer_id: int = int64("4+")
    first_offset: int = int64("4+")  # of the transaction


class PartitionData(Struct):
    """An element of `FetchableTopicResponse.partitions`."""

    partition_index: int = int32("0+")
    error_code: int = int16("0+")
    high_watermark: int = int64("0+")
    # Read_committed sees nothing from here on.
    last_stable_offset: int = int64("4+", default=-1, ignorable=True)
    log_start_offset: int = int64("5+", default=-1, ignorable=True)
    # Where the follower must truncate to.
    diverging_epoch: EpochEndOffset | None = struct(EpochEndOffset, "12+", tag=0, tagged="12+")
    # With NOT_LEADER_OR_FOLLOWER, FENCED_LEADER_EPOCH.
    current_leader: LeaderIdAndEpoch | None = struct(LeaderIdAndEpoch, "12+", tag=1, tagged="12+")
    snapshot_id: SnapshotId | None = struct(SnapshotId, "12+", tag=2, tagged="12+")
    # Of read_committed; else null.
    aborted_transactions: list[AbortedTransaction] | None = array(
        AbortedTransaction, "4+", nullable="4+", ignorable=True
    )
    preferred_read_replica: int = int32("11+", default=-1)  # -1 is none
    records: Records | None = records_("0+", nullable="0+", default=b"")


class FetchableTopicResponse(Struct):
    """An element of `FetchResponse.responses`."""

    topic: str = string("0-12", ignorable=True)
    topic_id: UUID = uuid("13+", ignorable=True)
    partitions: list[PartitionData] = array(PartitionData, "0+")


class NodeEndpoint(Struct):
    """An element of `FetchResponse.node_endpoints`."""

    node_id: int = int32("16+")
    host: str = string("16+")
    port: int = int32("16+")
    rack: str | None = string("16+", nullable="16+", default=None)


class FetchResponse(Message, api_key=1, versions="4-18", flexible="12+"):
    """What a broker answers."""

    throttle_time_ms: int = int32("1+", ignorable=True)
    error_code: int = int16("7+", ignorable=True)
    session_id: int = int32("7+")
    responses: list[FetchableTopicResponse] = array(FetchableTopicResponse, "0+")
    node_endpoints: list[NodeEndpoint] = array(NodeEndpoint, "16+", tag=0, tagged="16+")
