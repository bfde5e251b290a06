"""What a partition's log gives to those who use it, and what it wants of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from odradek.contracts.storage import DataRef

if TYPE_CHECKING:
    from odradek.log.partition import PartitionLog

__all__ = ["Append", "ReadResult", "Spawn", "Watcher"]


class Spawn(Protocol):
    """What starts a log's background tasks, in the broker's nursery."""

    def __call__(self, async_fn: Callable[..., Any], *args: Any) -> object:
        """Start one; it ends by itself."""


class Watcher(Protocol):
    """Somebody who waits for more to read in any of several partitions."""

    def advanced(self, log: PartitionLog) -> None:
        """Called, synchronously, when the log's high watermark moved or the log went away."""


class Append(NamedTuple):
    """Where an append went: first offset, and the offset whose commit acknowledges it.

    `timestamp` is the log append time in ms, or -1 under CreateTime.
    """

    base_offset: int
    end_offset: int
    timestamp: int
    duplicate: bool


class ReadResult(NamedTuple):
    """What a fetch gets: whole batches as one range of stored bytes (or None for nothing)."""

    data: DataRef | None
    high_watermark: int
    log_start_offset: int
