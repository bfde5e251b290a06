"""What the storage holds against what the coordinator knows."""

from uuid import UUID

from odradek.broker.inventory import differences
from odradek.cluster.image import DeletedTopic, Image, PartitionImage, TopicImage
from odradek.types import PartitionKey

TOPIC = UUID(int=1)
GONE = UUID(int=2)
STRANGER = UUID(int=3)


def image(partitions: int = 2, replicas: tuple[int, ...] = (1,)) -> Image:
    return Image(
        cluster_id="c",
        topics={"orders": TopicImage("orders", TOPIC, partitions, 1)},
        names={TOPIC: "orders"},
        partitions={
            PartitionKey(TOPIC, number): PartitionImage(replicas, replicas[0], 0, replicas)
            for number in range(partitions)
        },
        deleted={GONE: DeletedTopic(GONE, 1, (1,))},
    )


def test_nothing_is_said_when_both_agree() -> None:
    stored = {PartitionKey(TOPIC, 0), PartitionKey(TOPIC, 1), PartitionKey(GONE, 0)}
    assert list(differences(image(), 1, stored)) == []


def test_missing_logs_are_named_and_counted() -> None:
    (message,) = differences(image(), 1, {PartitionKey(TOPIC, 1)})
    assert "1 partition (orders-0)" in message
    (message,) = differences(image(partitions=9), 1, set())
    assert "9 partitions (orders-0, orders-1, orders-2, orders-3, orders-4, ...)" in message


def test_the_replicas_of_other_brokers_are_their_affair() -> None:
    assert list(differences(image(replicas=(2, 3)), 1, set())) == []


def test_logs_of_unknown_topics_are_named() -> None:
    stored = {PartitionKey(TOPIC, 0), PartitionKey(TOPIC, 1), PartitionKey(STRANGER, 7)}
    (message,) = differences(image(), 1, stored)
    assert f"1 partition ({PartitionKey(STRANGER, 7)})" in message
