"""CreateTopics (API key 19): create topics.

Versions 2 to 7; flexible from 5.

    v2   the first one here: validate_only, error_message, throttle time
    v3   throttled responses are sent before the wait (KIP-219)
    v4   -1 asks for the default number of partitions or replicas (KIP-464)
    v5   flexible; the created topic's settings in the response (KIP-525)
    v6   THROTTLING_QUOTA_EXCEEDED may be answered (KIP-599)
    v7   topic_id in the response (KIP-516)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from odradek.wire.schema import Message, Struct, array, bool_, int8, int16, int32, string, uuid

if TYPE_CHECKING:
    from uuid import UUID

__all__ = [
    "CreatableReplicaAssignment",
    "CreatableTopic",
    "CreatableTopicConfig",
    "CreatableTopicConfigs",
    "CreatableTopicResult",
    "CreateTopicsRequest",
    "CreateTopicsResponse",
]


class CreatableReplicaAssignment(Struct):
    """An element of `CreatableTopic.assignments`."""

    partition_index: int = int32("0+")
    broker_ids: list[int] = array(int32, "0+")


class CreatableTopicConfig(Struct):
    """An element of `CreatableTopic.configs`."""

    name: str = string("0+")
    value: str | None = string("0+", nullable="0+")


class CreatableTopic(Struct):
    """An element of `CreateTopicsRequest.topics`."""

    name: str = string("0+")
    num_partitions: int = int32("0+")  # -1 with assignments, or for the broker's default
    replication_factor: int = int16("0+")  # -1 with assignments, or for the broker's default
    assignments: list[CreatableReplicaAssignment] = array(CreatableReplicaAssignment, "0+")
    configs: list[CreatableTopicConfig] = array(CreatableTopicConfig, "0+")


class CreateTopicsRequest(Message, api_key=19, versions="2-7", flexible="5+"):
    """What a client sends."""

    topics: list[CreatableTopic] = array(CreatableTopic, "0+")
    timeout_ms: int = int32("0+", default=60000)
    validate_only: bool = bool_("1+")


class CreatableTopicConfigs(Struct):
    """An element of `CreatableTopicResult.configs`."""

    name: str = string("5+")
    value: str | None = string("5+", nullable="5+")
    read_only: bool = bool_("5+")
    config_source: int = int8("5+", default=-1, ignorable=True)  # as in DescribeConfigs
    is_sensitive: bool = bool_("5+")


class CreatableTopicResult(Struct):
    """An element of `CreateTopicsResponse.topics`."""

    name: str = string("0+")
    topic_id: UUID = uuid("7+", ignorable=True)
    error_code: int = int16("0+")
    error_message: str | None = string("1+", nullable="0+", ignorable=True)
    topic_config_error_code: int = int16("5+", tag=0, tagged="5+", ignorable=True)
    num_partitions: int = int32("5+", default=-1, ignorable=True)
    replication_factor: int = int16("5+", default=-1, ignorable=True)
    configs: list[CreatableTopicConfigs] | None = array(
        CreatableTopicConfigs, "5+", nullable="5+", ignorable=True
    )


class CreateTopicsResponse(Message, api_key=19, versions="2-7", flexible="5+"):
    """What a broker answers."""

    throttle_time_ms: int = int32("2+", ignorable=True)
    topics: list[CreatableTopicResult] = array(CreatableTopicResult, "0+")
