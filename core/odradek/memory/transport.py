"""`memory://name`: connections inside of one process, for tests and embedded use.

It keeps the whole contract, back-pressure and aborts included, so that what works over it works
over a network. Names belong to a `MemoryNetwork`; everybody in the process shares one unless
given another.
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Sequence
from itertools import count
from weakref import WeakValueDictionary

from trio.lowlevel import ParkingLot, checkpoint

from odradek.contracts.transport import (
    AddressInUse,
    BadAddress,
    Busy,
    Closed,
    ConnectFailed,
    Connection,
    ConnectionLost,
    FileRange,
    Listener,
    Part,
    ShortFile,
    Transport,
)
from odradek.types import Buffer

__all__ = ["BUFFER_BYTES", "MemoryNetwork", "MemoryTransport"]

BUFFER_BYTES = 256 * 1024
"""Bytes that one direction of a connection holds before `send` waits."""

_BACKLOG = 128  # connections that may wait to be accepted before `connect` waits
_URL = re.compile(r"memory://(?P<name>[A-Za-z0-9._-]*)/?")


class _Pipe:
    """One direction: bounded bytes, with one writer and one reader waiting at most."""

    __slots__ = ("data", "ended", "lost", "readers", "unread", "writers")

    def __init__(self) -> None:
        self.data = bytearray()
        self.ended = False  # the writer will write no more
        self.unread = False  # the reader will read no more
        self.lost = False  # aborted by either
        self.readers = ParkingLot()
        self.writers = ParkingLot()

    def wake(self) -> None:
        self.readers.unpark_all()
        self.writers.unpark_all()

    def write(self, data: Buffer) -> int:
        room = BUFFER_BYTES - len(self.data)
        written = min(room, len(data))
        if written:
            self.data += data if written == len(data) else memoryview(data)[:written]
            self.readers.unpark_all()
        return written

    def read_into(self, buffer: memoryview) -> int:
        taken = min(len(buffer), len(self.data))
        if taken:
            with memoryview(self.data) as view:
                buffer[:taken] = view[:taken]
            del self.data[:taken]
            self.writers.unpark_all()
        return taken


class MemoryConnection(Connection):
    """One end: a pipe in and a pipe out."""

    __slots__ = ("_closed", "_incoming", "_local", "_outgoing", "_peer", "_receiving", "_sending")

    def __init__(self, incoming: _Pipe, outgoing: _Pipe, *, peer: str, local: str) -> None:
        self._incoming = incoming
        self._outgoing = outgoing
        self._peer = peer
        self._local = local
        self._receiving = False
        self._sending = False
        self._closed = False

    def __repr__(self) -> str:
        return f"<MemoryConnection {self._local} to {self._peer}>"

    @property
    def peer(self) -> str:
        """The address of the other end."""
        return self._peer

    @property
    def local(self) -> str:
        """The address of this end."""
        return self._local

    @property
    def principal(self) -> str | None:
        """None: the other end is this process."""
        return None

    @property
    def plain_files(self) -> bool:
        """False: file ranges are read into memory."""
        return False

    async def receive_into(self, buffer: memoryview) -> int:
        """See `Connection.receive_into`."""
        if not buffer:
            raise ValueError("receive_into needs a buffer of at least one byte")
        self._check(self._receiving, "receives from")
        self._receiving = True
        try:
            await checkpoint()
            while True:
                self._check_alive(self._incoming)
                received = self._incoming.read_into(buffer)
                if received or self._incoming.ended:
                    return received
                await self._incoming.readers.park()
        finally:
            self._receiving = False

    async def send(self, parts: Sequence[Part]) -> None:
        """See `Connection.send`."""
        self._check(self._sending, "sends on")
        self._sending = True
        try:
            await checkpoint()
            for part in parts:
                if isinstance(part, FileRange):
                    await self._send_range(part)
                else:
                    await self._send_buffer(part)
        except (Closed, ConnectionLost):
            raise
        except BaseException:
            self.abort()
            raise
        finally:
            self._sending = False

    async def _send_buffer(self, data: Buffer) -> None:
        with memoryview(data) as view:
            sent = 0
            while sent < len(view):
                await self._room()
                sent += self._outgoing.write(view[sent:])

    async def _send_range(self, part: FileRange) -> None:
        sent = 0
        while sent < part.count:
            room = await self._room()
            data = os.pread(part.fd, min(room, part.count - sent), part.offset + sent)
            if not data:
                raise ShortFile(
                    f"descriptor {part.fd} ends at or before byte {part.offset + sent}: the"
                    f" range was to be {part.count} bytes from {part.offset}"
                )
            sent += self._outgoing.write(data)

    async def _room(self) -> int:
        """Wait until the peer can take a byte; return how many it can take."""
        while True:
            self._check_alive(self._outgoing)
            if self._outgoing.ended:
                raise Closed(f"send_eof has ended the sending side towards {self._peer}")
            if self._outgoing.unread:
                raise ConnectionLost(f"{self._peer} has closed the connection")
            room = BUFFER_BYTES - len(self._outgoing.data)
            if room:
                return room
            await self._outgoing.writers.park()

    async def send_eof(self) -> None:
        """See `Connection.send_eof`."""
        await checkpoint()
        self._check(self._sending, "sends on")
        self._check_alive(self._outgoing)
        self._outgoing.ended = True
        self._outgoing.wake()

    async def aclose(self) -> None:
        """See `Connection.aclose`."""
        if self._closed:
            return
        if self._sending:
            self.abort()
            return
        self._closed = True
        self._outgoing.ended = True
        self._incoming.unread = True
        self._incoming.data.clear()
        self._incoming.wake()
        self._outgoing.wake()
        try:
            await checkpoint()
        except BaseException:
            self._break()
            raise

    def abort(self) -> None:
        """See `Connection.abort`."""
        if not self._closed:
            self._closed = True
            self._break()

    def _break(self) -> None:
        for pipe in (self._incoming, self._outgoing):
            pipe.lost = True
            pipe.data.clear()
            pipe.wake()

    def _check(self, busy: bool, doing: str) -> None:
        if self._closed:
            raise Closed(f"the connection with {self._peer} was closed on this side")
        if busy:
            raise Busy(f"another task {doing} the connection with {self._peer} already")

    def _check_alive(self, pipe: _Pipe) -> None:
        self._check(False, "uses")
        if pipe.lost:
            raise ConnectionLost(f"{self._peer} has aborted the connection")


class MemoryListener(Listener):
    """A name in a network, with connections waiting to be accepted."""

    __slots__ = (
        "__weakref__",
        "_accepting",
        "_address",
        "_arrivals",
        "_closed",
        "_network",
        "_room",
        "_waiting",
    )

    def __init__(self, network: MemoryNetwork, address: str) -> None:
        self._network = network
        self._address = address
        self._waiting: deque[MemoryConnection] = deque()
        self._arrivals = ParkingLot()
        self._room = ParkingLot()
        self._accepting = False
        self._closed = False

    def __repr__(self) -> str:
        return f"<MemoryListener {self._address}>"

    @property
    def address(self) -> str:
        """The URL listened on."""
        return self._address

    async def accept(self) -> Connection:
        """See `Listener.accept`."""
        if self._accepting and not self._closed:
            raise Busy(f"another task accepts on {self._address} already")
        self._accepting = True
        try:
            await checkpoint()
            while True:
                if self._closed:
                    raise Closed(f"the listener on {self._address} was closed")
                if self._waiting:
                    self._room.unpark()
                    return self._waiting.popleft()
                await self._arrivals.park()
        finally:
            self._accepting = False

    async def aclose(self) -> None:
        """See `Listener.aclose`."""
        if not self._closed:
            self._closed = True
            self._network.forget(self)
            for connection in self._waiting:
                connection.abort()
            self._waiting.clear()
            self._arrivals.unpark_all()
            self._room.unpark_all()
        await checkpoint()

    async def dial(self, local: str) -> MemoryConnection:
        """Return the caller's end of a new connection, once there is room for the other end."""
        while not self._closed and len(self._waiting) >= _BACKLOG:
            await self._room.park()
        if self._closed:
            raise ConnectFailed(f"cannot connect to {self._address}: the listener was closed")
        out, back = _Pipe(), _Pipe()
        self._waiting.append(MemoryConnection(out, back, peer=local, local=self._address))
        self._arrivals.unpark_all()
        return MemoryConnection(back, out, peer=self._address, local=local)


class MemoryNetwork:
    """A space of names. A listener that is dropped without being closed gives its name free."""

    def __init__(self) -> None:
        self._listeners: WeakValueDictionary[str, MemoryListener] = WeakValueDictionary()
        self._names = count(1)
        self._callers = count(1)

    def listen(self, name: str) -> MemoryListener:
        """Take `name`, or any free one for an empty string. Raises AddressInUse."""
        if not name:
            name = next(free for n in self._names if (free := f"any-{n}") not in self._listeners)
        if name in self._listeners:
            raise AddressInUse(
                f"memory://{name} is in use: close its listener first, or choose another name"
            )
        listener = MemoryListener(self, f"memory://{name}")
        self._listeners[name] = listener
        return listener

    def forget(self, listener: MemoryListener) -> None:
        """Give the listener's name free."""
        del self._listeners[listener.address.removeprefix("memory://")]

    async def connect(self, name: str) -> MemoryConnection:
        """Connect to whoever listens on `name`. Raises ConnectFailed."""
        await checkpoint()
        listener = self._listeners.get(name)
        if listener is None:
            raise ConnectFailed(
                f"cannot connect to memory://{name}: nobody listens there in this process"
            )
        return await listener.dial(f"memory://{name}/{next(self._callers)}")


_SHARED = MemoryNetwork()


class MemoryTransport(Transport):
    """Connections within the process, over `network` or the one that everybody shares."""

    __slots__ = ("_network",)

    def __init__(self, network: MemoryNetwork | None = None) -> None:
        self._network = network or _SHARED

    async def listen(self, url: str) -> Listener:
        """See `Transport.listen`."""
        name = _name(url)
        await checkpoint()
        return self._network.listen(name)

    async def connect(self, url: str) -> Connection:
        """See `Transport.connect`."""
        return await self._network.connect(_name(url))


def _name(url: str) -> str:
    match = _URL.fullmatch(url)
    if match is None:
        raise BadAddress(
            f"{url!r} is not an address of the memory transport: write memory://name, of letters,"
            " digits, '.', '_' and '-'"
        )
    return match["name"]
