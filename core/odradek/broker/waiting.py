"""Responses that are not ready when the next request of their connection is.

A handler answers at once with a message, or with a `Pending`: the connection then goes on
reading requests, and its writer finishes pending responses in the order of the requests.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import trio

from odradek.contracts.storage import StorageError
from odradek.errors import OdradekError
from odradek.log.partition import PartitionLog
from odradek.wire import Message

__all__ = ["Advance", "HangUp", "Outstanding", "Pending", "committed", "wait_committed"]


class HangUp(OdradekError):
    """A handler asks for the connection to be closed once all before it is answered."""


class Pending(ABC):
    """A response to come. `weight`: bytes that it takes while it waits, where they are many."""

    __slots__ = ()

    weight = 0

    @abstractmethod
    def ready(self) -> bool:
        """Whether `wait` would return at once. Cheap: asked for each response in turn."""

    @abstractmethod
    async def wait(self) -> None:
        """Wait until the response can be built, or its time is up."""

    def hurry(self) -> None:  # noqa: B027  # only who waits for others' doing can be hurried
        """Be ready as soon as may be: the broker is about to end. Idempotent."""

    def frame(self, correlation_id: int) -> bytearray | None:
        """Return the whole response frame, if it can be had cheaper than by `finish`."""
        return None

    @abstractmethod
    async def finish(self) -> Message:
        """Build the response. Called once, after `ready` or `wait`."""


class Outstanding(NamedTuple):
    """A response to come, with what its frame needs."""

    api_key: int
    version: int
    correlation_id: int
    pending: Pending


class Advance:
    """Wakes when any of several partitions has more to read than before. A `Watcher`."""

    __slots__ = ("_event", "_logs")

    def __init__(self, logs: list[PartitionLog]) -> None:
        self._logs = logs
        self._event = trio.Event()
        for log in logs:
            log.watch(self)

    def advanced(self, log: PartitionLog) -> None:
        """See `Watcher`."""
        self._event.set()

    async def wait(self) -> None:
        """Wait for the next advance since the last `wait`, or since the construction."""
        await self._event.wait()
        self._event = trio.Event()

    def close(self) -> None:
        """Stop watching."""
        for log in self._logs:
            log.unwatch(self)


def committed(waits: list[tuple[PartitionLog, int]]) -> bool:
    """Whether every (log, end offset) is committed, or never will be."""
    for log, end_offset in waits:  # a generator would double the cost
        if log.high_watermark < end_offset and log.failure is None:
            return False
    return True


async def wait_committed(waits: list[tuple[PartitionLog, int]]) -> None:
    """Return when `committed(waits)`."""
    for log, end_offset in waits:
        try:
            await log.wait_committed(end_offset)
        except StorageError:
            continue  # told apart per partition when the response is built
