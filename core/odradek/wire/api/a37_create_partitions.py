"""CreatePartitions (API key 37): add partitions to topics.

Versions 0 to 3; flexible from 2.

    v0   the first one (KIP-195)
    v1   throttled responses are sent before the wait (KIP-219)
    v2   flexible
    v3   THROTTLING_QUOTA_EXCEEDED may be answered (KIP-599)
"""

from __future__ import annotations

from odradek.wire.schema import Message, Struct, array, bool_, int16, int32, string

__all__ = [
    "CreatePartitionsAssignment",
    "CreatePartitionsRequest",
    "CreatePartitionsResponse",
    "CreatePartitionsTopic",
    "CreatePartitionsTopicResult",
]


class CreatePartitionsAssignment(Struct):
    """An element of `CreatePartitionsTopic.assignments`."""

    broker_ids: list[int] = array(int32, "0+")


class CreatePartitionsTopic(Struct):
    """An element of `CreatePartitionsRequest.topics`."""

    name: str = string("0+")
    count: int = int32("0+")  # the new number of partitions in all
    # Null leaves the choice to the broker. Kafka's files say empty, which chooses nothing.
    assignments: list[CreatePartitionsAssignment] | None = array(
        CreatePartitionsAssignment, "0+", nullable="0+", default=None
    )


class CreatePartitionsRequest(Message, api_key=37, versions="0-3", flexible="2+"):
    """What a client sends."""

    topics: list[CreatePartitionsTopic] = array(CreatePartitionsTopic, "0+")
    timeout_ms: int = int32("0+")
    validate_only: bool = bool_("0+")


class CreatePartitionsTopicResult(Struct):
    """An element of `CreatePartitionsResponse.results`."""

    name: str = string("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)


class CreatePartitionsResponse(Message, api_key=37, versions="0-3", flexible="2+"):
    """What a broker answers."""

    throttle_time_ms: int = int32("0+")
    results: list[CreatePartitionsTopicResult] = array(CreatePartitionsTopicResult, "0+")
