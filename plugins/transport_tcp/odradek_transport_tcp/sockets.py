"""Making sockets: options, and every failure to bind or connect put into the contract's words."""

from __future__ import annotations

import errno
import os
import socket
import sys
from contextlib import suppress

import trio
from trio.lowlevel import wait_writable

from odradek.contracts.transport import AddressInUse, ConnectFailed, ListenFailed

from .address import HostPort, format_address
from .settings import TcpSettings

__all__ = ["connect", "listen", "tune"]

# Seconds that one address of a name has before the next is tried beside it (RFC 8305, section 5).
_ATTEMPT_DELAY = 0.25

_PROBES = 3
_PROBE_INTERVAL_S = 10


def tune(sock: socket.socket, settings: TcpSettings) -> None:
    """Make a connected or connecting socket non-blocking and set its options."""
    sock.setblocking(False)
    if settings.no_delay:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if settings.keepalive:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if sys.platform == "linux":
            idle = settings.keepalive_idle_s
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, idle)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBE_INTERVAL_S)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)


def _size_buffers(sock: socket.socket, settings: TcpSettings) -> None:
    """Set what must be known before the handshake, for the window scale; accepted ones inherit."""
    if settings.send_buffer_bytes >= 0:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, settings.send_buffer_bytes)
    if settings.receive_buffer_bytes >= 0:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, settings.receive_buffer_bytes)


async def _resolve(
    target: HostPort, flags: int = 0
) -> list[tuple[socket.AddressFamily, tuple[str, int] | tuple[str, int, int, int]]]:
    found = await trio.socket.getaddrinfo(
        target.host, target.port, type=socket.SOCK_STREAM, flags=flags
    )
    return [(family, sockaddr) for family, _, _, _, sockaddr in found]  # type: ignore[misc]  # no bytes


async def listen(url: str, target: HostPort, settings: TcpSettings) -> socket.socket:
    """Return a listening socket. Raises AddressInUse, ListenFailed.

    A name is listened on at one address, IPv4 before IPv6.
    """
    try:
        found = await _resolve(target, socket.AI_PASSIVE)
    except (OSError, UnicodeError) as exc:
        raise ListenFailed(f"cannot listen on {url}: {_reason(exc)}") from exc
    family, sockaddr = min(found, key=lambda each: each[0] != socket.AF_INET)
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        # Without it, a restart is refused while connections of the last run are in TIME_WAIT.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if settings.reuse_port:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            every = sockaddr[0] == "::"  # whatever the machine's default, `[::]` is both families
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(not every))
        _size_buffers(sock, settings)
        sock.bind(sockaddr)
        sock.listen(settings.backlog)
    except OSError as exc:
        sock.close()
        raise _listen_error(url, target, exc) from exc
    return sock


def _listen_error(url: str, target: HostPort, exc: OSError) -> ListenFailed:
    if exc.errno == errno.EADDRINUSE:
        return AddressInUse(
            f"{url} is in use: another process, perhaps another broker, listens on port"
            f" {target.port} already; stop it, or choose another port (0 takes any free one)"
        )
    hint = ""
    if exc.errno == errno.EADDRNOTAVAIL:
        hint = "; no interface of this machine has it (0.0.0.0 listens on all of them)"
    elif exc.errno in (errno.EACCES, errno.EPERM):
        hint = "; ports below 1024 need the privilege CAP_NET_BIND_SERVICE"
    return ListenFailed(f"cannot listen on {url}: {_reason(exc)}{hint}")


async def connect(url: str, target: HostPort, settings: TcpSettings) -> socket.socket:
    """Return a connected socket to the first address of the host that answers (RFC 8305).

    Raises ConnectFailed; cancelled, it leaves no socket open.
    """
    try:
        found = await _resolve(target)
    except (OSError, UnicodeError) as exc:
        raise ConnectFailed(f"cannot connect to {url}: {_reason(exc)}") from exc

    winner: socket.socket | None = None
    reasons: list[str] = []

    async def attempt(index: int, failed: trio.Event) -> None:
        nonlocal winner
        family, sockaddr = found[index]
        try:
            sock = await _attempt(family, sockaddr, settings)
        except OSError as exc:
            where = f"{format_address(sockaddr)}: " if len(found) > 1 else ""
            reasons.append(where + _reason(exc))
            failed.set()
        else:
            if winner is None:
                winner = sock
            else:
                sock.close()
            nursery.cancel_scope.cancel()

    try:
        async with trio.open_nursery() as nursery:
            for index in range(len(found)):
                failed = trio.Event()
                nursery.start_soon(attempt, index, failed)
                with trio.move_on_after(_ATTEMPT_DELAY):
                    await failed.wait()
    except BaseException:
        if winner is not None:
            winner.close()
        raise
    if winner is None:
        raise ConnectFailed(f"cannot connect to {url}: {'; '.join(reasons)}")
    return winner


async def _attempt(
    family: socket.AddressFamily,
    sockaddr: tuple[str, int] | tuple[str, int, int, int],
    settings: TcpSettings,
) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        _size_buffers(sock, settings)
        tune(sock, settings)
        error = sock.connect_ex(sockaddr)
        if error == errno.EINPROGRESS:
            await wait_writable(sock)
            error = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        # Where the port is one that the kernel also gives to callers, and nobody listens on it,
        # the socket may have been joined to itself (simultaneous open, RFC 9293).
        if not error and sock.getsockname() == sock.getpeername():
            error = errno.ECONNREFUSED
        if error:
            raise OSError(error, os.strerror(error))
    except BaseException:
        with suppress(OSError):
            sock.close()
        raise
    return sock


def _reason(exc: Exception) -> str:
    if isinstance(exc, socket.gaierror):
        return f"the host name cannot be resolved ({exc.strerror})"
    if isinstance(exc, ConnectionRefusedError):
        return "connection refused: nobody listens there"
    if isinstance(exc, OSError) and exc.strerror:
        return exc.strerror
    return str(exc)
