"""The connections of a client: one for each address and purpose, made by need."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

import trio

from odradek.client.connection import BrokerConnection
from odradek.client.errors import ClientClosed, Disconnected, NotReachable
from odradek.client.health import BrokerHealth
from odradek.client.settings import ClientSettings
from odradek.contracts.transport import Transport, TransportError
from odradek.errors import KafkaError, OdradekError

__all__ = ["ConnectionPool"]


class _Address:
    """What is remembered of an address besides its connections: the latest failure, and when."""

    __slots__ = ("error", "failed_at", "tried_at")

    def __init__(self, now: float) -> None:
        self.tried_at = now
        self.failed_at = now
        self.error: OdradekError | None = None

    def failed(self, error: OdradekError, at: float) -> None:
        if self.error is None or at >= self.failed_at:
            self.error = error
            self.failed_at = at


class ConnectionPool:
    """Connections by address (URL) and purpose; their tasks run in `nursery`."""

    def __init__(
        self, settings: ClientSettings, transport: Transport, nursery: trio.Nursery
    ) -> None:
        self.closed = False
        self._settings = settings
        self._transport = transport
        self._nursery = nursery
        self._connections: dict[tuple[str, str], BrokerConnection] = {}
        self._dialling: dict[tuple[str, str], trio.Lock] = {}
        self._addresses: dict[str, _Address] = {}

    @property
    def connected(self) -> bool:
        """Whether there is any live connection."""
        return any(connection.alive for connection in self._connections.values())

    def live(self) -> Iterator[BrokerConnection]:
        """Yield the live connections of the purpose that everybody shares."""
        for (_, purpose), connection in self._connections.items():
            if connection.alive and not purpose:
                yield connection

    async def connect(self, url: str, purpose: str = "") -> BrokerConnection:
        """Return a live connection, made if need be; concurrent callers share it.

        Raises NotReachable, ClientClosed, and Disconnected or KafkaError when the broker refuses
        ApiVersions.
        """
        key = url, purpose
        async with self._dialling.setdefault(key, trio.Lock()):
            known = self._connections.get(key)
            if known is not None and known.alive:
                return known
            if self.closed:
                raise ClientClosed("the client is closed")
            address = self._addresses.setdefault(url, _Address(trio.current_time()))
            if known is not None and known.failure is not None:
                address.failed(known.failure, known.ended_at)
            try:
                connection = await self._dial(url)
            except (NotReachable, Disconnected, KafkaError) as error:
                address.failed(error, trio.current_time())
                raise
            if self._dialling.get(key) is None:
                connection.close()  # `disconnect` came in between
                raise ClientClosed(f"nobody needs the connection to {url} any more")
            self._connections[key] = connection
            return connection

    async def _dial(self, url: str) -> BrokerConnection:
        timeout = self._settings.connect_timeout
        with trio.move_on_after(timeout):
            try:
                stream = await self._transport.connect(url)
            except TransportError as error:
                text = str(error)
                raise NotReachable(text if url in text else f"{url}: {text}") from error
            connection = BrokerConnection(stream, self._settings)
            await self._nursery.start(connection.run)
            return connection
        raise NotReachable(f"{url}: no connection within {timeout:g} s")

    def disconnect(self, purpose: str) -> None:
        """End the connections of a purpose; unanswered calls on them raise ClientClosed."""
        for key in [key for key in self._dialling if key[1] == purpose]:
            del self._dialling[key]
            connection = self._connections.pop(key, None)
            if connection is not None:
                connection.close()

    def health(
        self, nodes: Mapping[str, int], bootstrap: Iterable[str]
    ) -> Mapping[str, BrokerHealth]:
        """Return the state of every address: those of `nodes`, and whatever was tried."""
        of: dict[str, list[BrokerConnection]] = {}
        for (url, _), connection in self._connections.items():
            of.setdefault(url, []).append(connection)
        now = trio.current_time()
        return {
            url: self._health(url, nodes.get(url), of.get(url, ()), now)
            for url in dict.fromkeys((*nodes, *bootstrap, *self._addresses))
        }

    def _health(
        self, url: str, node_id: int | None, connections: Collection[BrokerConnection], now: float
    ) -> BrokerHealth:
        address = self._addresses.get(url)
        live = [connection for connection in connections if connection.alive]
        for connection in connections:
            if connection.failure is not None and address is not None:
                address.failed(connection.failure, connection.ended_at)
        since: float | None = None
        if live:
            since = now - min(connection.started_at for connection in live)
        elif address is not None:
            ended = [connection.ended_at for connection in connections]
            since = now - max(ended, default=address.tried_at)
        return BrokerHealth(
            node_id=node_id,
            url=url,
            connected=bool(live),
            since=since,
            outstanding=sum(connection.unanswered for connection in live),
            last_error=None if address is None else address.error,
        )
