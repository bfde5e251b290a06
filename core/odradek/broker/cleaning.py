"""Compaction: takes the log that needs it most, again and again, and makes way for requests."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import trio
from attrs import define, field

from odradek.broker.configs import public_url
from odradek.contracts.storage import (
    Corrupt,
    Fenced,
    Full,
    Offline,
    OutOfRange,
    StorageError,
    Unavailable,
)
from odradek.errors import CorruptBatch
from odradek.log.cleaner import Tools, compact, survey
from odradek.log.cleaning_windows import WINDOW
from odradek.log.compaction import Plan
from odradek.log.pace import Pace
from odradek.log.worker import Worker
from odradek.types import PartitionKey

if TYPE_CHECKING:
    from odradek.broker.broker import Broker
    from odradek.broker.upkeep import Upkeep
    from odradek.log.partition import PartitionLog

__all__ = ["Cleaning"]

logger = logging.getLogger(__name__)

RETRY_S = 60.0
"""How long a log is left alone for which there was no room, or whose store did not answer, when
that happens first; twice as long each time after that. What it had read was read in vain."""

MAX_RETRY_S = 3600.0
"""The longest that it is left alone."""

CHANGED_S = 1.0
"""The same for a log that changed while it was compacted."""

BUSY = 0.3
"""The share of its time for which the thread that answers requests may be at work before
compaction begins to pause between windows."""

POLITENESS = 5
"""How long such a pause is, in CPU time that requests took during the window before it. See
the figures in docs/compaction.md."""

MAX_PAUSE_S = 0.1
"""The longest such pause: compaction always goes on, at some 10 MB/s at the least."""


@define(slots=True)
class _Known:
    """What is remembered of a log between two looks at it.

    `first_timestamps`: see `survey`. `not_before`: on trio's clock. `told`: what was logged last.
    `retry_s`: for how long it was left alone last. `opaque`: whether was logged that there is a
    batch that cannot be opened.
    """

    log: PartitionLog
    first_timestamps: dict[int, int] = field(factory=dict)
    not_before: float = 0.0
    told: str | None = None
    retry_s: float = 0.0
    opaque: bool = False


class Courtesy:
    """Keeps the pace of one compaction: `io_max_bytes_per_s`, and pauses while the broker is busy.

    A window takes the worker some milliseconds, on a core that the broker, its clients or the disk
    may need. How busy the broker is, the CPU time of the thread that answers requests tells: the
    worker then pauses for `POLITENESS` times that share of the time its window took.
    """

    def __init__(self, broker: Broker) -> None:
        self._host = broker.host
        self._pace = Pace(broker.config.cleaner.io_max_bytes_per_s, WINDOW)
        self._at = trio.current_time()
        self._used_s = self._host.cpu_s()

    async def __call__(self, size: int) -> None:
        """See `odradek.log.cleaner.Gate`."""
        now = trio.current_time()
        took = now - self._at
        used_s = self._host.cpu_s() - self._used_s
        pause = self._pace.take(size, now)
        if used_s > BUSY * took:
            pause = max(pause, min(POLITENESS * min(used_s, took), MAX_PAUSE_S))
        if pause > 0:
            await trio.sleep(pause)
        else:
            await trio.lowlevel.checkpoint()
        self._at = trio.current_time()
        self._used_s = self._host.cpu_s()


class Cleaning:
    """Compacts the logs of the broker whose topics say so."""

    name = "compaction"

    def __init__(self, broker: Broker, upkeep: Upkeep) -> None:
        self._broker = broker
        self._upkeep = upkeep
        self._settings = broker.config.cleaner
        self._known: dict[PartitionKey, _Known] = {}

    async def run(self) -> None:
        """See `Chore.run`; returns at once where compaction is turned off."""
        if not self._settings.enabled:
            return
        worker = self._broker.host.worker("odradek-compaction")
        try:
            while True:
                if not await self.clean(worker):
                    await trio.sleep(self._settings.backoff_ms / 1000)
        finally:
            worker.close()

    async def clean(self, worker: Worker) -> bool:
        """Compact the log that has the largest dirty share; return whether one was due.

        What goes wrong is logged, and the log left alone for a while.
        """
        found: tuple[float, _Known, Plan] | None = None
        logs = {log.key: log for log in self._broker.hosting.logs() if log.settings.compacted}
        self._known = {
            key: known
            for key, known in self._known.items()
            if (log := logs.get(key)) is not None and log is known.log
        }
        for log in logs.values():
            known = self._known.get(log.key)
            if known is None:
                known = self._known[log.key] = _Known(log)
            due = await self._survey(known)
            if due is not None and (found is None or due.ratio > found[0]):
                found = (due.ratio, known, due)
            await trio.lowlevel.checkpoint()
        if found is None:
            return False
        await self._clean(found[1], found[2], worker)
        return True

    async def _survey(self, known: _Known) -> Plan | None:
        log = known.log
        if log.failure is not None or log.damage is not None:
            return None
        if trio.current_time() < known.not_before:
            return None
        now_ms = self._upkeep.now_ms()
        try:
            log.roll_if_due(now_ms)
            return await survey(log, now_ms, known.first_timestamps, self._passed_ms(log))
        except Exception as error:
            # One log that cannot be looked at, for whatever reason, must not keep the others.
            self._failed(known, error)
            return None

    def _passed_ms(self, log: PartitionLog) -> int:
        """The time by which delete horizons of a log have passed."""
        return self._upkeep.clock.passed_ms(log.settings.delete_retention_ms)

    async def _clean(self, known: _Known, due: Plan, worker: Worker) -> None:
        log = known.log
        tools = Tools(
            worker,
            Courtesy(self._broker),
            self._broker.host.new_id().bytes,
            self._settings.buffer_bytes,
        )
        began = trio.current_time()
        try:
            done = await compact(
                log,
                due,
                tools,
                now_ms=self._passed_ms(log),
                proven_ms=self._upkeep.clock.proven_ms(),
            )
        except Exception as error:
            self._failed(known, error)
            return
        known.told = None
        known.retry_s = 0.0
        if done is None:  # it changed meanwhile, and is looked at again
            known.not_before = trio.current_time() + CHANGED_S
            return
        took = trio.current_time() - began
        logger.info(
            "partition %d of topic %s: compacted up to offset %d (%s): %d bytes became %d, "
            "%d segments were rewritten, %d bytes read in %.2f s",
            log.key.partition,
            log.topic,
            done.cleaned_to,
            due.why,
            done.size_before,
            done.size_after,
            done.rewritten,
            done.read,
            took,
        )
        if done.opaque_from is not None and not known.opaque:
            known.opaque = True
            logger.warning(
                "partition %d of topic %s: compaction cannot open a batch at or behind offset %d: "
                "it stays as it is, and so do all tombstones behind it",
                log.key.partition,
                log.topic,
                done.opaque_from,
            )

    def _failed(self, known: _Known, error: Exception) -> None:
        log = known.log
        known.retry_s = min(2 * known.retry_s or RETRY_S, MAX_RETRY_S)
        known.not_before = trio.current_time() + known.retry_s
        if isinstance(error, (Fenced, Offline, OutOfRange)):
            return  # the log was closed, or is offline, which was told
        if isinstance(error, (Corrupt, CorruptBatch)) and log.damage is None:
            log.damage = str(error)
        if known.told == str(error):
            return
        known.told = str(error)
        passing = isinstance(error, (Full, Unavailable))
        defect = not isinstance(error, (StorageError, CorruptBatch))
        logger.log(
            logging.WARNING if passing else logging.ERROR,
            "partition %d of topic %s cannot be compacted%s: %s%s",
            log.key.partition,
            log.topic,
            " for now" if passing else "",
            error,
            "" if passing or defect else self._way_out(log),
            exc_info=error if defect else None,
        )

    def _way_out(self, log: PartitionLog) -> str:
        url = public_url(self._broker.config.storage.url)
        return (
            f". Nothing was changed; it is served as it is, and grows. With the broker stopped: "
            f"`odradek log repair {log.key} --storage {url} --how skip`"
        )
