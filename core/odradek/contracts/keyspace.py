"""What the coordinator contract means, executable and without I/O.

A `Keyspace` is the state that one process holds: memory serves it as it is, a `LocalCoordinator`
makes it durable. Changes are made in a `Draft`, which sees its own writes, and become
visible all at once by `Keyspace.commit`; a draft that is dropped never happened. So a plugin can
collect many transactions in one draft, store `Draft.lasting_changes`, and only then commit.

There is one draft at a time: the owner commits or drops it before beginning the next.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import TypeVar

from attrs import evolve

from odradek.contracts.coordinator import (
    ABSENT,
    Absent,
    Change,
    Conflict,
    Coordinator,
    Delete,
    Entry,
    Op,
    Put,
    SessionLost,
    Version,
    check_directory,
    check_key,
    check_txn,
    check_value,
    directory_of,
)
from odradek.contracts.watching import ChangeBuffer

__all__ = ["Draft", "Keyspace", "KeyspaceCoordinator"]

T = TypeVar("T")

_NOTHING: Mapping[str, Entry] = MappingProxyType({})


class Keyspace:
    """The entries, who owns the ephemeral ones, and who watches.

    `entries` are those to begin with; `revision` is the number after which the next write is
    numbered, at least as high as any revision in `entries`.
    """

    def __init__(self, revision: int = 0, entries: Mapping[str, Entry] = _NOTHING) -> None:
        self.revision = revision
        self._directories: dict[str, dict[str, Entry]] = {}
        self._owned: dict[str, set[str]] = {}  # session id -> keys; its keys are the live sessions
        self._watches: dict[str, set[ChangeBuffer]] = {}
        for entry in entries.values():
            self._store(entry)

    def get(self, key: str) -> Entry | None:
        """Return the committed entry of `key`."""
        return self._directories.get(directory_of(key), _NOTHING).get(key)

    def list(self, directory: str) -> dict[str, Entry]:
        """Return the committed entries of `directory`, in a dictionary of the caller's own."""
        return dict(self._directories.get(directory, _NOTHING))

    def begin(self) -> Draft:
        """Begin a draft on the committed state."""
        return Draft(self)

    def commit(self, draft: Draft) -> None:
        """Make everything in `draft` visible, and tell the watches."""
        self.revision = draft.revision
        for key, entry in draft.changes.items():
            if entry is None:
                self._discard(key)
            else:
                self._store(entry)
            for watch in self._watches.get(directory_of(key), ()):
                watch.tell(Change(key, entry))
        for session_id in draft.ended_sessions:
            self._owned.pop(session_id, None)

    # --- sessions

    def add_session(self, session_id: str) -> None:
        """Let `session_id` own entries from now on."""
        self._owned[session_id] = set()

    def has_session(self, session_id: str) -> bool:
        """Whether `session_id` was added and has not ended."""
        return session_id in self._owned

    def owned(self, session_id: str) -> frozenset[str]:
        """Return the keys that `session_id` owns."""
        return frozenset(self._owned.get(session_id, ()))

    # --- watches

    def add_watch(self, directory: str, watch: ChangeBuffer) -> None:
        """Tell `watch` of every change in `directory` that is committed from now on."""
        self._watches.setdefault(directory, set()).add(watch)

    def remove_watch(self, directory: str, watch: ChangeBuffer) -> None:
        """Tell `watch` nothing any more; harmless when it was not being told."""
        watches = self._watches.get(directory, set())
        watches.discard(watch)
        if not watches:
            self._watches.pop(directory, None)

    def watches(self) -> Iterator[ChangeBuffer]:
        """Iterate over all watches."""
        for watches in self._watches.values():
            yield from watches

    # --- storing

    def _store(self, entry: Entry) -> None:
        self._disown(entry.key)
        self._directories.setdefault(directory_of(entry.key), {})[entry.key] = entry
        if entry.owner is not None:
            self._owned[entry.owner].add(entry.key)

    def _discard(self, key: str) -> None:
        self._disown(key)
        directory = directory_of(key)
        entries = self._directories.get(directory)
        if entries is None or entries.pop(key, None) is None:
            return  # created and deleted within one draft
        if not entries:
            del self._directories[directory]

    def _disown(self, key: str) -> None:
        before = self.get(key)
        if before is not None and before.owner is not None:
            self._owned[before.owner].discard(key)


class Draft:
    """Changes that nobody sees yet.

    `changes` maps keys to their state after the draft, None for deleted; `revision` is the last
    one given out; `ended_sessions` are gone once it is committed. `size` is how many bytes of keys
    and values were written.
    """

    def __init__(self, keyspace: Keyspace) -> None:
        self._keyspace = keyspace
        self.revision = keyspace.revision
        self.size = 0
        self.changes: dict[str, Entry | None] = {}
        self.ended_sessions: set[str] = set()

    def get(self, key: str) -> Entry | None:
        """Return the entry of `key` as the draft has it."""
        return self.changes[key] if key in self.changes else self._keyspace.get(key)

    def put(self, key: str, value: bytes) -> Version:
        """Create or overwrite `key`; return its new version."""
        return self._write(key, value, None)

    def txn(self, ops: tuple[Op, ...]) -> tuple[Version | Absent, ...]:
        """Apply a transaction that passed `check_txn`; see `Coordinator.txn`.

        Raises Conflict and SessionLost, and then has changed nothing.
        """
        for op in ops:
            self._expect(op)
        return tuple(self._apply(op) for op in ops)

    def end_session(self, session_id: str) -> None:
        """Delete what the session owns and let it own nothing more; harmless when it has ended."""
        if session_id in self.ended_sessions or not self._keyspace.has_session(session_id):
            return
        created = {
            key for key, entry in self.changes.items() if entry and entry.owner == session_id
        }
        for key in self._keyspace.owned(session_id) | created:
            entry = self.get(key)
            if entry is not None and entry.owner == session_id:
                self._delete(key)
        self.ended_sessions.add(session_id)

    def lasting_changes(self) -> dict[str, Entry | None]:
        """Return what the disk must know of `changes`, where an ephemeral entry is none."""
        lasting: dict[str, Entry | None] = {}
        for key, entry in self.changes.items():
            if entry is not None and entry.owner is None:
                lasting[key] = entry
            else:
                before = self._keyspace.get(key)
                if before is not None and before.owner is None:
                    lasting[key] = None
        return lasting

    def _expect(self, op: Op) -> None:
        entry = self.get(op.key)
        found = ABSENT if entry is None else entry.version
        if found != op.version:
            raise Conflict(f"{op.key!r} is at version {found}, not {op.version}")
        if isinstance(op, Put) and op.session is not None:
            session_id = op.session.id
            if session_id in self.ended_sessions or not self._keyspace.has_session(session_id):
                raise SessionLost(f"session {session_id} has ended")

    def _apply(self, op: Op) -> Version | Absent:
        if isinstance(op, Put):
            return self._write(op.key, op.value, op.session.id if op.session else None)
        if isinstance(op, Delete):
            self._delete(op.key)
            return ABSENT
        return op.version

    def _write(self, key: str, value: bytes, owner: str | None) -> Version:
        self.revision += 1
        self.size += len(key) + len(value)
        version = Version(self.revision)
        before = self.get(key)
        if before is None:
            after = Entry(key, value, version, self.revision, self.revision, owner)
        else:
            after = evolve(before, value=value, version=version, revision=self.revision)
        self.changes[key] = after
        return version

    def _delete(self, key: str) -> None:
        self.revision += 1
        self.changes[key] = None


class KeyspaceCoordinator(Coordinator):
    """What all coordinators on a `Keyspace` have in common: their checks, reads and writes.

    Their sessions have an attribute `coordinator`, the one that opened them.
    """

    @abstractmethod
    async def _reach(self) -> Keyspace:
        """Pass a checkpoint; then the caller has the state to itself until it awaits again.

        Raises Unavailable where there is no reaching it.
        """

    @abstractmethod
    async def _write(self, apply: Callable[[Draft], T]) -> T:
        """Apply `apply` to a draft, and return what it returned once that has been committed."""

    async def get(self, key: str) -> Entry | None:
        """See `Coordinator.get`."""
        check_key(key)
        return (await self._reach()).get(key)

    async def list(self, directory: str) -> dict[str, Entry]:
        """See `Coordinator.list`."""
        check_directory(directory)
        return (await self._reach()).list(directory)

    async def put(self, key: str, value: bytes) -> Version:
        """See `Coordinator.put`."""
        check_key(key)
        check_value(key, value)
        return await self._write(lambda draft: draft.put(key, value))

    async def txn(self, *ops: Op) -> tuple[Version | Absent, ...]:
        """See `Coordinator.txn`."""
        check_txn(ops)
        sessions = [op.session for op in ops if isinstance(op, Put) and op.session is not None]
        if any(getattr(session, "coordinator", None) is not self for session in sessions):
            raise ValueError("a session serves only the coordinator that opened it")

        def apply(draft: Draft) -> tuple[Version | Absent, ...]:
            for session in sessions:
                if not session.alive:
                    raise SessionLost(f"session {session.id} has ended")
            return draft.txn(ops)

        return await self._write(apply)
