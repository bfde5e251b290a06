"""The contract on the journal: what it means is `Keyspace`'s, this makes it durable."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TypeVar

import trio

from odradek.contracts import coordinator as contract
from odradek.contracts.coordinator import Entry, Put, Unavailable, Uncertain
from odradek.contracts.keyspace import Draft, Keyspace
from odradek.contracts.watching import ChangeBuffer
from odradek_coord_journal.journal import Journal

T = TypeVar("T")


class JournalSession(contract.Session):
    """Nothing comes between a session and its own process: it is good until it is left."""

    def __init__(self, id: str, ttl: float, owner: "JournalCoordinator") -> None:
        self.id, self.ttl, self.owner, self.lost = id, ttl, owner, trio.Event()

    @property
    def alive(self) -> bool:
        return not self.lost.is_set()


class JournalCoordinator(contract.Coordinator):
    def __init__(self, journal: Journal, write_timeout: float) -> None:
        self._journal, self._write_timeout = journal, write_timeout
        # Ephemeral entries are not written, yet their revisions must not come again (C6).
        self._keyspace = Keyspace(journal.boot << 40, journal.entries)
        self._sessions: list[JournalSession] = []
        self._session_count = 0
        self._one_draft = trio.Lock()
        self._unusable = ""

    async def get(self, key: str) -> Entry | None:
        contract.check_key(key)
        return (await self._usable()).get(key)

    async def list(self, directory: str) -> dict[str, Entry]:
        contract.check_directory(directory)
        return (await self._usable()).list(directory)

    async def put(self, key: str, value: bytes) -> contract.Version:
        contract.check_key(key)
        contract.check_value(key, value)
        return await self._write(lambda draft: draft.put(key, value))

    async def txn(self, *ops: contract.Op) -> tuple[contract.Version | contract.Absent, ...]:
        contract.check_txn(ops)
        for op in ops:
            if isinstance(op, Put) and op.session and getattr(op.session, "owner", None) != self:
                raise ValueError("a session serves only the coordinator that opened it")
        return await self._write(lambda draft: draft.txn(ops))

    @asynccontextmanager
    async def watch(self, directory: str) -> AsyncIterator[contract.Watch]:
        contract.check_directory(directory)
        keyspace = await self._usable()
        watch = ChangeBuffer(keyspace.list(directory))
        keyspace.add_watch(directory, watch)
        try:
            yield watch
        finally:
            keyspace.remove_watch(directory, watch)

    @asynccontextmanager
    async def session(self, ttl: float) -> AsyncIterator[contract.Session]:
        contract.check_ttl(ttl)
        keyspace = await self._usable()
        self._session_count += 1
        session = JournalSession(f"{self._journal.boot}-{self._session_count}", ttl, self)
        self._sessions.append(session)
        keyspace.add_session(session.id)
        try:
            yield session
        finally:
            with trio.CancelScope(shield=True), suppress(contract.CoordinatorError):
                await self._write(lambda draft: draft.end_session(session.id))
            self._sessions.remove(session)
            session.lost.set()

    async def _usable(self) -> Keyspace:
        await trio.lowlevel.checkpoint()
        if self._unusable:
            raise Unavailable(self._unusable)
        return self._keyspace

    async def _write(self, apply: Callable[[Draft], T]) -> T:
        async with self._one_draft:
            draft = (await self._usable()).begin()
            result = apply(draft)
            lasting = {key: new for key, new in draft.changes.items() if self._lasts(key, new)}
            if lasting:
                await self._append(lasting)
            self._keyspace.commit(draft)
            return result

    def _lasts(self, key: str, new: Entry | None) -> bool:
        known = new or self._keyspace.get(key)
        return known is not None and known.owner is None

    async def _append(self, changes: dict[str, Entry | None]) -> None:
        # Shielded: a cancelled caller must not leave a write behind that the next one overtakes.
        deadline = trio.current_time() + self._write_timeout
        with trio.CancelScope(shield=True, deadline=deadline) as scope:
            try:
                await trio.to_thread.run_sync(self._journal.write, changes, abandon_on_cancel=True)
            except OSError as error:
                self.shut(f"the journal cannot be written: {error.strerror}; restart to recover")
                raise Uncertain(self._unusable) from error
        if scope.cancelled_caught:
            self.shut(f"the disk took more than {self._write_timeout} s; restart to recover")
            raise Uncertain(self._unusable)

    def shut(self, reason: str) -> None:
        """Refuse everything from now on (C23)."""
        self._unusable = self._unusable or reason
        for watch in tuple(self._keyspace.watches()):
            watch.fail(Unavailable(self._unusable))
        for session in self._sessions:
            session.lost.set()


@asynccontextmanager
async def open_journal(path: Path, write_timeout: float) -> AsyncIterator[JournalCoordinator]:
    """Open the coordinator whose journal is in the directory `path`, creating it where absent."""
    journal = await trio.to_thread.run_sync(Journal, path)
    coordinator = JournalCoordinator(journal, write_timeout)
    try:
        yield coordinator
    finally:
        with trio.CancelScope(shield=True):
            async with coordinator._one_draft:  # a write that is under way finishes
                coordinator.shut(f"{path} was closed")
            await trio.to_thread.run_sync(journal.close)
