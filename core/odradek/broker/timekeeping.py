"""Keeps a broker's retention clock: reads the machine's clocks, remembers the clock in the
coordinator, and says when the wall clock is not believed.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import trio

from odradek.broker.host import Boot, Host
from odradek.cluster import keys
from odradek.contracts.coordinator import Coordinator, CoordinatorError
from odradek.log.clock import BELIEVED_MS, PLAUSIBLE_MS, RetentionClock, Spell
from odradek.log.deadlines import counts_from, passed

__all__ = ["Timekeeper"]

logger = logging.getLogger(__name__)

SAVE_INTERVAL_S = 600.0
"""What a crash together with a reboot makes the clock fall behind, at most. The clock is looked at
as often at least, which it needs for catching up (`GAIN_MAX_MS`)."""

LOOK_INTERVAL_MS = 1000
WARN_MS = 60_000
WARN_INTERVAL_MS = 60_000
WARN_AGAIN_MS = 3_600_000
CLOSE_PATIENCE_S = 2.0


class Timekeeper:
    """The time that upkeep goes by (`odradek.log.clock`), kept over restarts of the broker."""

    def __init__(self, coordinator: Coordinator, broker_id: int, host: Host, trust: bool) -> None:
        self._coordinator = coordinator
        self._key = keys.clock_key(broker_id)
        self._host = host
        self._trust = trust
        self._process_id = str(host.new_id())
        boot = self._boot()
        self._clock = RetentionClock(host.now_ms(), boot.id, boot.ms)
        self._warned_ms: int | None = None
        self._warned = ""

    def _boot(self) -> Boot:
        """The uptime; comparable in this process at least, where the system does not name it."""
        boot = self._host.boot()
        return boot if boot.id else Boot(self._process_id, boot.ms)

    async def load(self) -> None:
        """Go on from where the last run of this broker was. Raises CoordinatorError.

        The first run believes the wall clock, as there is nothing to hold it against, unless that
        shows a time which cannot be right.
        """
        entry = await self._coordinator.get(self._key)
        if entry is None:
            return
        try:
            self._clock = RetentionClock.load(entry.value)
        except ValueError as error:
            logger.warning(
                "coordinator key %r is not understood, and the wall clock is believed: %s",
                self._key,
                error,
            )

    def _look(self) -> int:
        """Bring the clock up to date; return what the wall clock shows."""
        wall_ms = self._host.now_ms()
        boot = self._boot()
        if self._trust:
            # Remembered too: trusted once, a clock that was put right need not be trusted again.
            self._clock = self._clock.trusted(wall_ms, boot.id, boot.ms)
        else:
            self._clock = self._clock.advanced(wall_ms, boot.id, boot.ms)
        self._warn(wall_ms, boot.ms)
        return wall_ms

    def now_ms(self) -> int:
        """Return the time by which things are old, in ms since 1970: never later than it is."""
        wall_ms = self._look()
        return self._clock.now(wall_ms)

    def proven_ms(self) -> int:
        """Return the time from which a deadline counts, in ms since 1970: never too early.

        Cheap enough for every request of a group member: it does not look at the wall clock each
        time.
        """
        boot = self._boot()
        elapsed = boot.ms - self._clock.boot_ms
        if not self._trust and boot.id == self._clock.boot_id and 0 <= elapsed < LOOK_INTERVAL_MS:
            return self._clock.proven_ms + elapsed
        self._look()
        return self._clock.proven_ms

    def counts_from(self, stamp_ms: int) -> int:
        """Return the time that a deadline counts from, where `proven_ms` was `stamp_ms` once.

        Later than the stamp where the clock was set ahead meanwhile: nothing gets older by that.
        """
        return counts_from(stamp_ms, self._clock.steps)

    def passed_ms(self, delay_ms: int) -> int:
        """Return the time by which deadlines have passed that were set `delay_ms` ahead.

        As `now_ms`, and likewise no later because the clock was set ahead.
        """
        now_ms = self.now_ms()
        return passed(now_ms, delay_ms, self._clock.steps)

    @property
    def spells(self) -> Sequence[Spell]:
        """When the wall clock was back: what was written then is younger than it looks."""
        return self._clock.spells

    def _warn(self, wall_ms: int, up_ms: int) -> None:
        gap = wall_ms - self._clock.proven_ms
        side = "" if abs(gap) <= WARN_MS else "ahead" if gap > 0 else "back"
        if wall_ms < PLAUSIBLE_MS:
            side = "unset"
        silent_ms = math.inf if self._warned_ms is None else up_ms - self._warned_ms
        if side == self._warned:
            if not side or silent_ms < WARN_AGAIN_MS:
                return
        elif silent_ms < WARN_INTERVAL_MS:  # a clock that goes to and fro
            return
        self._warned, self._warned_ms = side, up_ms
        if side == "unset":
            logger.warning(
                "the wall clock shows %s, which cannot be right: it is not believed, and no record "
                "gets too old until it is set",
                _date(wall_ms),
            )
        elif side == "ahead":
            logger.warning(
                "the wall clock is %s ahead of the time that is known to have passed, because it "
                "was set or the machine was off: retention follows it at twice real time, and "
                "catches up in %s if the clock goes on like this. `trust_clock = true` in section "
                "[retention] makes retention believe the clock at once",
                _duration(gap),
                _duration(gap),
            )
        elif side == "back":
            logger.warning(
                "the wall clock is %s back: what is written now looks older than it is. In %s it "
                "is believed, if it goes on like this",
                _duration(-gap),
                _duration(BELIEVED_MS - max(self._clock.back_ms, 0)),
            )
        else:
            logger.info("the wall clock shows the time that retention goes by again")

    async def save(self) -> None:
        """Remember the clock. A coordinator that does not answer is no reason to stop."""
        self._look()
        try:
            await self._coordinator.put(self._key, self._clock.dump())
        except CoordinatorError as error:
            logger.info("the retention clock is not saved: %s", error)

    async def run(self) -> None:
        """Save the clock now and from time to time."""
        while True:
            await self.save()
            await trio.sleep(SAVE_INTERVAL_S)

    async def aclose(self) -> None:
        """Save the clock, if the coordinator answers soon."""
        with trio.move_on_after(CLOSE_PATIENCE_S):
            await self.save()


def _date(ms: int) -> str:
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)).date().isoformat()


def _duration(ms: int) -> str:
    """`2 d 3 h`: the two largest units that count."""
    seconds = ms // 1000
    days, seconds = divmod(seconds, 86_400)
    hours, seconds = divmod(seconds, 3600)
    minutes, seconds = divmod(seconds, 60)
    parts = [(days, "d"), (hours, "h"), (minutes, "min"), (seconds, "s")]
    return " ".join([f"{count} {unit}" for count, unit in parts if count][:2]) or "0 s"
