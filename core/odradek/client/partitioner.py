"""Choosing the partition of a record: the Java client's hash for keys, sticky without a key."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import accumulate
from random import Random
from typing import Final, TypeAlias

from odradek.client.batches import PartitionQueue
from odradek.client.metadata import TopicInfo, TopicPartition
from odradek.record import accelerated, murmur2
from odradek.record.builder import checked

__all__ = [
    "Partitioner",
    "Queues",
    "StickyPartition",
    "consistent",
    "murmur2",
    "partition_for_key",
]

Partitioner: TypeAlias = Callable[[TopicInfo, bytes | None, bytes | None], int | None]
"""Given the topic, a record's key and its value, returns the partition, or None to leave the
choice to the producer: by the key, or sticky without one. Called once for each record that is not
sent to a partition by name, in the order of sending; it must not block. An answer that is no
partition of the topic raises UNKNOWN_TOPIC_OR_PARTITION from `send`."""

_LONG_KEY: Final = 256

_positive_hash = lru_cache(maxsize=65_536)(lambda key: murmur2(key) & 0x7FFFFFFF)
# Pure Python takes about 2 microseconds for 20 bytes, and a hit of the cache 0.05; keys repeat.


def partition_for_key(key: bytes, partitions: int) -> int:
    """Return the partition, of `partitions`, that the Java client gives a record with this key.

    The same as librdkafka's `murmur2` and `murmur2_random`. Raises TypeError for a key that is no
    bytes.
    """
    try:
        if accelerated or len(key) > _LONG_KEY:
            return (murmur2(key) & 0x7FFFFFFF) % partitions
        return _positive_hash(key) % partitions
    except TypeError:
        checked(key, None)  # says what is wrong with it
        raise


def consistent(topic: TopicInfo, key: bytes | None, value: bytes | None) -> int | None:
    """A `Partitioner` that places keys as librdkafka's default does (`consistent_random`: CRC32).

    For a topic that clients on librdkafka write to as well. Null and empty keys go where records
    without a key do.
    """
    return zlib.crc32(key) % len(topic.partitions) if key else None


class Queues(dict[int, PartitionQueue]):
    """The queues of a topic by partition; `queues[n]` makes one where there was none."""

    def __init__(self, topic: str, make: Callable[[TopicPartition], PartitionQueue]) -> None:
        super().__init__()
        self._topic = topic
        self._make = make

    def __missing__(self, partition: int) -> PartitionQueue:
        made = self[partition] = self._make(TopicPartition(self._topic, partition))
        return made


class StickyPartition:
    """One partition for records without a key, until it got a batch's worth; then another.

    Larger batches than by round-robin (KIP-480). That it is bytes and not batches that count
    gives each partition the same share whatever ended its batches; and the next is drawn with
    less chance where more batches wait already, so that a slow broker gets less (KIP-794).
    """

    __slots__ = ("_available", "_random", "_since", "current")

    def __init__(self, random: Random | None = None) -> None:
        self._random = random or Random()
        self._available: Sequence[int] = ()
        self._since = 0
        self.current: PartitionQueue | None = None
        """Where records go now; None before the first choice."""

    def choose(self, available: Sequence[int], queues: Queues, enough: int) -> PartitionQueue:
        """Return the queue for the next record, which begins a batch: the present one, or a new
        one when that got `enough` bytes, or is not among `available` any more.

        `available` are the partitions with a leader, in ascending order and not empty.
        """
        current = self.current
        if available is not self._available:  # metadata hands out one tuple until it changes
            self._available = available
            if current is not None and current.partition.partition not in available:
                current = None
        if current is not None and current.sealed_bytes - self._since < enough:
            return current
        chosen = self.current = queues[self._draw(available, queues)]
        self._since = chosen.sealed_bytes
        return chosen

    def _draw(self, available: Sequence[int], queues: Queues) -> int:
        known = map(queues.get, available)
        waiting = [0 if queue is None else len(queue.ready) for queue in known]
        most = max(waiting) + 1
        chances = list(accumulate(most - count for count in waiting))
        (chosen,) = self._random.choices(available, cum_weights=chances)
        return chosen
