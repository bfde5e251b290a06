"""What should be written to bring the cluster where it should be."""

from __future__ import annotations

from collections import Counter
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from odradek.cluster.image import BrokerImage, Image, PartitionImage, TopicImage
from odradek.cluster.planner import adopt, assign_replicas, batches, orphans
from odradek.types import PartitionKey

A, B = UUID(int=1), UUID(int=2)


def image(
    *alive: int, partitions: dict[PartitionKey, PartitionImage], topics: dict[str, TopicImage]
) -> Image:
    return Image(
        cluster_id="c",
        topics=topics,
        names={topic.id: name for name, topic in topics.items()},
        partitions=partitions,
        brokers={number: BrokerImage(number, ()) for number in alive},
    )


@given(st.sets(st.integers(0, 50), min_size=1, max_size=7), st.integers(1, 40), st.data())
def test_replicas_are_spread_evenly_over_different_brokers(
    brokers: set[int], partitions: int, data: st.DataObject
) -> None:
    factor = data.draw(st.integers(1, len(brokers)))
    first = data.draw(st.integers(0, 100))
    assigned = assign_replicas(list(brokers), partitions, factor, first)
    assert len(assigned) == partitions
    assert all(len(set(replicas)) == factor for replicas in assigned)
    for counts in (
        Counter(replicas[0] for replicas in assigned),
        Counter(broker for replicas in assigned for broker in replicas),
    ):
        assert set(counts) <= brokers
        assert max(counts.values()) - min(counts[b] for b in brokers) <= factor


def test_topics_of_one_partition_meet_on_different_brokers() -> None:
    assert [assign_replicas([1, 2, 3], 1, 1, first)[0][0] for first in range(6)] == [
        1, 2, 3, 1, 2, 3,
    ]  # fmt: skip


def test_broker_adopts_what_it_led_and_what_nobody_leads_under_a_new_epoch() -> None:
    topics = {"a": TopicImage("a", A, 5, 2)}
    partitions = {
        PartitionKey(A, 0): PartitionImage((1, 2), 1, 4, (1, 2)),  # led by itself
        PartitionKey(A, 1): PartitionImage((2, 1), 2, 7, (2, 1)),  # led by another, alive
        PartitionKey(A, 2): PartitionImage((3, 1), 3, 0, (3, 1)),  # its leader is gone
        PartitionKey(A, 3): PartitionImage((3, 1), 3, 0, (3,)),  # gone, and 1 was not in sync
        PartitionKey(A, 4): PartitionImage((1, 2), -1, 2, (1,)),  # without a leader
        PartitionKey(B, 0): PartitionImage((1,), 1, 0, (1,)),  # of no topic
    }
    taken = dict(adopt(image(1, 2, partitions=partitions, topics=topics), 1))
    assert {key.partition: (p.leader, p.leader_epoch) for key, p in taken.items()} == {
        0: (1, 5),
        2: (1, 1),
        4: (1, 3),
    }
    assert all(p.isr == partitions[key].isr for key, p in taken.items())


def test_orphans_are_partitions_without_a_topic_or_beyond_its_number() -> None:
    state = PartitionImage((1,), 1, 0, (1,))
    partitions = {PartitionKey(A, n): state for n in range(3)} | {PartitionKey(B, 0): state}
    found = orphans(image(1, partitions=partitions, topics={"a": TopicImage("a", A, 2, 1)}))
    assert {key for key, _ in found} == {PartitionKey(A, 2), PartitionKey(B, 0)}


@given(st.lists(st.integers()), st.integers(1, 10))
def test_batches_lose_nothing_and_are_no_larger_than_asked(items: list[int], size: int) -> None:
    cut = batches(items, size)
    assert [item for part in cut for item in part] == items
    assert all(0 < len(part) <= size for part in cut)
