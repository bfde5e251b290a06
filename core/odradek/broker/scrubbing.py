"""Scrubbing: reads sealed segments again, so that damage is found while it can be mended.

The disk's own checks miss what was written wrong, and find what went bad only when it is read:
data that nobody reads for a year may be gone on every replica by then. Oldest reading first, one
segment at a time, at `bytes_per_s`. Nothing is changed: damage is reported, the log is not
compacted until it is repaired, and reads go on, for clients check the CRCs themselves.
"""

from __future__ import annotations

import logging
from heapq import nsmallest
from typing import TYPE_CHECKING

import trio
from attrs import define, evolve, field

from odradek.broker.configs import public_url
from odradek.contracts.storage import (
    Full,
    LogEdit,
    OutOfRange,
    SegmentInfo,
    StorageError,
)
from odradek.log.pace import Pace
from odradek.log.scrub import MAX_DAMAGE, SCRUB_BLOB, Damage, ScrubState
from odradek.log.scrubber import WINDOW, scrub_segment
from odradek.log.worker import Worker
from odradek.types import PartitionKey

if TYPE_CHECKING:
    from odradek.broker.broker import Broker
    from odradek.log.partition import PartitionLog

__all__ = ["Scrubbing"]

logger = logging.getLogger(__name__)

AT_A_TIME = 100
"""Logs that are chosen at once: choosing looks at every log of the broker."""

LOOK_S = 60.0
"""How often it is looked for logs that are due, in seconds."""

DEFECT_S = 600.0
"""How long a log is left alone after an error that nobody foresaw, in seconds."""

SAVE_S = 600.0
"""How often it is noted how far the reading of one log has come: each note is a write."""


@define(slots=True)
class _Known:
    """What is known of a log.

    `recalled`: its damage was found before the last start. `told`: what has been reported since.
    `mark`: what this put into `PartitionLog.damage`. `defect`: what was logged last of an error
    that nobody foresaw.
    """

    log: PartitionLog
    state: ScrubState
    recalled: bool = False
    not_before: float = 0.0
    told: set[Damage] = field(factory=set)
    mark: str | None = None
    defect: str | None = None


class Scrubbing:
    """Reads every log of the broker once in `interval_s`."""

    name = "scrubbing"

    def __init__(self, broker: Broker) -> None:
        settings = broker.config.scrub
        self._broker = broker
        self._rate = settings.bytes_per_s
        self._interval_ms = settings.interval_s * 1000
        self._pace = Pace(settings.bytes_per_s, WINDOW)
        self._known: dict[PartitionKey, _Known] = {}
        self._lasts = broker.store.traits.durability != "none"

    async def run(self) -> None:
        """See `Chore.run`; returns at once where scrubbing is turned off."""
        if not self._rate:
            return
        worker = self._broker.host.worker("odradek-scrubbing")
        try:
            while True:
                if not await self.once(worker):
                    await trio.sleep(LOOK_S)
        finally:
            worker.close()

    async def once(self, worker: Worker) -> bool:
        """Read the logs that are due now, the first hundred; return whether there were any."""
        due = self._due()
        for known in due:
            try:
                if known.recalled:
                    await self._check_again(known, worker)
                else:
                    await self._read(known, worker)
            except StorageError as error:
                logger.info("partition %s is scrubbed later: %s", known.log.key, error)
                known.not_before = trio.current_time() + LOOK_S
            except Exception as error:
                # One log that cannot be read, for whatever reason, must not keep the others.
                known.not_before = trio.current_time() + DEFECT_S
                if known.defect != repr(error):
                    known.defect = repr(error)
                    logger.exception("partition %s cannot be scrubbed", known.log.key)
            else:
                known.defect = None
        return bool(due)

    async def _throttle(self, size: int) -> None:
        await trio.sleep(self._pace.take(size, trio.current_time()))

    def _due(self) -> list[_Known]:
        """Choose the logs whose last reading lies furthest back, among those that are due.

        Damage that was found before the last start comes first: has it been repaired?
        """
        now_ms = self._broker.host.now_ms()
        now = trio.current_time()
        known = {log.key: self._recall(log) for log in self._broker.hosting.logs()}
        self._known = known  # without those that are closed

        def due_ms(each: _Known) -> int:
            return -1 if each.recalled else each.state.due_ms(self._interval_ms, now_ms)

        due = [
            each
            for each in known.values()
            if each.not_before <= now and due_ms(each) <= now_ms and len(each.log.segments) > 1
        ]
        return nsmallest(AT_A_TIME, due, due_ms)

    def _recall(self, log: PartitionLog) -> _Known:
        """Return what is known of a log: in memory, or else by the log itself."""
        known = self._known.get(log.key)
        if known is not None:
            if known.log is not log:  # it was opened again, under a newer epoch
                known.log = log
                _mark(known)
            return known
        known = _Known(log, ScrubState())
        blob = log.reader().snapshot.blobs.get(SCRUB_BLOB)
        if blob is not None:
            try:
                known.state = ScrubState.load(blob)
            except ValueError as error:
                logger.warning("partition %s: scrubbing begins anew: %s", log.key, error)
            known.recalled = bool(known.state.damage)
            _mark(known)
        return known

    async def _check_again(self, known: _Known, worker: Worker) -> None:
        """Read the segments again in which damage was found before the last start."""
        bases = {each.segment for each in known.state.damage}
        damage: list[Damage] = []
        for segment in _sealed(known.log):
            if segment.base_offset in bases:
                damage += await self._segment(known, segment, worker)
        known.recalled = False
        if damage != list(known.state.damage):
            await self._note(known, evolve(known.state, damage=tuple(damage[:MAX_DAMAGE])))

    async def _read(self, known: _Known, worker: Worker) -> None:
        """Read the sealed segments of a log, or those that an earlier reading did not reach."""
        state = known.state
        if state.next_offset < 0:
            state = evolve(state, began_ms=self._broker.host.now_ms(), next_offset=0)
        saved = trio.current_time()
        for segment in _sealed(known.log):
            if segment.base_offset < state.next_offset:
                continue
            found = await self._segment(known, segment, worker)
            kept = [each for each in state.damage if each.segment != segment.base_offset]
            damage = (*kept, *found)[:MAX_DAMAGE]
            state = evolve(state, next_offset=segment.end_offset, damage=damage)
            known.state = state  # an error, or a new epoch, interrupts the reading here
            if trio.current_time() - saved > SAVE_S:
                saved = trio.current_time()
                await self._note(known, state)
        there = {segment.base_offset for segment in known.log.segments}
        damage = tuple(each for each in state.damage if each.segment in there)
        await self._note(known, ScrubState(read_ms=state.began_ms, damage=damage))

    async def _segment(self, known: _Known, segment: SegmentInfo, worker: Worker) -> list[Damage]:
        """Read one segment; report what is damaged, once while the broker runs."""
        log = known.log
        try:
            found = await scrub_segment(log.reader(), segment, self._throttle, worker)
        except OutOfRange:
            if segment in log.segments:
                raise  # the log was closed
            return []  # retention or compaction removed it meanwhile
        if found and segment not in log.segments:
            return []  # what was read may have been another's bytes, in its place
        for damage in found:
            if damage not in known.told:
                known.told.add(damage)
                self._report(log, segment, damage)
        return found

    def _report(self, log: PartitionLog, segment: SegmentInfo, damage: Damage) -> None:
        logger.error(
            "partition %d of topic %s is damaged: segment %d (offsets up to %d), byte %d: %s. "
            "Nothing was changed, and what is not damaged is served. Restore the segment, or "
            "stop the broker and run `odradek log repair %s --storage %s --how cut|skip`",
            log.key.partition,
            log.topic,
            segment.base_offset,
            segment.end_offset - 1,
            damage.position,
            damage.text,
            log.key,
            public_url(self._broker.config.storage.url),
        )

    async def _note(self, known: _Known, state: ScrubState) -> None:
        """Take note of how far a log was read, in the log itself where that lasts."""
        known.state = state
        _mark(known)
        if not self._lasts:
            return
        blob = state.dump()
        try:
            await known.log.edit(lambda _: LogEdit(blobs={SCRUB_BLOB: blob}))
        except Full as error:
            logger.info("partition %s: %s; it is scrubbed again sooner", known.log.key, error)


def _sealed(log: PartitionLog) -> tuple[SegmentInfo, ...]:
    return tuple(segment for segment in log.segments if segment.sealed)


def _mark(known: _Known) -> None:
    """Let the log say that it is damaged, or no more: only what scrubbing said is taken back."""
    damage = known.state.damage
    log = known.log
    if damage:
        log.damage = known.mark = str(damage[0])
    elif known.mark is not None:
        if log.damage == known.mark:
            log.damage = None
        known.mark = None
