"""What members tell one another: read as any client wrote it."""

import pytest

from odradek.client import TopicPartition
from odradek.client.member_protocol import (
    assigned_partitions,
    assignments,
    members_of,
    protocols,
)
from odradek.errors import ErrorCode, KafkaError
from odradek.group.assignors import encode_cooperative, encode_sticky
from odradek.group.consumer_protocol import (
    ConsumerProtocolSubscription,
    decode_subscription,
    encode_subscription,
)
from odradek.wire.api.a11_join_group import JoinGroupResponseMember

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def member(name: str, version: int = 3, **said: object) -> JoinGroupResponseMember:
    subscription = ConsumerProtocolSubscription(topics=("t",), **said)  # type: ignore[arg-type]
    return JoinGroupResponseMember(
        member_id=name, metadata=encode_subscription(subscription, version)
    )


def test_member_says_for_each_assignor_what_that_needs() -> None:
    said = {
        each.name: decode_subscription(each.metadata)
        for each in protocols(("range", "sticky", "cooperative-sticky"), {"t"}, {T0}, {T0, T1}, 7)
    }
    assert list(said) == ["range", "sticky", "cooperative-sticky"]
    for each in said.values():
        assert (each.topics, each.owned, each.generation) == (("t",), {"t": (0,)}, 7)
    assert said["range"].user_data is None
    assert said["sticky"].user_data == encode_sticky({T0, T1}, 7)
    assert said["cooperative-sticky"].user_data == encode_cooperative(7)


def test_sticky_member_owns_what_its_user_data_says() -> None:
    (found,) = members_of("sticky", [member("m", user_data=encode_sticky({T1}, 5))])
    assert (set(found.owned), found.generation) == ({("t", 1)}, 5)


@pytest.mark.parametrize(
    "user_data", [encode_cooperative(5), encode_sticky({T1}, 5)], ids=["as Java", "as librdkafka"]
)
def test_cooperative_member_of_an_older_client_says_its_generation_in_user_data(
    user_data: bytes,
) -> None:
    (found,) = members_of(
        "cooperative-sticky", [member("m", version=1, user_data=user_data, owned={"t": [0]})]
    )
    assert (set(found.owned), found.generation) == ({("t", 0)}, 5)


def test_member_that_cannot_be_understood_gets_nothing_and_stops_nobody() -> None:
    broken = JoinGroupResponseMember(member_id="broken", metadata=b"\0\1\xff")
    members = members_of("range", [broken, member("whole")])
    given = {
        each.member_id: assigned_partitions(each.assignment)
        for each in assignments("range", members, {"t": 2})
    }
    assert given == {"broken": frozenset(), "whole": {T0, T1}}


def test_assignor_that_is_not_known_here_is_an_error() -> None:
    with pytest.raises(KafkaError, match="'of-their-own'") as caught:
        assignments("of-their-own", members_of("of-their-own", [member("m")]), {"t": 1})
    assert caught.value.code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_empty_assignment_is_of_nothing() -> None:
    assert assigned_partitions(b"") == frozenset()
