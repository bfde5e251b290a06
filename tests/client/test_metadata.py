"""The image of a cluster: what a renewal keeps, replaces and refuses."""

from uuid import UUID, uuid4

import pytest

from odradek.client.metadata import Broker, Leader, Metadata, TopicPartition
from odradek.errors import ErrorCode
from odradek.wire.api.a03_metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

ID = uuid4()


def answer(*topics: MetadataResponseTopic) -> MetadataResponse:
    return MetadataResponse(
        brokers=[MetadataResponseBroker(node_id=1, host="a", port=9092)],
        cluster_id="c",
        controller_id=1,
        topics=list(topics),
    )


def topic(
    name: str = "t",
    *,
    epoch: int = 0,
    leader: int = 1,
    topic_id: UUID = ID,
    error: int = 0,
    indexes: tuple[int, ...] = (0,),
) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        error_code=error,
        name=name,
        topic_id=topic_id,
        partitions=[
            MetadataResponsePartition(
                partition_index=index,
                leader_id=leader,
                leader_epoch=epoch,
                replica_nodes=[1],
                isr_nodes=[1],
            )
            for index in indexes
        ],
    )


def test_metadata_grows_by_generation_and_knows_leaders() -> None:
    image = Metadata().renewed(answer(topic(epoch=3)), complete=False)
    assert image.generation == 1
    assert image.leader(TopicPartition("t", 0)) == Leader(1, 3)
    assert image.names == {ID: "t"}


def test_metadata_of_some_topics_keeps_the_others_and_of_all_drops_them() -> None:
    image = Metadata().renewed(answer(topic("a"), topic("b")), complete=True)
    assert set(image.renewed(answer(topic("a")), complete=False).topics) == {"a", "b"}
    assert set(image.renewed(answer(topic("a")), complete=True).topics) == {"a"}


def test_metadata_forgets_a_topic_that_has_an_error() -> None:
    image = Metadata().renewed(answer(topic()), complete=False)
    missing = topic(error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, indexes=())
    image = image.renewed(answer(missing), complete=False)
    assert "t" not in image.topics
    assert image.errors == {"t": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


@pytest.mark.parametrize(
    "answered",
    [
        topic(error=ErrorCode.LEADER_NOT_AVAILABLE, indexes=()),
        topic(indexes=()),
        topic(indexes=(1, 2)),
    ],
    ids=["being created", "empty", "a hole at 0"],
)
def test_metadata_does_not_know_a_topic_without_partitions(
    answered: MetadataResponseTopic,
) -> None:
    known = Metadata().renewed(answer(topic()), complete=False)
    for before in (Metadata(), known):
        image = before.renewed(answer(answered), complete=False)
        assert image.topics == {}
        assert image.errors == {"t": ErrorCode.LEADER_NOT_AVAILABLE}


def test_metadata_keeps_a_topic_some_of_whose_partitions_have_no_leader() -> None:
    partial = topic(error=ErrorCode.LEADER_NOT_AVAILABLE, leader=-1)
    image = Metadata().renewed(answer(partial), complete=False)
    assert len(image.topics["t"].partitions) == 1
    assert image.errors == {}


def test_metadata_does_not_go_back_to_a_leader_of_an_older_epoch() -> None:
    image = Metadata().renewed(answer(topic(epoch=5)), complete=False)
    image = image.renewed(answer(topic(epoch=4)), complete=False)
    assert image.leader(TopicPartition("t", 0)) == Leader(1, 5)


def test_metadata_of_a_topic_created_again_begins_with_its_own_epochs() -> None:
    image = Metadata().renewed(answer(topic(epoch=5)), complete=False)
    image = image.renewed(answer(topic(epoch=0, topic_id=uuid4())), complete=False)
    assert image.leader(TopicPartition("t", 0)) == Leader(1, 0)


def test_metadata_without_a_leader_or_with_one_at_no_known_address_has_none() -> None:
    image = Metadata().renewed(answer(topic(leader=-1), topic("u", leader=7)), complete=False)
    assert image.leader(TopicPartition("t", 0)) is None
    assert image.topics["t"].available == ()
    assert image.leader(TopicPartition("u", 0)) is None
    assert image.leader(TopicPartition("u", 9)) is None


def test_metadata_stops_at_a_hole_among_the_partitions() -> None:
    image = Metadata().renewed(answer(topic(indexes=(3, 0, 1))), complete=False)
    assert len(image.topics["t"].partitions) == 2


def test_metadata_hands_out_one_tuple_of_available_partitions_until_it_changes() -> None:
    image = Metadata().renewed(answer(topic(indexes=(0, 1))), complete=False)
    again = image.renewed(answer(topic(indexes=(0, 1))), complete=False)
    assert again.topics["t"].available is image.topics["t"].available


def test_broker_url_has_brackets_for_ipv6_and_no_port_where_there_is_none() -> None:
    assert Broker(1, "::1", 9092).url("tcp") == "tcp://[::1]:9092"
    assert Broker(1, "a", 9092).url("tcp") == "tcp://a:9092"
    assert Broker(1, "name", 0).url("memory") == "memory://name"
