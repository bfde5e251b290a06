"""ConsumerGroupDescribe (API key 69): state and members of groups of the consumer protocol.

Versions 0 to 1; all are flexible.

    v0   the first one, flexible (KIP-848)
    v1   member_type: -1 unknown, 0 classic, 1 consumer (KIP-1099)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from odradek.wire.schema import (
    Message,
    Struct,
    array,
    bool_,
    int8,
    int16,
    int32,
    string,
    struct,
    uuid,
)

if TYPE_CHECKING:
    from uuid import UUID

__all__ = [
    "Assignment",
    "ConsumerGroupDescribeRequest",
    "ConsumerGroupDescribeResponse",
    "DescribedGroup",
    "Member",
    "TopicPartitions",
]


class ConsumerGroupDescribeRequest(Message, api_key=69, versions="0-1", flexible="0+"):
    """What a client sends."""

    group_ids: list[str] = array(string, "0+")
    include_authorized_operations: bool = bool_("0+")


class TopicPartitions(Struct):
    """An element of `Assignment.topic_partitions`."""

    topic_id: UUID = uuid("0+")
    topic_name: str = string("0+")
    partitions: list[int] = array(int32, "0+")


class Assignment(Struct):
    """The value of `Member.assignment` and `Member.target_assignment`."""

    topic_partitions: list[TopicPartitions] = array(TopicPartitions, "0+")


class Member(Struct):
    """An element of `DescribedGroup.members`."""

    member_id: str = string("0+")
    instance_id: str | None = string("0+", nullable="0+", default=None)
    rack_id: str | None = string("0+", nullable="0+", default=None)
    member_epoch: int = int32("0+")
    client_id: str = string("0+")
    client_host: str = string("0+")
    subscribed_topic_names: list[str] = array(string, "0+")
    subscribed_topic_regex: str | None = string("0+", nullable="0+", default=None)
    assignment: Assignment = struct(Assignment, "0+")
    target_assignment: Assignment = struct(Assignment, "0+")
    member_type: int = int8("1+", default=-1, ignorable=True)


class DescribedGroup(Struct):
    """An element of `ConsumerGroupDescribeResponse.groups`."""

    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)
    group_id: str = string("0+")
    group_state: str = string("0+")
    group_epoch: int = int32("0+")
    assignment_epoch: int = int32("0+")
    assignor_name: str = string("0+")
    members: list[Member] = array(Member, "0+")
    authorized_operations: int = int32("0+", default=-(2**31))


class ConsumerGroupDescribeResponse(Message, api_key=69, versions="0-1", flexible="0+"):
    """What a broker answers."""

    throttle_time_ms: int = int32("0+")
    groups: list[DescribedGroup] = array(DescribedGroup, "0+")
