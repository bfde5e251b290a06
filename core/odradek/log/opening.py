"""Opening a partition's log: what a crash cut off, and what the producers had sent."""

from __future__ import annotations

import logging

import trio

from odradek.config import TopicSettings
from odradek.contracts.storage import Claim, SegmentStore
from odradek.log.index_cache import IndexCache
from odradek.log.interface import Spawn
from odradek.log.partition import PartitionLog
from odradek.types import PartitionKey

__all__ = ["open_log"]

logger = logging.getLogger(__name__)


async def open_log(
    store: SegmentStore,
    key: PartitionKey,
    topic: str,
    settings: TopicSettings,
    claim: Claim,
    indexes: IndexCache,
    spawn: Spawn,
) -> PartitionLog:
    """Open, or create, the log of a partition under a claim, with its producers' state.

    `spawn` starts the log's background tasks; they end by themselves when nothing is left to
    do. Raises what `SegmentStore.open_writer` raises.
    """
    writer = await store.open_writer(key, claim)
    recovery = writer.recovery
    if recovery.detail:  # with nothing cut off too: an empty segment, a lost blob
        logger.warning(
            "partition %d of topic %s: %s (%d bytes that no write had completed were cut off)",
            key.partition,
            topic,
            recovery.detail,
            recovery.cut_bytes,
        )
    log = PartitionLog(key, topic, writer, settings, claim.epoch, indexes, spawn)
    try:
        await log.restore_producers()
    except BaseException:
        with trio.CancelScope(shield=True):
            await writer.aclose()
        raise
    return log
