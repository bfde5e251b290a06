"""The embedded coordinator: one process, one SQLite database, no server.

The state is in memory (`Keyspace`), so reads never touch the disk. Writes queue up for one task,
which takes whatever has come together, tries it on a draft, has the draft's persistent changes
made durable in one SQLite transaction, and only then lets anybody see or learn of it: a group
commit, so that the disk is synced once per batch and not once per write.

Nobody else can have the database open, so sessions need no renewal and do not expire: they end
with their context, with the coordinator, or when the disk fails, for a coordinator that cannot
write any more must not have leaders.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any, Final, TypeVar

import trio

from odradek.contracts.background import background
from odradek.contracts.coordinator import (
    Absent,
    Conflict,
    Coordinator,
    CoordinatorError,
    Entry,
    Op,
    Put,
    Session,
    SessionLost,
    Unavailable,
    Uncertain,
    Version,
    Watch,
    check_directory,
    check_key,
    check_ttl,
    check_txn,
    check_value,
)
from odradek.contracts.keyspace import Draft, Keyspace
from odradek.contracts.watching import ChangeBuffer
from odradek.embedded.bridge import DatabaseThread
from odradek.embedded.database import BOOT_SHIFT, DiskFull, WriteFailed
from odradek.embedded.settings import EmbeddedCoordinatorSettings

__all__ = ["EmbeddedCoordinator", "open_embedded_coordinator"]

T = TypeVar("T")

_BATCH_BYTES: Final = 4 * 1024 * 1024
"""Bytes of keys and values after which a batch is closed: about 10 ms of writing."""


class _Request:
    """A write on its way to the disk."""

    __slots__ = ("apply", "done", "error", "result", "size", "taken")

    def __init__(self, apply: Callable[[Draft], Any], size: int) -> None:
        self.apply = apply
        self.size = size
        self.taken = False
        self.done = trio.Event()
        self.result: Any = None
        self.error: CoordinatorError | None = None


class EmbeddedSession(Session):
    """A session of an `EmbeddedCoordinator`."""

    def __init__(self, session_id: str, ttl: float, coordinator: EmbeddedCoordinator) -> None:
        self.id = session_id
        self.ttl = ttl
        self.lost = trio.Event()
        self.ended = trio.Event()
        self.coordinator = coordinator

    @property
    def alive(self) -> bool:
        """See `Session.alive`."""
        return not self.lost.is_set()


class EmbeddedCoordinator(Coordinator):
    """See `open_embedded_coordinator`."""

    def __init__(self, database: DatabaseThread, settings: EmbeddedCoordinatorSettings) -> None:
        self._database = database
        self._settings = settings
        self._keyspace = Keyspace(database.boot << BOOT_SHIFT, database.entries)
        self._request_timeout = settings.request_timeout_ms / 1000  # seconds
        self._slots = trio.Semaphore(settings.max_queued_writes)
        self._queue: OrderedDict[_Request, None] = OrderedDict()
        self._in_flight: Sequence[_Request] = ()
        self._ending: list[EmbeddedSession] = []
        self._wakeup = trio.Event()
        self._sessions: set[EmbeddedSession] = set()
        self._session_numbers = count(1)
        self._unusable: str | None = None

    # --- the contract

    async def get(self, key: str) -> Entry | None:
        """See `Coordinator.get`."""
        check_key(key)
        await trio.lowlevel.checkpoint()
        self._check_usable()
        return self._keyspace.get(key)

    async def list(self, directory: str) -> dict[str, Entry]:
        """See `Coordinator.list`."""
        check_directory(directory)
        await trio.lowlevel.checkpoint()
        self._check_usable()
        return self._keyspace.list(directory)

    async def put(self, key: str, value: bytes) -> Version:
        """See `Coordinator.put`."""
        check_key(key)
        check_value(key, value)
        return await self._write(lambda draft: draft.put(key, value), len(key) + len(value))

    async def txn(self, *ops: Op) -> tuple[Version | Absent, ...]:
        """See `Coordinator.txn`."""
        check_txn(ops)
        size = 0
        for op in ops:
            if isinstance(op, Put):
                size += len(op.key) + len(op.value)
                if op.session is not None:
                    self._check_session(op.session)
        return await self._write(lambda draft: draft.txn(ops), size)

    @asynccontextmanager
    async def watch(self, directory: str) -> AsyncIterator[Watch]:
        """See `Coordinator.watch`."""
        watch = ChangeBuffer(await self.list(directory))
        self._keyspace.add_watch(directory, watch)
        try:
            yield watch
        finally:
            self._keyspace.remove_watch(directory, watch)

    @asynccontextmanager
    async def session(self, ttl: float) -> AsyncIterator[Session]:
        """See `Coordinator.session`."""
        check_ttl(ttl)
        await trio.lowlevel.checkpoint()
        self._check_usable()
        number = next(self._session_numbers)
        session = EmbeddedSession(f"{self._database.boot}-{number}", ttl, self)
        self._keyspace.add_session(session.id)
        self._sessions.add(session)
        try:
            yield session
        finally:
            session.lost.set()
            if self._unusable is None:
                self._ending.append(session)
                self._wakeup.set()
                # For one write to the disk, as a rule; a disk that hangs must not hold up its host
                # for ever, and the entries go as soon as it answers.
                with trio.move_on_after(self._request_timeout, shield=True):
                    await session.ended.wait()

    # --- writing

    async def _write(self, apply: Callable[[Draft], T], size: int) -> T:
        """Queue a write, and wait until it is durable, refused, or the timeout has passed."""
        request = _Request(apply, size)
        with trio.move_on_after(self._request_timeout):
            async with self._slots:
                self._check_usable()
                self._queue[request] = None
                self._wakeup.set()
                try:
                    await request.done.wait()
                finally:
                    self._queue.pop(request, None)  # where it still is if this was cancelled
        if request.done.is_set():
            if request.error is not None:
                raise request.error
            result: T = request.result
            return result
        waited = f"{self._database.path} did not answer in {self._settings.request_timeout_ms} ms"
        if request.taken:
            raise Uncertain(f"{waited}; the write may yet be applied")
        raise Unavailable(f"{waited}; nothing was written")

    async def commit_forever(self) -> None:
        """Make queued writes durable, batch by batch, until cancelled or the disk fails."""
        try:
            while self._unusable is None:
                await trio.lowlevel.checkpoint_if_cancelled()  # nothing else stops a full queue
                self._end_sessions()
                batch = self._take_batch()
                if batch:
                    await self._commit(batch)
                else:
                    # Only this task waits on the event, so it may be replaced once it has fired.
                    await self._wakeup.wait()
                    self._wakeup = trio.Event()
        finally:
            self.shut(f"coordinator {self._database.path} was closed")

    def _take_batch(self) -> Sequence[_Request]:
        batch: list[_Request] = []
        size = 0
        while self._queue and size < _BATCH_BYTES and len(batch) < self._settings.max_batch_writes:
            request, _ = self._queue.popitem(last=False)
            request.taken = True
            size += request.size
            batch.append(request)
        return batch

    async def _commit(self, batch: Sequence[_Request]) -> None:
        self._in_flight = batch
        draft = self._keyspace.begin()
        for request in batch:
            try:
                request.result = request.apply(draft)
            except (Conflict, SessionLost) as error:
                request.error = error
        stored, deleted = self._persistent(draft)
        try:
            if stored or deleted:
                await self._database.write(stored, deleted)
        except DiskFull as error:
            # Refusals go the same way: they may be due to a write of this batch that never was.
            for request in batch:
                request.error = Unavailable(str(error))
        except WriteFailed as error:
            for request in batch:
                refused = request.error is not None
                request.error = Unavailable(str(error)) if refused else Uncertain(str(error))
            self.shut(f"{error}; open it anew to learn what was written")
        else:
            self._keyspace.commit(draft)
        self._in_flight = ()
        for request in batch:
            request.done.set()

    def _persistent(self, draft: Draft) -> tuple[Sequence[Entry], Sequence[str]]:
        """Return what the draft changes on the disk: entries to store and keys to delete."""
        stored: list[Entry] = []
        deleted: list[str] = []
        for key, entry in draft.changes.items():
            if entry is not None and entry.owner is None:
                stored.append(entry)
            else:
                before = self._keyspace.get(key)
                if before is not None and before.owner is None:
                    deleted.append(key)
        return stored, deleted

    def _end_sessions(self) -> None:
        """End the sessions whose contexts are being left; that concerns memory alone."""
        if not self._ending:
            return
        draft = self._keyspace.begin()
        for session in self._ending:
            draft.end_session(session.id)
        self._keyspace.commit(draft)
        for session in self._ending:
            self._sessions.discard(session)
            session.ended.set()
        self._ending.clear()

    # --- the end

    def shut(self, reason: str) -> None:
        """Serve nobody from now on, for `reason`; idempotent, the first reason counts."""
        if self._unusable is not None:
            return
        self._unusable = reason
        for request in self._in_flight:
            if not request.done.is_set() and request.error is None:
                request.error = Uncertain(reason)
        for request in self._queue:
            request.error = Unavailable(reason)
        for request in (*self._in_flight, *self._queue):
            request.done.set()
        self._queue.clear()
        for session in self._sessions:
            session.lost.set()
            session.ended.set()
        for watch in self._keyspace.watches():
            watch.fail(Unavailable(reason))

    def _check_usable(self) -> None:
        if self._unusable is not None:
            raise Unavailable(self._unusable)

    def _check_session(self, session: Session) -> None:
        if not isinstance(session, EmbeddedSession) or session.coordinator is not self:
            raise ValueError("a session serves only the coordinator that opened it")
        if not session.alive:
            raise SessionLost(f"session {session.id} has ended")


@asynccontextmanager
async def open_embedded_coordinator(
    path: Path, settings: EmbeddedCoordinatorSettings | None = None
) -> AsyncIterator[EmbeddedCoordinator]:
    """Open the coordinator whose database is in the directory `path`, creating it where absent.

    Leaving the context ends all sessions and closes the database; writes that nobody has begun
    to apply raise Unavailable.

    Raises `InUse` when another process (or another coordinator of this one) has it open,
    `Damaged` when the database cannot be trusted, Unavailable when the operating system refuses.
    """
    database = await DatabaseThread.open(path)
    try:
        coordinator = EmbeddedCoordinator(database, settings or EmbeddedCoordinatorSettings())
        async with background(coordinator.commit_forever):
            yield coordinator
    finally:
        await database.close()
