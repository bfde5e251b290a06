"""Connections: frames in, requests dispatched, responses out in the order of the requests.

Two tasks serve a connection. The reader takes frames out of its buffer and dispatches each
request at once, without waiting for the acknowledgement of the one before; what a request
leaves to be waited for (a commit, more data) is a `Pending` in the queue. The writer finishes
the queue in order and sends as much as is ready with one system call, so that a client that
pipelines small requests shares one sync of the disk between many of them. A response that is
ready when nothing else is under way is sent by the reader itself.

Record batches are used where they were received: produce hands the store views of this buffer,
and the store has consumed them when the handler returns.
"""

from __future__ import annotations

import logging
import math
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

import trio

from odradek.broker.dispatch import answer
from odradek.broker.waiting import HangUp, Outstanding
from odradek.config import Limits
from odradek.contracts.background import open_tasks
from odradek.contracts.storage import DataRef
from odradek.contracts.transport import (
    Closed,
    Connection,
    ConnectionLost,
    FileRange,
    Listener,
    Part,
)
from odradek.errors import MalformedMessage, OdradekError, UnsupportedVersion
from odradek.wire import Part as WirePart
from odradek.wire import encode_response, frame_at

if TYPE_CHECKING:
    from collections.abc import Iterator

    from odradek.broker.broker import Broker

__all__ = ["Answer", "Caller", "Server"]

logger = logging.getLogger(__name__)

SIZE = 4
"""Bytes of a frame's size."""

SMALL_BUFFER = 8 * 1024
"""An idle connection's buffer. Most connections of a busy broker are idle ones."""

PLAIN_BUFFER = 64 * 1024
"""Buffers up to here are not counted against the budget: connections_max bounds them."""

FRAMES_PER_TURN = 64
"""Requests dispatched before other tasks get a turn: at 20 microseconds each about 1.3 ms."""

QUEUE_LIMIT = 1024
"""Responses that may wait for each other on one connection before it is read no further."""

QUEUE_BYTES = 1024 * 1024
"""Memory that those responses may take before the connection is read no further: one more, at
most, is made behind it."""

SEND_BATCH = 256 * 1024
"""Bytes of responses gathered before they are sent."""

BUFFER_LINGER = 1.0
"""Seconds that a large buffer is kept, and counted, for the next request to come."""

DRAIN_TIMEOUT = 2.0
"""Seconds that a client may take, at the end, to accept the responses it is owed."""

OTHER_FILES = 24
"""Descriptors of an idle broker (13, counted on Linux), and of what threads have open meanwhile."""

HANDLER_TIMEOUT = 5.0
"""Seconds that a request may still take, at the end, before it is given up."""


class Caller:
    """Who sends requests on one connection, as handlers see it.

    `client_id` is what the newest request said; it is never trusted with anything.
    """

    __slots__ = ("broker", "client_id", "listener", "peer", "principal", "undisturbed")

    undisturbed: Callable[[], AbstractContextManager[None]]
    """Entered while a handler waits: see `_Session.undisturbed`."""

    def __init__(self, broker: Broker, listener: str, connection: Connection) -> None:
        self.broker = broker
        self.listener = listener
        self.peer = connection.peer
        self.principal = connection.principal
        self.client_id: str | None = None


Answer: TypeAlias = Callable[["Caller", memoryview], Awaitable[list[Any] | Outstanding | None]]
"""What makes an answer of a request: `odradek.broker.dispatch.answer`, or what stands before it."""


def affordable_connections(files_max: int | None) -> float:
    """How many connections leave descriptors for everything else.

    Half of the limit is for segment files (the default of file storage). A log that cannot open
    a file stops its producers, while a client that is turned away comes back.
    """
    return math.inf if files_max is None else max(files_max // 2 - OTHER_FILES, 4)


class Server:
    """Accepts connections of all listeners and counts them against the limits."""

    def __init__(self, broker: Broker, limits: Limits) -> None:
        self._broker = broker
        self._limits = limits
        self._affordable = affordable_connections(broker.host.files_max())
        self._open = 0
        self._by_address: Counter[str] = Counter()
        self._sessions: set[_Session] = set()
        self._closed_one = trio.lowlevel.ParkingLot()
        self._answer: Answer = answer
        self.draining = False

    def answer_by(self, function: Answer) -> None:
        """Have every request from now on answered by `function`, on connections open now too."""
        self._answer = function
        for session in self._sessions:
            session.answer = function

    @property
    def connections(self) -> int:
        """Connections open now."""
        return self._open

    async def serve(self, listener: Listener, name: str) -> None:
        """Accept until the listener is closed; every connection is a task of this call."""
        async with trio.open_nursery() as nursery:
            while True:
                try:
                    connection = await listener.accept()
                except Closed:
                    return
                nursery.start_soon(self._serve_one, connection, name)

    async def quiet(self) -> None:
        """Return when no connection is open."""
        while self._open:
            await self._closed_one.park()

    def drain(self) -> None:
        """Read no more requests, answer those that were read, then close. Returns at once."""
        self.draining = True
        for session in tuple(self._sessions):
            session.drain()

    async def drained(self) -> None:
        """Return when no connection is open any more; bounded by the timeouts above."""
        with trio.move_on_after(HANDLER_TIMEOUT):
            await self.quiet()
        for session in tuple(self._sessions):
            session.give_up()
        await self.quiet()

    async def _serve_one(self, connection: Connection, name: str) -> None:
        with self._counted(connection) as admitted:
            if not admitted:
                connection.abort()
                return
            session = _Session(
                Caller(self._broker, name, connection), connection, self._limits, self._answer
            )
            self._sessions.add(session)
            if self.draining:
                session.drain()
            try:
                await session.run()
            except Exception as error:
                _report(connection.peer, error)
            finally:
                self._sessions.discard(session)
                with trio.move_on_after(1, shield=True):
                    await connection.aclose()

    @contextmanager
    def _counted(self, connection: Connection) -> Iterator[bool]:
        address = _host(connection.peer)
        limits = self._limits
        self._open += 1
        self._by_address[address] += 1
        try:
            over = None
            if self._open > limits.connections_max:
                over = f"connections_max = {limits.connections_max}"
            elif self._open > self._affordable:
                over = f"{self._affordable} leave files for the logs (raise ulimit -n)"
            elif self._by_address[address] > limits.connections_per_address_max:
                over = f"connections_per_address_max = {limits.connections_per_address_max}"
            if over is not None:
                logger.warning("refusing connection from %s: %s", connection.peer, over)
            yield over is None
        finally:
            self._open -= 1
            self._by_address[address] -= 1
            if not self._by_address[address]:
                del self._by_address[address]
            self._closed_one.unpark_all()


def _report(peer: str, error: Exception) -> None:
    """Say why a connection is closed: at a level, and in a detail, that the reason deserves."""
    reasons = error.exceptions if isinstance(error, ExceptionGroup) else (error,)
    # The peer may be gone by the time that the reason to send it away is found.
    others = [each for each in reasons if not isinstance(each, (Closed, ConnectionLost))]
    if not others:
        logger.debug("connection from %s ended: %s", peer, reasons[0])
    elif all(isinstance(each, (MalformedMessage, UnsupportedVersion)) for each in others):
        logger.warning("closing connection from %s: %s", peer, others[0])
    elif all(isinstance(each, OdradekError) for each in others):
        logger.error("closing connection from %s: %s", peer, "; ".join(map(str, others)))
    else:
        # One request met a defect. Its client gets a closed connection, which every Kafka client
        # retries; all others go on.
        logger.error("closing connection from %s after a defect", peer, exc_info=error)


def _host(peer: str) -> str:
    """The part of a peer's URL that limits per address count by."""
    host, colon, port = peer.rpartition(":")
    return host if colon and port.isdigit() else peer


class _Session:
    """One connection being served."""

    def __init__(
        self, caller: Caller, connection: Connection, limits: Limits, answer: Answer
    ) -> None:
        self._caller = caller
        self.answer = answer
        caller.undisturbed = self.undisturbed
        self._connection = connection
        self._limits = limits
        self._linger = min(BUFFER_LINGER, limits.idle_timeout_s)
        self._budget = caller.broker.request_budget
        self._response_budget = caller.broker.response_budget
        self._queue: deque[list[WirePart] | Outstanding] = deque()
        self._held = 0  # bytes that the entries of the queue take, as far as they are large
        self._more = trio.lowlevel.ParkingLot()
        self._less = trio.lowlevel.ParkingLot()
        self._all = trio.CancelScope()
        self._reading = trio.CancelScope()
        self._arrival = trio.CancelScope()
        self._draining = False
        self._handling = False
        self._sending = False
        self._at_once = False  # whether it is the reader that sends
        self._ended = False
        self._written = trio.Event()
        self._reserved = 0
        # The receive buffer, filled from `start` to `fill`, while nothing is being received.
        self._view = memoryview(bytearray(SMALL_BUFFER))
        self._start = self._fill = 0

    def drain(self) -> None:
        """Read no further; `run` returns when what was read is answered."""
        self._draining = True
        if not self._handling:
            self._reading.cancel()
        for entry in self._queue:
            if isinstance(entry, Outstanding):
                entry.pending.hurry()

    def give_up(self) -> None:
        """End at once, whatever is unanswered."""
        self._all.cancel()

    @contextmanager
    def undisturbed(self) -> Iterator[None]:
        """While a handler waits, its client need not send, and `drain` lets it finish."""
        self._arrival.deadline = math.inf
        self._handling = True
        try:
            yield
        finally:
            self._handling = False
            if self._draining:
                self._reading.cancel()

    async def run(self) -> None:
        """Serve until the peer ends the stream, breaks a rule, or `drain`."""
        try:
            with self._all:
                async with open_tasks() as tasks:
                    tasks.start_soon(self._write)
                    with self._reading:
                        try:
                            await self._read()
                            return  # the peer has ended: nobody is there to read responses
                        except HangUp as reason:
                            logger.info("closing connection from %s: %s", self._caller.peer, reason)
                    self._ended = True
                    self._more.unpark_all()
                    with trio.move_on_after(DRAIN_TIMEOUT):
                        await self._written.wait()
        finally:
            if self._reserved:
                self._budget.give(self._reserved)

    # -- requests ----------------------------------------------------------------------------

    async def _read(self) -> None:
        """Receive and dispatch until the peer ends the stream, or takes too long."""
        limits = self._limits
        deadline = trio.current_time() + limits.handshake_timeout_s
        while True:
            with trio.CancelScope(deadline=deadline) as self._arrival:
                await self._receive()
                return
            if self._at_once:
                raise ConnectionLost(self._too_slow())
            if self._start != self._fill:
                reason = f"a request took longer than {limits.request_timeout_s} s to arrive"
                break
            now = trio.current_time()
            if self._reserved:
                self._budget.give(self._reserved)
                self._reserved = 0
                self._view = memoryview(bytearray(PLAIN_BUFFER))
                deadline = now + limits.idle_timeout_s - self._linger  # it was idle until now
            elif not self._queue and not self._sending:
                reason = "it was idle for too long"
                break
            else:
                deadline = now + limits.idle_timeout_s
        logger.info("closing connection from %s: %s", self._caller.peer, reason)

    async def _receive(self) -> None:
        limits = self._limits
        receive = self._connection.receive_into
        arrival = self._arrival
        view, start, fill = self._view, self._start, self._fill
        want = 0  # bytes of the frame at `start`, as far as known
        timed = False  # whether the deadline is already that of the frame at `start`
        try:
            while True:
                # A long frame is received to its end and no further: the next one then starts
                # at the front of the buffer, and large batches are never moved.
                end = start + want if want > PLAIN_BUFFER else len(view)
                count = await receive(view[fill:end])
                if not count:
                    return
                fill += count
                turn = 0
                while True:
                    frame_end = frame_at(view, start, fill, limits.frame_max_bytes)
                    if frame_end > fill:
                        want = frame_end - start
                        break
                    frame = view[start + SIZE : frame_end]
                    start = frame_end
                    timed = False
                    await self._request(frame, start == fill)
                    if self._held > QUEUE_BYTES or len(self._queue) >= QUEUE_LIMIT:
                        arrival.deadline = math.inf  # it is ours to be quicker now
                        await self._wait_for_queue()
                    turn += 1
                    if turn == FRAMES_PER_TURN:
                        turn = 0
                        arrival.deadline = math.inf
                        await trio.lowlevel.checkpoint()
                if start == fill:
                    start = fill = 0
                    if self._reserved and self._budget.contended:
                        self._budget.give(self._reserved)
                        self._reserved = 0
                        view = memoryview(bytearray(PLAIN_BUFFER))
                    idle = self._linger if self._reserved else limits.idle_timeout_s
                    arrival.deadline = trio.current_time() + idle
                    continue
                if not timed:
                    timed = True
                    arrival.deadline = trio.current_time() + limits.request_timeout_s
                if fill == len(view) or (start and start + want > len(view)):
                    view = await self._make_room(view, start, fill, want)
                    fill -= start
                    start = 0
        finally:
            self._view, self._start, self._fill = view, start, fill

    async def _make_room(self, view: memoryview, start: int, fill: int, want: int) -> memoryview:
        """Move the unfinished frame to the front, of a larger buffer if it needs one.

        The buffer grows when it is full, to at most four times what has arrived: a length that
        is only claimed costs nothing.
        """
        held = fill - start
        if start and (want <= len(view) or 2 * held <= len(view)):
            view[:held] = view[start:fill]
            return view
        size = max(min(want, 2 * max(len(view), held)), PLAIN_BUFFER)
        if size > PLAIN_BUFFER and self._reserved < want:
            if self._reserved:
                self._budget.give(self._reserved)
                self._reserved = 0
            # The client is not to blame for the wait, but has what is left of its time after it.
            began = trio.current_time()
            deadline, self._arrival.deadline = self._arrival.deadline, math.inf
            await self._budget.take(want)
            self._arrival.deadline = deadline + trio.current_time() - began
            self._reserved = want
        larger = memoryview(bytearray(size))
        larger[:held] = view[start:fill]
        return larger

    async def _request(self, frame: memoryview, last: bool) -> None:
        """Dispatch one request; `last`: nothing of another one has arrived behind it."""
        entry = await self.answer(self._caller, frame)
        if entry is None:
            return
        if type(entry) is Outstanding:
            self._held += entry.pending.weight
            if self._draining:
                entry.pending.hurry()
        elif last and not (self._queue or self._sending or self._draining):
            await self._send_at_once(entry)  # type: ignore[arg-type]  # the other kind of entry
            return
        else:
            self._held += sum(map(len, entry))
        self._queue.append(entry)
        if self._more:
            self._more.unpark_all()

    async def _send_at_once(self, parts: list[WirePart]) -> None:
        """Send a response from the reader: there is nothing to keep in order, or to send it with.

        A heartbeat, which comes alone, costs 26 microseconds so, and 65 by waking the writer.
        A cancel scope for the time that the client may take would make it 40, which is why the
        one around the reader lends its deadline.
        """
        self._sending = self._handling = self._at_once = True
        self._arrival.deadline = trio.current_time() + self._limits.write_timeout_s
        try:
            await self._connection.send([b"".join(parts)])  # type: ignore[arg-type]  # buffers, but for Fetch
        finally:
            self._handling = False
            if self._draining:
                self._reading.cancel()
        self._sending = self._at_once = False

    async def _wait_for_queue(self) -> None:
        while len(self._queue) >= QUEUE_LIMIT or self._held > QUEUE_BYTES:
            await self._less.park()

    # -- responses ---------------------------------------------------------------------------

    async def _write(self) -> None:
        queue = self._queue
        while True:
            while not queue:
                if self._ended:
                    self._written.set()
                    return
                await self._more.park()
            parts, references = await self._gather()
            self._sending = True
            await self._send(parts, references)
            self._sending = False
            if self._less and len(queue) < QUEUE_LIMIT // 2 and self._held <= QUEUE_BYTES // 2:
                self._less.unpark_all()

    async def _gather(self) -> tuple[list[WirePart], list[DataRef]]:
        """Take responses off the queue: the first one however long it takes, then what is ready.

        The second list are those parts that refer to stored bytes, and have to be closed.
        """
        queue = self._queue
        parts: list[WirePart] = []
        references: list[DataRef] = []
        size = 0
        try:
            while queue and size < SEND_BATCH:
                entry = queue[0]
                if type(entry) is Outstanding:
                    key, version, correlation_id, pending = entry
                    if not pending.ready():
                        if parts:
                            break
                        await pending.wait()
                    frame = pending.frame(correlation_id)
                    encoded: list[WirePart]
                    if frame is not None:
                        encoded = [frame]
                    else:
                        message = await pending.finish()
                        encoded = encode_response(key, version, correlation_id, message)
                    self._held -= pending.weight
                else:
                    encoded = entry  # type: ignore[assignment]  # the other kind of entry
                    self._held -= sum(map(len, encoded))
                queue.popleft()
                if len(encoded) == 1:
                    parts.append(encoded[0])
                    size += len(encoded[0])
                else:
                    parts += encoded
                    size += sum(map(len, encoded))
                    references += [part for part in encoded if isinstance(part, DataRef)]
        except BaseException:
            _close(references)
            raise
        return parts, references

    def _too_slow(self) -> str:
        return f"the client took no response for {self._limits.write_timeout_s} s"

    async def _send(self, parts: list[WirePart], references: list[DataRef]) -> None:
        copied = 0
        try:
            out: list[Part] = []
            if not references:
                # Acknowledgements of pipelined requests: one copy of a few bytes each is
                # cheaper than an iovec for each.
                out = [b"".join(parts)]  # type: ignore[arg-type]  # all of them are buffers
            else:
                plain = self._connection.plain_files
                if not plain:
                    # All at once: who takes a part and waits for the rest would make others wait.
                    size = sum(map(len, references))
                    await self._response_budget.take(size)
                    copied = size
                for part in parts:
                    if not isinstance(part, DataRef):
                        out.append(part)  # type: ignore[arg-type]  # likewise
                        continue
                    out += _bytes_of(part, plain)
            with trio.move_on_after(self._limits.write_timeout_s) as scope:
                await self._connection.send(out)
            if scope.cancelled_caught:
                raise ConnectionLost(self._too_slow())
        finally:
            if copied:
                self._response_budget.give(copied)
            _close(references)


def _bytes_of(reference: DataRef, plain: bool) -> Sequence[Part]:
    if plain:
        where = reference.file_range()
        if where is not None:
            return (FileRange(*where),)
    return reference.views()


def _close(references: list[DataRef]) -> None:
    for reference in references:
        reference.close()
