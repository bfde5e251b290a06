"""The kit finds every broken promise: transports broken on purpose, one or more per promise."""

import itertools
import os
import re
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import ClassVar

import pytest
import trio
from trio.lowlevel import cancel_shielded_checkpoint

from odradek.contracts import transport as contract
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
from odradek.memory.transport import MemoryNetwork, MemoryTransport
from odradek.testing.transport import TransportConformance


class PassConnection(Connection):
    """Passes every call on to a connection in memory; the broken ones override one thing."""

    def __init__(self, inner: Connection) -> None:
        self.inner = inner

    @property
    def peer(self) -> str:
        return self.inner.peer

    @property
    def local(self) -> str:
        return self.inner.local

    @property
    def principal(self) -> str | None:
        return self.inner.principal

    @property
    def plain_files(self) -> bool:
        return self.inner.plain_files

    async def receive_into(self, buffer: memoryview) -> int:
        return await self.inner.receive_into(buffer)

    async def send(self, parts: Sequence[Part]) -> None:
        await self.inner.send(parts)

    async def send_eof(self) -> None:
        await self.inner.send_eof()

    async def aclose(self) -> None:
        await self.inner.aclose()

    def abort(self) -> None:
        self.inner.abort()


class PassListener(Listener):
    def __init__(self, inner: Listener, transport: "PassTransport") -> None:
        self.inner = inner
        self.transport = transport

    @property
    def address(self) -> str:
        return self.inner.address

    async def accept(self) -> Connection:
        return self.transport.connection(await self.inner.accept())

    async def aclose(self) -> None:
        await self.inner.aclose()


class PassTransport(Transport):
    connection: ClassVar[type[PassConnection]] = PassConnection
    listener: ClassVar[type[PassListener]] = PassListener

    def __init__(self) -> None:
        self.inner = MemoryTransport(MemoryNetwork())

    async def listen(self, url: str) -> Listener:
        return self.listener(await self.inner.listen(url), self)

    async def connect(self, url: str) -> Connection:
        return self.connection(await self.inner.connect(url))


BROKEN: dict[str, list[type[PassTransport]]] = {}


def breaks(*promises: str) -> Callable[[type], type]:
    """Register a broken transport, connection or listener under the promises it breaks."""

    def register(cls: type) -> type:
        if issubclass(cls, PassTransport):
            transport = cls
        else:
            kind = "connection" if issubclass(cls, PassConnection) else "listener"
            transport = type(cls.__name__, (PassTransport,), {kind: cls})
        for promise in promises:
            BROKEN.setdefault(promise, []).append(transport)
        return cls

    return register


@breaks("T1")
class AddressIncomplete(PassListener):
    @property
    def address(self) -> str:
        return "memory://"


@breaks("T1")
class TakesAddressesTwice(PassTransport):
    async def listen(self, url: str) -> Listener:
        try:
            return await super().listen(url)
        except AddressInUse:
            return await super().listen("memory://")


@breaks("T1")
class AnonymousAddressInUse(PassTransport):
    async def listen(self, url: str) -> Listener:
        try:
            return await super().listen(url)
        except AddressInUse:
            raise AddressInUse("address in use") from None


@breaks("T1", "T4")
class NeverFreesTheAddress(PassListener):
    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


@breaks("T2")
class ConnectWaitsForSomebody(PassTransport):
    async def connect(self, url: str) -> Connection:
        while True:
            try:
                return await super().connect(url)
            except ConnectFailed:
                await trio.lowlevel.checkpoint()


@breaks("T2")
class CancelledConnectStaysOpen(PassTransport):
    def __init__(self) -> None:
        super().__init__()
        self.kept: list[Connection] = []

    async def connect(self, url: str) -> Connection:
        with trio.CancelScope(shield=True):
            self.kept.append(await super().connect(url))
        await trio.lowlevel.checkpoint()
        return self.kept.pop()


@breaks("T3")
class AcceptLosesWhenCancelled(PassListener):
    async def accept(self) -> Connection:
        connection = await super().accept()
        await trio.lowlevel.checkpoint()
        return connection


@breaks("T3")
class AcceptWaitsForTheFirstByte(PassListener):
    async def accept(self) -> Connection:
        connection = await super().accept()
        await connection.receive_into(memoryview(bytearray(1)))
        return connection


@breaks("T3")
class AcceptDiesWithAConnection(PassListener):
    async def accept(self) -> Connection:
        connection = await super().accept()
        with trio.move_on_after(0):
            await connection.send([b""])
            await connection.receive_into(memoryview(bytearray(1)))
        return connection


@breaks("T3")
class AcceptsOneOfTwo(PassListener):
    async def accept(self) -> Connection:
        (await super().accept()).abort()
        return await super().accept()


@breaks("T4")
class ClosingLeavesAcceptWaiting(PassListener):
    async def accept(self) -> Connection:
        try:
            return await super().accept()
        except Closed:
            await trio.sleep_forever()
            raise


@breaks("T4")
class ClosingTakesConnectionsAlong(PassListener):
    def __init__(self, inner: Listener, transport: PassTransport) -> None:
        super().__init__(inner, transport)
        self.accepted: list[Connection] = []

    async def accept(self) -> Connection:
        self.accepted.append(await super().accept())
        return self.accepted[-1]

    async def aclose(self) -> None:
        for connection in self.accepted:
            connection.abort()
        await super().aclose()


@breaks("T5")
class UnderstandsEverything(PassTransport):
    async def listen(self, url: str) -> Listener:
        try:
            return await super().listen(url)
        except BadAddress:
            return await super().listen("memory://")


@breaks("T5")
class QuotesNothing(PassTransport):
    async def connect(self, url: str) -> Connection:
        try:
            return await super().connect(url)
        except BadAddress:
            raise BadAddress("what?") from None


@breaks("T6")
class SendsBuffersBeforeFiles(PassConnection):
    async def send(self, parts: Sequence[Part]) -> None:
        await super().send(sorted(parts, key=lambda part: isinstance(part, FileRange)))


@breaks("T6")
class SendsAThousandPartsAtMost(PassConnection):
    async def send(self, parts: Sequence[Part]) -> None:
        await super().send(parts[:1024])


@breaks("T6")
class EmptyPartsEndTheCall(PassConnection):
    async def send(self, parts: Sequence[Part]) -> None:
        await super().send(
            list(
                itertools.takewhile(
                    lambda part: part.count if isinstance(part, FileRange) else len(part), parts
                )
            )
        )


@breaks("T7")
class WaitsForAFullBuffer(PassConnection):
    async def receive_into(self, buffer: memoryview) -> int:
        received = 0
        while received < len(buffer):
            now = await super().receive_into(buffer[received:])
            if not now:
                break
            received += now
        return received


@breaks("T8")
class EndIsSaidOnce(PassConnection):
    ended = False

    async def receive_into(self, buffer: memoryview) -> int:
        received = await super().receive_into(buffer)
        if not received and self.ended:
            raise ConnectionLost("at the end already")
        self.ended = not received
        return received


@breaks("T8", "T17")
class EndOvertakesBytes(PassConnection):
    async def send_eof(self) -> None:
        self.inner._outgoing.data.clear()  # type: ignore[attr-defined]  # a fault put in
        await super().send_eof()

    async def aclose(self) -> None:
        self.inner._outgoing.data.clear()  # type: ignore[attr-defined]  # a fault put in
        await super().aclose()


@breaks("T10")
class QueuesWithoutBound(PassConnection):
    async def send(self, parts: Sequence[Part]) -> None:
        outgoing = self.inner._outgoing  # type: ignore[attr-defined]  # a fault put in
        for part in parts:
            if isinstance(part, FileRange):
                outgoing.data += os.pread(part.fd, part.count, part.offset)
            else:
                outgoing.data += part
        outgoing.wake()
        await trio.lowlevel.checkpoint()


@breaks("T9")
class ReadsTheBuffersLater(PassConnection):
    """Returns at once, and sends from the caller's buffers when the peer has read a little."""

    async def send(self, parts: Sequence[Part]) -> None:
        trio.lowlevel.spawn_system_task(self.send_later, list(parts))
        await trio.lowlevel.checkpoint()

    async def send_later(self, parts: Sequence[Part]) -> None:
        with suppress(Exception):
            await self.inner.send(parts)


@breaks("T11")
class SendingStopsReceiving(PassConnection):
    def __init__(self, inner: Connection) -> None:
        super().__init__(inner)
        self.lock = trio.Lock()

    async def receive_into(self, buffer: memoryview) -> int:
        async with self.lock:
            return await super().receive_into(buffer)

    async def send(self, parts: Sequence[Part]) -> None:
        async with self.lock:
            await super().send(parts)


@breaks("T11")
class EofClosesBoth(PassConnection):
    async def send_eof(self) -> None:
        await self.aclose()


@breaks("T12")
class SendsFromTheDescriptorsPosition(PassConnection):
    async def send(self, parts: Sequence[Part]) -> None:
        await super().send(
            [
                os.read(part.fd, part.count) if isinstance(part, FileRange) else part
                for part in parts
            ]
        )


@breaks("T12")
class ShortFilesPass(PassConnection):
    async def send(self, parts: Sequence[Part]) -> None:
        await super().send(
            [
                os.pread(part.fd, part.count, part.offset) if isinstance(part, FileRange) else part
                for part in parts
            ]
        )


@breaks("T12")
class ShortFilesLeaveTheConnectionOpen(PassConnection):
    async def send(self, parts: Sequence[Part]) -> None:
        for part in parts:
            if isinstance(part, FileRange) and (
                os.fstat(part.fd).st_size < part.offset + part.count
            ):
                raise ShortFile("short")
        await super().send(parts)


@breaks("T13")
class SecondReceiverWaits(PassConnection):
    def __init__(self, inner: Connection) -> None:
        super().__init__(inner)
        self.lock = trio.Lock()

    async def receive_into(self, buffer: memoryview) -> int:
        async with self.lock:
            return await super().receive_into(buffer)


@breaks("T13")
class SecondSenderBreaksTheFirst(PassConnection):
    async def send(self, parts: Sequence[Part]) -> None:
        try:
            await super().send(parts)
        except Busy:
            self.abort()
            raise


@breaks("T14")
class ReceiveYieldsWithBytesInHand(PassConnection):
    async def receive_into(self, buffer: memoryview) -> int:
        received = await super().receive_into(buffer)
        await trio.lowlevel.checkpoint()
        return received


@breaks("T15")
class CancelledSendLeavesTheStreamOpen(PassConnection):
    async def send(self, parts: Sequence[Part]) -> None:
        for part in parts:
            with trio.CancelScope(shield=True):
                size = part.count if isinstance(part, FileRange) else len(part)
                if size < 1000:
                    await super().send([part])
                    continue
            while len(self.inner._outgoing.data):  # type: ignore[attr-defined]  # a fault put in
                await trio.lowlevel.checkpoint()


@breaks("T16")
class NeverYields(PassConnection):
    async def receive_into(self, buffer: memoryview) -> int:
        incoming = self.inner._incoming  # type: ignore[attr-defined]  # a fault put in
        if incoming.data:
            return int(incoming.read_into(buffer))
        return await super().receive_into(buffer)


@breaks("T16")
class SendsWithoutNoticingCancellation(PassConnection):
    async def send(self, parts: Sequence[Part]) -> None:
        with trio.CancelScope(shield=True):
            await super().send(parts)
        await cancel_shielded_checkpoint()


@breaks("T17")
class ClosesByAbort(PassConnection):
    async def aclose(self) -> None:
        self.abort()
        await trio.lowlevel.checkpoint()


@breaks("T17")
class ClosesInTheMiddleOfASend(PassConnection):
    async def aclose(self) -> None:
        self.inner._sending = False  # type: ignore[attr-defined]  # a fault put in
        await super().aclose()


@breaks("T17")
class ClosingTwiceIsAnError(PassConnection):
    closed = False

    async def aclose(self) -> None:
        if self.closed:
            raise Closed("closed already")
        self.closed = True
        await super().aclose()


@breaks("T17")
class ClosingIgnoresCancellation(PassConnection):
    async def aclose(self) -> None:
        with trio.CancelScope(shield=True):
            await super().aclose()


@breaks("T18", "T15", "T12")
class AbortLooksLikeAnEnd(PassConnection):
    async def receive_into(self, buffer: memoryview) -> int:
        try:
            return await super().receive_into(buffer)
        except ConnectionLost:
            return 0


@breaks("T18")
class AbortLeavesCallsWaiting(PassConnection):
    async def receive_into(self, buffer: memoryview) -> int:
        try:
            return await super().receive_into(buffer)
        except Closed:
            await trio.sleep_forever()
            raise


@breaks("T19")
class LossIsAnOSError(PassConnection):
    async def send(self, parts: Sequence[Part]) -> None:
        try:
            await super().send(parts)
        except ConnectionLost:
            raise BrokenPipeError from None


@breaks("T19")
class LossIsSaidOnce(PassConnection):
    lost = False

    async def receive_into(self, buffer: memoryview) -> int:
        try:
            return await super().receive_into(buffer)
        except ConnectionLost:
            if self.lost:
                return 0
            self.lost = True
            raise


@breaks("T19")
class SendsToNobody(PassConnection):
    async def send(self, parts: Sequence[Part]) -> None:
        try:
            await super().send(parts)
        except ConnectionLost:
            return


@breaks("T20")
class ForgetsItsPeer(PassConnection):
    ended = False

    @property
    def peer(self) -> str:
        return "" if self.ended else self.inner.peer

    def abort(self) -> None:
        self.ended = True
        super().abort()


@breaks("T20")
class ClaimsPlainFiles(PassConnection):
    @property
    def plain_files(self) -> bool:
        return True


class Conformance(TransportConformance):
    """Run by hand below; `__test__` keeps pytest from running it as it stands."""

    __test__ = False
    url = "memory://"
    bad_urls = ("", "memory://a b")
    patience_s = 0.25


class Patient(Conformance):
    patience_s = 20.0


def kit_tests(promise: str) -> list[str]:
    return [name for name in dir(Conformance) if name.startswith(f"test_{promise.lower()}_")]


PROMISES = re.findall(r"^\* \*\*(T\d+)\*\*", contract.__doc__ or "", re.MULTILINE)


def test_every_promise_has_a_test_and_a_broken_transport() -> None:
    assert [f"T{number}" for number in range(1, len(PROMISES) + 1)] == PROMISES
    assert [promise for promise in PROMISES if not kit_tests(promise)] == []
    assert [promise for promise in PROMISES if promise not in BROKEN] == []


def test_every_test_of_the_kit_cites_its_promise() -> None:
    for name in dir(Conformance):
        if name.startswith("test_"):
            promise = name.split("_")[1].upper()
            assert promise in PROMISES, name
            assert (getattr(Conformance, name).__doc__ or "").startswith(promise), name


@pytest.mark.parametrize("promise", PROMISES)
async def test_an_unbroken_transport_passes(promise: str) -> None:
    for name in kit_tests(promise):
        test: Callable[[Transport], Awaitable[None]] = getattr(Patient(), name)
        await test(PassTransport())


@pytest.mark.parametrize(
    ("promise", "broken"),
    [
        pytest.param(promise, broken, id=f"{promise}-{broken.__name__}")
        for promise in PROMISES
        for broken in BROKEN.get(promise, ())
    ],
)
async def test_a_broken_transport_is_found(promise: str, broken: type[PassTransport]) -> None:
    failures = 0
    for name in kit_tests(promise):
        test: Callable[[Transport], Awaitable[None]] = getattr(Conformance(), name)
        try:
            await test(broken())
        except* (Exception, pytest.fail.Exception):
            failures += 1
    assert failures, f"{broken.__name__} keeps {promise}, says the kit"
