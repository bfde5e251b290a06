"""Coordinators for one process: all of the contract but the disk, which is a plugin's `LocalStore`.

The state is in memory (`Keyspace`), so reads never touch the disk. Writes queue up for one task,
which takes whatever has come together, tries it on a draft, has the draft's lasting changes stored,
and only then lets anybody see or learn of it: a group commit, so that the disk is synced once per
batch and not once per write.

Nobody else has the state, so sessions need no renewal and do not expire: they end with their
context, with the coordinator, or when the disk fails, for a coordinator that cannot write any more
must not have leaders.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any, Final, TypeVar

import trio

from odradek.contracts.background import background
from odradek.contracts.coordinator import (
    Conflict,
    CoordinatorError,
    Entry,
    Session,
    SessionLost,
    Unavailable,
    Uncertain,
    Watch,
    check_ttl,
)
from odradek.contracts.keyspace import Draft, Keyspace, KeyspaceCoordinator
from odradek.contracts.watching import ChangeBuffer

__all__ = ["BOOT_SHIFT", "LocalCoordinator", "LocalSession", "LocalStore", "open_local_coordinator"]

T = TypeVar("T")

BOOT_SHIFT: Final = 40
"""Revisions are ``boot << 40 | counter``, so that those of entries that were never stored, the
ephemeral ones, are not given out again at the next opening (C6)."""

_BATCH_BYTES: Final = 4 * 1024 * 1024
"""Bytes of keys and values after which a batch is closed: about 10 ms of writing."""


class LocalStore(ABC):
    """Where the state lies: opened by its maker, blocking, never used by two threads at a time.

    `path` is for messages, `entries` is the state as it was found. `boot` is the number of this
    opening, higher than that of any before, and durable.
    """

    path: Path
    entries: Mapping[str, Entry]
    boot: int

    @abstractmethod
    def write(self, changes: Mapping[str, Entry | None]) -> None:
        """Make `changes` durable, all of them or none: a key's new entry, None for deleted.

        `changes` is not empty. None of its entries is ephemeral.

        Raises Unavailable when nothing was written and nothing will be: the writes concerned are
        refused, and the coordinator goes on. Raises Uncertain or OSError when nobody knows: only
        `close` follows, and the coordinator serves nobody from then on. For Linux forgets a failed
        sync: the next one reports success though the data never arrived. Opening the store anew
        reads what did arrive.
        """

    @abstractmethod
    def close(self) -> None:
        """Let go of everything, also after a write that failed."""


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
    """See `open_local_coordinator`. It serves as long as `commit_forever` runs."""

    def __init__(
        self,
        store: LocalStore,
        *,
        request_timeout: float,
        max_queued_writes: int,
        max_batch_writes: int,
    ) -> None:
        self._store = store
        self._thread = trio.CapacityLimiter(1)
        self._keyspace = Keyspace(store.boot << BOOT_SHIFT, store.entries)
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
        session = LocalSession(f"{self._store.boot}-{next(self._session_numbers)}", ttl, self)
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
        waited = f"{self._store.path} did not answer in {self._request_timeout * 1000:.0f} ms"
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
            self.shut(f"coordinator {self._store.path} was closed")

    async def _commit_batch(self) -> None:
        draft = self._keyspace.begin()
        self._in_flight = batch = self._try_batch(draft)
        changes = draft.lasting_changes()
        try:
            if changes:
                await self._make_durable(changes)
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

    async def _make_durable(self, changes: Mapping[str, Entry | None]) -> None:
        # Shielded: a write that was abandoned half-way might overtake the next one.
        with trio.CancelScope(shield=True):
            try:
                await trio.to_thread.run_sync(self._store.write, changes, limiter=self._thread)
            except OSError as error:
                raise Uncertain(f"writing {self._store.path} failed: {error}") from error

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


@asynccontextmanager
async def open_local_coordinator(
    open_store: Callable[[], LocalStore],
    *,
    request_timeout: float,
    max_queued_writes: int = 1024,
    max_batch_writes: int = 256,
) -> AsyncIterator[LocalCoordinator]:
    """Open the coordinator whose state lies in the store that `open_store` returns.

    `open_store`, too, is called in a thread. A write waits `request_timeout` seconds for the disk
    before it raises Unavailable, or Uncertain if the disk had been given it. `max_queued_writes`
    may wait at once, further callers wait their turn; `max_batch_writes` are made durable together
    at the most.

    Leaving the context ends all sessions and closes the store, after the write that is under way;
    writes that nobody has begun to apply raise Unavailable.

    Raises what `open_store` does, Unavailable for its OSError.
    """
    try:
        store = await trio.to_thread.run_sync(open_store)
    except OSError as error:
        raise Unavailable(f"cannot open the coordinator: {error}") from error
    try:
        coordinator = LocalCoordinator(
            store,
            request_timeout=request_timeout,
            max_queued_writes=max_queued_writes,
            max_batch_writes=max_batch_writes,
        )
        async with background(coordinator.commit_forever):
            yield coordinator
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(store.close)
