"""Retention carried out on one log: what `odradek.log.retention` finds due is removed."""

from __future__ import annotations

from collections.abc import Sequence

from odradek.contracts.storage import Full, LogEdit, LogSnapshot
from odradek.log.clock import Spell
from odradek.log.partition import PartitionLog
from odradek.log.retention import Retention, plan

__all__ = ["retain"]


async def retain(log: PartitionLog, now_ms: int, spells: Sequence[Spell] = ()) -> Retention | None:
    """Remove every segment that is due and move the log start offset; return what was done.

    `now_ms` and `spells` are those of the retention clock. The active segment stays where the
    store is too full to begin another. None for nothing to do, told without waiting for other
    edits of the log. Raises StorageError; cancelled: as `PartitionWriter.commit`.
    """
    done: Retention | None = None

    def due(snapshot: LogSnapshot, *, may_roll: bool = True) -> Retention | None:
        return plan(
            snapshot, log.high_watermark, log.settings, now_ms, spells=spells, may_roll=may_roll
        )

    def decide(snapshot: LogSnapshot) -> LogEdit | None:
        nonlocal done
        done = due(snapshot)
        if done is not None and done.roll:
            try:
                log.roll()
            except Full:
                done = due(snapshot, may_roll=False)
        if done is None:
            return None
        linger_ms = log.settings.file_delete_delay_ms
        return LogEdit(remove=done.remove, log_start=done.log_start, linger_ms=linger_ms)

    if due(log.reader().snapshot) is None:
        return None
    await log.edit(decide)
    return done
