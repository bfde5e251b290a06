"""The pure part of decentralised groups: keys, who owns what, what to do, transactions."""

import json
import re
from collections import Counter
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from odradek.client.decentralised.keys import (
    GroupKeys,
    Registration,
    StoredOffset,
    SubscribedTopic,
    encode,
    group_of,
    group_value,
    offset_of,
    offset_value,
    owner_of,
    owner_value,
    partition_of,
    registration_of,
    registration_value,
)
from odradek.client.decentralised.planning import pack, plan, range_assignment
from odradek.client.membership import CommittedOffset
from odradek.contracts.coordinator import (
    ABSENT,
    MAX_VALUE_BYTES,
    Check,
    Entry,
    Put,
    Version,
    check_key,
    check_txn,
)
from odradek.errors import OdradekError
from odradek.types import PartitionKey

IDS = [UUID(int=n) for n in range(1, 5)]
PARTITIONS = [PartitionKey(topic_id, n) for topic_id in IDS[:2] for n in range(4)]

names = st.text(min_size=1, max_size=300)
topics = st.dictionaries(
    st.sampled_from("abc"),
    st.builds(SubscribedTopic, st.sampled_from(IDS), st.integers(0, 9)),
    max_size=3,
)
groups = st.dictionaries(st.text("xyz", min_size=1, max_size=3), topics, min_size=1, max_size=6)


def members_of(group: dict[str, dict[str, SubscribedTopic]]) -> list[Registration]:
    return [Registration(member, topics) for member, topics in group.items()]


def entry(key: str, value: bytes) -> Entry:
    return Entry(key, value, Version(1), 1, 1)


# --- keys


@given(names)
@example(".")
@example("..")
@example("a/b")
@example("~")
@example("\ud800")
@example("x" * 249)
@example("ü" * 100)
def test_encoded_name_makes_valid_keys(name: str) -> None:
    keys = GroupKeys(name)
    partition = PartitionKey(IDS[0], 2**31 - 1)
    for key in (keys.index, keys.member(name), keys.owner(partition), keys.offset(partition)):
        check_key(key)
    assert len({keys.members, keys.owners, keys.offsets}) == 3


@given(names, names)
@example("~", "%7E")
@example(".", "%2E")
@example("a b", "a%20b")
@example("a" * 300, "a" * 299)
def test_encoded_names_differ_where_names_do(one: str, other: str) -> None:
    assert (encode(one) == encode(other)) == (one == other)


def test_encoded_name_is_readable_where_it_can_be() -> None:
    assert encode("my-group_1.x") == "my-group_1.x"
    assert encode("a/b c") == "a%2Fb%20c"
    assert re.fullmatch("~[0-9a-f]{64}", encode("a" * 1000))
    with pytest.raises(ValueError, match="not empty"):
        encode("")


@given(st.text(max_size=20), topics, st.text(max_size=20))
def test_registration_comes_back_as_it_was(
    member: str, topics: dict[str, SubscribedTopic], client: str
) -> None:
    registration = Registration(member, topics, client)
    assert registration_of(entry("a/b", registration_value(registration))) == registration


@given(
    st.text(max_size=20),
    st.none()
    | st.builds(CommittedOffset, st.integers(0, 2**63 - 1), st.integers(-1, 9), st.text()),
)
def test_offset_comes_back_as_it_was(claim: str, committed: CommittedOffset | None) -> None:
    stored = StoredOffset(claim, "t", committed)
    assert offset_of(entry("a/b", offset_value(stored))) == stored


def test_largest_metadata_fits_into_a_value() -> None:
    committed = CommittedOffset(2**63 - 1, 2**31 - 1, "\0" * 4096)
    stored = StoredOffset("c" * 500, "t" * 249, committed)
    assert len(offset_value(stored)) < MAX_VALUE_BYTES / 8


def test_other_values_come_back_as_they_were() -> None:
    assert owner_of(entry("a/b", owner_value("m\n", "t"))) == ("m\n", "t")
    assert group_of(entry("a/b", group_value("g/ü"))) == "g/ü"
    keys = GroupKeys("g")
    for partition in PARTITIONS:
        assert partition_of(keys.owner(partition)) == partition
        assert partition_of(keys.offset(partition)) == partition


@pytest.mark.parametrize(
    "value",
    [
        b"x",
        b"[]",
        b"{}",
        b'{"member": "m", "topics": {"t": {"id": "x", "partitions": 1}}}',
        json.dumps(
            {"member": "m", "topics": {"t": {"id": str(IDS[0]), "partitions": -1}}}
        ).encode(),
        json.dumps(
            {"member": "m", "topics": {"t": {"id": str(IDS[0]), "partitions": 10**9}}}
        ).encode(),
    ],
)
def test_registration_that_is_none_is_named(value: bytes) -> None:
    with pytest.raises(OdradekError, match="'a/b' is not understood"):
        registration_of(entry("a/b", value))


@pytest.mark.parametrize("key", ["a/b", "a/b-1", f"a/{IDS[0]}-x", f"a/{IDS[0]}--1", "a/-"])
def test_key_that_names_no_partition_is_named(key: str) -> None:
    with pytest.raises(OdradekError, match="does not name a partition"):
        partition_of(key)


# --- assignment


@given(groups, st.randoms())
def test_members_that_see_the_same_group_agree(group, random) -> None:
    members = members_of(group)
    expected = range_assignment(members)
    random.shuffle(members)
    assert range_assignment(members) == expected
    assert expected.keys() == group.keys()


@given(groups)
def test_every_partition_has_exactly_one_member_and_that_knows_the_topic(group) -> None:
    counts: dict[UUID, int] = {}
    for topics in group.values():
        for topic in topics.values():
            counts[topic.id] = max(counts.get(topic.id, 0), topic.partitions)
    assigned = range_assignment(members_of(group))
    owners = Counter(partition for partitions in assigned.values() for partition in partitions)
    assert owners == Counter(
        PartitionKey(topic_id, n) for topic_id, count in counts.items() for n in range(count)
    )
    for member, partitions in assigned.items():
        known = {topic.id for topic in group[member].values()}
        assert {partition.topic_id for partition in partitions} <= known


@given(groups)
def test_each_topic_is_shared_in_ranges_whose_sizes_differ_by_one_at_most(group) -> None:
    assigned = range_assignment(members_of(group))
    for topic_id in IDS:
        subscribers = sorted(
            member
            for member, topics in group.items()
            if topic_id in {topic.id for topic in topics.values()}
        )
        shares = [
            sorted(p.partition for p in assigned[member] if p.topic_id == topic_id)
            for member in subscribers
        ]
        assert [n for share in shares for n in share] == list(range(sum(map(len, shares))))
        sizes = [len(share) for share in shares]
        assert sizes == sorted(sizes, reverse=True)
        assert not sizes or sizes[0] - sizes[-1] <= 1


def test_member_that_is_registered_twice_for_a_moment_is_one_member() -> None:
    topic = {"t": SubscribedTopic(IDS[0], 4)}
    twice = [Registration("a", topic), Registration("a", topic), Registration("b", topic)]
    assigned = range_assignment(twice)
    assert {name: len(mine) for name, mine in assigned.items()} == {"a": 2, "b": 2}


def test_range_is_that_of_kafka() -> None:
    topic = {"t": SubscribedTopic(IDS[0], 7)}
    assigned = range_assignment([Registration(name, topic) for name in ("c", "a", "b")])
    numbers = {name: sorted(p.partition for p in mine) for name, mine in assigned.items()}
    assert numbers == {"a": [0, 1, 2], "b": [3, 4], "c": [5, 6]}


# --- plan

some = st.frozensets(st.sampled_from(PARTITIONS))


@given(some, some, some)
def test_plan_makes_the_member_hold_what_is_assigned_and_never_what_is_anothers(
    assigned, held, others
) -> None:
    todo = plan(assigned, held, others)
    assert todo.release <= held
    assert not todo.claim & held
    assert not todo.claim & others
    assert not todo.release & assigned, "what stays is kept"
    assert (held - todo.release) | todo.claim | todo.wait == assigned
    assert todo.wait <= others
    assert todo.settled == (held == assigned)


@given(groups, groups, st.randoms())
def test_members_following_their_plans_in_any_order_come_to_own_everything(
    before, after, random
) -> None:
    """Each acts on its plan at its own time; an owner's key is created by one at a time."""
    owner = {p: m for m, mine in range_assignment(members_of(before)).items() for p in mine}
    owner = {p: m for p, m in owner.items() if m in after}  # the others' sessions ended
    goal = range_assignment(members_of(after))
    for _ in range(2):  # one round to release, one to claim
        for member in random.sample(sorted(goal), len(goal)):
            held = {p for p, m in owner.items() if m == member}
            todo = plan(goal[member], held, owner.keys() - held)
            for partition in todo.release:
                del owner[partition]
            for partition in todo.claim:
                assert partition not in owner
                owner[partition] = member
    assert owner == {p: m for m, mine in goal.items() for p in mine}


# --- transactions


@given(st.lists(st.tuples(st.integers(1, 60_000), st.integers(1, 3)), max_size=80))
def test_packed_transactions_keep_the_limits_and_the_order(sizes) -> None:
    items = [
        (n, tuple(Put(f"a/{n}-{m}", b"v" * size, ABSENT) for m in range(ops)))
        for n, (size, ops) in enumerate(sizes)
    ]
    always = Check("a/always", Version(7))
    packed = list(pack(items, always))
    for taken, ops in packed:
        check_txn(ops)
        assert ops == (always, *(op for n in taken for op in items[n][1]))
    assert [n for taken, _ in packed for n in taken] == list(range(len(items)))


def test_packed_transactions_are_as_few_as_can_be() -> None:
    small = [(n, (Put(f"a/{n}", b"v", ABSENT),)) for n in range(126)]
    assert [len(taken) for taken, _ in pack(small, Check("a/x", Version(1)))] == [63, 63]
    large = [(n, (Put(f"a/{n}", bytes(200 * 1024), ABSENT),)) for n in range(4)]
    assert [len(taken) for taken, _ in pack(large)] == [2, 2]
    assert list(pack([], Check("a/x", Version(1)))) == []
