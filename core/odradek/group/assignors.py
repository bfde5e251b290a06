"""Who of a group gets which partition: Kafka's four classic assignors. Pure functions.

    range               each topic by itself, contiguous partitions, members in order: partition i
                        of topics with equally many partitions goes to the same member
    roundrobin          all partitions in turn to the members in order
    sticky              as even as can be, and what a member has it keeps (KIP-54)
    cooperative-sticky  the same; but what somebody else still has is given to nobody yet, so that
                        members give up only what moves, and join again when they have (KIP-429)

All are deterministic: equal arguments, whatever their order, give equal results, in which every
partition that somebody subscribes to has exactly one owner, except what cooperative-sticky
withholds. Members are ordered as Kafka orders them: those with a group instance id first, by it,
then the others by member id.

Groups are mixed: any client may be the leader, and read what this one wrote. So the user data of
the sticky ones is Kafka's: `StickyAssignor.java` puts what a member owned and when into it,
`CooperativeStickyAssignor.java` the generation. librdkafka writes the former for both.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from struct import Struct
from struct import error as struct_error
from typing import TypeAlias

from attrs import frozen

__all__ = [
    "ASSIGNORS",
    "Assignment",
    "Assignor",
    "Member",
    "Partition",
    "decode_sticky",
    "encode_cooperative",
    "encode_sticky",
]

Partition: TypeAlias = tuple[str, int]
"""Topic and partition."""

Assignment: TypeAlias = dict[str, list[Partition]]
"""What each member is given, by member id; each list in ascending order."""

_INT32 = Struct("!i")
_INT16 = Struct("!h")


@frozen(kw_only=True)
class Member:
    """A member as an assignor sees it.

    `owned`: what it has, as of `generation` (-1 unknown). Only the sticky ones look at it.
    """

    member_id: str
    topics: frozenset[str]
    owned: frozenset[Partition] = frozenset()
    generation: int = -1
    instance_id: str | None = None


@frozen
class Assignor:
    """A way to share out partitions, under the name that members agree on.

    `assign`: from the members, and the number of partitions of each topic that exists.
    `cooperative`: its members keep what they have while they join.
    """

    name: str
    assign: Callable[[Iterable[Member], Mapping[str, int]], Assignment]
    cooperative: bool = False


def _in_order(members: Iterable[Member]) -> list[Member]:
    return sorted(members, key=lambda m: (m.instance_id is None, m.instance_id or m.member_id))


def _all_partitions(members: Iterable[Member], counts: Mapping[str, int]) -> list[Partition]:
    topics = sorted({topic for member in members for topic in member.topics})
    return [(topic, number) for topic in topics for number in range(counts.get(topic, 0))]


def assign_range(members: Iterable[Member], counts: Mapping[str, int]) -> Assignment:
    """Give each member a contiguous range of every topic; the first ones get one more."""
    ordered = _in_order(members)
    result: Assignment = {member.member_id: [] for member in ordered}
    for topic in sorted({topic for member in ordered for topic in member.topics}):
        takers = [member.member_id for member in ordered if topic in member.topics]
        each, more = divmod(counts.get(topic, 0), len(takers))
        start = 0
        for index, taker in enumerate(takers):
            end = start + each + (index < more)
            result[taker] += [(topic, number) for number in range(start, end)]
            start = end
    return result


def assign_round_robin(members: Iterable[Member], counts: Mapping[str, int]) -> Assignment:
    """Deal all partitions out in turn, leaving out who is not subscribed."""
    ordered = _in_order(members)
    result: Assignment = {member.member_id: [] for member in ordered}
    turn = 0
    for partition in _all_partitions(ordered, counts):
        while partition[0] not in ordered[turn].topics:
            turn = (turn + 1) % len(ordered)
        result[ordered[turn].member_id].append(partition)
        turn = (turn + 1) % len(ordered)
    return result


def assign_sticky(members: Iterable[Member], counts: Mapping[str, int]) -> Assignment:
    """Share out evenly, and move as few partitions as that allows.

    Even: no partition could go to another subscriber that has at least two fewer than its owner.
    """
    ordered = _in_order(members)
    return _stick(ordered, counts, _owners(ordered, counts))


def assign_cooperative(members: Iterable[Member], counts: Mapping[str, int]) -> Assignment:
    """As `assign_sticky`, without what another member has to give up first."""
    ordered = _in_order(members)
    owners = _owners(ordered, counts)
    result = _stick(ordered, counts, owners)
    for member_id, partitions in result.items():
        result[member_id] = [
            each for each in partitions if all(owner == member_id for owner in owners.get(each, ()))
        ]
    return result


def _owners(
    members: Sequence[Member], counts: Mapping[str, int]
) -> dict[Partition, tuple[str, ...]]:
    """Return who has each partition: of those who claim it, the ones of the last generation.

    Who claims an older one missed a rebalance, and will find out. Several of one generation are
    possible when clients err; then none of them keeps it.
    """
    claims: dict[Partition, tuple[int, tuple[str, ...]]] = {}
    for member in members:
        for partition in member.owned:
            topic, number = partition
            if not 0 <= number < counts.get(topic, 0):
                continue
            generation, owners = claims.get(partition, (member.generation, ()))
            if generation == member.generation:
                claims[partition] = generation, (*owners, member.member_id)
            elif generation < member.generation:
                claims[partition] = member.generation, (member.member_id,)
    return {partition: owners for partition, (_, owners) in claims.items()}


def _stick(
    members: Sequence[Member],
    counts: Mapping[str, int],
    owners: Mapping[Partition, tuple[str, ...]],
) -> Assignment:
    if not members:
        return {}
    result: Assignment = {member.member_id: [] for member in members}
    topics = {member.member_id: member.topics for member in members}
    homeless: list[Partition] = []
    for partition in _all_partitions(members, counts):
        claimed = owners.get(partition, ())
        if len(claimed) == 1 and partition[0] in topics[claimed[0]]:
            result[claimed[0]].append(partition)
        else:
            homeless.append(partition)
    if len(set(topics.values())) == 1:
        _even_out(result, homeless)
    else:
        _even_out_by_topic(members, result, homeless)
    for partitions in result.values():
        partitions.sort()
    return result


def _even_out(result: Assignment, homeless: list[Partition]) -> None:
    """Share out where everybody may have everything: loads differ by one at most."""
    total = len(homeless) + sum(map(len, result.values()))
    least, more = divmod(total, len(result))
    # Who has most keeps one more than the others: that moves the fewest.
    by_load = sorted(result, key=lambda member_id: -len(result[member_id]))
    quota = {member_id: least + (index < more) for index, member_id in enumerate(by_load)}
    for member_id, partitions in result.items():
        homeless += partitions[quota[member_id] :]
        del partitions[quota[member_id] :]
    # In turn, so that the partitions of a topic do not all go to one member.
    left = deque(sorted(homeless))
    while left:
        for member_id, partitions in result.items():
            if left and len(partitions) < quota[member_id]:
                partitions.append(left.popleft())


def _even_out_by_topic(
    members: Sequence[Member], result: Assignment, homeless: list[Partition]
) -> None:
    """Share out where subscriptions differ: to the least loaded, then move while it helps."""
    place = {member.member_id: index for index, member in enumerate(members)}
    takers: dict[str, list[str]] = {}
    for member in members:
        for topic in member.topics:
            takers.setdefault(topic, []).append(member.member_id)

    def least_loaded(topic: str) -> str:
        return min(takers[topic], key=lambda each: (len(result[each]), place[each]))

    # What few can take first: the others have more to choose from.
    for partition in sorted(homeless, key=lambda each: (len(takers[each[0]]), each)):
        result[least_loaded(partition[0])].append(partition)
    moved = True
    while moved:  # each move lessens the sum of the squares of the loads, so this ends
        moved = False
        for giver in sorted(result, key=lambda each: -len(result[each])):
            while (found := _best_move(result, giver, least_loaded)) is not None:
                partition, taker = found
                result[giver].remove(partition)
                result[taker].append(partition)
                moved = True


def _best_move(
    result: Assignment, giver: str, least_loaded: Callable[[str], str]
) -> tuple[Partition, str] | None:
    """Return a partition of `giver` and somebody who has two fewer at least, the poorest."""
    last = {partition[0]: partition for partition in result[giver]}
    if not last:
        return None
    taker, partition = min(
        ((least_loaded(topic), partition) for topic, partition in last.items()),
        key=lambda each: (len(result[each[0]]), each),
    )
    return (partition, taker) if len(result[taker]) + 1 < len(result[giver]) else None


ASSIGNORS: Mapping[str, Assignor] = {
    each.name: each
    for each in (
        Assignor("range", assign_range),
        Assignor("roundrobin", assign_round_robin),
        Assignor("sticky", assign_sticky),
        Assignor("cooperative-sticky", assign_cooperative, cooperative=True),
    )
}
"""By the names that Kafka's clients know them by."""


def encode_sticky(owned: Iterable[Partition], generation: int) -> bytes:
    """Return the user data of a member of `sticky`: what it had, and since which generation."""
    topics: dict[str, list[int]] = {}
    for topic, number in sorted(owned):
        topics.setdefault(topic, []).append(number)
    parts = [_INT32.pack(len(topics))]
    for topic, numbers in topics.items():
        name = topic.encode()
        parts += (_INT16.pack(len(name)), name)
        parts.append(Struct(f"!i{len(numbers)}i").pack(len(numbers), *numbers))
    parts.append(_INT32.pack(generation))
    return b"".join(parts)


def encode_cooperative(generation: int) -> bytes:
    """Return the user data of a member of `cooperative-sticky`."""
    return _INT32.pack(generation)


def decode_sticky(user_data: bytes | None) -> tuple[frozenset[Partition], int]:
    """Return what the user data of a sticky or cooperative-sticky member says: owned, generation.

    Nothing and -1 where it says nothing, or nothing that can be understood: another client's user
    data is no reason to leave its group without an assignment.
    """
    if not user_data:
        return frozenset(), -1
    if len(user_data) == _INT32.size:
        return frozenset(), int(_INT32.unpack(user_data)[0])
    found = _decode_sticky(user_data)
    if found is None and user_data[:2] == b"\0\1":
        found = _decode_sticky(user_data[2:])  # kafka-python 3.0 puts the version in front
    return found or (frozenset(), -1)


def _decode_sticky(user_data: bytes) -> tuple[frozenset[Partition], int] | None:
    owned: set[Partition] = set()
    try:
        (topics,) = _INT32.unpack_from(user_data)
        at = _INT32.size
        for _ in range(topics):
            (size,) = _INT16.unpack_from(user_data, at)
            at += _INT16.size
            topic = user_data[at : at + size].decode()
            at += size
            (count,) = _INT32.unpack_from(user_data, at)
            numbers = Struct(f"!{count}i").unpack_from(user_data, at + _INT32.size)
            at += _INT32.size * (1 + count)
            owned.update((topic, number) for number in numbers)
        # version 0 ends here: members of before KIP-341 say no generation
        generation = int(_INT32.unpack_from(user_data, at)[0]) if at < len(user_data) else -1
    except (struct_error, UnicodeDecodeError, MemoryError, OverflowError):
        return None
    return frozenset(owned), generation
