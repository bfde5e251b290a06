"""Pure functions from an image to the writes that bring the cluster where it should be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from odradek.cluster.image import Image, PartitionImage
from odradek.types import PartitionKey

__all__ = ["adopt", "assign_replicas", "batches", "orphans"]

T = TypeVar("T")


def assign_replicas(
    brokers: Sequence[int], partitions: int, replication_factor: int, first: int = 0
) -> list[tuple[int, ...]]:
    """Spread partitions over brokers, round robin; the first replica of each is preferred.

    `first` shifts the start, so that topics of one partition do not all meet on one broker.
    Needs 1 <= replication_factor <= len(brokers).
    """
    ordered = sorted(brokers)
    count = len(ordered)
    return [
        tuple(ordered[(first + number + i) % count] for i in range(replication_factor))
        for number in range(partitions)
    ]


def adopt(image: Image, broker_id: int) -> list[tuple[PartitionKey, PartitionImage]]:
    """The partitions that a broker takes the lead of when it starts, each under a new epoch.

    Those it led before, and those that have no living leader and name it in their in-sync set.
    A restart raises the epoch, so that whatever an earlier life of this broker still has in
    flight is fenced (KIP-101).
    """
    taken = []
    for key, partition in image.partitions.items():
        if key.topic_id not in image.names or broker_id not in partition.isr:
            continue
        leader = partition.leader
        if leader == broker_id or leader not in image.brokers:
            taken.append(
                (
                    key,
                    PartitionImage(
                        replicas=partition.replicas,
                        leader=broker_id,
                        leader_epoch=partition.leader_epoch + 1,
                        isr=partition.isr,
                        version=partition.version,
                    ),
                )
            )
    return taken


def orphans(image: Image) -> list[tuple[PartitionKey, PartitionImage]]:
    """Partitions that belong to no topic: what a crash in the middle of a change left behind."""
    return [
        (key, partition)
        for key, partition in image.partitions.items()
        if key.topic_id not in image.names
        or key.partition >= image.topics[image.names[key.topic_id]].partitions
    ]


def batches(items: Sequence[T], size: int) -> list[Sequence[T]]:
    """Cut a sequence into parts of at most `size`: a transaction takes 64 operations."""
    return [items[at : at + size] for at in range(0, len(items), size)]
