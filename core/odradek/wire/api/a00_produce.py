"""Produce (API key 0): append record batches to partitions.

Versions 0 to 2 carried message formats 0 and 1 and left Kafka in 4.0. They still have to be
advertised for librdkafka before 2.11.1 (KAFKA-18659), and are then refused.

A request with acks 0 gets no response at all.

Versions 3 to 13; flexible from 9.

    v3   the first one here: record batches of format 2 only, and the transactional id
         (KIP-98)
    v4   KAFKA_STORAGE_ERROR may be answered
    v5   log_start_offset in the response
    v6   as 5
    v7   batches may be compressed with zstd (KIP-110)
    v8   record_errors and error_message in the response (KIP-467)
    v9   flexible
    v10  current_leader and node_endpoints in the response (KIP-951)
    v11  TRANSACTION_ABORTABLE may be answered (KIP-890)
    v12  adds the partitions to the transaction by itself (KIP-890, part 2)
    v13  topic ids in place of names (KIP-516)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from odradek.wire.schema import (
    Message,
    Struct,
    array,
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
    "BatchIndexAndErrorMessage",
    "LeaderIdAndEpoch",
    "NodeEndpoint",
    "PartitionProduceData",
    "PartitionProduceResponse",
    "ProduceRequest",
    "ProduceResponse",
    "TopicProduceData",
    "TopicProduceResponse",
]


class PartitionProduceData(Struct):
    """An element of `TopicProduceData.partition_data`."""

    index: int = int32("0+")
    records: Records | None = records_("0+", nullable="0+")  # one record batch of format 2


class TopicProduceData(Struct):
    """An element of `ProduceRequest.topic_data`."""

    name: str = string("0-12", ignorable=True)
    topic_id: UUID = uuid("13+", ignorable=True)
    partition_data: list[PartitionProduceData] = array(PartitionProduceData, "0+")


class ProduceRequest(Message, api_key=0, versions="3-13", flexible="9+"):
    """What a client sends."""

    transactional_id: str | None = string("3+", nullable="3+", default=None)
    acks: int = int16("0+")  # -1 all in-sync replicas, 1 the leader, 0 no response
    timeout_ms: int = int32("0+")
    topic_data: list[TopicProduceData] = array(TopicProduceData, "0+")


class BatchIndexAndErrorMessage(Struct):
    """An element of `PartitionProduceResponse.record_errors`."""

    batch_index: int = int32("8+")  # of the record in the batch
    batch_index_error_message: str | None = string("8+", nullable="8+", default=None)


class LeaderIdAndEpoch(Struct):
    """The value of `PartitionProduceResponse.current_leader`."""

    leader_id: int = int32("10+", default=-1)
    leader_epoch: int = int32("10+", default=-1)


class PartitionProduceResponse(Struct):
    """An element of `TopicProduceResponse.partition_responses`."""

    index: int = int32("0+")
    error_code: int = int16("0+")
    base_offset: int = int64("0+")  # of the first record
    # -1 unless message.timestamp.type is LogAppendTime.
    log_append_time_ms: int = int64("2+", default=-1, ignorable=True)
    log_start_offset: int = int64("5+", default=-1, ignorable=True)
    # The records that had the whole batch refused.
    record_errors: list[BatchIndexAndErrorMessage] = array(
        BatchIndexAndErrorMessage, "8+", ignorable=True
    )
    error_message: str | None = string("8+", nullable="8+", default=None, ignorable=True)
    # With NOT_LEADER_OR_FOLLOWER.
    current_leader: LeaderIdAndEpoch | None = struct(LeaderIdAndEpoch, "10+", tag=0, tagged="10+")


class TopicProduceResponse(Struct):
    """An element of `ProduceResponse.responses`."""

    name: str = string("0-12", ignorable=True)
    topic_id: UUID = uuid("13+", ignorable=True)
    partition_responses: list[PartitionProduceResponse] = array(PartitionProduceResponse, "0+")


class NodeEndpoint(Struct):
    """An element of `ProduceResponse.node_endpoints`."""

    node_id: int = int32("10+")
    host: str = string("10+")
    port: int = int32("10+")
    rack: str | None = string("10+", nullable="10+", default=None)


class ProduceResponse(Message, api_key=0, versions="3-13", flexible="9+"):
    """What a broker answers."""

    responses: list[TopicProduceResponse] = array(TopicProduceResponse, "0+")
    throttle_time_ms: int = int32("1+", ignorable=True)
    node_endpoints: list[NodeEndpoint] = array(NodeEndpoint, "10+", tag=0, tagged="10+")
