"""The snapshots of a partition's producers in its log, which bound what opening has to read."""

from __future__ import annotations

import logging

from odradek.contracts.storage import Full, LogEdit, PartitionWriter, Ticket, Unavailable
from odradek.log.lookup import Headers
from odradek.log.positions import Positions
from odradek.log.producers import DamagedSnapshot, Producers
from odradek.types import PartitionKey

__all__ = ["PRODUCERS_BLOB", "ProducerSnapshots"]

logger = logging.getLogger(__name__)

PRODUCERS_BLOB = "producers"


class ProducerSnapshots:
    """Saves and restores the producers' state. `offset`: up to where the saved one goes."""

    def __init__(self, key: PartitionKey, writer: PartitionWriter) -> None:
        self._key = key
        self._writer = writer
        self.offset = writer.snapshot.segments[0].base_offset

    async def save(self, producers: Producers, end_offset: int, tail: Ticket | None) -> None:
        """Save the state as of `end_offset`, once `tail`, the log's end, is durable.

        Where there is no room for it the next opening reads more of the log; nothing is lost.
        Raises StorageError for what takes the log offline.
        """
        try:
            blob = producers.snapshot(end_offset)
            if tail is not None:
                await tail.wait()
            await self._writer.commit(LogEdit(blobs={PRODUCERS_BLOB: blob}))
            self.offset = end_offset
        except (Full, Unavailable) as error:
            logger.warning("partition %s: the producers' state is not saved: %s", self._key, error)

    async def restore(self, positions: Positions, end_offset: int) -> Producers:
        """Rebuild the state: the newest snapshot, then the batch headers after it.

        Without a snapshot all that is stored is read, from before the log start offset on:
        DeleteRecords removes no batch, and its producer goes on. (Where segments are removed the
        state was saved first.) Raises StorageError, CorruptBatch.
        """
        producers = Producers()
        snapshot = self._writer.snapshot
        offset = first = snapshot.segments[0].base_offset
        blob = snapshot.blobs.get(PRODUCERS_BLOB)
        if blob is not None:
            try:
                offset = producers.restore(blob)
            except DamagedSnapshot as error:
                logger.warning("partition %s: %s; reading the log instead", self._key, error)
                offset = -1
            if not 0 <= offset <= end_offset:
                # Saved before a crash took the end of the log away (durability below `ack`). It
                # must not be found again once the log has grown past its offset with other data.
                producers = Producers()
                offset = first
                await self._writer.commit(LogEdit(blobs={PRODUCERS_BLOB: None}))
        self.offset = offset
        for segment in snapshot.segments:
            if segment.end_offset <= offset or segment.size == 0:
                continue
            index = await positions.index(segment)
            walk = Headers(self._writer, segment.id, index.positions[index.floor(offset)])
            while await walk.more():
                for meta, _ in walk:
                    if meta.base_offset >= offset and meta.producer_id >= 0:
                        producers.update(meta)
        return producers
