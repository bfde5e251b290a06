"""Being known as alive: the broker's entry in the coordinator, kept by a session.

A session can be lost without the broker's doing: the process was stopped for longer than the
session lasts, the machine slept, the coordinator was away. The broker then registers anew under
a new session and goes on; until then it is not in the image, and clients are told so.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from odradek.cluster import keys
from odradek.cluster.image import BrokerImage
from odradek.cluster.view import ClusterView
from odradek.contracts.background import open_tasks
from odradek.contracts.coordinator import (
    ABSENT,
    Conflict,
    Coordinator,
    Put,
    Session,
    SessionLost,
    Unavailable,
    Uncertain,
)
from odradek.errors import OdradekError

__all__ = ["IdInUse", "Membership", "open_membership"]

logger = logging.getLogger(__name__)

SESSION_TTL = 10.0
PATIENCE = 30.0
"""Seconds to wait for an earlier life's registration of the same id to go away."""

RETRY_FIRST_S = 0.1
RETRY_LAST_S = 5.0


class IdInUse(OdradekError):
    """Another broker with this id is alive; the message says what to do."""


class Membership:
    """This broker's place in the cluster; see `open_membership`."""

    def __init__(self, coordinator: Coordinator, view: ClusterView, image: BrokerImage) -> None:
        self._coordinator = coordinator
        self._view = view
        self._image = image
        self._session: Session | None = None

    def alive(self) -> bool:
        """Whether the others still count on this broker, as far as it can know by itself."""
        return self._session is not None and self._session.alive

    async def keep(self, task_status: trio.TaskStatus[None]) -> None:
        """Register, and again whenever the session was lost, until cancelled.

        Raises, before the first registration only, IdInUse and the coordinator's errors.
        """
        pause = RETRY_FIRST_S
        begun = False
        while True:
            try:
                async with self._coordinator.session(SESSION_TTL) as session:
                    await self._register(session)
                    self._session = session
                    if begun:
                        logger.warning("broker %d is registered again", self._image.id)
                    else:
                        begun = True
                        task_status.started()
                    pause = RETRY_FIRST_S
                    await session.lost.wait()
                logger.error("the session with the coordinator was lost: registering again")
            except (IdInUse, SessionLost, Unavailable, Uncertain) as error:
                if not begun:
                    raise
                logger.error("cannot register again yet: %s", error)
            await trio.sleep(pause)
            pause = min(2 * pause, RETRY_LAST_S)

    async def _register(self, session: Session) -> None:
        """Announce the broker as alive, waiting for an earlier life of it to end."""
        broker = self._image
        key = keys.broker_key(broker.id)
        put = Put(key, keys.broker_value(broker), ABSENT, session)
        with trio.move_on_after(PATIENCE):
            while True:
                try:
                    await self._coordinator.txn(put)
                except Conflict:
                    entry = await self._coordinator.get(key)
                    if entry is None or entry.owner != session.id:
                        logger.warning("waiting for another broker with id %d to go", broker.id)
                        await self._view.wait_until(lambda image: broker.id not in image.brokers)
                        continue
                except Uncertain:
                    continue  # a second attempt tells whether the first was applied
                await self._view.wait_until(lambda image: broker.id in image.brokers)
                return
        raise IdInUse(
            f"a broker with id {broker.id} is alive in this cluster: give each broker an id of "
            "its own ([broker] id)"
        )


@asynccontextmanager
async def open_membership(
    coordinator: Coordinator, view: ClusterView, image: BrokerImage
) -> AsyncIterator[Membership]:
    """Be registered, and seen so in `view`, while the context is open. Raises IdInUse."""
    membership = Membership(coordinator, view, image)
    async with open_tasks() as tasks:
        await tasks.start(membership.keep)
        yield membership
