"""One connection to a broker: pipelined requests, answers in order.

Requests are written by a task of the connection, never by the caller's: a cancelled `send` would
abort the stream (T15 of the transport contract), and a request that nobody waits for any more
must not cost the others theirs. The answer to a forgotten request is read and dropped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from functools import cache
from struct import Struct
from typing import Any, Generic, TypeVar, cast

import trio

from odradek.client.errors import (
    ClientClosed,
    ClientError,
    Disconnected,
    NotOffered,
    RequestTimedOut,
    raise_for,
)
from odradek.client.frames import FrameReader
from odradek.client.settings import ClientSettings
from odradek.contracts.transport import Connection, Part, TransportError
from odradek.errors import ErrorCode, MalformedMessage, OdradekError
from odradek.wire import Message, decode_correlation_id, decode_response, encode_request
from odradek.wire.api.a18_api_versions import ApiVersionsRequest, ApiVersionsResponse
from odradek.wire.schema import VersionRange

__all__ = ["BrokerConnection", "Pending"]

ResponseT = TypeVar("ResponseT", bound=Message)

_SEND_AT_ONCE = 64
_CLOSING = 1.0
_error_code = Struct(">h")


class Pending(Generic[ResponseT]):
    """A request on its way; `answer` waits for what comes back. Made by `submit`."""

    __slots__ = (
        "_connection",
        "correlation_id",
        "done",
        "error",
        "expected",
        "name",
        "parts",
        "response",
        "sent",
        "version",
    )

    def __init__(
        self,
        connection: BrokerConnection,
        name: str,
        expected: type[ResponseT] | None,
        version: int,
    ) -> None:
        self._connection = connection
        self.name = name
        self.expected = expected
        self.version = version
        self.correlation_id = -1
        self.parts: Sequence[Part] = ()
        self.sent = False
        self.done = trio.Event()
        self.response: ResponseT | None = None
        self.error: ClientError | None = None

    async def answer(self, timeout: float) -> ResponseT:
        """Return the answer within `timeout` seconds, whatever error codes it carries.

        Cancelled: the request is withdrawn if it has not left, or else its answer dropped.
        Raises RequestTimedOut, Disconnected, ClientClosed.
        """
        with trio.move_on_after(timeout):
            try:
                await self.done.wait()
            finally:
                if not self.done.is_set():
                    self._connection._withdraw(self)
        if not self.done.is_set():
            raise self._connection._timed_out(self, timeout)
        if self.error is not None:
            raise _anew(self.error, sent=self.sent)
        assert self.response is not None
        return self.response

    async def left(self) -> None:
        """Return when the request without an answer is in the transport's hands."""
        await self.done.wait()
        if self.error is not None:
            raise _anew(self.error, sent=self.sent)


def _anew(error: ClientError, *, sent: bool) -> ClientError:
    # Each waiter raises an exception of its own: one object raised in several tasks would
    # collect the tracebacks of all of them.
    if isinstance(error, Disconnected):
        return type(error)(str(error), sent=sent)
    return type(error)(str(error))


class BrokerConnection:
    """A connection that speaks the Kafka protocol; `run` owns its tasks.

    Any number of tasks may `call` at a time. At most `max_in_flight` requests are without their
    answer; further calls wait. A cancelled call takes nothing with it: its request is withdrawn
    when it had not left yet, and its answer dropped otherwise.
    """

    def __init__(self, stream: Connection, settings: ClientSettings) -> None:
        self._stream = stream
        self._settings = settings
        self._versions: Mapping[int, VersionRange] = {}
        self._next_correlation_id = 0
        self._slots = trio.Semaphore(settings.max_in_flight)
        self._outbox: deque[Pending[Any]] = deque()
        self._outbox_filled = trio.Event()
        self._leaving: list[Pending[Any]] = []  # being written, and without an answer to come
        self._unanswered: deque[Pending[Any]] = deque()
        self._failure: ClientError | None = None
        self.started_at = trio.current_time()
        self.ended_at = float("inf")
        self._scope = trio.CancelScope()

    def __repr__(self) -> str:
        state = "open" if self._failure is None else f"ended: {self._failure}"
        return f"<BrokerConnection to {self._stream.peer}, {state}>"

    @property
    def alive(self) -> bool:
        """Whether requests can be made; once False it stays so."""
        return self._failure is None

    @property
    def failure(self) -> ClientError | None:
        """Why it ended; None while it is alive."""
        return self._failure

    @property
    def peer(self) -> str:
        """The broker's address as a URL."""
        return self._stream.peer

    @property
    def unanswered(self) -> int:
        """Requests that were made and not answered yet."""
        return len(self._outbox) + len(self._unanswered)

    def version_of(self, request: type[Message], highest: int | None = None) -> int:
        """Return the highest version that both sides speak, at most `highest`.

        Raises NotOffered when there is none.
        """
        offered = self._versions.get(request.api_key)
        if offered is not None:
            last = min(offered.last, request.versions.last)
            if highest is not None:
                last = min(last, highest)
            if last >= max(offered.first, request.versions.first):
                return last
        theirs = f"versions {offered.first} to {offered.last}" if offered else "nothing"
        raise NotOffered(
            f"{request.__name__}: {self.peer} offers {theirs} of API {request.api_key}, this "
            f"client versions {request.versions.first} to {request.versions.last}"
        )

    async def run(
        self, *, task_status: trio.TaskStatus[BrokerConnection] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Serve the connection until it ends or `close`; started when versions are agreed on.

        Owns the stream and closes it. Raises Disconnected or KafkaError before it has started;
        afterwards nothing but Cancelled: those who wait for an answer get the error.
        """
        refusal: OdradekError | None = None
        started = False
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._write)
                    nursery.start_soon(self._read)
                    try:
                        await self._agree_on_versions()
                    except OdradekError as error:
                        refusal = error
                        nursery.cancel_scope.cancel()
                    else:
                        started = True
                        task_status.started(self)
        finally:
            self.close()
            if isinstance(self._failure, ClientClosed):
                with trio.move_on_after(_CLOSING, shield=True):
                    await self._stream.aclose()  # what left without an answer still arrives
            self._stream.abort()
        if not started:
            raise refusal or self._failure or Disconnected(f"{self.peer} ended the connection")

    def close(self) -> None:
        """End the connection now; unanswered calls raise ClientClosed. Idempotent."""
        self._end(ClientClosed(f"the connection to {self.peer} was closed"))

    async def call(
        self,
        request: Message,
        response: type[ResponseT],
        *,
        version: int | None = None,
        timeout: float | None = None,
    ) -> ResponseT:
        """Send `request` and return its answer, whatever error codes that carries.

        `response` is the class of the answer. `timeout` in seconds, the settings' by default,
        counts from this call. Cancelled: the broker may have acted on the request.

        Raises NotOffered, RequestTimedOut, Disconnected, ClientClosed.
        """
        timeout = self._settings.request_timeout if timeout is None else timeout
        deadline = trio.current_time() + timeout
        pending = None
        with trio.move_on_at(deadline):
            pending = await self.submit(request, response, version=version)
        if pending is None:
            raise RequestTimedOut(
                f"{type(request).__name__}: {self._settings.max_in_flight} requests before it "
                f"wait for {self.peer} since {timeout:g} s",
                sent=False,
            )
        return await pending.answer(max(deadline - trio.current_time(), 0.0))

    async def submit(
        self, request: Message, response: type[ResponseT] | None, *, version: int | None = None
    ) -> Pending[ResponseT]:
        """Queue `request` behind those submitted before; wait only while too many are unanswered.

        For callers to whom the order of their requests matters. `response` None: there is no
        answer (Produce with acks = 0), and `left` is all there is to wait for. Cancelled: it is
        not sent. Raises NotOffered, Disconnected, ClientClosed; ValueError when `request` cannot
        be encoded at the version.
        """
        if version is None:
            version = self.version_of(type(request))
        pending = Pending(self, type(request).__name__, response, version)
        self._check()
        await self._slots.acquire()
        try:
            self._check()
            pending.correlation_id = self._next_correlation_id
            parts = encode_request(
                request, version, pending.correlation_id, self._settings.client_id
            )
        except BaseException:
            self._slots.release()
            raise
        self._next_correlation_id = (pending.correlation_id + 1) & 0x7FFFFFFF
        pending.parts = cast("list[Part]", parts)  # records of a request are bytes-like
        self._outbox.append(pending)
        self._outbox_filled.set()
        return pending

    def _check(self) -> None:
        if self._failure is not None:
            raise _anew(self._failure, sent=False)

    def _withdraw(self, call: Pending[Any]) -> None:
        if call in self._outbox:
            self._outbox.remove(call)
            self._slots.release()

    def _timed_out(self, call: Pending[Any], timeout: float) -> RequestTimedOut:
        text = f"{call.name}: no answer from {self.peer} within {timeout:.3g} s"
        if call.sent:
            self._end(Disconnected(f"given up: {text}"))
        return RequestTimedOut(text, sent=call.sent)

    def _end(self, failure: ClientError) -> None:
        if self._failure is not None:
            return
        self._failure = failure
        self.ended_at = trio.current_time()
        for call in (*self._leaving, *self._unanswered, *self._outbox):
            call.error = failure
            call.done.set()
            self._slots.release()  # so that whoever waits for a slot sees the failure
        self._leaving.clear()
        self._unanswered.clear()
        self._outbox.clear()
        self._scope.cancel()

    async def _write(self) -> None:
        try:
            while True:
                if not self._outbox:
                    self._outbox_filled = trio.Event()
                    await self._outbox_filled.wait()
                parts: list[Part] = []
                for _ in range(min(len(self._outbox), _SEND_AT_ONCE)):
                    call = self._outbox.popleft()
                    parts += call.parts
                    call.parts = ()
                    call.sent = True
                    (self._leaving if call.expected is None else self._unanswered).append(call)
                await self._stream.send(parts)
                for call in self._leaving:
                    call.done.set()
                    self._slots.release()
                self._leaving.clear()
        except TransportError as error:
            self._end(Disconnected(f"the connection to {self.peer} broke: {error}"))

    async def _read(self) -> None:
        try:
            reader = FrameReader(self._stream, self._settings.max_response_bytes)
            while (frame := await reader.next()) is not None:
                self._answer(frame)
            self._end(Disconnected(f"{self.peer} closed the connection"))
        except (TransportError, MalformedMessage) as error:
            self._end(Disconnected(f"the connection to {self.peer} broke: {error}"))

    def _answer(self, frame: memoryview) -> None:
        correlation_id = decode_correlation_id(frame)
        if not self._unanswered:
            raise MalformedMessage("an answer that no request was made for")
        call = self._unanswered[0]
        if correlation_id != call.correlation_id:
            raise MalformedMessage(
                f"an answer to request {correlation_id} where {call.correlation_id} is due"
            )
        self._unanswered.popleft()
        self._slots.release()
        assert call.expected is not None
        version = call.version
        if call.expected is ApiVersionsResponse and _is_unsupported(frame):
            version = 0  # KIP-511: whatever version was asked for
        try:
            call.response = decode_response(call.expected, version, frame)
        except MalformedMessage as error:
            call.error = Disconnected(f"{self.peer} sent a broken answer: {error}")
            raise
        finally:
            call.done.set()

    async def _agree_on_versions(self) -> None:
        request = ApiVersionsRequest(
            client_software_name="odradek", client_software_version=_version()
        )
        timeout = self._settings.connect_timeout
        version = ApiVersionsRequest.versions.last
        answer = await self.call(request, ApiVersionsResponse, version=version, timeout=timeout)
        if answer.error_code == ErrorCode.UNSUPPORTED_VERSION:
            ours = ApiVersionsRequest.api_key
            theirs = [api.max_version for api in answer.api_keys if api.api_key == ours]
            version = min(*theirs, version) if theirs else 0
            answer = await self.call(request, ApiVersionsResponse, version=version, timeout=timeout)
        raise_for(answer.error_code)
        self._versions = {
            api.api_key: VersionRange(api.min_version, api.max_version) for api in answer.api_keys
        }


@cache
def _version() -> str:
    from importlib.metadata import version

    return version("odradek")


def _is_unsupported(frame: memoryview) -> bool:
    return len(frame) >= 6 and _error_code.unpack_from(frame, 4)[0] == (
        ErrorCode.UNSUPPORTED_VERSION
    )
