"""ConsumerGroupHeartbeat (API key 68): join, stay in and leave a group of the consumer protocol.

member_epoch 0 joins, -1 leaves, -2 leaves as a static member that will be back. Fields that
did not change since the last heartbeat are null (or -1).

Versions 0 to 1; all are flexible.

    v0   the first one, flexible (KIP-848)
    v1   subscribed_topic_regex; the client makes its member_id itself (KIP-848, KIP-1082)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from odradek.wire.schema import Message, Struct, array, int16, int32, string, struct, uuid

if TYPE_CHECKING:
    from uuid import UUID

__all__ = [
    "Assignment",
    "ConsumerGroupHeartbeatRequest",
    "ConsumerGroupHeartbeatResponse",
    "TopicPartitions",
]


class TopicPartitions(Struct):
    """An element of `ConsumerGroupHeartbeatRequest.topic_partitions`
    and `Assignment.topic_partitions`.
    """

    topic_id: UUID = uuid("0+")
    partitions: list[int] = array(int32, "0+")


class ConsumerGroupHeartbeatRequest(Message, api_key=68, versions="0-1", flexible="0+"):
    """What a client sends."""

    group_id: str = string("0+")
    member_id: str = string("0+")
    member_epoch: int = int32("0+")
    instance_id: str | None = string("0+", nullable="0+", default=None)
    rack_id: str | None = string("0+", nullable="0+", default=None)
    rebalance_timeout_ms: int = int32("0+", default=-1)
    subscribed_topic_names: list[str] | None = array(string, "0+", nullable="0+", default=None)
    subscribed_topic_regex: str | None = string("1+", nullable="1+", default=None)
    server_assignor: str | None = string("0+", nullable="0+", default=None)
    topic_partitions: list[TopicPartitions] | None = array(
        TopicPartitions, "0+", nullable="0+", default=None
    )


class Assignment(Struct):
    """The value of `ConsumerGroupHeartbeatResponse.assignment`."""

    topic_partitions: list[TopicPartitions] = array(TopicPartitions, "0+")


class ConsumerGroupHeartbeatResponse(Message, api_key=68, versions="0-1", flexible="0+"):
    """What a broker answers."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)
    member_id: str | None = string("0+", nullable="0+", default=None)
    member_epoch: int = int32("0+")
    heartbeat_interval_ms: int = int32("0+")
    assignment: Assignment | None = struct(Assignment, "0+", nullable="0+")
