"""Coordinators whose whole state is a `Keyspace` of this process.

`LocalCoordinator` is everything but the disk: a plugin that can make a few changes durable at once
is a coordinator by implementing `LocalCoordinator.store`. Reads never touch the disk. Writes queue
up for one task, which takes whatever has come together, tries it on a draft, has the draft's
lasting changes stored, and only then lets anybody see or learn of it: a group commit, so that the
disk is synced once per batch and not once per write.

Nobody else has the state, so sessions need no renewal and do not expire: they end with their
context, with the coordinator, or when the disk fails, for a coordinator that cannot write any more
must not have leaders.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import count
from typing import Any, Final, TypeVar

import trio

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

__all__ = ["BOOT_SHIFT", "KeyspaceCoordinator", "LocalCoordinator", "LocalSession"]

T = TypeVar("T")

BOOT_SHIFT: Final = 40
"""Revisions are ``boot << 40 | counter``, so that those of entries that were never stored, the
ephemeral ones, are not given out again after the next boot (C6)."""

_BATCH_BYTES: Final = 4 * 1024 * 1024
"""Bytes of keys and values after which a batch is closed: about 10 ms of writing."""


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


class LocalSession(Session):
    """A session of a `LocalCoordinator`: nothing comes between it and its own process."""

    def __init__(self, session_id: str, ttl: float, coordinator: LocalCoordinator) -> None:
        self.id = session_id
        self.ttl = ttl
        self.lost = trio.Event()
        self.ended = trio.Event()
        self.coordinator = coordinator

    @property
    def alive(self) -> bool:
        """See `Session.alive`."""
        return not self.lost.is_set()


class _Request:
    """A write on its way to the disk."""

    __slots__ = ("apply", "done", "error", "result", "taken")

    def __init__(self, apply: Callable[[Draft], Any]) -> None:
        self.apply = apply
        self.taken = False
        self.done = trio.Event()
        self.result: Any = None
        self.error: CoordinatorError | None = None


class LocalCoordinator(KeyspaceCoordinator):
    """A coordinator for one process; `commit_forever` must run as long as it is to serve.

    `name` is for messages. `boot` is the number of this opening, higher than that of any before,
    below 2**22; `entries` is what is on the disk. `max_queued_writes` writes may wait, further
    callers wait their turn; `max_batch_writes` are stored at once at the most. A write waits
    `request_timeout` seconds before it is Unavailable, or Uncertain if storing it had begun.
    """

    def __init__(
        self,
        name: object,
        boot: int,
        entries: Mapping[str, Entry],
        *,
        request_timeout: float,
        max_queued_writes: int = 1024,
        max_batch_writes: int = 256,
    ) -> None:
        self._name = name
        self._boot = boot
        self._keyspace = Keyspace(boot << BOOT_SHIFT, entries)
        self._request_timeout = request_timeout
        self._max_batch_writes = max_batch_writes
        self._slots = trio.Semaphore(max_queued_writes)
        self._queue: OrderedDict[_Request, None] = OrderedDict()
        self._in_flight: Sequence[_Request] = ()
        self._ending: list[LocalSession] = []
        self._wakeup = trio.Event()
        self._sessions: set[LocalSession] = set()
        self._session_numbers = count(1)
        self._unusable: str | None = None

    @abstractmethod
    async def store(self, changes: Mapping[str, Entry | None]) -> None:
        """Make `changes` durable, all of them or none: a key's new entry, None for deleted.

        Called by one task at a time and shielded from cancellation: the host waits for the disk,
        for a write that was abandoned half-way might overtake the next one. `changes` is not empty
        and must not be modified.

        Raises Unavailable when nothing was stored and nothing will be: the writes concerned are
        refused, the coordinator goes on. Raises Uncertain when nobody knows: it serves nobody from
        then on, because Linux forgets a failed sync, and the next one reports success though the
        data never arrived; opening anew reads what did arrive.
        """

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
        keyspace = await self._reach()
        session = LocalSession(f"{self._boot}-{next(self._session_numbers)}", ttl, self)
        keyspace.add_session(session.id)
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

    async def _reach(self) -> Keyspace:
        await trio.lowlevel.checkpoint()
        self._check_usable()
        return self._keyspace

    # --- writing

    async def _write(self, apply: Callable[[Draft], T]) -> T:
        """Queue a write, and wait until it is durable, refused, or the timeout has passed."""
        request = _Request(apply)
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
        waited = f"{self._name} did not answer in {self._request_timeout * 1000:.0f} ms"
        if request.taken:
            raise Uncertain(f"{waited}; the write may yet be applied")
        raise Unavailable(f"{waited}; nothing was written")

    async def commit_forever(self) -> None:
        """Make queued writes durable, batch by batch, until cancelled or the disk fails."""
        try:
            while self._unusable is None:
                await trio.lowlevel.checkpoint_if_cancelled()  # nothing else stops a full queue
                self._end_sessions()
                if self._queue:
                    await self._commit_batch()
                else:
                    # Only this task waits on the event, so it may be replaced once it has fired.
                    await self._wakeup.wait()
                    self._wakeup = trio.Event()
        finally:
            self.shut(f"coordinator {self._name} was closed")

    async def _commit_batch(self) -> None:
        draft = self._keyspace.begin()
        self._in_flight = batch = self._try_batch(draft)
        changes = draft.lasting_changes()
        try:
            if changes:
                with trio.CancelScope(shield=True):
                    await self.store(changes)
        except Unavailable as error:
            # Refusals go the same way: they may be due to a write of this batch that never was.
            for request in batch:
                request.error = Unavailable(str(error))
        except Uncertain as error:
            for request in batch:
                refused = request.error is not None
                request.error = Unavailable(str(error)) if refused else Uncertain(str(error))
            self.shut(f"{error}; open it anew to learn what was written")
        else:
            self._keyspace.commit(draft)
        self._in_flight = ()
        for request in batch:
            request.done.set()

    def _try_batch(self, draft: Draft) -> Sequence[_Request]:
        """Take requests out of the queue, as many as one batch may have, and apply each."""
        batch: list[_Request] = []
        while self._queue and draft.size < _BATCH_BYTES and len(batch) < self._max_batch_writes:
            request, _ = self._queue.popitem(last=False)
            request.taken = True
            batch.append(request)
            try:
                request.result = request.apply(draft)
            except (Conflict, SessionLost) as error:
                request.error = error
        return batch

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
