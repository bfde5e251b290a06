"""The consumer protocol: golden bytes, kafka-python as a second opinion, hostile input."""

import warnings
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.errors import MalformedMessage
from odradek.group.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
    subscribed_topics,
)

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python reads its files by old ways
    from kafka.protocol.consumer import metadata as theirs

FULL = ConsumerProtocolSubscription(
    topics=("a", "bc"), user_data=b"x", owned={"a": (0, 2)}, generation=7, rack="r1"
)
TOPICS = bytes.fromhex("00000002 0001 61 0002 6263 00000001 78")
OWNED = bytes.fromhex("00000001 0001 61 00000002 00000000 00000002")
SUBSCRIPTIONS = {
    0: b"\0\0" + TOPICS,
    1: b"\0\1" + TOPICS + OWNED,
    2: b"\0\2" + TOPICS + OWNED + bytes.fromhex("00000007"),
    3: b"\0\3" + TOPICS + OWNED + bytes.fromhex("00000007 0002 7231"),
}
names = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
partitions = st.dictionaries(
    names, st.lists(st.integers(0, 2**31 - 1), max_size=4).map(tuple), max_size=4
)


@pytest.mark.parametrize("version", SUBSCRIPTIONS)
def test_a_subscription_of_every_version_is_written_and_read(version):
    assert encode_subscription(FULL, version) == SUBSCRIPTIONS[version]
    read = decode_subscription(SUBSCRIPTIONS[version])
    assert (read.topics, read.user_data) == (FULL.topics, b"x")
    assert read.owned == (FULL.owned if version >= 1 else {})
    assert read.generation == (7 if version >= 2 else -1)
    assert read.rack == ("r1" if version >= 3 else None)


@pytest.mark.parametrize("version", range(4))
def test_an_assignment_has_one_layout(version):
    assignment = ConsumerProtocolAssignment(partitions={"a": (0, 2)}, user_data=None)
    expected = version.to_bytes(2) + OWNED + b"\xff\xff\xff\xff"
    assert encode_assignment(assignment, version) == expected
    assert decode_assignment(expected) == assignment


def test_a_newer_version_is_read_as_the_last_known():
    assert decode_subscription(b"\0\x09" + SUBSCRIPTIONS[3][2:] + b"more") == FULL
    assert decode_assignment(b"\0\x09" + OWNED + b"\xff\xff\xff\xff" + b"more").partitions


def test_no_bytes_assign_nothing():
    assert decode_assignment(b"") == ConsumerProtocolAssignment()


def test_topics_are_found_where_the_rest_is_missing():
    """As in a version 1 that was written without owned partitions."""
    cut = b"\0\1" + TOPICS
    assert subscribed_topics(cut) == ["a", "bc"]
    with pytest.raises(MalformedMessage):
        decode_subscription(cut)


def test_an_unknown_version_is_not_written():
    with pytest.raises(ValueError, match="version 4"):
        encode_subscription(FULL, 4)
    with pytest.raises(ValueError, match="version 4"):
        encode_assignment(ConsumerProtocolAssignment(), 4)


@given(st.lists(names, max_size=4), st.none() | st.binary(max_size=9), partitions, names)
def test_subscriptions_are_as_kafka_python_has_them(topics, user_data, owned, rack):
    ours = ConsumerProtocolSubscription(
        topics=tuple(topics), user_data=user_data, owned=owned, generation=3, rack=rack
    )
    encoded = encode_subscription(ours)
    them = theirs.ConsumerProtocolSubscription.decode(encoded)
    assert list(them.topics) == topics
    assert them.user_data == user_data
    assert {p.topic: tuple(p.partitions) for p in them.owned_partitions} == owned
    assert (them.generation_id, them.rack_id) == (3, rack)
    assert decode_subscription(encoded) == ours


@given(partitions)
def test_assignments_are_as_kafka_python_has_them(assigned):
    ours = ConsumerProtocolAssignment(partitions=assigned, user_data=b"u")
    encoded = encode_assignment(ours)
    them = theirs.ConsumerProtocolAssignment.decode(encoded)
    assert {p.topic: tuple(p.partitions) for p in them.assigned_partitions} == assigned
    assert decode_assignment(encoded) == ours


@given(st.binary(max_size=40))
def test_any_bytes_are_a_message_or_are_refused(data):
    for read in (decode_subscription, decode_assignment, subscribed_topics):
        with suppress(MalformedMessage):
            read(data)


def test_a_huge_count_takes_no_memory():
    with pytest.raises(MalformedMessage, match="too few bytes"):
        decode_subscription(b"\0\0\x7f\xff\xff\xff")
