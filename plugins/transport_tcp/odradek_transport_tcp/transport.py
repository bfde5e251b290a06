"""The TCP transport: settings applied to listeners and connections."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from trio.lowlevel import checkpoint

from odradek.contracts.transport import ConnectFailed, Connection, Listener, Transport

from .address import SCHEME, format_address, parse_address
from .connection import TcpConnection
from .listener import TcpListener
from .settings import TcpSettings
from .sockets import connect, listen

__all__ = ["SCHEME", "TcpTransport", "open_transport"]


class TcpTransport(Transport):
    """Plain TCP over IPv4 and IPv6."""

    __slots__ = ("_settings",)

    def __init__(self, settings: TcpSettings | None = None) -> None:
        self._settings = settings or TcpSettings()

    async def listen(self, url: str) -> Listener:
        """See `Transport.listen`."""
        target = parse_address(url)
        await checkpoint()
        return TcpListener(await listen(url, target, self._settings), self._settings)

    async def connect(self, url: str) -> Connection:
        """See `Transport.connect`."""
        sock = await connect(url, parse_address(url), self._settings)
        try:
            peer, local = sock.getpeername(), sock.getsockname()
        except OSError as exc:
            sock.close()
            raise ConnectFailed(f"cannot connect to {url}: {exc.strerror}") from exc
        return TcpConnection(
            sock,
            peer=format_address(peer),
            local=format_address(local),
            linger=self._settings.linger_ms / 1000,
        )


@asynccontextmanager
async def open_transport(url: str, settings: TcpSettings) -> AsyncIterator[Transport]:
    """Open the transport for the hook's factory; it holds nothing that would need closing."""
    yield TcpTransport(settings)
