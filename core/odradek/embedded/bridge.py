"""Where threads meet trio: the only file of the embedded coordinator that starts any.

SQLite blocks while it syncs, so each call runs in one of trio's worker threads, never two at a
time. No call is abandoned half-way: cancellation waits for the disk.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import trio

from odradek.contracts.coordinator import Entry
from odradek.embedded.database import Database

__all__ = ["DatabaseThread"]


class DatabaseThread:
    """A `Database` for use from trio; see there for the errors. For one task at a time."""

    def __init__(self, database: Database) -> None:
        self.path = database.path
        self.boot = database.boot
        self.entries = database.entries
        self._database = database
        self._limiter = trio.CapacityLimiter(1)

    @classmethod
    async def open(cls, directory: Path) -> DatabaseThread:
        """Open the database in `directory`."""
        return cls(await trio.to_thread.run_sync(Database.open, directory))

    async def write(self, changes: Mapping[str, Entry | None]) -> None:
        """Make a write durable."""
        await trio.to_thread.run_sync(self._database.write, changes, limiter=self._limiter)

    async def close(self) -> None:
        """Close the database, also when cancelled."""
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(self._database.close, limiter=self._limiter)
