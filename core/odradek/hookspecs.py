"""What a plugin can supply, as pluggy hook specifications.

A plugin is an importable module named in the entry-point group `odradek`; its functions marked
with `odradek.hookspecs.hookimpl` are its hooks. Every hook is synchronous, is called once at
start-up, and returns **factories**: descriptions that say which URL scheme they serve, which
settings they take, and how to open the thing itself. Nothing is opened while hooks run, so a
plugin's module should import little until its factory is used.

Two factories for one scheme are an error that names both distributions; there is no order of
precedence.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Generic, TypeVar

import pluggy
from attrs import field, frozen

from odradek.contracts.coordinator import Coordinator
from odradek.contracts.storage import SegmentStore
from odradek.contracts.transport import Transport
from odradek.types import PartitionKey

__all__ = [
    "PROJECT",
    "CoordinatorFactory",
    "Factory",
    "Finding",
    "Quarantine",
    "Quarantined",
    "StorageFactory",
    "TransportFactory",
    "hookimpl",
    "hookspec",
]

PROJECT = "odradek"
"""The pluggy project name, and the entry-point group."""

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)

T_co = TypeVar("T_co", covariant=True)


@frozen(slots=True)
class Finding:
    """Something in a storage that is not as it should be: what and where, in words.

    `severe`: not a cache that is made again by itself.
    """

    text: str
    severe: bool = True


@frozen(slots=True)
class Quarantined:
    """What one repair set aside. `name` is unique in the storage, `size` in bytes.

    `at_ms`: when, in milliseconds since 1970. `reason`: a line each.
    """

    name: str
    key: PartitionKey
    at_ms: int
    size: int
    files: int
    reason: tuple[str, ...]


@frozen(slots=True)
class Quarantine:
    """What can be done with what repairs set aside. Every function blocks and raises StorageError.

    `entries(url, settings)`: what there is, oldest first; also beside a running broker.
    `restore(url, settings, name)`: put a partition back as it was before that repair, and set
    aside what takes its place now; a line each says what was done. `delete(url, settings, name)`:
    free its room, for good. Both only while nobody has the storage open.
    """

    entries: Callable[[str, Any], Sequence[Quarantined]] = field(eq=False)
    restore: Callable[[str, Any, str], Sequence[str]] = field(eq=False)
    delete: Callable[[str, Any, str], None] = field(eq=False)


@frozen(slots=True)
class Factory(Generic[T_co]):
    """How to open one kind of thing.

    `scheme`: the URL scheme served, such as `file`. `settings`: an attrs class; each field has a
    type, a default and, in its metadata, `doc` (see `odradek.config.setting`); the keys of the
    configuration section other than `url` are structured into it. `open(url, settings)` gives an
    async context manager; leaving it closes everything, with no task or thread left behind.

    `repair(url, settings, key, how)`, for storages that can: make a damaged partition one that
    opens, and return what was done, a line each. `how` is `cut` (end the log before the damage)
    or `skip` (leave out what is damaged, keep what follows). It blocks, and is called while
    nobody has the storage open. Raises StorageError, saying why not. `odradek log repair` calls it.

    `verify(url, settings, key)`, for storages that keep more than segments: check a partition's
    other files (indexes, descriptions) and how they fit the segments. The segments' own batches
    are checked by `odradek log verify`, which calls it. It blocks, changes nothing, and may be
    called beside a broker that writes. Raises StorageError.

    `quarantine`, for storages whose `repair` sets data aside.
    """

    scheme: str
    settings: type[Any]
    open: Callable[[str, Any], AbstractAsyncContextManager[T_co]] = field(eq=False)
    repair: Callable[[str, Any, PartitionKey, str], Sequence[str]] | None = field(
        default=None, eq=False
    )
    verify: Callable[[str, Any, PartitionKey], Sequence[Finding]] | None = field(
        default=None, eq=False
    )
    quarantine: Quarantine | None = field(default=None, eq=False)


StorageFactory = Factory[SegmentStore]
CoordinatorFactory = Factory[Coordinator]
TransportFactory = Factory[Transport]


@hookspec
def odradek_storage() -> Sequence[Factory[SegmentStore]]:  # type: ignore[empty-body]  # a specification
    """Return the factories of segment stores that this plugin supplies."""


@hookspec
def odradek_coordinator() -> Sequence[Factory[Coordinator]]:  # type: ignore[empty-body]  # likewise
    """Return the factories of coordinators that this plugin supplies."""


@hookspec
def odradek_transport() -> Sequence[Factory[Transport]]:  # type: ignore[empty-body]  # likewise
    """Return the factories of transports that this plugin supplies.

    One transport object serves every listener and every outgoing connection of its scheme.
    """
