"""Choosing the partition of a record: the Java client's hash for keys, sticky without a key."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from random import Random

__all__ = ["StickyPartition", "murmur2", "partition_for_key"]

_M = 0x5BD1E995
_MASK = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """Return the 32-bit murmur2 hash of `data`, unsigned, with the Java client's seed.

    (Apache Kafka, `Utils.murmur2`; the keys of every Java producer are placed by it.)
    """
    length = len(data)
    h = 0x9747B28C ^ length
    for at in range(0, length & ~3, 4):
        k = int.from_bytes(data[at : at + 4], "little") * _M & _MASK
        k = (k ^ k >> 24) * _M & _MASK
        h = (h * _M & _MASK) ^ k
    rest = length & 3
    if rest:
        h = (h ^ int.from_bytes(data[length - rest :], "little")) * _M & _MASK
    h = (h ^ h >> 13) * _M & _MASK
    return h ^ h >> 15


@lru_cache(maxsize=65_536)
def _positive_hash(key: bytes) -> int:
    # A hash of 20 bytes takes about 2 microseconds in Python and a cache hit 0.05; keys repeat.
    return murmur2(key) & 0x7FFFFFFF


def partition_for_key(key: bytes, partitions: int) -> int:
    """Return the partition, of `partitions`, that the Java client gives a record with this key."""
    if len(key) > 256:
        return (murmur2(key) & 0x7FFFFFFF) % partitions
    return _positive_hash(key) % partitions


class StickyPartition:
    """One partition for records without a key, until its batch is sent; then another (KIP-480).

    Larger batches than by round-robin, and the same share for every partition in the long run.
    `fresh`: no record was given to the present partition yet.
    """

    __slots__ = ("_available", "_current", "_random", "fresh")

    def __init__(self, random: Random | None = None) -> None:
        self._random = random or Random()
        self._current = -1
        self._available: Sequence[int] = ()
        self.fresh = True

    def choose(self, available: Sequence[int]) -> int:
        """Return the present partition, or a new one when it is not among `available` any more.

        `available` are the partitions with a leader, in ascending order and not empty.
        """
        if available is not self._available:  # metadata hands out one tuple until it changes
            self._available = available
            if self._current not in available:
                self._current = self._random.choice(available)
                self.fresh = True
        return self._current

    def move_on(self) -> int:
        """Choose a partition other than the present one, if there is another, and return it."""
        others = [partition for partition in self._available if partition != self._current]
        if others:
            self._current = self._random.choice(others)
        self.fresh = True
        return self._current
