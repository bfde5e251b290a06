"""Edits of a log: segments that go, or are replaced, and the log start offset that moves."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import attrs
import trio

from odradek.contracts.storage import Full, LogEdit, LogSnapshot, PartitionWriter
from odradek.errors import ErrorCode, KafkaError
from odradek.log.positions import Positions
from odradek.log.producer_snapshots import ProducerSnapshots

if TYPE_CHECKING:
    from odradek.log.partition import PartitionLog

__all__ = ["Edits"]

logger = logging.getLogger(__name__)


class Edits:
    """Carries out the edits of one log, one at a time."""

    def __init__(
        self,
        log: PartitionLog,
        writer: PartitionWriter,
        positions: Positions,
        snapshots: ProducerSnapshots,
    ) -> None:
        self._log = log
        self._writer = writer
        self._positions = positions
        self._snapshots = snapshots
        self._lock = trio.Lock()
        self._held: frozenset[int] = frozenset()

    async def edit(self, decide: Callable[[LogSnapshot], LogEdit | None], holder: bool) -> bool:
        """See `PartitionLog.edit`.

        The log start offset in force moves before the store is asked, because the store lets
        readers see an edit before `commit` returns: a consumer would be given what follows the
        removed offsets instead of being told that they are gone. When the edit fails it moves
        back.

        The producers' state is saved before segments go that are not in it yet: what happened in
        them could not be read again after a crash, and producers would be refused.
        """
        log = self._log
        async with self._lock:
            edit = decide(self._writer.snapshot)
            if edit is None:
                return False
            if self._held and not holder:
                remove = tuple(i for i in edit.remove if i not in self._held)
                edit = attrs.evolve(edit, remove=remove)
            if len(log.producers) and self._snapshots.offset < self._end_of(edit.remove):
                await log.save_producers()
            if edit.log_start is not None:
                log.log_start_offset = max(log.log_start_offset, edit.log_start)
            try:
                await self._writer.commit(edit)
            finally:
                log.log_start_offset = self._writer.snapshot.log_start
            for segment_id in edit.remove:
                self._positions.forget(segment_id)
            return True

    def _end_of(self, segment_ids: tuple[int, ...]) -> int:
        """The end offset of the last of these segments, or -1."""
        gone = set(segment_ids)
        ends = (s.end_offset for s in self._writer.snapshot.segments if s.id in gone)
        return max(ends, default=-1)

    @contextmanager
    def holding(self, segment_ids: Iterable[int]) -> Iterator[None]:
        """See `PartitionLog.holding`."""
        self._held = frozenset(segment_ids)
        try:
            yield
        finally:
            self._held = frozenset()

    async def trim(self, offset: int) -> int:
        """See `PartitionLog.trim`."""
        log = self._log
        target = log.high_watermark if offset == -1 else offset
        if target < 0 or target > log.high_watermark:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"cannot delete up to {target}: the high watermark is {log.high_watermark}",
            )

        def decide(snapshot: LogSnapshot) -> LogEdit | None:
            if target <= log.log_start_offset:
                return None
            if target == log.log_end_offset:
                try:
                    log.roll()
                except Full as error:
                    logger.warning(
                        "partition %s: the active segment's bytes are kept: %s", log.key, error
                    )
                snapshot = self._writer.snapshot
            gone = tuple(s.id for s in snapshot.segments if s.sealed and s.end_offset <= target)
            linger_ms = log.settings.file_delete_delay_ms
            return LogEdit(remove=gone, log_start=target, linger_ms=linger_ms)

        await log.edit(decide)
        return log.log_start_offset
