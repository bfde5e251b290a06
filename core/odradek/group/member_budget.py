"""The memory that members keep: they outlive the requests and the connections they came with."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from odradek.group.classic import ClassicGroup
    from odradek.group.classic_member import Member, Terms

__all__ = ["MemberBudget", "Weights", "terms_weight"]

_MEMBER_BYTES = 2_000
"""A member with its timer and its places in the group, about."""

_PROTOCOL_BYTES = 250
"""A protocol with its name, its metadata and its count in the group, about, besides their text."""

_TOPIC_BYTES = 120
"""A topic that the group is subscribed to, about, besides its name."""


class MemberBudget:
    """Bytes that the members of all shards of a broker may keep: `limit`; they keep `used`."""

    __slots__ = ("limit", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0


class Weights:
    """One shard's part of the budget."""

    def __init__(self, budget: MemberBudget) -> None:
        self._budget = budget
        self._used = 0

    def fits(self, more: int, *, known: bool) -> bool:
        """Whether there is room; a quarter more for members that are `known` than for new ones.

        Otherwise those that come last would keep the others from joining the next generation.
        """
        limit = self._budget.limit
        return more <= 0 or self._budget.used + more <= (limit + limit // 4 if known else limit)

    def weigh(self, group: ClassicGroup, member: Member) -> None:
        """Count a member, or count it again after a change."""
        weight = (
            terms_weight(member.terms)
            + sum(map(_text, (group.group_id, member.member_id, member.instance_id or "")))
            + sum(map(_text, (group.protocol_type or "", member.client_id, member.client_host)))
            + len(member.assignment)
        )
        self._add(weight - member.weight)
        member.weight = weight

    def release(self, member: Member) -> None:
        """Count a member no more."""
        self._add(-member.weight)
        member.weight = 0

    def weigh_topics(self, group: ClassicGroup) -> None:
        """Count the topics that a group is subscribed to, again after a change."""
        weight = sum([_TOPIC_BYTES + len(topic) for topic in group.subscribed or ()])
        self._add(weight - group.topics_weight)
        group.topics_weight = weight

    def close(self) -> None:
        """Count nothing of this shard any more."""
        self._add(-self._used)

    def _add(self, more: int) -> None:
        self._used += more
        self._budget.used += more


def terms_weight(terms: Terms) -> int:
    """Return about what a member with these terms takes, besides its names."""
    return _MEMBER_BYTES + sum(
        [_PROTOCOL_BYTES + _text(name) + len(metadata) for name, metadata in terms.protocols]
    )


def _text(text: str) -> int:
    return len(text) if text.isascii() else 4 * len(text)
