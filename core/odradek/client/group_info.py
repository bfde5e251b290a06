"""What coordinators tell about groups, as values."""

from __future__ import annotations

from attrs import frozen

from odradek.client.errors import error_of
from odradek.client.metadata import Broker, TopicPartition
from odradek.errors import ErrorCode, KafkaError, MalformedMessage
from odradek.group.consumer_protocol import PROTOCOL_TYPE, decode_assignment, subscribed_topics
from odradek.wire.api.a15_describe_groups import DescribedGroup, DescribedGroupMember

__all__ = ["GroupDescription", "GroupListing", "GroupMember", "described"]


@frozen(slots=True)
class GroupListing:
    """A group in a list. `state` and `type` are "" where the broker is too old to tell."""

    group_id: str
    protocol_type: str
    state: str
    type: str
    coordinator: Broker


@frozen(slots=True)
class GroupMember:
    """A member of a group.

    `topics` it subscribed to, and `partitions` assigned to it, where the group's protocol is the
    consumers'; None where it is another, or the bytes are not what it says. `metadata` and
    `assignment` are those bytes; both are empty while the group rebalances.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    topics: tuple[str, ...] | None
    partitions: tuple[TopicPartition, ...] | None
    metadata: bytes
    assignment: bytes


@frozen(slots=True)
class GroupDescription:
    """A group: its state (Empty, PreparingRebalance, CompletingRebalance, Stable), the protocol
    its members agreed on (for consumers the assignor), and its members."""

    group_id: str
    state: str
    protocol_type: str
    protocol: str
    members: tuple[GroupMember, ...]
    coordinator: Broker

    @property
    def active(self) -> bool:
        """Whether the group has members: then its offsets are theirs to change."""
        return self.state not in ("Empty", "Dead")


def described(group: DescribedGroup, broker: Broker) -> GroupDescription | KafkaError:
    """Return an answer of DescribeGroups as a value, whatever its version."""
    if group.error_code:
        return error_of(group.error_code, group.error_message or f"group {group.group_id!r}")
    if group.group_state == "Dead":  # before version 6: what there is not, too
        return KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no group {group.group_id!r}")
    consumers = group.protocol_type == PROTOCOL_TYPE
    return GroupDescription(
        group.group_id,
        group.group_state,
        group.protocol_type,
        group.protocol_data,
        tuple(_member(each, consumers) for each in group.members),
        broker,
    )


def _member(member: DescribedGroupMember, consumers: bool) -> GroupMember:
    topics: tuple[str, ...] | None = None
    partitions: tuple[TopicPartition, ...] | None = None
    if consumers:
        try:
            if member.member_metadata:
                topics = tuple(subscribed_topics(member.member_metadata))
            assigned = decode_assignment(member.member_assignment).partitions
            partitions = tuple(
                sorted(TopicPartition(t, p) for t, numbers in assigned.items() for p in numbers)
            )
        except MalformedMessage:  # the client's affair; its bytes are shown as they are
            pass
    return GroupMember(
        member.member_id,
        member.group_instance_id,
        member.client_id,
        member.client_host,
        topics,
        partitions,
        bytes(member.member_metadata),
        bytes(member.member_assignment),
    )
