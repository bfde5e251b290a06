"""Listening, accepting and connecting where the machine, not the peer, gets in the way."""

import logging
import os
import resource
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from odradek.config import structure
from odradek.contracts.transport import AddressInUse, ConnectFailed, Connection, ListenFailed
from odradek_transport_tcp import TcpSettings, TcpTransport, odradek_transport
from odradek_transport_tcp.listener import TcpListener


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


@contextmanager
def no_descriptor_left() -> Iterator[None]:
    """Let the process open no further file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.dup(0)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_accept_outlives_a_lack_of_descriptors_and_logs_it_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.WARNING, logger="odradek_transport_tcp.listener")
    attempts = 0
    accept_now = TcpListener._accept_now

    def counted(listener: TcpListener) -> Connection | None:
        nonlocal attempts
        attempts += 1
        return accept_now(listener)

    monkeypatch.setattr(TcpListener, "_accept_now", counted)
    listener = await TcpTransport().listen("tcp://127.0.0.1:0")
    accepted: list[Connection] = []

    async def accept() -> None:
        accepted.append(await listener.accept())

    with socket.create_connection(("127.0.0.1", port_of(listener.address))) as early:
        await accept()
        caller = socket.create_connection(("127.0.0.1", port_of(listener.address)))
        with caller, trio.fail_after(10):
            async with trio.open_nursery() as nursery:
                with no_descriptor_left():
                    nursery.start_soon(accept)
                    await wait_all_tasks_blocked(0.01)
                    so_far = attempts
                    while attempts < so_far + 2:
                        await trio.lowlevel.checkpoint()
                    early.sendall(b"x")
                    assert await accepted[0].receive_into(memoryview(bytearray(1))) == 1
                    await wait_all_tasks_blocked(0.01)
                    assert len(accepted) == 1
            caller.sendall(b"x")
            assert await accepted[1].receive_into(memoryview(bytearray(1))) == 1
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 2
    assert "Too many open files" in messages[0]
    assert "ulimit -n" in messages[0]
    assert "accepts connections again" in messages[1]
    for connection in accepted:
        connection.abort()
    await listener.aclose()


async def test_connect_without_descriptors_fails_and_says_so() -> None:
    listener = await TcpTransport().listen("tcp://127.0.0.1:0")
    with no_descriptor_left(), pytest.raises(ConnectFailed, match="Too many open files"):
        await TcpTransport().connect(listener.address)
    await listener.aclose()


async def test_both_families_are_served_by_the_ipv6_wildcard() -> None:
    transport = TcpTransport()
    listener = await transport.listen("tcp://[::]:0")
    for host in ("127.0.0.1", "[::1]"):
        here = await transport.connect(f"tcp://{host}:{port_of(listener.address)}")
        there = await listener.accept()
        assert there.peer == here.local
        assert there.peer.startswith(f"tcp://{host}:")
        here.abort()
        there.abort()
    await listener.aclose()


async def test_an_address_in_use_says_what_to_do() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(AddressInUse, match="choose another port") as caught:
            await TcpTransport().listen(url)
        assert url in str(caught.value)


async def test_several_processes_may_share_a_port_where_asked_for() -> None:
    transport = TcpTransport(TcpSettings(reuse_port=True))
    first = await transport.listen("tcp://127.0.0.1:0")
    second = await transport.listen(first.address)
    await first.aclose()
    await second.aclose()


async def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(ListenFailed, match=r"203\.0\.113\.1.*no interface of this machine"):
        await TcpTransport().listen("tcp://203.0.113.1:0")


class Names(trio.abc.HostnameResolver):
    """Resolves `both` to two addresses of which only the second is listened on."""

    async def getaddrinfo(
        self,
        host: bytes | None,
        port: bytes | str | int | None,
        family: int = 0,
        type: int = 0,
        proto: int = 0,
        flags: int = 0,
    ) -> Any:
        if host != b"both":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        kind = socket.SOCK_STREAM
        return [
            (socket.AF_INET6, kind, 6, "", ("::1", port, 0, 0)),
            (socket.AF_INET, kind, 6, "", ("127.0.0.1", port)),
        ]

    async def getnameinfo(self, sockaddr: Any, flags: int) -> tuple[str, str]:
        raise NotImplementedError


async def test_names_are_tried_at_each_of_their_addresses() -> None:
    trio.socket.set_custom_hostname_resolver(Names())
    transport = TcpTransport()
    listener = await transport.listen("tcp://both:0")
    port = port_of(listener.address)
    assert listener.address == f"tcp://127.0.0.1:{port}"
    here = await transport.connect(f"tcp://both:{port}")
    assert here.peer == listener.address
    here.abort()
    await listener.aclose()
    with pytest.raises(ConnectFailed) as caught:
        await transport.connect(f"tcp://both:{port}")
    assert f"tcp://[::1]:{port}: connection refused" in str(caught.value)
    assert f"tcp://127.0.0.1:{port}: connection refused" in str(caught.value)


async def test_names_that_nobody_knows_are_named() -> None:
    trio.socket.set_custom_hostname_resolver(Names())
    with pytest.raises(ConnectFailed, match=r"tcp://nowhere:1: the host name cannot be resolved"):
        await TcpTransport().connect("tcp://nowhere:1")
    with pytest.raises(ListenFailed, match=r"tcp://nowhere:1: the host name cannot be resolved"):
        await TcpTransport().listen("tcp://nowhere:1")


async def test_connect_is_bounded_by_the_callers_scope() -> None:
    """A listener with a full backlog answers nobody."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        url = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        waiting = []
        with trio.move_on_after(0.05) as scope:
            while True:
                waiting.append(await TcpTransport().connect(url))
        assert scope.cancelled_caught
        for connection in waiting:
            connection.abort()


async def test_the_hook_gives_a_factory_that_works() -> None:
    (factory,) = odradek_transport()
    assert factory.scheme == "tcp"
    settings = structure(factory.settings, {"no_delay": False}, "[[listeners]]")
    async with factory.open("tcp://127.0.0.1:0", settings) as transport:
        listener = await transport.listen("tcp://127.0.0.1:0")
        await listener.aclose()
