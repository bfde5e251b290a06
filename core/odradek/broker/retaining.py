"""Retention: removes segments that are too old or too many, in every log of the broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from odradek.broker.broker import Broker
    from odradek.broker.upkeep import Upkeep

__all__ = ["Retaining"]


class Retaining:
    """Checks every log once in `check_interval_ms`."""

    name = "retention"

    def __init__(self, broker: Broker, upkeep: Upkeep) -> None:
        self._broker = broker
        self._upkeep = upkeep
        self._interval = broker.config.retention.check_interval_ms / 1000

    async def run(self) -> None:
        """See `Chore.run`."""
        while True:
            await trio.sleep(self._interval)
            self._upkeep.now_ms()
