"""Retention: removes segments that are too old or too many, in every log of the broker."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import trio

from odradek.contracts.storage import Fenced, Full, Offline, StorageError, Unavailable
from odradek.log.retaining import retain
from odradek.types import PartitionKey

if TYPE_CHECKING:
    from odradek.broker.broker import Broker
    from odradek.broker.upkeep import Upkeep
    from odradek.log.partition import PartitionLog

__all__ = ["Retaining"]

logger = logging.getLogger(__name__)

FIRST_CHECK_S = 30.0
"""Sooner after the start than between two checks, as in Kafka: a broker may be restarted often."""


class Retaining:
    """Checks every log once in `check_interval_ms`."""

    name = "retention"

    def __init__(self, broker: Broker, upkeep: Upkeep) -> None:
        self._broker = broker
        self._upkeep = upkeep
        self._interval = broker.config.retention.check_interval_ms / 1000
        self._told: dict[PartitionKey, str] = {}

    async def run(self) -> None:
        """See `Chore.run`."""
        await trio.sleep(min(FIRST_CHECK_S, self._interval))
        while True:
            await self.check()
            await trio.sleep(self._interval)

    async def check(self) -> None:
        """Remove what is due in every log, one after the other. What goes wrong is logged."""
        logs = tuple(self._broker.hosting.logs())
        keys = {log.key for log in logs}
        self._told = {key: told for key, told in self._told.items() if key in keys}
        now_ms = self._upkeep.now_ms()
        for log in logs:
            # A log that takes no more records is left as it is, for its next opening.
            if log.failure is None:
                await self._check(log, now_ms)
            await trio.lowlevel.checkpoint()

    async def _check(self, log: PartitionLog, now_ms: int) -> None:
        try:
            done = await retain(log, now_ms, self._upkeep.clock.spells)
        except (Fenced, Offline):
            return  # the log was closed, or goes offline at its next append
        except Exception as error:
            # One log that cannot be changed, for whatever reason, must not keep the others.
            self._tell(log, error)
            return
        self._told.pop(log.key, None)
        if done is not None:
            logger.info(
                "partition %d of topic %s: removed %d segments of %d bytes (%s); it begins at "
                "offset %d now",
                log.key.partition,
                log.topic,
                len(done.remove),
                done.size,
                done.reason,
                log.log_start_offset,
            )

    def _tell(self, log: PartitionLog, error: Exception) -> None:
        """Log what kept a log from being changed: once, as it is tried again at each check."""
        if self._told.get(log.key) == str(error):
            return
        self._told[log.key] = str(error)
        passing = isinstance(error, (Full, Unavailable))
        logger.log(
            logging.WARNING if passing else logging.ERROR,
            "partition %d of topic %s: old segments cannot be removed%s: %s",
            log.key.partition,
            log.topic,
            " for now" if passing else "",
            error,
            exc_info=None if isinstance(error, StorageError) else error,
        )
