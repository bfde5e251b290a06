"""What a transport plugin implements: ordered byte streams between a listener and its callers.

A transport moves bytes and says whom it moves them for. Frames, the Kafka protocol, and every
limit on frames, connections, idle time and bytes in flight belong to the core's serve loop,
so that every transport gets them. Everything here runs in one trio event loop and is not
thread-safe.

The promises, each with a test in `odradek.testing.transport`:

Listening and connecting

* **T1** `Listener.address` is the URL that was bound, with whatever was left open (port 0, an
  empty name) filled in; `connect` reaches it. A second listener on it raises `AddressInUse`,
  which names it; once the first is closed it can be listened on again at once.
* **T2** `connect` either returns a connection or raises `ConnectFailed`, naming the address
  and the cause. It may return before the other side calls `accept`. It waits as long as its
  caller's cancel scope lets it; a cancelled `connect` leaves nothing open.
* **T3** `accept` yields every connection once. It outlives connections that die before they
  are accepted and a lack of file descriptors or memory (it logs, backs off and goes on). A
  cancelled `accept` loses no connection. It never waits for the peer: a handshake, where a
  transport has one, takes place in the connection's first `receive_into` or `send`.
* **T4** After `Listener.aclose` a waiting and every later `accept` raises `Closed`, `connect`
  to the address fails, and connections accepted before live on. Closing twice is harmless.
* **T5** A URL that the transport cannot understand raises `BadAddress`, which quotes it,
  before anything is opened.

Bytes

* **T6** The bytes arrive complete, unchanged and in order: across parts, across calls, and
  whatever mixture of buffers and file ranges they were sent from. Boundaries of parts and
  calls are not kept. Empty parts and an empty sequence are legal and send nothing.
* **T7** `receive_into` returns as soon as one byte is there, with what is there and fits.
* **T8** The end of the peer's stream is 0, after every byte sent before it, and 0 again for
  later calls.
* **T9** When `send` returns, the caller may reuse the buffers and close the descriptors.
* **T10** A peer that does not read makes `send` wait, after a bounded number of bytes; the
  transport itself never queues without bound. `send` goes on when the peer reads.
* **T11** The directions are independent: one that waits does not hold up the other, and
  `send_eof` ends only the one.
* **T12** A file range is sent as exactly the bytes `[offset, offset + count)` of the file,
  and the descriptor's own position neither matters nor moves. A file that ends earlier raises
  `ShortFile` and aborts the connection.
* **T13** One task may send and one may receive at a time. A second one gets `Busy`, and the
  first is not disturbed.

Cancellation and fairness

* **T14** A cancelled `receive_into` has taken no byte: the next call returns what it would
  have. The contents of the buffer are undefined.
* **T15** A cancelled `send` has sent some prefix of its parts, perhaps nothing, perhaps all.
  Since nobody can know where the stream is, it aborts the connection (T18): the peer never
  takes what follows for the rest of a message.
* **T16** Calls that need not wait do not all yield to the scheduler, since that would cost
  more than the system call, but among any 64 consecutive calls in one direction, or 8 MiB,
  at least one does: a busy connection neither starves the others nor outlives its
  cancellation.

Ending

* **T17** `aclose` delivers every byte sent before it, followed by the end of the stream, even
  if the peer's own bytes were left unread. It waits for a peer only for a bounded time. A
  cancelled `aclose` becomes `abort`, by when the peer may have seen the end; one that cuts off
  another task's `send` is an `abort` from the start, lest a part of a message looks like all
  of it. Calls waiting on this side raise `Closed`, as do later ones. Closing twice, or after
  `abort`, is harmless.
* **T18** `abort` ends both directions at once, without waiting and whatever is unsent. Calls
  waiting on this side raise `Closed`, as do later ones; the peer gets `ConnectionLost`, not
  an end of stream. Idempotent.
* **T19** A connection that broke (the peer aborted or vanished) raises `ConnectionLost` from
  `send`, and from `receive_into` once the bytes that had arrived are used up at the latest;
  never another exception, and never a wait for ever. It still has to be closed.
* **T20** `peer`, `local` and `plain_files` are fixed when the connection is made and stay
  readable after it ends.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TypeAlias

from attrs import frozen

from odradek.errors import OdradekError
from odradek.types import Buffer

__all__ = [
    "AddressInUse",
    "BadAddress",
    "Busy",
    "Closed",
    "ConnectFailed",
    "Connection",
    "ConnectionLost",
    "FileRange",
    "ListenFailed",
    "Listener",
    "Part",
    "ShortFile",
    "Transport",
    "TransportError",
]


class TransportError(OdradekError):
    """Base of every error of a transport."""


class BadAddress(TransportError):
    """A URL this transport cannot understand: the configuration is at fault."""


class ListenFailed(TransportError):
    """The address could not be listened on: not this machine's, not permitted, unknown host."""


class AddressInUse(ListenFailed):
    """Somebody listens on the address already; the message says what to do about it."""


class ConnectFailed(TransportError):
    """Nobody could be reached at the address now; the same call may succeed later."""


class ConnectionLost(TransportError):
    """The peer or the network ended the connection; bytes in flight may be lost."""


class Closed(TransportError):
    """This side has closed or aborted the connection or listener: not the peer's doing.

    Also raised in a call that waits while another task closes. A connection that the *peer*
    ended is `ConnectionLost`, or an end of stream.
    """


class Busy(TransportError):
    """Another task is in the same call on the same object: the caller is at fault."""


class ShortFile(TransportError):
    """A file ended before the range that was to be sent from it; the connection is aborted."""


@frozen(slots=True)
class FileRange:
    """`count` bytes of the open file `fd` from byte `offset` on, to be sent as they are.

    The descriptor is borrowed until `send` returns. The *bytes* must not change before the
    peer has received them: where `plain_files` holds, the kernel sends the pages of the file
    and takes no copy, so that overwriting or truncating a range just sent may still reach the
    peer. (Sealed and appended-to ranges of a log are safe.)
    """

    fd: int
    offset: int
    count: int


Part: TypeAlias = Buffer | FileRange
"""One piece of what is sent: bytes, or a range of a file."""


class Connection(ABC):
    """One end of an ordered, reliable stream of bytes in both directions.

    Not for concurrent use except as T11 and T13 say; `abort` and `aclose` may be called by
    any task at any time.
    """

    __slots__ = ()

    @property
    @abstractmethod
    def peer(self) -> str:
        """The address of the other end, as a URL: for logs and for limits per address."""

    @property
    @abstractmethod
    def local(self) -> str:
        """The address of this end, as a URL."""

    @property
    @abstractmethod
    def principal(self) -> str | None:
        """Whom the transport itself has authenticated (by certificate, say), or None.

        Known at the latest when the first `receive_into` has returned.
        """

    @property
    @abstractmethod
    def plain_files(self) -> bool:
        """Whether file ranges go to the peer without a copy in this process.

        Where it is False, file ranges still work; a caller that holds the same bytes in
        memory had better send those.
        """

    @abstractmethod
    async def receive_into(self, buffer: memoryview) -> int:
        """Receive at least one byte into `buffer` and return how many; 0 at the end (T7, T8).

        `buffer` is writable and not empty (ValueError). When bytes are there already, the
        call costs one system call at most. Cancelled: no byte was taken (T14).

        Raises `ConnectionLost` (T19), `Closed` (T17, T18), `Busy` (T13).
        """

    @abstractmethod
    async def send(self, parts: Sequence[Part]) -> None:
        """Send every byte of `parts` in order; wait while the peer is slow (T6, T10).

        Returns when all of it is in the hands of the kernel or in the peer's buffer, which is
        not to say that the peer has read it. Cancelled, or failed with `ShortFile` or OSError: a
        prefix was sent, and the connection is aborted (T15).

        Raises `ConnectionLost` (T19), `ShortFile` (T12), `Closed` (after `send_eof` also),
        `Busy` (T13), and OSError when a file range cannot be read.
        """

    @abstractmethod
    async def send_eof(self) -> None:
        """End the sending direction: the peer receives 0 after every byte sent (T8, T11).

        Idempotent; receiving goes on. Raises `ConnectionLost`, `Closed`, and `Busy` while
        another task sends.
        """

    @abstractmethod
    async def aclose(self) -> None:
        """Close with grace: what was sent arrives, then the end of the stream (T17).

        Raises nothing but Cancelled.
        """

    @abstractmethod
    def abort(self) -> None:
        """End the connection now, unsent bytes or not (T18). Raises nothing."""


class Listener(ABC):
    """A bound address that connections arrive at."""

    __slots__ = ()

    @property
    @abstractmethod
    def address(self) -> str:
        """The URL that was bound, complete; stays readable after `aclose` (T1)."""

    @abstractmethod
    async def accept(self) -> Connection:
        """Wait for the next connection (T3). The caller owns it and closes it.

        Raises `Closed` (T4), and `Busy` while another task is in `accept`.
        """

    @abstractmethod
    async def aclose(self) -> None:
        """Stop listening and free the address (T4). Idempotent; raises nothing but Cancelled.

        Connections that arrived and were not accepted are aborted.
        """


class Transport(ABC):
    """Makes listeners and connections for the URL schemes that its plugin registered.

    Holds settings and no connections: there is nothing to close, and one object may serve any
    number of listeners and connections.
    """

    __slots__ = ()

    @abstractmethod
    async def listen(self, url: str) -> Listener:
        """Bind `url` and start to collect connections (T1).

        Raises `BadAddress` (T5), `AddressInUse` (T1), `ListenFailed`.
        """

    @abstractmethod
    async def connect(self, url: str) -> Connection:
        """Connect to whoever listens on `url` (T2). The caller owns and closes the connection.

        Raises `BadAddress` (T5), `ConnectFailed` (T2).
        """
