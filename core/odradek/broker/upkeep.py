"""What a broker does for its logs by itself: retention, compaction, scrubbing; one loop each.

Upkeep never takes the broker down: a loop that fails is logged and begun again after a while. It
goes by the retention clock, not by the wall clock.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol

import trio

from odradek.broker.cleaning import Cleaning
from odradek.broker.retaining import Retaining
from odradek.broker.scrubbing import Scrubbing
from odradek.broker.timekeeping import Timekeeper

if TYPE_CHECKING:
    from odradek.broker.broker import Broker

__all__ = ["Chore", "Upkeep"]

logger = logging.getLogger(__name__)

BACKOFF_S = 10.0
BACKOFF_MAX_S = 600.0
"""Seconds until a chore that failed is begun again; twice as many after each failure in a row."""


class Chore(Protocol):
    """One kind of upkeep, for every log of the broker."""

    name: str
    """For the broker's log."""

    async def run(self) -> None:
        """Do it until cancelled. What it raises is logged, and it is called again later."""


class Upkeep:
    """The chores of one broker. Built before its logs are open, run while they are."""

    def __init__(self, broker: Broker) -> None:
        retention = broker.config.retention
        self.clock = Timekeeper(
            broker.coordinator, broker.id, broker.host, trust=retention.trust_clock
        )
        self.chores: tuple[Chore, ...] = (
            Retaining(broker, self),
            Cleaning(broker, self),
            Scrubbing(broker),
        )
        self._scope = trio.CancelScope()
        self._running = False
        self._ended = trio.Event()

    def now_ms(self) -> int:
        """Return the time that retention and compaction go by, in milliseconds since 1970."""
        return self.clock.now_ms()

    async def run(self) -> None:
        """Do every chore until `aclose`."""
        self._running = True
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self.clock.run)
                    for chore in self.chores:
                        nursery.start_soon(self._keep_up, chore)
        finally:
            self._ended.set()

    async def _keep_up(self, chore: Chore) -> None:
        backoff = BACKOFF_S
        while True:
            began = trio.current_time()
            try:
                await chore.run()
                return
            except Exception:
                if trio.current_time() - began > BACKOFF_MAX_S:
                    backoff = BACKOFF_S
                logger.exception("%s failed, and begins again in %g s", chore.name, backoff)
            await trio.sleep(backoff)
            backoff = min(backoff * 2, BACKOFF_MAX_S)

    async def aclose(self) -> None:
        """End every chore before the logs are closed, and remember the clock."""
        self._scope.cancel()
        if self._running:
            await self._ended.wait()
        await self.clock.aclose()
