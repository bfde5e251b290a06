"""Who is to own what, computed by every member for itself. Sans-IO.

Algorithm 1 of "Kafka: a Distributed Messaging System for Log Processing" (Kreps, Narkhede, Rao;
NetDB 2011), section 3.2, with two differences. The paper's members read the partitions from the
brokers' registry, each at its own time; here each registers the topics as it sees them, and the
plan is a function of the registrations alone: members that see the same registrations agree,
whatever they know of the brokers. And a member keeps what stays its own instead of releasing
everything before it claims anything.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import TypeVar
from uuid import UUID

from attrs import frozen

from odradek.client.decentralised.keys import Registration
from odradek.contracts.coordinator import MAX_TXN_BYTES, MAX_TXN_OPS, Op, Put
from odradek.types import PartitionKey

__all__ = ["Plan", "pack", "plan", "range_assignment", "range_of"]

T = TypeVar("T")

_NOTHING: frozenset[PartitionKey] = frozenset()


def range_assignment(members: Collection[Registration]) -> dict[str, frozenset[PartitionKey]]:
    """Return each member's partitions: of each topic a range, as Kafka's RangeAssignor gives.

    A topic is shared by the members that see it under the same id, in the order of their names;
    the first ones get one partition more where it does not divide. Of the numbers of partitions
    that they see the largest counts, because partitions are only ever added. So every partition
    that anybody sees has exactly one member, one that knows the topic.
    """
    return {each.member: range_of(each.member, members) for each in members}


def range_of(member: str, members: Iterable[Registration]) -> frozenset[PartitionKey]:
    """Return the partitions of one member, without working out the others'."""
    counts: dict[UUID, int] = {}
    subscribers: dict[UUID, set[str]] = {}
    for registration in members:
        for topic in registration.topics.values():
            counts[topic.id] = max(counts.get(topic.id, 0), topic.partitions)
            subscribers.setdefault(topic.id, set()).add(registration.member)
    mine = []
    for topic_id, names in subscribers.items():
        if member in names:
            place = sum(name < member for name in names)
            each, more = divmod(counts[topic_id], len(names))
            start = place * each + min(place, more)
            end = start + each + (place < more)
            mine += [PartitionKey(topic_id, number) for number in range(start, end)]
    return frozenset(mine)


@frozen(slots=True)
class Plan:
    """What one member has to do, in this order.

    `release` what it holds and is another's now; `claim` what is its own and nobody holds;
    `wait` for others to release what is its own. What it holds and keeps is in none of them.
    """

    release: frozenset[PartitionKey] = _NOTHING
    claim: frozenset[PartitionKey] = _NOTHING
    wait: frozenset[PartitionKey] = _NOTHING

    @property
    def settled(self) -> bool:
        """Whether there is nothing to do and nothing to wait for."""
        return not (self.release or self.claim or self.wait)


def plan(
    assigned: Collection[PartitionKey],
    held: Collection[PartitionKey],
    others: Collection[PartitionKey],
) -> Plan:
    """Plan for a member that is `assigned` partitions, while it holds some and `others` hold some.

    A partition that is both held and said to be another's is held: the saying is old.
    """
    mine, mine_now = frozenset(assigned), frozenset(held)
    missing = mine - mine_now
    wait = missing.intersection(others)
    return Plan(release=mine_now - mine, claim=missing - wait, wait=wait)


def pack(
    items: Iterable[tuple[T, tuple[Op, ...]]], *always: Op
) -> Iterator[tuple[list[T], tuple[Op, ...]]]:
    """Put the operations of many items into as few transactions as the contract allows (C10).

    Yields the items of each transaction, in order, and its operations: `always` first, then those
    of the items; an item's are never torn apart. All keys are different.
    """
    size_always = sum(map(_size, always))
    taken: list[T] = []
    ops: list[Op] = [*always]
    size = size_always
    for item, its_ops in items:
        its_size = sum(map(_size, its_ops))
        if taken and (len(ops) + len(its_ops) > MAX_TXN_OPS or size + its_size > MAX_TXN_BYTES):
            yield taken, tuple(ops)
            taken, ops, size = [], [*always], size_always
        taken.append(item)
        ops += its_ops
        size += its_size
    if taken:
        yield taken, tuple(ops)


def _size(op: Op) -> int:
    return len(op.key) + (len(op.value) if isinstance(op, Put) else 0)
