"""The coordinator contract: small versioned keys, transactions, watches and sessions.

A coordinator keeps what the brokers of a cluster must agree on: who is alive, who leads, which
topics exist. It holds thousands of small entries and changes rarely; nothing that happens per
message may go through it. ZooKeeper, etcd, one SQLite database and plain memory all serve this
contract, so it asks for no more than all of them can give.

The promises, each cited by the tests of `odradek.testing.coordinator`:

Keys and values

* **C1 keys**: a key is ``directory/name``: exactly one slash, each part 1 to 255 printable ASCII
  characters without space, neither ``.`` nor ``..``. A value has 1 to 262,144 bytes. Anything
  else is a ValueError before anything is sent.
* **C2 get**: `Coordinator.get` is linearisable: it answers with a state at least as new as every
  write that was acknowledged, to any client, before the call began.
* **C3 list**: `Coordinator.list` answers with the entries of one directory and no others, each as
  linearisable as `get`; the entries need not be of one instant.
* **C4 put**: `Coordinator.put` creates or overwrites whatever is there and returns the new version.
* **C5 version**: `Entry.version` is an opaque compare-and-set token: a write through it succeeds
  while it is the newest, and raises Conflict when the entry was written since. It may repeat after
  the key was deleted and created again (ZooKeeper's does), so a name that is deleted and created
  again carries a unique id in its value.
* **C6 revision**: `Entry.revision` grows with every write to a key, also across its deletion.
* **C7 created**: `Entry.created` stays through overwrites and changes exactly when the key is
  created again.

Transactions

* **C8 atomicity**: `Coordinator.txn` applies all of its operations or none.
* **C9 expectations**: each operation carries its own: Put a version or ABSENT, Delete and Check a
  version. One that is not met raises Conflict.
* **C10 limits**: 1 to 64 operations, each key once, at most 524,288 bytes of keys and values in
  all; anything else is a ValueError before anything is sent.
* **C11 races**: of transactions that race for one version, exactly one succeeds.

Watches

* **C12 snapshot**: `Watch.snapshot` holds every write acknowledged before the watch was asked for.
* **C13 changes**: every later change of the directory is told: a key's newest state, or None once
  it is gone; never an older state after a newer one, and no other directory's. There is no order
  between keys: what must be seen together lives in one value.
* **C14 level-triggered**: a reader that comes late is told the newest state of each key, not its
  history; an unread watch holds at most one change per key.
* **C15 endless**: reconnects, restarts of the server and compaction of its history are repaired
  inside of the watch, and what changed meanwhile is told.

Sessions

* **C16 ephemerals**: an entry created with a session names it as `owner`, keeps it through
  overwrites by anybody, and is gone when the session's context has been left. A session serves
  only the coordinator that opened it; another's is a ValueError.
* **C17 loss**: when a session is lost, its entries are deleted, `Session.lost` is set and
  `Session.alive` is false for ever; a Put with it raises SessionLost, nothing applied.
* **C18 deadline**: `Session.alive` turns false by this client's own clock, at the latest
  `Session.ttl` after the last acknowledged renewal was *sent*, hence before the server gives the
  session's entries away, whether or not the server can be reached.
* **C19 renewal**: a session whose server can be reached outlives its `ttl`.

Failure

* **C20 durability**: what was acknowledged survives a restart of the server, with its version,
  revision and time of creation, where the plugin is durable at all.
* **C21 definite errors**: after Conflict, Unavailable, SessionLost and Denied nothing was applied,
  and nothing appears later. What may have been applied raises Uncertain. A coordinator that was
  cut off serves again by itself once its server can be reached.
* **C22 cancellation**: a cancelled `txn` or `put` is applied whole or not at all; the caller does
  not learn which. Any other cancelled call has no effect.
* **C23 close**: once its context has been left, a coordinator raises Unavailable, its watches too,
  and its sessions are lost.

Elections (`odradek.contracts.election`)

* **C24 one leader**: at most one candidate at a time is the leader of a name; the next one follows
  when the leader's session has ended.
* **C25 epochs**: each leadership has a higher epoch than any before it of that name, also across
  restarts of the server where the plugin is durable.
* **C26 fence**: ``txn(leader.fence, ...)`` raises Conflict from the moment a later leader exists.

Sessions do not replace fencing: a paused process cannot notice in time that its session ended,
so every write as leader is ``txn(leader.fence, ...)``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from enum import Enum
from typing import Final, Literal, NewType, TypeAlias

import trio
from attrs import field, frozen

from odradek.errors import OdradekError

__all__ = [
    "ABSENT",
    "MAX_KEY_PART",
    "MAX_TXN_BYTES",
    "MAX_TXN_OPS",
    "MAX_VALUE_BYTES",
    "Absent",
    "Change",
    "Check",
    "Conflict",
    "Coordinator",
    "CoordinatorError",
    "Delete",
    "Denied",
    "Entry",
    "Op",
    "Put",
    "Session",
    "SessionLost",
    "Unavailable",
    "Uncertain",
    "Version",
    "Watch",
    "check_directory",
    "check_key",
    "check_ttl",
    "check_txn",
    "check_value",
    "directory_of",
]

MAX_KEY_PART: Final = 255
"""Characters of a directory and of a name (C1)."""
MAX_VALUE_BYTES: Final = 256 * 1024
"""Bytes of a value (C1)."""
MAX_TXN_OPS: Final = 64
"""Operations of a transaction (C10); etcd refuses more than 128 by default."""
MAX_TXN_BYTES: Final = 512 * 1024
"""Bytes of the keys and values of a transaction (C10): ZooKeeper closes the connection on which
a request of more than jute.maxbuffer, 1 MiB by default, arrives."""

Version = NewType("Version", int)
"""A compare-and-set token (C5). Only equality means anything, and only for one key."""


class Absent(Enum):
    """The type of ABSENT."""

    ABSENT = "absent"

    def __repr__(self) -> str:
        return "ABSENT"


ABSENT: Final[Literal[Absent.ABSENT]] = Absent.ABSENT
"""In place of a version: there is no such entry."""


# --- errors -----------------------------------------------------------------------------------


class CoordinatorError(OdradekError):
    """Base of what a coordinator raises; all but Uncertain mean that nothing was applied."""


class Conflict(CoordinatorError):
    """An expectation of a transaction was not met: somebody else wrote. Read again and decide."""


class Unavailable(CoordinatorError):
    """The server cannot be reached, or the coordinator was closed; nothing was applied.

    The same call may succeed later, except on a closed or broken coordinator: the message says
    so. When the call may have been applied, `Uncertain` is raised instead.
    """


class SessionLost(CoordinatorError):
    """The session of a Put has ended and never comes back; nothing was applied."""


class Denied(CoordinatorError):
    """The server refuses this client: credentials or rights. Nothing was applied, and trying
    again does not help.
    """


class Uncertain(CoordinatorError):
    """The write may have been applied, or may still be, even after the next read.

    Raised when an answer got lost. Read again; a later transaction settles it, because its
    expectation holds only if the uncertain one was not applied before.
    """


# --- what is checked before anything is sent ---------------------------------------------------


def _check_part(part: str, of: str) -> None:
    if not 0 < len(part) <= MAX_KEY_PART:
        raise ValueError(f"{of!r}: a directory or name has 1 to {MAX_KEY_PART} characters")
    if part in {".", ".."} or not part.isascii() or not part.isprintable() or " " in part:
        raise ValueError(f"{of!r}: not printable ASCII without spaces, or '.' or '..'")
    if "/" in part:
        raise ValueError(f"{of!r}: a key is directory/name, with exactly one slash")


def check_directory(directory: str) -> None:
    """Raise ValueError unless `directory` is one (C1)."""
    _check_part(directory, directory)


def check_key(key: str) -> None:
    """Raise ValueError unless `key` is ``directory/name`` (C1)."""
    directory, slash, name = key.partition("/")
    if not slash:
        raise ValueError(f"{key!r}: a key is directory/name, with exactly one slash")
    _check_part(directory, key)
    _check_part(name, key)


def check_value(key: str, value: bytes) -> None:
    """Raise ValueError unless `value` may be stored under `key` (C1)."""
    if not isinstance(value, bytes):
        raise TypeError(f"{key!r}: a value is bytes, not {type(value).__name__}")
    if not 0 < len(value) <= MAX_VALUE_BYTES:
        raise ValueError(f"{key!r}: a value has 1 to {MAX_VALUE_BYTES} bytes, not {len(value)}")


def check_ttl(ttl: float) -> None:
    """Raise ValueError unless `ttl` is a number of seconds above 0."""
    if not 0 < ttl < float("inf"):
        raise ValueError(f"a session's ttl is a finite number of seconds above 0, not {ttl}")


def directory_of(key: str) -> str:
    """Return the directory of a valid key."""
    return key.partition("/")[0]


# --- values -----------------------------------------------------------------------------------


@frozen(slots=True)
class Entry:
    """A key and its value as the coordinator held them at one moment.

    `version` is the token for the next Put, Delete or Check (C5); `revision` orders the states
    of this key (C6); `created` tells one life of the key from the next (C7); `owner` is the id
    of the session the entry ends with, None for a persistent one (C16).
    """

    key: str
    value: bytes
    version: Version
    revision: int
    created: int
    owner: str | None = None


@frozen(slots=True)
class Change:
    """What a watch tells: the newest state of `key`, None when it is gone."""

    key: str
    entry: Entry | None


@frozen(slots=True)
class Put:
    """Write `value` if `key` is at `version`; with ABSENT, create it.

    With `session` the entry is ephemeral (C16). That is settled when an entry is created and
    cannot be changed, so `session` goes with ABSENT only.
    """

    key: str
    value: bytes = field(repr=lambda value: f"<{len(value)} bytes>")
    version: Version | Absent
    session: Session | None = None

    def __attrs_post_init__(self) -> None:
        check_key(self.key)
        check_value(self.key, self.value)
        if self.session is not None and self.version is not ABSENT:
            raise ValueError(f"{self.key!r}: an entry becomes ephemeral only by being created")


@frozen(slots=True)
class Delete:
    """Delete `key` if it is at `version`."""

    key: str
    version: Version

    def __attrs_post_init__(self) -> None:
        check_key(self.key)


@frozen(slots=True)
class Check:
    """Change nothing, but let the transaction succeed only if `key` is at `version`."""

    key: str
    version: Version

    def __attrs_post_init__(self) -> None:
        check_key(self.key)


Op: TypeAlias = Put | Delete | Check


def check_txn(ops: tuple[Op, ...]) -> None:
    """Raise ValueError unless `ops` may be one transaction (C10)."""
    if not 0 < len(ops) <= MAX_TXN_OPS:
        raise ValueError(f"a transaction has 1 to {MAX_TXN_OPS} operations, not {len(ops)}")
    if len({op.key for op in ops}) != len(ops):
        raise ValueError("a transaction names each key once")
    size = sum(len(op.key) + (len(op.value) if isinstance(op, Put) else 0) for op in ops)
    if size > MAX_TXN_BYTES:
        raise ValueError(f"a transaction has at most {MAX_TXN_BYTES} bytes, not {size}")


# --- the contract -----------------------------------------------------------------------------


class Session(ABC):
    """A client's claim to be alive, renewed by the plugin until its context is left.

    `id` is unique among all sessions of this coordinator, past and present. `ttl` is in seconds
    and as granted: a server may round or clamp what was asked for. `lost` is set once the
    session has ended, for whatever reason, and is the one event for all who wait.
    """

    id: str
    ttl: float
    lost: trio.Event

    @property
    @abstractmethod
    def alive(self) -> bool:
        """Whether the session is still good by this client's own clock (C18).

        Costs no more than reading the clock: ask right before acting. False may precede `lost`,
        and is final.
        """


class Watch(ABC):
    """The entries of a directory and, by iteration, whatever becomes of them.

    `snapshot` maps keys to entries as they were when the watch began (C12); it is not updated.
    Iterate with ``async for``, from one task at a time (trio.BusyResourceError otherwise). The
    iteration is endless (C15). It raises Unavailable only when the coordinator was closed or is
    broken for good, and Denied when the server withdrew the right to read. A cancelled
    iteration has lost nothing: the next one goes on with the same change.
    """

    snapshot: Mapping[str, Entry]

    def __aiter__(self) -> AsyncIterator[Change]:
        """Return itself: there is one stream of changes."""
        return self

    @abstractmethod
    async def __anext__(self) -> Change:
        """Wait for the next change (C13, C14)."""


class Coordinator(ABC):
    """One client of a coordinator; all of its methods may be used by many tasks at once.

    Every method raises ValueError for what breaks C1 or C10, Denied when the server refuses
    this client, and Unavailable when no answer can be had within the request timeout of the
    plugin: no call waits for ever.
    """

    @abstractmethod
    async def get(self, key: str) -> Entry | None:
        """Return the entry of `key`, None when there is none (C2)."""

    @abstractmethod
    async def list(self, directory: str) -> dict[str, Entry]:
        """Return the entries of `directory` by key, empty when there are none (C3).

        The dictionary is the caller's own.
        """

    @abstractmethod
    async def put(self, key: str, value: bytes) -> Version:
        """Create or overwrite `key`, whatever is there; return its new version (C4).

        Of concurrent calls the last one wins. It may be repeated after Uncertain, if an
        overwrite by somebody else in between does not matter. Durable on return (C20).

        Raises Uncertain when it may have been applied.
        """

    @abstractmethod
    async def txn(self, *ops: Op) -> tuple[Version | Absent, ...]:
        """Apply `ops` together or not at all; return each key's version afterwards (C8 to C11).

        The result has one element per operation, in order: a new version for Put, the version
        that was checked for Check, ABSENT for Delete. Durable on return (C20).

        Raises Conflict when an expectation is not met, SessionLost when the session of a Put
        has ended, Uncertain when it may have been applied.
        """

    @abstractmethod
    def watch(self, directory: str) -> AbstractAsyncContextManager[Watch]:
        """Watch `directory`, which may be empty; entering waits for the snapshot (C12 to C15)."""

    @abstractmethod
    def session(self, ttl: float) -> AbstractAsyncContextManager[Session]:
        """Open a session of `ttl` seconds, more than 0; ValueError otherwise (C16 to C19).

        Losing the session does not end its context: wait for `Session.lost`. Leaving the
        context ends the session and deletes its entries; where the server cannot be reached
        they go when it expires there. Leaving raises no CoordinatorError.
        """
