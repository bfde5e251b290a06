"""What the tests of the transport kit are made of."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import ClassVar

import pytest
import trio

from odradek.contracts.transport import (
    Connection,
    ConnectionLost,
    Listener,
    Part,
    Transport,
)

__all__ = [
    "TOO_MUCH",
    "TransportKit",
    "expect",
    "open_file",
    "receive_bytes",
    "receive_until_end",
    "receive_until_lost",
    "send_in_calls",
]

TOO_MUCH = 64 * 1024 * 1024
"""More bytes than a transport may hold for a peer that does not read."""


class TransportKit:
    """The traits and the fixture a subclass gives, and the connections the tests are made on."""

    pytestmark = pytest.mark.anyio

    url: ClassVar[str]
    """A URL to listen on that leaves something open for the transport to fill in."""
    bad_urls: ClassVar[Sequence[str]]
    """URLs that the transport must refuse to understand."""
    plain_files: ClassVar[bool] = False
    """What `Connection.plain_files` is to say."""
    patience_s: ClassVar[float] = 20.0
    """Seconds after which something that should happen is taken never to happen."""

    @pytest.fixture
    def anyio_backend(self) -> str:
        """Run on trio alone."""
        return "trio"

    @pytest.fixture
    def transport(self) -> Transport:
        """Return the transport to try."""
        raise NotImplementedError("a conformance test gives the fixture `transport`")

    @asynccontextmanager
    async def listening(self, transport: Transport) -> AsyncIterator[Listener]:
        """Yield a listener on `url`; what is done with it must come to an end."""
        listener = await transport.listen(self.url)
        try:
            with self.soon():
                yield listener
        finally:
            with trio.CancelScope(shield=True):
                await listener.aclose()

    @asynccontextmanager
    async def pair(self, transport: Transport) -> AsyncIterator[tuple[Connection, Connection]]:
        """Yield the two ends of a connection: the one that called, the one that accepted."""
        async with self.listening(transport) as listener:
            here = await transport.connect(listener.address)
            there = await listener.accept()
            try:
                yield here, there
            finally:
                here.abort()
                there.abort()

    @contextmanager
    def soon(self) -> Iterator[None]:
        """Fail when what is inside does not come to an end."""
        with trio.fail_after(self.patience_s):
            yield


@contextmanager
def open_file(content: bytes) -> Iterator[int]:
    """Yield a descriptor of a file that holds `content`."""
    with tempfile.TemporaryFile(buffering=0) as file:
        file.write(content)
        yield file.fileno()


async def expect(
    error: type[Exception], call: Callable[..., Awaitable[object]], *arguments: object
) -> None:
    """Call and await; fail unless `error` is raised."""
    with pytest.raises(error):
        await call(*arguments)


async def send_in_calls(connection: Connection, parts: Sequence[Part], each: int) -> None:
    """Send `parts` by several calls, `each` parts at a time."""
    for first in range(0, len(parts), each):
        await connection.send(parts[first : first + each])


async def receive_bytes(
    connection: Connection, total: int, sizes: Iterator[int] | None = None, *, keep: bool = True
) -> bytes:
    """Receive `total` bytes by calls of `sizes`; the stream must not end before."""
    received = bytearray()
    taken = 0
    whole = memoryview(bytearray(1 << 20))
    while taken < total:
        size = next(sizes) if sizes else len(whole)
        buffer = whole[: min(size, total - taken)]
        now = await connection.receive_into(buffer)
        assert 0 <= now <= len(buffer), f"{now} bytes received into {len(buffer)}"
        assert now, f"the stream ended after {taken} of {total} bytes"
        taken += now
        if keep:
            received += buffer[:now]
    return bytes(received)


async def receive_until_end(connection: Connection, stop_at: int | None = None) -> bytes:
    """Receive up to the end of the stream, or its loss, or `stop_at` bytes."""
    received = bytearray()
    buffer = memoryview(bytearray(1 << 16))
    try:
        while stop_at is None or len(received) < stop_at:
            now = await connection.receive_into(buffer)
            if not now:
                break
            received += buffer[:now]
    except ConnectionLost:
        if stop_at is None:
            raise
    return bytes(received)


async def receive_until_lost(connection: Connection) -> bytes:
    """Receive up to the loss of the connection; it must not look like an end."""
    received = bytearray()
    buffer = memoryview(bytearray(1 << 16))
    try:
        while now := await connection.receive_into(buffer):
            received += buffer[:now]
    except ConnectionLost:
        return bytes(received)
    pytest.fail(f"an aborted connection ended as if it had been closed, after {len(received)}")
