"""The three contracts in memory: for tests, for trying out, and as the shortest examples.

`memory://name` for storage and transport, `memory:name` for the coordinator. Names are shared
within the process: what was opened by a name can be opened again by it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from attrs import frozen

from odradek.contracts.coordinator import Coordinator
from odradek.contracts.storage import SegmentStore
from odradek.contracts.transport import Transport
from odradek.hookspecs import (
    CoordinatorFactory,
    StorageFactory,
    TransportFactory,
    hookimpl,
)
from odradek.memory.storage import MemoryStorageSettings, open_memory_store

__all__ = ["odradek_coordinator", "odradek_storage", "odradek_transport"]


@frozen(kw_only=True)
class NoSettings:
    """There is nothing to set."""


def _name(url: str) -> str:
    return url.partition(":")[2].removeprefix("//")


def _store(url: str, settings: MemoryStorageSettings) -> AbstractAsyncContextManager[SegmentStore]:
    return open_memory_store(_name(url), settings)


def _coordinator(url: str, _: NoSettings) -> AbstractAsyncContextManager[Coordinator]:
    from odradek.memory.coordinator import open_memory_coordinator

    return open_memory_coordinator(_name(url))


@asynccontextmanager
async def _transport(_: str, __: NoSettings) -> AsyncIterator[Transport]:
    from odradek.memory.transport import MemoryTransport

    yield MemoryTransport()


@hookimpl
def odradek_storage() -> Sequence[StorageFactory]:
    """Serve `memory://name`."""
    return [StorageFactory("memory", MemoryStorageSettings, _store)]


@hookimpl
def odradek_coordinator() -> Sequence[CoordinatorFactory]:
    """Serve `memory:name`."""
    return [CoordinatorFactory("memory", NoSettings, _coordinator)]


@hookimpl
def odradek_transport() -> Sequence[TransportFactory]:
    """Serve `memory://name`."""
    return [TransportFactory("memory", NoSettings, _transport)]
