"""The settings of the embedded coordinator."""

from __future__ import annotations

from attrs import frozen

from odradek.config import setting

__all__ = ["EmbeddedCoordinatorSettings"]


@frozen(slots=True, kw_only=True)
class EmbeddedCoordinatorSettings:
    """How much may wait for the disk, for how long, and what to do without room on it."""

    max_queued_writes: int = setting(
        1024, minimum=1, doc="Writes that may wait for the disk; further callers wait their turn."
    )
    max_batch_writes: int = setting(
        256, minimum=1, doc="Writes that are made durable by one sync of the disk at the most."
    )
    request_timeout_ms: int = setting(
        30_000,
        minimum=1,
        doc="How long a write waits for the disk before it is reported as unavailable, or as "
        "uncertain when it had reached the disk.",
    )
    ballast_bytes: int = setting(
        1024 * 1024,
        minimum=0,
        doc="Size of a file that only takes up room, given back for writes that find none, so "
        "that a broker can start and settings can be changed on a full disk.",
    )
