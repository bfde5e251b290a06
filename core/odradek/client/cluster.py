"""A cluster as a client sees it: brokers found by bootstrap, metadata, connections by need."""

from __future__ import annotations

from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
)
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from random import Random
from typing import TypeVar
from urllib.parse import urlsplit

import trio

from odradek.client.backoff import Backoff
from odradek.client.bootstrap import bootstrap_urls
from odradek.client.connection import BrokerConnection
from odradek.client.coordinators import Coordinators
from odradek.client.errors import Disconnected, NotReachable, is_retriable, is_stale, raise_for
from odradek.client.health import ClusterHealth
from odradek.client.metadata import Broker, Leader, Metadata, TopicInfo, TopicPartition
from odradek.client.pool import ConnectionPool
from odradek.client.settings import ClientSettings
from odradek.contracts.background import open_lasting_tasks
from odradek.contracts.transport import Transport
from odradek.errors import ErrorCode, KafkaError, OdradekError
from odradek.wire import Message
from odradek.wire.api.a03_metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse

__all__ = ["Cluster", "cluster_from", "open_cluster"]

T = TypeVar("T")
ResponseT = TypeVar("ResponseT", bound=Message)


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
        async with open_lasting_tasks() as nursery:
            cluster = Cluster(urls, settings or ClientSettings(), transport, nursery)
            nursery.start_soon(cluster._renew_by_age)
            try:
                yield cluster
            finally:
                cluster._pool.closed = True


@asynccontextmanager
async def cluster_from(
    cluster: Cluster | str | Iterable[str],
    settings: ClientSettings | None = None,
    transport: Transport | None = None,
) -> AsyncIterator[Cluster]:
    """Give `cluster` as it is, or open one by its bootstrap addresses, and close that.

    For what may be opened either way. Raises as `open_cluster`; TypeError for settings that come
    with a cluster, which has its own.
    """
    if isinstance(cluster, Cluster):
        if settings is not None or transport is not None:
            raise TypeError("an open cluster has its settings and its transport already")
        yield cluster
    else:
        async with open_cluster(cluster, settings, transport=transport) as opened:
            yield opened


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
        self._pool = ConnectionPool(settings, transport, nursery)
        self._random = Random()
        self._renewing = trio.Lock()
        self._renewed_at: float | None = None
        self._renewal_error: OdradekError | None = None
        self._of_interest: set[str] = set()
        self._followers: dict[object, Callable[[], Iterable[str]]] = {}
        self._coordinators = Coordinators(self.any_connection)
        self.image_changed = trio.Event()
        """Set, and replaced, whenever `metadata` is."""

    @property
    def closed(self) -> bool:
        """Whether its owner has left it."""
        return self._pool.closed

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
        return await self.connection_to(broker, purpose)

    async def connection_to(self, broker: Broker, purpose: str = "") -> BrokerConnection:
        """Return a live connection to a broker that an answer named, whether or not metadata
        knows it. As `connection` otherwise."""
        return await self._pool.connect(broker.url(self._scheme), purpose)

    def disconnect(self, purpose: str) -> None:
        """End the connections of a purpose that nobody has any more; unanswered calls on them
        raise ClientClosed. Not for the purpose "", which everybody shares."""
        self._pool.disconnect(purpose)

    async def any_connection(self) -> BrokerConnection:
        """Return a connection to whichever broker can be reached; live ones come first.

        Raises NotReachable when every address known failed, with the cause of each.
        """
        live = min(self._pool.live(), key=lambda each: each.unanswered, default=None)
        if live is not None:
            return live
        known = [broker.url(self._scheme) for broker in self.metadata.brokers.values()]
        self._random.shuffle(known)
        causes: dict[str, str] = {}
        for url in (*known, *self._bootstrap):
            if url not in causes:
                try:
                    return await self._pool.connect(url)
                except (NotReachable, Disconnected, KafkaError) as error:
                    causes[url] = str(error)
        raise NotReachable("; ".join(causes.values()))

    @property
    def connected(self) -> bool:
        """Whether any broker is connected."""
        return self._pool.connected

    @property
    def health(self) -> ClusterHealth:
        """The state of every broker and of the metadata, now."""
        brokers = self.metadata.brokers.values()
        nodes = {broker.url(self._scheme): broker.node_id for broker in brokers}
        age = None if self._renewed_at is None else trio.current_time() - self._renewed_at
        return ClusterHealth(
            brokers=self._pool.health(nodes, self._bootstrap),
            metadata_age=age,
            metadata_error=self._renewal_error,
        )

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
        """Fetch metadata of `topics` (None: all), and of those that are followed; return the image.

        Concurrent callers share an answer: nothing is fetched when the image is newer than the
        generation `newer_than` already. `create` asks the broker to create those of `topics` that
        are unknown, where it is configured to; others that are followed are not brought back.

        Raises NotReachable, Disconnected, NotOffered, and KafkaError for an answer that refuses
        as a whole. What is wrong with a single topic is in `Metadata.errors`.
        """
        async with self._renewing:
            if newer_than is not None and self.metadata.generation > newer_than:
                return self.metadata
            names = None if topics is None else {*topics, *self._topics_of_interest()}
            image = await self._fetch(names)
            if create and topics:
                unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                missing = {name for name in topics if image.errors.get(name) == unknown}
                if missing:
                    image = await self._fetch(missing, create=True)
            return image

    async def _fetch(self, names: Collection[str] | None, *, create: bool = False) -> Metadata:
        request = MetadataRequest(
            topics=None
            if names is None
            else [MetadataRequestTopic(name=name) for name in sorted(names)],
            allow_auto_topic_creation=create,
        )
        try:
            answer = await self.call(request, MetadataResponse)
            raise_for(answer.error_code)
        except OdradekError as error:
            self._renewal_error = error
            raise
        self.metadata = self.metadata.renewed(answer, complete=names is None)
        self._renewed_at = trio.current_time()
        self._renewal_error = None
        self.image_changed.set()
        self.image_changed = trio.Event()
        return self.metadata

    async def topic(
        self, name: str, *, timeout: float | None = None, create: bool = False
    ) -> TopicInfo:
        """Return a topic, which stays in metadata from now on; waits until it is known, and its
        partitions with it.

        Raises KafkaError (UNKNOWN_TOPIC_OR_PARTITION, LEADER_NOT_AVAILABLE while it is being
        created, INVALID_TOPIC_EXCEPTION, ...) when the cluster does not have it within `timeout`
        seconds, which 0 makes a single look; and NotReachable, Disconnected.
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

    @contextmanager
    def following(self, topics: Callable[[], Iterable[str]]) -> Iterator[None]:
        """Have every renewal fetch the topics that `topics` returns then, as long as this is open.

        For those whose topics come and go; several may follow the same ones.
        """
        follower = object()
        self._followers[follower] = topics
        try:
            yield
        finally:
            del self._followers[follower]

    def _topics_of_interest(self) -> set[str]:
        return self._of_interest.union(*(topics() for topics in self._followers.values()))

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

    # Coordinators of groups

    async def coordinator_of(self, group_id: str, *, timeout: float | None = None) -> Broker:
        """Return the broker that coordinates a group: remembered, or asked of the cluster.

        Repeats the question for `timeout` seconds (request_timeout by default), since brokers
        say COORDINATOR_NOT_AVAILABLE while they create or move what groups are kept in. Raises
        KafkaError (COORDINATOR_NOT_AVAILABLE, GROUP_AUTHORIZATION_FAILED, INVALID_GROUP_ID),
        NotReachable, Disconnected, NotOffered.
        """

        async def find() -> Broker:
            found = (await self._coordinators.find((group_id,)))[group_id]
            if isinstance(found, KafkaError):
                raise found
            return found

        timeout = self.settings.request_timeout if timeout is None else timeout
        return await self.retrying(find, timeout=timeout)

    async def coordinators_of(
        self, group_ids: Collection[str]
    ) -> Mapping[str, Broker | KafkaError]:
        """Return the coordinators of many groups by one request, where the broker takes that; a
        group without one has the error instead. One attempt: nothing is repeated. Raises
        NotReachable, Disconnected, NotOffered."""
        return await self._coordinators.find(group_ids)

    def forget_coordinator(self, group_id: str) -> None:
        """Ask for the group's coordinator again the next time.

        For errors (NOT_COORDINATOR, COORDINATOR_NOT_AVAILABLE) deep in an answer;
        `call_coordinator` sees those at its top, and lost connections, by itself.
        """
        self._coordinators.forget(group_id)

    async def call_coordinator(
        self,
        group_id: str,
        request: Message,
        response: type[ResponseT],
        *,
        timeout: float | None = None,
        purpose: str = "group",
    ) -> ResponseT:
        """Send `request` to the group's coordinator; return the answer, whatever its error codes.

        `timeout` in seconds, request_timeout by default, is for finding the coordinator and for
        its answer, together. Members of groups take a `purpose` of their own each, and
        `disconnect` it in the end: brokers answer a connection's requests in order, and hold
        JoinGroup back until every member has joined; two of them on one connection would wait
        for one another. The request is sent once, and repeated by whoever knows that it may be.

        Raises as `coordinator_of` and `BrokerConnection.call` do. Cancelled: the coordinator may
        have acted on the request.
        """
        timeout = self.settings.request_timeout if timeout is None else timeout
        deadline = trio.current_time() + timeout
        broker = await self.coordinator_of(group_id, timeout=timeout)
        try:
            connection = await self.connection_to(broker, purpose)
            left = max(deadline - trio.current_time(), 0.0)
            answer = await connection.call(request, response, timeout=left)
        except (Disconnected, NotReachable):
            self._coordinators.forget_broker(broker.node_id)
            raise
        self._coordinators.heed(group_id, getattr(answer, "error_code", 0))
        return answer

    async def _renew_by_age(self) -> None:
        """Renew metadata that grew old, so that new partitions and brokers are seen."""
        backoff = self.backoff()
        wait = self.settings.metadata_max_age
        while True:
            generation = self.metadata.generation
            await trio.sleep(wait)
            wait = self.settings.metadata_max_age
            if not self._topics_of_interest() or self.metadata.generation > generation:
                continue
            try:
                await self.renew()
                backoff.reset()
            except OdradekError:
                wait = min(backoff.next(), wait)  # whoever makes requests meanwhile sees why
