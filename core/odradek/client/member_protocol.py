"""What members of the classic protocol tell one another through the coordinator, sans-IO."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping

from odradek.client.metadata import TopicPartition
from odradek.errors import ErrorCode, KafkaError, MalformedMessage
from odradek.group.assignors import (
    ASSIGNORS,
    Member,
    decode_sticky,
    encode_cooperative,
    encode_sticky,
)
from odradek.group.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from odradek.wire.api.a11_join_group import JoinGroupRequestProtocol, JoinGroupResponseMember
from odradek.wire.api.a14_sync_group import SyncGroupRequestAssignment

__all__ = ["assigned_partitions", "assignments", "members_of", "protocols"]

_log = logging.getLogger(__name__)


def protocols(
    assignors: Iterable[str],
    topics: Collection[str],
    owned: Collection[TopicPartition],
    before: Collection[TopicPartition],
    generation: int,
) -> list[JoinGroupRequestProtocol]:
    """Return what a member says of itself, for each assignor that it knows.

    `owned`: what it keeps while it joins; `before`: what it had when it last knew, and
    `generation` when that was.
    """
    return [
        JoinGroupRequestProtocol(
            name=name,
            metadata=encode_subscription(
                ConsumerProtocolSubscription(
                    topics=tuple(sorted(topics)),
                    user_data=_user_data(name, before, generation),
                    owned=_by_topic(owned),
                    generation=generation,
                )
            ),
        )
        for name in assignors
    ]


def _user_data(assignor: str, before: Collection[TopicPartition], generation: int) -> bytes | None:
    if assignor == "sticky":
        return encode_sticky(before, generation)
    if assignor == "cooperative-sticky":
        return encode_cooperative(generation)
    return None


def _by_topic(partitions: Iterable[tuple[str, int]]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for topic, number in sorted(partitions):
        topics.setdefault(topic, []).append(number)
    return topics


def members_of(assignor: str, answers: Iterable[JoinGroupResponseMember]) -> list[Member]:
    """Return the members as the leader's assignor sees them.

    Who says what cannot be understood is a member without topics: the others are not to wait.
    """
    members: list[Member] = []
    for answer in answers:
        try:
            said = decode_subscription(answer.metadata)
        except MalformedMessage as error:
            _log.warning("member %s gets no partitions: %s", answer.member_id, error)
            said = ConsumerProtocolSubscription(topics=())
        owned, generation = decode_sticky(said.user_data)
        if assignor != "sticky":
            owned = frozenset((topic, each) for topic in said.owned for each in said.owned[topic])
            generation = said.generation if said.generation >= 0 else generation
        members.append(
            Member(
                member_id=answer.member_id,
                topics=frozenset(said.topics),
                owned=owned,
                generation=generation,
                instance_id=answer.group_instance_id,
            )
        )
    return members


def assignments(
    assignor: str, members: Collection[Member], counts: Mapping[str, int]
) -> list[SyncGroupRequestAssignment]:
    """Return the leader's work. Raises KafkaError for an assignor that is not known here."""
    known = ASSIGNORS.get(assignor)
    if known is None:
        raise KafkaError(
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"the group chose the assignor {assignor!r}"
        )
    return [
        SyncGroupRequestAssignment(
            member_id=member_id,
            assignment=encode_assignment(
                ConsumerProtocolAssignment(partitions=_by_topic(partitions))
            ),
        )
        for member_id, partitions in known.assign(members, counts).items()
    ]


def assigned_partitions(assignment: bytes) -> frozenset[TopicPartition]:
    """Return what a member was given. Raises MalformedMessage."""
    return frozenset(
        TopicPartition(topic, number)
        for topic, numbers in decode_assignment(assignment).partitions.items()
        for number in numbers
    )
