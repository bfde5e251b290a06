"""The embedded coordinator: one process, one SQLite database, no server."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path

from odradek.contracts.local import LocalCoordinator, open_local_coordinator
from odradek.embedded.database import Database
from odradek.embedded.settings import EmbeddedCoordinatorSettings

__all__ = ["open_embedded_coordinator"]


def open_embedded_coordinator(
    path: Path, settings: EmbeddedCoordinatorSettings | None = None
) -> AbstractAsyncContextManager[LocalCoordinator]:
    """Open the coordinator whose database is in the directory `path`, creating it where absent.

    Raises `InUse` when another process (or another coordinator of this one) has it open,
    `Damaged` when the database cannot be trusted, Unavailable when the operating system refuses.
    See also `open_local_coordinator`.
    """
    settings = settings or EmbeddedCoordinatorSettings()
    return open_local_coordinator(
        partial(Database.open, path, settings.ballast_bytes),
        request_timeout=settings.request_timeout_ms / 1000,
        max_queued_writes=settings.max_queued_writes,
        max_batch_writes=settings.max_batch_writes,
    )
