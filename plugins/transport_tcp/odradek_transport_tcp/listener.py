"""The accept loop's one step, which nothing but closing ends."""

from __future__ import annotations

import errno
import logging
import socket

import trio
from trio.lowlevel import checkpoint, notify_closing, wait_readable

from odradek.contracts.transport import Busy, Closed, Connection, Listener, TransportError

from .address import format_address
from .connection import TcpConnection
from .settings import TcpSettings
from .sockets import tune

__all__ = ["TcpListener"]

logger = logging.getLogger(__name__)

# Seconds to wait when the process or the machine has run out of something; long enough to
# leave the CPU to those who can free it, short enough to be missed by nobody.
_BACKOFF = 0.1

# The connection died before it was accepted, or the network says so (accept(2)): the next one
# may be fine.
_OF_ONE_CONNECTION = {
    errno.ECONNABORTED,
    errno.EPROTO,
    errno.EPERM,
    errno.ENETDOWN,
    errno.ENETUNREACH,
    errno.EHOSTDOWN,
    errno.EHOSTUNREACH,
    errno.ENOPROTOOPT,
    errno.EOPNOTSUPP,
    errno.EINTR,
}


class TcpListener(Listener):
    """A listening, non-blocking stream socket, which it owns."""

    __slots__ = ("__weakref__", "_accepting", "_address", "_closed", "_settings", "_short", "_sock")

    def __init__(self, sock: socket.socket, settings: TcpSettings) -> None:
        self._sock = sock
        self._settings = settings
        self._address = format_address(sock.getsockname())
        self._accepting = False
        self._closed = False
        self._short = False  # whether the last attempt lacked a resource: logged once per spell

    def __repr__(self) -> str:
        return f"<TcpListener {self._address}>"

    @property
    def address(self) -> str:
        """The URL that was bound."""
        return self._address

    async def accept(self) -> Connection:
        """See `Listener.accept`."""
        if self._accepting:
            raise self._refusal()
        self._accepting = True
        try:
            await checkpoint()
            while True:
                if self._closed:
                    raise self._refusal()
                connection = self._accept_now()
                if connection is not None:
                    return connection
                if self._short:
                    await trio.sleep(_BACKOFF)
                else:
                    await wait_readable(self._sock)
        except trio.ClosedResourceError:
            raise self._refusal() from None
        finally:
            self._accepting = self._closed

    def _accept_now(self) -> TcpConnection | None:
        try:
            sock, sockaddr = self._sock.accept()
        except BlockingIOError:
            self._short = False
            return None
        except OSError as exc:
            if exc.errno in _OF_ONE_CONNECTION:
                logger.debug("%s: a connection was gone before it was accepted: %s", self, exc)
            elif not self._short:
                self._short = True
                logger.error(
                    "%s accepts no connections for now and tries again every %g s: %s%s",
                    self._address,
                    _BACKOFF,
                    exc.strerror,
                    " (raise the limit on open files, ulimit -n)"
                    if exc.errno == errno.EMFILE
                    else "",
                )
            return None
        if self._short:
            self._short = False
            logger.warning("%s accepts connections again", self._address)
        try:
            tune(sock, self._settings)
            local = format_address(sock.getsockname())
        except OSError as exc:  # reset by the peer already
            logger.debug("%s: a connection was gone when it was accepted: %s", self, exc)
            sock.close()
            return None
        return TcpConnection(
            sock,
            peer=format_address(sockaddr),
            local=local,
            linger=self._settings.linger_ms / 1000,
        )

    async def aclose(self) -> None:
        """See `Listener.aclose`."""
        if not self._closed:
            self._closed = self._accepting = True
            notify_closing(self._sock)
            self._sock.close()
        await checkpoint()

    def _refusal(self) -> TransportError:
        if self._closed:
            return Closed(f"the listener on {self._address} was closed")
        return Busy(f"another task accepts on {self._address} already")
