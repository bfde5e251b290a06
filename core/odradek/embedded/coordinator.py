"""The embedded coordinator: one process, one SQLite database, no server.

What it means is `LocalCoordinator`'s; this gives it a disk. Nobody else can have the database open.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from odradek.contracts.background import background
from odradek.contracts.coordinator import Entry
from odradek.contracts.local import LocalCoordinator
from odradek.embedded.bridge import DatabaseThread
from odradek.embedded.settings import EmbeddedCoordinatorSettings

__all__ = ["EmbeddedCoordinator", "open_embedded_coordinator"]


class EmbeddedCoordinator(LocalCoordinator):
    """See `open_embedded_coordinator`."""

    def __init__(self, database: DatabaseThread, settings: EmbeddedCoordinatorSettings) -> None:
        super().__init__(
            database.path,
            database.boot,
            database.entries,
            request_timeout=settings.request_timeout_ms / 1000,
            max_queued_writes=settings.max_queued_writes,
            max_batch_writes=settings.max_batch_writes,
        )
        self._database = database

    async def store(self, changes: Mapping[str, Entry | None]) -> None:
        """See `LocalCoordinator.store`."""
        await self._database.write(changes)


@asynccontextmanager
async def open_embedded_coordinator(
    path: Path, settings: EmbeddedCoordinatorSettings | None = None
) -> AsyncIterator[EmbeddedCoordinator]:
    """Open the coordinator whose database is in the directory `path`, creating it where absent.

    Leaving the context ends all sessions and closes the database; writes that nobody has begun
    to apply raise Unavailable.

    Raises `InUse` when another process (or another coordinator of this one) has it open,
    `Damaged` when the database cannot be trusted, Unavailable when the operating system refuses.
    """
    database = await DatabaseThread.open(path)
    try:
        coordinator = EmbeddedCoordinator(database, settings or EmbeddedCoordinatorSettings())
        async with background(coordinator.commit_forever):
            yield coordinator
    finally:
        await database.close()
