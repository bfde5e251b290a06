"""Keeps a broker's retention clock: reads the machine's clocks, remembers the clock in the
coordinator, and says when the wall clock is not believed.
"""

from __future__ import annotations

import logging

import trio

from odradek.broker.host import Boot, Host
from odradek.cluster import keys
from odradek.contracts.coordinator import Coordinator, CoordinatorError
from odradek.log.clock import RetentionClock

__all__ = ["Timekeeper"]

logger = logging.getLogger(__name__)

SAVE_INTERVAL_S = 600.0
"""What a crash together with a reboot makes the clock fall behind, at most."""

WARN_BEHIND_MS = 60_000
WARN_INTERVAL_MS = 3_600_000
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

    def _boot(self) -> Boot:
        """The uptime; comparable in this process at least, where the system does not name it."""
        boot = self._host.boot()
        return boot if boot.id else Boot(self._process_id, boot.ms)

    async def load(self) -> None:
        """Go on from where the last run of this broker was. Raises CoordinatorError.

        The first run believes the wall clock, as there is nothing to hold it against.
        """
        entry = await self._coordinator.get(self._key)
        if entry is None:
            return
        try:
            self._clock = RetentionClock.load(entry.value)
        except ValueError as error:
            logger.warning(
                "coordinator key %r is not understood (%s): the wall clock is believed as it is",
                self._key,
                error,
            )

    def now_ms(self) -> int:
        """Return the time to go by, in milliseconds since 1970."""
        wall_ms = self._host.now_ms()
        boot = self._boot()
        self._clock = self._clock.advanced(wall_ms, boot.id, boot.ms)
        if self._trust:
            return wall_ms
        self._warn(wall_ms, boot.ms)
        return self._clock.now(wall_ms)

    def _warn(self, wall_ms: int, up_ms: int) -> None:
        behind = self._clock.behind(wall_ms)
        if behind <= WARN_BEHIND_MS:
            if self._warned_ms is not None:
                self._warned_ms = None
                logger.info("the wall clock is believed again: retention has caught up with it")
            return
        if self._warned_ms is not None and up_ms - self._warned_ms < WARN_INTERVAL_MS:
            return
        self._warned_ms = up_ms
        logger.warning(
            "the wall clock is %s ahead of the time that is known to have passed, because it was "
            "set or the machine was off: retention follows at twice real time and has caught up "
            "after %s more, if the clock goes on like this. `trust_clock = true` in section "
            "[retention] makes it believe the clock at once",
            _duration(behind),
            _duration(behind),
        )

    async def save(self) -> None:
        """Remember the clock. A coordinator that does not answer is no reason to stop."""
        self.now_ms()
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


def _duration(ms: int) -> str:
    seconds = ms // 1000
    days, seconds = divmod(seconds, 86_400)
    hours, seconds = divmod(seconds, 3600)
    minutes, seconds = divmod(seconds, 60)
    parts = [(days, "d"), (hours, "h"), (minutes, "min"), (seconds, "s")]
    return " ".join(f"{count} {unit}" for count, unit in parts if count)
