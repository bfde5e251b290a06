"""What is particular to TCP, on real sockets over loopback."""

import errno
import gc
import os
import random
import socket
import tempfile
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from odradek.contracts.transport import Closed, Connection, FileRange, Part
from odradek_transport_tcp import TcpSettings, TcpTransport
from odradek_transport_tcp import connection as connection_module
from odradek_transport_tcp.connection import TcpConnection

LOOPBACK = "tcp://127.0.0.1:0"


@asynccontextmanager
async def pair(
    settings: TcpSettings | None = None,
) -> AsyncIterator[tuple[TcpConnection, TcpConnection]]:
    transport = TcpTransport(settings)
    listener = await transport.listen(LOOPBACK)
    here = await transport.connect(listener.address)
    there = await listener.accept()
    await listener.aclose()
    assert isinstance(here, TcpConnection)
    assert isinstance(there, TcpConnection)
    try:
        with trio.fail_after(60):
            yield here, there
    finally:
        here.abort()
        there.abort()


async def receive(connection: Connection, total: int, at_a_time: int = 1 << 20) -> bytes:
    received = bytearray()
    buffer = memoryview(bytearray(at_a_time))
    while len(received) < total:
        now = await connection.receive_into(buffer[: total - len(received)])
        assert now, f"ended after {len(received)} of {total} bytes"
        received += buffer[:now]
    return bytes(received)


async def test_a_big_range_goes_to_a_slow_reader_by_sendfile_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def pread(*arguments: object) -> bytes:
        raise AssertionError("the range was copied")

    content = random.Random(1).randbytes(1 << 20)
    with tempfile.TemporaryFile(buffering=0) as file:
        for _ in range(24):
            file.write(content)
        monkeypatch.setattr(os, "pread", pread)
        async with (
            pair(TcpSettings(send_buffer_bytes=16384, receive_buffer_bytes=16384)) as (here, there),
            trio.open_nursery() as nursery,
        ):
            whole = FileRange(file.fileno(), 0, 24 << 20)
            parts: list[Part] = [b"head", whole, b"tail"]
            nursery.start_soon(here.send, parts)
            assert await receive(there, 4) == b"head"
            for _ in range(24):
                assert await receive(there, len(content), at_a_time=10_000) == content
            assert await receive(there, 4) == b"tail"


async def test_a_descriptor_that_refuses_sendfile_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def sendfile(*arguments: object) -> int:
        raise OSError(errno.EINVAL, "refused")

    content = random.Random(2).randbytes(3 << 20)
    monkeypatch.setattr(os, "sendfile", sendfile)
    with tempfile.TemporaryFile(buffering=0) as file:
        file.write(content)
        async with pair() as (here, there), trio.open_nursery() as nursery:
            range_ = FileRange(file.fileno(), 1, len(content) - 1)
            parts: list[Part] = [b"head", range_, range_]
            nursery.start_soon(here.send, parts)
            assert await receive(there, 2 * len(content) + 2) == b"head" + content[1:] * 2


async def test_full_buffers_split_vectors_anywhere() -> None:
    chance = random.Random(3)
    parts = [chance.randbytes(chance.choice((1, 10, 2000, 40_000))) for _ in range(1500)]
    async with (
        pair(TcpSettings(send_buffer_bytes=4096, receive_buffer_bytes=4096)) as (here, there),
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(here.send, parts)
        assert await receive(there, sum(map(len, parts)), at_a_time=777) == b"".join(parts)


async def test_one_long_send_to_a_fast_reader_lets_others_run() -> None:
    total = 64 << 20
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    def read_all(sock: socket.socket) -> int:
        taken = 0
        buffer = bytearray(1 << 20)
        while taken < total and (now := sock.recv_into(buffer)):
            taken += now
        return taken

    with socket.create_server(("127.0.0.1", 0)) as server:
        here = await TcpTransport().connect(f"tcp://127.0.0.1:{server.getsockname()[1]}")
        with server.accept()[0] as sock:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.to_thread.run_sync, read_all, sock)
                nursery.start_soon(other)
                await here.send([bytes(total)])
                assert turns >= 8
                await here.aclose()
                nursery.cancel_scope.cancel()


async def test_closing_waits_for_a_peer_that_pipelines_and_reads_slowly() -> None:
    """Without lingering, the kernel resets and drops what the peer has not taken yet."""
    content = random.Random(4).randbytes(200_000)
    settings = TcpSettings(send_buffer_bytes=400_000, receive_buffer_bytes=8192, linger_ms=30_000)
    async with pair(settings) as (here, there):
        await here.send([content])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(here.aclose)
            await wait_all_tasks_blocked(0.01)
            await there.send([b"more, now that it is closing"])
            assert await receive(there, len(content)) == content
            assert await there.receive_into(memoryview(bytearray(1))) == 0
            await there.aclose()


async def test_closing_gives_a_silent_peer_the_time_set_and_no_more() -> None:
    async with pair(TcpSettings(linger_ms=50)) as (here, there):
        await there.send([b"unread"])
        started = trio.current_time()
        await here.aclose()
        assert 0.05 <= trio.current_time() - started < 5


async def test_closing_does_not_wait_when_nothing_is_outstanding() -> None:
    async with pair(TcpSettings(linger_ms=60_000)) as (here, there):
        await here.send([b"x"])
        with trio.fail_after(5):
            await here.aclose()
        assert await receive(there, 1) == b"x"


async def test_abort_interrupts_a_close_that_waits() -> None:
    async with pair(TcpSettings(linger_ms=60_000)) as (here, there):
        await there.send([b"unread"])
        with trio.fail_after(5):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(here.aclose)
                await wait_all_tasks_blocked(0.01)
                here.abort()


async def test_a_receive_that_yields_takes_nothing_from_a_close_that_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with (
        pair(TcpSettings(linger_ms=60_000)) as (here, there),
        trio.open_nursery() as nursery,
    ):
        await there.send([b"unread"])
        checkpoint = trio.lowlevel.checkpoint

        async def yield_to_a_close() -> None:
            monkeypatch.setattr(connection_module, "checkpoint", checkpoint)
            nursery.start_soon(here.aclose)
            await wait_all_tasks_blocked(0.01)
            await there.send([b"more"])

        monkeypatch.setattr(connection_module, "checkpoint", yield_to_a_close)
        here._may_receive = -1
        with pytest.raises(Closed):
            await here.receive_into(memoryview(bytearray(1)))
        await there.aclose()


async def test_options_are_set_on_both_ends() -> None:
    settings = TcpSettings(
        send_buffer_bytes=20_000, receive_buffer_bytes=30_000, keepalive_idle_s=77
    )
    async with pair(settings) as ends:
        for end in ends:
            sock = end._sock
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 77
            # Linux doubles what is asked for, to have room for its own book-keeping.
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == 40_000
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) == 60_000
    async with pair(TcpSettings(no_delay=False, keepalive=False)) as ends:
        for end in ends:
            assert not end._sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            assert not end._sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)


async def test_an_idle_connection_is_cheap() -> None:
    """Python's memory for an accepted connection and the task that waits on it."""
    number = 200
    transport = TcpTransport()
    listener = await transport.listen(LOOPBACK)
    port = int(listener.address.rpartition(":")[2])
    buffer = memoryview(bytearray(1))
    callers = [socket.create_connection(("127.0.0.1", port)) for _ in range(number)]
    connections = []

    async def serve(connection: Connection) -> None:
        await connection.receive_into(buffer)

    async with trio.open_nursery() as nursery:
        gc.collect()
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            for _ in range(number):
                connections.append(await listener.accept())
                nursery.start_soon(serve, connections[-1])
            await wait_all_tasks_blocked(0.01)
            gc.collect()
            each = (tracemalloc.get_traced_memory()[0] - before) / number
        finally:
            tracemalloc.stop()
        assert each < 6 * 1024, f"{each:.0f} bytes"
        nursery.cancel_scope.cancel()
    for connection in connections:
        connection.abort()
    for caller in callers:
        caller.close()
    await listener.aclose()
