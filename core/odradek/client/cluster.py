"""A cluster as a client sees it: brokers found by bootstrap, metadata, connections by need."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from random import Random
from typing import TypeVar
from urllib.parse import urlsplit

import trio

from odradek.client.backoff import Backoff
from odradek.client.connection import BrokerConnection
from odradek.client.errors import (
    ClientClosed,
    Disconnected,
    NotReachable,
    is_retriable,
    raise_for,
)
from odradek.client.metadata import Leader, Metadata, TopicInfo, TopicPartition
from odradek.client.settings import ClientSettings
from odradek.contracts.background import open_tasks
from odradek.contracts.transport import Transport, TransportError
from odradek.errors import ErrorCode, KafkaError, OdradekError
from odradek.wire import Message
from odradek.wire.api.a03_metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse

__all__ = ["Cluster", "bootstrap_urls", "open_cluster"]

T = TypeVar("T")
ResponseT = TypeVar("ResponseT", bound=Message)

DEFAULT_PORT = 9092

# Answers that say the image is wrong: whoever gets one asks for a newer image and tries again.
_STALE = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.LISTENER_NOT_FOUND,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.INCONSISTENT_TOPIC_ID,
    }
)


def is_stale(error: BaseException) -> bool:
    """Whether `error` is a reason to fetch metadata before trying again."""
    if isinstance(error, KafkaError):
        return error.code in _STALE
    return isinstance(error, Disconnected | NotReachable)


def bootstrap_urls(bootstrap: str | Iterable[str]) -> tuple[str, ...]:
    """Return the URLs of a bootstrap list: "host", "host:port" or "scheme://..." each.

    A string may name several, separated by commas. All have one scheme, by which the brokers'
    advertised addresses are reached too. Raises ValueError.
    """
    items = bootstrap.split(",") if isinstance(bootstrap, str) else list(bootstrap)
    urls = []
    for item in (item.strip() for item in items):
        if not item:
            continue
        if "://" in item:
            urls.append(item)
            continue
        host = f"[{item}]" if item.count(":") > 1 and not item.startswith("[") else item
        port = "" if ":" in host.rpartition("]")[2] else f":{DEFAULT_PORT}"
        urls.append(f"tcp://{host}{port}")
    if not urls:
        raise ValueError("no bootstrap address was given; for example 127.0.0.1:9092")
    schemes = {urlsplit(url).scheme for url in urls}
    if len(schemes) > 1:
        raise ValueError(f"bootstrap addresses of several transports: {', '.join(sorted(schemes))}")
    return tuple(urls)


@asynccontextmanager
async def open_cluster(
    bootstrap: str | Iterable[str],
    settings: ClientSettings | None = None,
    *,
    transport: Transport | None = None,
) -> AsyncIterator[Cluster]:
    """Give a `Cluster` and own its tasks and connections; leaving ends them all.

    Connects by need only: nobody has to be reachable yet. `transport` serves the scheme of the
    bootstrap URLs; left out, it is opened from the installed plugins, with default settings.

    Raises ValueError for a bootstrap list that cannot be understood, and what opening the
    transport raises.
    """
    urls = bootstrap_urls(bootstrap)
    async with AsyncExitStack() as stack:
        if transport is None:
            from odradek.plugins import load

            factory = load().transport(urlsplit(urls[0]).scheme)
            opening = factory.open(urls[0], factory.settings())
            transport = await stack.enter_async_context(opening)
        async with open_tasks() as nursery:
            cluster = Cluster(urls, settings or ClientSettings(), transport, nursery)
            nursery.start_soon(cluster._renew_by_age)
            try:
                yield cluster
            finally:
                cluster._closed = True


class Cluster:
    """Metadata and connections, shared by everything that talks to one cluster.

    Made by `open_cluster`; for use in its trio run, by any number of tasks.
    """

    def __init__(
        self,
        bootstrap: tuple[str, ...],
        settings: ClientSettings,
        transport: Transport,
        nursery: trio.Nursery,
    ) -> None:
        self.settings = settings
        self.metadata = Metadata()
        self._bootstrap = bootstrap
        self._scheme = urlsplit(bootstrap[0]).scheme
        self._transport = transport
        self._nursery = nursery
        self._random = Random()
        self._connections: dict[tuple[str, str], BrokerConnection] = {}
        self._dialling: dict[tuple[str, str], trio.Lock] = {}
        self._renewing = trio.Lock()
        self._of_interest: set[str] = set()
        self._closed = False

    def backoff(self) -> Backoff:
        """Return a back-off after the settings."""
        return Backoff(self.settings.retry_backoff, self.settings.retry_backoff_max, self._random)

    # Connections

    async def connection(self, node_id: int, purpose: str = "") -> BrokerConnection:
        """Return a live connection to a broker, made if need be.

        `purpose`: requests that brokers hold back, such as fetches, have a connection of their
        own under a name of their own, since answers come in order. Raises NotReachable, and
        Disconnected or KafkaError when the broker refuses ApiVersions.
        """
        broker = self.metadata.brokers.get(node_id)
        if broker is None:
            raise NotReachable(f"broker {node_id} is not in the cluster's metadata")
        return await self._connect(broker.url(self._scheme), purpose)

    async def any_connection(self) -> BrokerConnection:
        """Return a connection to whichever broker can be reached; live ones come first.

        Raises NotReachable when every address known failed, with the cause of each.
        """
        live = [
            connection
            for (_, purpose), connection in self._connections.items()
            if connection.alive and not purpose
        ]
        if live:
            return min(live, key=lambda connection: connection.unanswered)
        known = [broker.url(self._scheme) for broker in self.metadata.brokers.values()]
        self._random.shuffle(known)
        causes: dict[str, str] = {}
        for url in (*known, *self._bootstrap):
            if url not in causes:
                try:
                    return await self._connect(url, "")
                except (NotReachable, Disconnected, KafkaError) as error:
                    causes[url] = str(error)
        raise NotReachable("; ".join(causes.values()))

    async def _connect(self, url: str, purpose: str) -> BrokerConnection:
        key = url, purpose
        lock = self._dialling.setdefault(key, trio.Lock())
        async with lock:
            known = self._connections.get(key)
            if known is not None and known.alive:
                return known
            if self._closed:
                raise ClientClosed("the client is closed")
            timeout = self.settings.connect_timeout
            with trio.move_on_after(timeout):
                try:
                    stream = await self._transport.connect(url)
                except TransportError as error:
                    text = str(error)
                    raise NotReachable(text if url in text else f"{url}: {text}") from error
                connection = BrokerConnection(stream, self.settings)
                await self._nursery.start(connection.run)
                self._connections[key] = connection
                return connection
            raise NotReachable(f"{url}: no connection within {timeout:g} s")

    # Requests

    async def call(
        self,
        request: Message,
        response: type[ResponseT],
        *,
        node: int | None = None,
        timeout: float | None = None,
    ) -> ResponseT:
        """Send one request to a broker, or to any; no retries. Raises as `BrokerConnection.call`,
        `connection` and `any_connection` do."""
        connection = await self.any_connection() if node is None else await self.connection(node)
        return await connection.call(request, response, timeout=timeout)

    async def retrying(
        self,
        attempt: Callable[[], Awaitable[T]],
        *,
        timeout: float,
        when: Callable[[OdradekError], bool] = is_retriable,
    ) -> T:
        """Return what `attempt` returns; repeat it for `timeout` seconds, `when` it may help.

        Waits between tries, and renews metadata where the error says that it is out of date.
        After the timeout the last error is raised; an attempt under way is not cut short.
        """
        deadline = trio.current_time() + timeout
        backoff = self.backoff()
        while True:
            generation = self.metadata.generation
            try:
                return await attempt()
            except OdradekError as error:
                if not when(error):
                    raise
                wait = backoff.next()
                if trio.current_time() + wait >= deadline:
                    raise
                await trio.sleep(wait)
                if is_stale(error) and self.metadata.generation == generation:
                    await self._try_to_renew(deadline)

    async def _try_to_renew(self, deadline: float) -> None:
        with trio.move_on_at(deadline):
            try:
                await self.renew()
            except OdradekError as error:
                if not is_retriable(error):
                    raise  # otherwise the caller's next attempt says what is wrong

    # Metadata

    async def renew(
        self,
        topics: Collection[str] | None = (),
        *,
        newer_than: int | None = None,
        create: bool = False,
    ) -> Metadata:
        """Fetch metadata of `topics` (None: all), and of those asked for before; return the image.

        Concurrent callers share an answer: nothing is fetched when the image is newer than the
        generation `newer_than` already. `create` asks the broker to create unknown topics, where
        it is configured to.

        Raises NotReachable, Disconnected, NotOffered, and KafkaError for an answer that refuses
        as a whole. What is wrong with a single topic is in `Metadata.errors`.
        """
        async with self._renewing:
            if newer_than is not None and self.metadata.generation > newer_than:
                return self.metadata
            names = None if topics is None else {*topics, *self._of_interest}
            request = MetadataRequest(
                topics=None
                if names is None
                else [MetadataRequestTopic(name=name) for name in sorted(names)],
                allow_auto_topic_creation=create,
            )
            answer = await self.call(request, MetadataResponse)
            raise_for(answer.error_code)
            self.metadata = self.metadata.renewed(answer, complete=names is None)
            return self.metadata

    async def topic(
        self, name: str, *, timeout: float | None = None, create: bool = False
    ) -> TopicInfo:
        """Return a topic, which stays in metadata from now on; waits until it is known.

        Raises KafkaError (UNKNOWN_TOPIC_OR_PARTITION, INVALID_TOPIC_EXCEPTION, ...) when the
        cluster does not have it within `timeout` seconds, which 0 makes a single look; and
        NotReachable, Disconnected.
        """

        async def look() -> TopicInfo:
            found = self.metadata.topics.get(name)
            if found is None:
                image = await self.renew((name,), create=create)
                if name in image.errors:
                    raise KafkaError(image.errors[name], f"topic {name!r}")
                found = image.topics.get(name)
            if found is None:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name!r}")
            return found

        timeout = self.settings.request_timeout if timeout is None else timeout
        topic = await self.retrying(look, timeout=timeout)
        self._of_interest.add(name)
        return topic

    def forget(self, name: str) -> None:
        """Let go of a topic that `topic` made this cluster follow."""
        self._of_interest.discard(name)

    async def leader(self, partition: TopicPartition) -> Leader:
        """Return a partition's leader from the image, renewing it when it has none.

        Raises KafkaError: LEADER_NOT_AVAILABLE (retriable), UNKNOWN_TOPIC_OR_PARTITION; and what
        `renew` raises.
        """
        found = self.metadata.leader(partition)
        if found is None:
            image = await self.renew((partition.topic,))
            found = image.leader(partition)
            if found is None:
                topic = image.topics.get(partition.topic)
                known = topic is not None and partition.partition < len(topic.partitions)
                raise KafkaError(
                    ErrorCode.LEADER_NOT_AVAILABLE
                    if known
                    else image.errors.get(partition.topic, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
                    f"partition {partition}",
                )
        return found

    async def by_leader(
        self, partitions: Iterable[TopicPartition]
    ) -> Mapping[int, list[TopicPartition]]:
        """Group partitions by the node that leads them. Raises as `leader` does."""
        groups: dict[int, list[TopicPartition]] = {}
        for partition in partitions:
            leader = await self.leader(partition)
            groups.setdefault(leader.node_id, []).append(partition)
        return groups

    async def _renew_by_age(self) -> None:
        """Renew metadata that grew old, so that new partitions and brokers are seen."""
        backoff = self.backoff()
        wait = self.settings.metadata_max_age
        while True:
            generation = self.metadata.generation
            await trio.sleep(wait)
            wait = self.settings.metadata_max_age
            if not self._of_interest or self.metadata.generation > generation:
                continue
            try:
                await self.renew()
                backoff.reset()
            except OdradekError:
                wait = min(backoff.next(), wait)  # whoever makes requests meanwhile sees why
