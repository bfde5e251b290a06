"""The coordinator in memory: several clients in one trio run share a state by its name.

Being a plugin like any other it keeps every promise of the contract but durability. A client can
be cut off from the state and joined to it again (`MemoryCoordinator.disconnect`, `reconnect`),
and a session be expired behind its client's back (`MemoryState.expire`), which is what the
simulation and the conformance kit need.

A session of a connected client needs no renewal: it is as good as the connection. From
`disconnect` on it has its ttl left, on the client's clock and on the state's, which are the same.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count
from typing import TypeVar
from weakref import WeakValueDictionary

import trio

from odradek.contracts.background import background
from odradek.contracts.coordinator import (
    Session,
    Unavailable,
    Watch,
    check_directory,
    check_ttl,
)
from odradek.contracts.keyspace import Draft, Keyspace, KeyspaceCoordinator
from odradek.contracts.watching import ChangeBuffer

__all__ = ["MemoryCoordinator", "MemoryState", "memory_state", "open_memory_coordinator"]

T = TypeVar("T")


class MemoryState:
    """What all clients of one name share: the "server"."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.keyspace = Keyspace()
        self._sessions: dict[str, MemorySession] = {}
        self._session_numbers = count(1)
        self._expiring: dict[MemorySession, float] = {}
        self._expiring_changed = trio.lowlevel.ParkingLot()

    def expire(self, session_id: str) -> None:
        """End a session on this side; its client learns of it at once if it is connected.

        A client that is cut off goes on believing in the session until its deadline, as a real
        one would. Harmless when the session has ended already.
        """
        draft = self.keyspace.begin()
        draft.end_session(session_id)
        self.keyspace.commit(draft)
        session = self._sessions.pop(session_id, None)
        if session is not None and session.coordinator.connected:
            session.lost.set()

    def reap(self) -> None:
        """Expire every session whose deadline has passed."""
        now = trio.current_time()
        for session in [s for s, deadline in self._expiring.items() if deadline <= now]:
            del self._expiring[session]
            self.expire(session.id)
            session.lost.set()

    async def reap_forever(self) -> None:
        """Expire sessions as their deadlines pass; every open client runs this."""
        while True:
            deadline = min(self._expiring.values(), default=float("inf"))
            with trio.move_on_at(deadline):
                await self._expiring_changed.park()
            self.reap()

    def _open_session(self, coordinator: MemoryCoordinator, ttl: float) -> MemorySession:
        session = MemorySession(f"{self.name}-{next(self._session_numbers)}", ttl, coordinator)
        self._sessions[session.id] = session
        self.keyspace.add_session(session.id)
        return session

    def _let_expire(self, session: MemorySession, deadline: float) -> None:
        self._expiring[session] = deadline
        self._expiring_changed.unpark_all()

    def _keep(self, session: MemorySession) -> bool:
        """Withdraw `_let_expire`; whether the session is still good."""
        self._expiring.pop(session, None)
        return session.id in self._sessions


class MemorySession(Session):
    """A session of a `MemoryCoordinator`."""

    def __init__(self, session_id: str, ttl: float, coordinator: MemoryCoordinator) -> None:
        self.id = session_id
        self.ttl = ttl
        self.lost = trio.Event()
        self.coordinator = coordinator
        self.deadline = float("inf")

    @property
    def alive(self) -> bool:
        """See `Session.alive`."""
        return not self.lost.is_set() and trio.current_time() < self.deadline


class MemoryCoordinator(KeyspaceCoordinator):
    """A client of a `MemoryState`; see `open_memory_coordinator`."""

    def __init__(self, state: MemoryState) -> None:
        self.state = state
        self.connected = True
        self._closed = False
        self._sessions: set[MemorySession] = set()
        self._watches: dict[ChangeBuffer, str] = {}

    # --- the contract

    @asynccontextmanager
    async def watch(self, directory: str) -> AsyncIterator[Watch]:
        """See `Coordinator.watch`."""
        check_directory(directory)
        keyspace = await self._reach()
        watch = ChangeBuffer(keyspace.list(directory))
        self._watches[watch] = directory
        keyspace.add_watch(directory, watch)
        try:
            yield watch
        finally:
            self._watches.pop(watch, None)
            keyspace.remove_watch(directory, watch)

    @asynccontextmanager
    async def session(self, ttl: float) -> AsyncIterator[Session]:
        """See `Coordinator.session`."""
        check_ttl(ttl)
        await self._reach()
        session = self.state._open_session(self, ttl)
        self._sessions.add(session)
        try:
            yield session
        finally:
            self._leave(session)

    # --- faults, for the simulation and the conformance kit

    def disconnect(self) -> None:
        """Cut this client off: calls raise Unavailable, watches fall silent, sessions run out."""
        if not self.connected:
            return
        self.connected = False
        for watch, directory in self._watches.items():
            self.state.keyspace.remove_watch(directory, watch)
        for session in self._sessions:
            session.deadline = trio.current_time() + session.ttl
            self.state._let_expire(session, session.deadline)

    def reconnect(self) -> None:
        """Undo `disconnect`: sessions within their deadline live on, watches catch up."""
        if self.connected:
            return
        self.state.reap()
        self.connected = True
        for session in self._sessions:
            if self.state._keep(session):
                session.deadline = float("inf")
            else:
                session.lost.set()
        for watch, directory in self._watches.items():
            watch.resync(self.state.keyspace.list(directory))
            self.state.keyspace.add_watch(directory, watch)

    # --- inside

    async def _reach(self) -> Keyspace:
        await trio.lowlevel.checkpoint()
        if self._closed:
            raise Unavailable(f"coordinator memory:{self.state.name} was closed")
        if not self.connected:
            raise Unavailable(f"cut off from coordinator memory:{self.state.name}")
        self.state.reap()
        return self.state.keyspace

    async def _write(self, apply: Callable[[Draft], T]) -> T:
        keyspace = await self._reach()
        draft = keyspace.begin()
        result = apply(draft)
        keyspace.commit(draft)
        return result

    def _leave(self, session: MemorySession) -> None:
        """End a session if the state can be reached; else it expires there by itself."""
        if session not in self._sessions:
            return
        self._sessions.discard(session)
        if self.connected:
            self.state.expire(session.id)
        session.lost.set()

    def _close(self) -> None:
        for session in tuple(self._sessions):
            self._leave(session)
        for watch, directory in self._watches.items():
            self.state.keyspace.remove_watch(directory, watch)
            watch.fail(Unavailable(f"coordinator memory:{self.state.name} was closed"))
        self._watches.clear()
        self._closed = True


# Per trio run, because nothing here is meant for two threads; weak, so that a state goes with the
# last of its clients and a name can be used afresh by the next test.
_states: trio.lowlevel.RunVar[WeakValueDictionary[str, MemoryState]] = trio.lowlevel.RunVar(
    "odradek.memory.coordinator"
)


def memory_state(name: str) -> MemoryState:
    """Return the state called `name` in this trio run; it lives as long as anyone refers to it."""
    try:
        states = _states.get()
    except LookupError:
        states = WeakValueDictionary()
        _states.set(states)
    state = states.get(name)
    if state is None:
        state = states[name] = MemoryState(name)
    return state


@asynccontextmanager
async def open_memory_coordinator(name: str = "") -> AsyncIterator[MemoryCoordinator]:
    """Open a client of the state called `name`; all of one name in this trio run share it.

    The state goes when its last client is closed, unless somebody holds on to `memory_state`.
    """
    coordinator = MemoryCoordinator(memory_state(name))
    async with background(coordinator.state.reap_forever):
        try:
            yield coordinator
        finally:
            coordinator._close()
