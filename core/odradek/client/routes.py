"""Where the records of a topic go: its partitions, their queues, and who chooses among them."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index as as_index

from odradek.client.batches import PartitionQueue
from odradek.client.metadata import TopicInfo
from odradek.client.partitioner import Partitioner, Queues, StickyPartition, partition_for_key
from odradek.errors import ErrorCode, KafkaError

__all__ = ["Route", "no_partition"]


class Route:
    """A topic as a producer writes to it. `count` is the number of its partitions.

    `enough`: the bytes after which records without a key go to another partition.
    """

    __slots__ = ("_enough", "_partitioner", "count", "info", "queues", "sticky")

    def __init__(
        self, info: TopicInfo, queues: Queues, enough: int, partitioner: Partitioner | None
    ) -> None:
        self.info = info
        self.count = len(info.partitions)
        self.queues = queues
        self.sticky = StickyPartition()
        self._enough = enough
        self._partitioner = partitioner

    def update(self, info: TopicInfo) -> None:
        """Follow the topic in metadata."""
        if info is not self.info:
            self.info = info
            self.count = len(info.partitions)

    def queue(self, key: bytes | None, partition: int | None) -> PartitionQueue:
        """Return the queue for the next record: by partition, by key, or the sticky one."""
        if partition is not None:
            return self.queues[partition]
        if key is not None:
            return self.queues[partition_for_key(key, self.count)]
        current = self.sticky.current
        if current is not None and current.open is not None:
            return current
        available = self.info.available or range(self.count)
        return self.sticky.choose(available, self.queues, self._enough)

    def ask(self, key: bytes | None, value: bytes | None) -> int | None:
        """Return the partitioner's choice, None without one.

        Raises KafkaError UNKNOWN_TOPIC_OR_PARTITION for a choice that is no partition, and
        TypeError for one that is no whole number.
        """
        if self._partitioner is None:
            return None
        chosen = self._partitioner(self.info, key, value)
        if chosen is None:
            return None
        chosen = as_index(chosen)
        if not 0 <= chosen < self.count:
            raise no_partition(self.info, chosen)
        return chosen

    def spread(
        self, values: Sequence[bytes | None], keys: Sequence[bytes | None] | None
    ) -> dict[int | None, list[int]]:
        """Return which records go to which partition; None stands for the sticky one."""
        places: dict[int | None, list[int]] = {}
        asked = self._partitioner is not None
        for index, key in enumerate(keys or [None] * len(values)):
            number = self.ask(key, values[index]) if asked else None
            if number is None and key is not None:
                number = partition_for_key(key, self.count)
            place = places.get(number)
            if place is None:
                places[number] = [index]
            else:
                place.append(index)
        return places


def no_partition(topic: TopicInfo, partition: int) -> KafkaError:
    """Return the error for a partition that a topic does not have."""
    return KafkaError(
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        f"topic {topic.name!r} has partitions 0 to {len(topic.partitions) - 1}, not {partition}",
    )
