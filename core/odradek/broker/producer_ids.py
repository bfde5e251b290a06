"""Ids for idempotent producers, unique in the cluster and never used twice."""

from __future__ import annotations

import trio

from odradek.cluster import keys
from odradek.contracts.coordinator import ABSENT, Conflict, Coordinator, Put

__all__ = ["ProducerIds"]

BLOCK = 1000
"""Ids taken from the coordinator at once, as in Kafka: what a crash leaves unused is lost."""


class ProducerIds:
    """Hands out ids from blocks that are taken from a counter in the coordinator."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self._next = 0
        self._end = 0
        self._one = trio.Lock()

    async def take(self) -> int:
        """Return an id nobody has had. Raises the coordinator's errors."""
        async with self._one:
            if self._next == self._end:
                await self._take_block()
            taken = self._next
            self._next += 1
            return taken

    async def _take_block(self) -> None:
        while True:
            entry = await self._coordinator.get(keys.PRODUCER_IDS)
            start = int(keys.load(entry)["next"]) if entry is not None else 0
            value = keys.dump({"next": start + BLOCK})
            version = entry.version if entry is not None else ABSENT
            try:
                await self._coordinator.txn(Put(keys.PRODUCER_IDS, value, version))
            except Conflict:
                continue
            self._next, self._end = start, start + BLOCK
            return
