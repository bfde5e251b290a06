"""Metadata (API key 3): find brokers, topics, partitions and their leaders.

Versions 0 to 13; flexible from 9.

    v0   an empty list of topics asks for all of them
    v1   null asks for all topics, an empty list for none; rack, controller_id, is_internal
    v2   cluster_id
    v3   throttle time
    v4   allow_auto_topic_creation (KIP-204)
    v5   offline_replicas (KIP-112)
    v6   throttled responses are sent before the wait (KIP-219)
    v7   leader_epoch (KIP-320)
    v8   authorised operations (KIP-430)
    v9   flexible
    v10  topic_id; clients must not ask by it before 12 (KIP-516)
    v11  without the cluster's authorised operations: DescribeCluster has them (KIP-700)
    v12  topics may be asked for by id, with a null name (KIP-516)
    v13  a top-level error_code, REBOOTSTRAP_REQUIRED (KIP-1102)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from odradek.wire.schema import Message, Struct, array, bool_, int16, int32, string, uuid

if TYPE_CHECKING:
    from uuid import UUID

__all__ = [
    "MetadataRequest",
    "MetadataRequestTopic",
    "MetadataResponse",
    "MetadataResponseBroker",
    "MetadataResponsePartition",
    "MetadataResponseTopic",
]


class MetadataRequestTopic(Struct):
    """An element of `MetadataRequest.topics`."""

    topic_id: UUID = uuid("10+", ignorable=True)
    name: str | None = string("0+", nullable="10+")  # null when asked by id


class MetadataRequest(Message, api_key=3, versions="0-13", flexible="9+", surplus=3):
    """What a client sends.

    librdkafka (at least to 2.16) asks for all topics with a null array of four bytes where the
    flexible versions have one (its issue 5049). Read as the protocol says, that is the question
    it wanted to ask, and three bytes behind the end, which Kafka ignores.
    """

    topics: list[MetadataRequestTopic] | None = array(MetadataRequestTopic, "0+", nullable="1+")
    allow_auto_topic_creation: bool = bool_("4+", default=True)
    include_cluster_authorized_operations: bool = bool_("8-10")
    include_topic_authorized_operations: bool = bool_("8+")


class MetadataResponseBroker(Struct):
    """An element of `MetadataResponse.brokers`."""

    node_id: int = int32("0+")
    host: str = string("0+")
    port: int = int32("0+")
    rack: str | None = string("1+", nullable="1+", default=None, ignorable=True)


class MetadataResponsePartition(Struct):
    """An element of `MetadataResponseTopic.partitions`."""

    error_code: int = int16("0+")
    partition_index: int = int32("0+")
    leader_id: int = int32("0+")  # -1 is none
    leader_epoch: int = int32("7+", default=-1, ignorable=True)
    replica_nodes: list[int] = array(int32, "0+")
    isr_nodes: list[int] = array(int32, "0+")
    offline_replicas: list[int] = array(int32, "5+", ignorable=True)


class MetadataResponseTopic(Struct):
    """An element of `MetadataResponse.topics`."""

    error_code: int = int16("0+")
    name: str | None = string("0+", nullable="12+")
    topic_id: UUID = uuid("10+", ignorable=True)
    is_internal: bool = bool_("1+", ignorable=True)
    partitions: list[MetadataResponsePartition] = array(MetadataResponsePartition, "0+")
    # Bits; the default is "not asked".
    topic_authorized_operations: int = int32("8+", default=-(2**31))


class MetadataResponse(Message, api_key=3, versions="0-13", flexible="9+"):
    """What a broker answers."""

    throttle_time_ms: int = int32("3+", ignorable=True)
    brokers: list[MetadataResponseBroker] = array(MetadataResponseBroker, "0+")
    cluster_id: str | None = string("2+", nullable="2+", default=None, ignorable=True)
    controller_id: int = int32("1+", default=-1, ignorable=True)  # -1 is unknown
    topics: list[MetadataResponseTopic] = array(MetadataResponseTopic, "0+")
    # Bits; the default is "not asked".
    cluster_authorized_operations: int = int32("8-10", default=-(2**31))
    error_code: int = int16("13+", ignorable=True)
