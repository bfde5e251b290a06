"""The sparse indexes of sealed segments, in memory, for the whole broker.

Consumers at the tail never need them; a consumer that catches up needs one segment's at a time.
So a small bound serves many partitions: an index entry covers 4 KiB of log with 24 bytes, hence
16 MiB of indexes are about 2.7 GB of log within immediate reach.
"""

from __future__ import annotations

from collections import OrderedDict

from odradek.contracts.storage import PartitionReader, SegmentIndex
from odradek.types import PartitionKey

__all__ = ["IndexCache"]


class IndexCache:
    """Least recently used indexes, at most `limit` bytes of them (one is always kept)."""

    def __init__(self, limit: int = 16 * 1024 * 1024) -> None:
        self._limit = limit
        self._held: OrderedDict[tuple[PartitionKey, int], SegmentIndex] = OrderedDict()
        self._bytes = 0

    async def get(
        self, key: PartitionKey, reader: PartitionReader, segment_id: int
    ) -> SegmentIndex:
        """Return the index of a sealed segment. Raises what `PartitionReader.index` raises."""
        slot = (key, segment_id)
        index = self._held.get(slot)
        if index is not None:
            self._held.move_to_end(slot)
            return index
        index = await reader.index(segment_id)
        if slot not in self._held:
            self._held[slot] = index
            self._bytes += index.nbytes
            while self._bytes > self._limit and len(self._held) > 1:
                _, dropped = self._held.popitem(last=False)
                self._bytes -= dropped.nbytes
        return index

    def forget(self, key: PartitionKey, segment_id: int | None = None) -> None:
        """Drop one segment's index, or all of a partition's."""
        gone = [s for s in self._held if s[0] == key and segment_id in (None, s[1])]
        for slot in gone:
            self._bytes -= self._held.pop(slot).nbytes
