"""The assignors: every partition once, evenly, with few moves, whoever asks and in what order."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.group.assignors import (
    ASSIGNORS,
    Assignment,
    Member,
    Partition,
    decode_sticky,
    encode_cooperative,
    encode_sticky,
)

TOPICS = ("a", "b", "c")
counts_of_topics = st.dictionaries(st.sampled_from(TOPICS), st.integers(0, 12))


@st.composite
def members(draw: st.DrawFn, *, alike: bool = False) -> list[Member]:
    count = draw(st.integers(1, 7))
    same = frozenset(draw(st.sets(st.sampled_from(TOPICS), min_size=1)))
    return [
        Member(
            member_id=f"m{n}",
            topics=same if alike else frozenset(draw(st.sets(st.sampled_from(TOPICS)))),
            owned=frozenset(
                draw(st.sets(st.tuples(st.sampled_from(TOPICS), st.integers(0, 14)), max_size=8))
            ),
            generation=draw(st.integers(-1, 3)),
            instance_id=draw(st.sampled_from([None, f"i{7 - n}"])),
        )
        for n in range(count)
    ]


def owners(assignment: Assignment) -> dict[Partition, str]:
    found: dict[Partition, str] = {}
    for member_id, partitions in assignment.items():
        assert partitions == sorted(partitions)
        for partition in partitions:
            assert partition not in found, "given twice"
            found[partition] = member_id
    return found


def wanted(members: list[Member], counts: dict[str, int]) -> set[Partition]:
    topics = {topic for member in members for topic in member.topics}
    return {(topic, n) for topic in topics for n in range(counts.get(topic, 0))}


@pytest.mark.parametrize("name", ["range", "roundrobin", "sticky"])
@given(group=members(), counts=counts_of_topics)
def test_assignor_gives_every_partition_to_one_subscriber(
    name: str, group: list[Member], counts: dict[str, int]
) -> None:
    assignment = ASSIGNORS[name].assign(group, counts)
    assert assignment.keys() == {member.member_id for member in group}
    found = owners(assignment)
    assert found.keys() == wanted(group, counts)
    topics = {member.member_id: member.topics for member in group}
    assert all(partition[0] in topics[owner] for partition, owner in found.items())


@pytest.mark.parametrize("name", list(ASSIGNORS))
@given(group=members(), counts=counts_of_topics, random=st.randoms(use_true_random=False))
def test_assignor_does_not_depend_on_the_order_of_members(
    name: str, group: list[Member], counts: dict[str, int], random
) -> None:
    shuffled = random.sample(group, len(group))
    assert ASSIGNORS[name].assign(group, counts) == ASSIGNORS[name].assign(shuffled, counts)


@given(group=members(), counts=counts_of_topics)
def test_sticky_is_balanced(group: list[Member], counts: dict[str, int]) -> None:
    assignment = ASSIGNORS["sticky"].assign(group, counts)
    for partition, owner in owners(assignment).items():
        for member in group:
            if partition[0] in member.topics:
                assert len(assignment[owner]) <= len(assignment[member.member_id]) + 1


@given(group=members(alike=True), counts=counts_of_topics)
def test_sticky_moves_no_more_than_balance_asks_for(
    group: list[Member], counts: dict[str, int]
) -> None:
    first = ASSIGNORS["sticky"].assign(group, counts)
    settled = [
        Member(
            member_id=member.member_id,
            topics=member.topics,
            instance_id=member.instance_id,
            owned=frozenset(first[member.member_id]),
            generation=9,
        )
        for member in group
    ]
    assert ASSIGNORS["sticky"].assign(settled, counts) == first
    joined = [*settled, Member(member_id="new", topics=group[0].topics)]
    second = ASSIGNORS["sticky"].assign(joined, counts)
    moved = {p for p, owner in owners(second).items() if owners(first)[p] != owner}
    assert moved == set(second["new"]), "partitions move to the new member only"
    left = settled[1:]
    if left:
        third = ASSIGNORS["sticky"].assign(left, counts)
        for member in left:
            assert set(third[member.member_id]) >= set(first[member.member_id])


@given(group=members(), counts=counts_of_topics)
def test_cooperative_gives_nothing_that_somebody_else_still_has(
    group: list[Member], counts: dict[str, int]
) -> None:
    found = owners(ASSIGNORS["cooperative-sticky"].assign(group, counts))
    sticky = owners(ASSIGNORS["sticky"].assign(group, counts))
    newest: dict[Partition, int] = {}
    for member in group:
        for partition in member.owned:
            newest[partition] = max(newest.get(partition, -1), member.generation)
    for partition, owner in sticky.items():
        holders = {
            member.member_id
            for member in group
            if partition in member.owned and member.generation == newest[partition]
        }
        assert (partition in found) == (not holders - {owner})
    assert found.items() <= sticky.items()


@given(group=members(alike=True), counts=counts_of_topics)
def test_cooperative_settles_in_the_second_round(
    group: list[Member], counts: dict[str, int]
) -> None:
    assign = ASSIGNORS["cooperative-sticky"].assign
    for generation in (10, 11):
        given_now = assign(group, counts)
        group = [
            Member(
                member_id=member.member_id,
                topics=member.topics,
                instance_id=member.instance_id,
                owned=frozenset(given_now[member.member_id]),
                generation=generation,
            )
            for member in group
        ]
    final = assign(group, counts)
    assert owners(final).keys() == wanted(group, counts)
    loads = sorted(Counter(owners(final).values()).get(m.member_id, 0) for m in group)
    assert loads[-1] - loads[0] <= 1


def test_range_gives_equal_numbers_of_every_topic_to_one_member() -> None:
    group = [Member(member_id=each, topics=frozenset("ab")) for each in ("x", "y")]
    assert ASSIGNORS["range"].assign(group, {"a": 3, "b": 3}) == {
        "x": [("a", 0), ("a", 1), ("b", 0), ("b", 1)],
        "y": [("a", 2), ("b", 2)],
    }


def test_range_puts_static_members_in_the_order_of_their_instances() -> None:
    group = [
        Member(member_id="a", topics=frozenset("t")),
        Member(member_id="b", topics=frozenset("t"), instance_id="2"),
        Member(member_id="c", topics=frozenset("t"), instance_id="1"),
    ]
    assert ASSIGNORS["range"].assign(group, {"t": 3}) == {
        "c": [("t", 0)],
        "b": [("t", 1)],
        "a": [("t", 2)],
    }


def test_roundrobin_deals_partitions_out_in_turn() -> None:
    group = [Member(member_id=each, topics=frozenset("ab")) for each in ("x", "y")]
    assert ASSIGNORS["roundrobin"].assign(group, {"a": 3, "b": 2}) == {
        "x": [("a", 0), ("a", 2), ("b", 1)],
        "y": [("a", 1), ("b", 0)],
    }


def test_sticky_believes_the_later_of_two_owners_and_neither_of_two_at_once() -> None:
    def group(first: int, second: int) -> list[Member]:
        owned = frozenset({("t", 0), ("t", 1)})
        return [
            Member(member_id="x", topics=frozenset("t"), owned=owned, generation=first),
            Member(member_id="y", topics=frozenset("t"), owned=owned, generation=second),
        ]

    assert ASSIGNORS["sticky"].assign(group(1, 2), {"t": 1}) == {"x": [], "y": [("t", 0)]}
    assert ASSIGNORS["sticky"].assign(group(2, 1), {"t": 1}) == {"x": [("t", 0)], "y": []}
    assert ASSIGNORS["cooperative-sticky"].assign(group(2, 2), {"t": 2}) == {"x": [], "y": []}


partitions = st.frozensets(st.tuples(st.text(max_size=5), st.integers(0, 2**31 - 1)))


@given(owned=partitions, generation=st.integers(-1, 2**31 - 1))
def test_user_data_of_sticky_members_is_read_as_it_was_written(
    owned: frozenset[Partition], generation: int
) -> None:
    assert decode_sticky(encode_sticky(owned, generation)) == (owned, generation)
    assert decode_sticky(encode_cooperative(generation)) == (frozenset(), generation)


def test_user_data_of_sticky_members_has_the_layout_of_kafka() -> None:
    expected = b"\0\0\0\1" + b"\0\1t" + b"\0\0\0\2" + b"\0\0\0\0" + b"\0\0\0\3" + b"\0\0\0\7"
    assert encode_sticky({("t", 3), ("t", 0)}, 7) == expected
    version_0 = expected[:-4]
    assert decode_sticky(b"\0\1" + expected) == (frozenset({("t", 3), ("t", 0)}), 7)
    assert decode_sticky(version_0) == (frozenset({("t", 3), ("t", 0)}), -1)


@given(st.binary(max_size=40))
def test_user_data_that_cannot_be_understood_says_nothing(data: bytes) -> None:
    owned, generation = decode_sticky(data)
    assert isinstance(owned, frozenset)
    assert isinstance(generation, int)
