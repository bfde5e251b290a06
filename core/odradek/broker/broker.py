"""One broker: its parts opened in order, its tasks owned by one nursery, closed in reverse.

    plugins -> coordinator -> cluster id, session -> storage -> logs -> listeners

Listeners are bound first and accept last: an address in use is found before anything is changed,
and no client ever meets a half-open broker.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from urllib.parse import urlsplit
from uuid import UUID

import trio
from attrs import frozen

from odradek import plugins
from odradek.broker.budget import Budget
from odradek.broker.configs import check_topic
from odradek.broker.groups import Groups
from odradek.broker.host import Host
from odradek.broker.hosting import HostedTopic, Hosting
from odradek.broker.inventory import differences
from odradek.broker.membership import IdInUse, open_membership
from odradek.broker.producer_ids import ProducerIds
from odradek.broker.serve import Server
from odradek.broker.shelter import open_sheltered
from odradek.broker.upkeep import Upkeep
from odradek.cluster import keys, planner, topics
from odradek.cluster.image import BrokerImage, Endpoint, Image, TopicImage
from odradek.cluster.view import ClusterView, open_view
from odradek.config import Config
from odradek.contracts.background import open_tasks
from odradek.contracts.coordinator import ABSENT, Conflict, Coordinator, Put
from odradek.contracts.storage import SegmentStore
from odradek.contracts.transport import Listener
from odradek.errors import ErrorCode, KafkaError
from odradek.log.partition import Spawn

__all__ = ["Broker", "IdInUse", "open_broker"]

logger = logging.getLogger(__name__)

GONE_CHECK_S = 1.0


@frozen(slots=True)
class Bound:
    """A listener that is bound, and the address clients are told."""

    name: str
    listener: Listener
    endpoint: Endpoint

    @property
    def address(self) -> str:
        """`host:port` for a client's bootstrap list."""
        host = self.endpoint.host
        return f"[{host}]:{self.endpoint.port}" if ":" in host else f"{host}:{self.endpoint.port}"


class Broker:
    """A running broker, as handlers, tests and embedders see it."""

    def __init__(
        self,
        config: Config,
        coordinator: Coordinator,
        store: SegmentStore,
        view: ClusterView,
        hosting: Hosting,
        bound: Sequence[Bound],
        host: Host,
        spawn: Spawn,
    ) -> None:
        self.id = config.broker.id
        self.config = config
        self.coordinator = coordinator
        self.store = store
        self.view = view
        self.hosting = hosting
        self.bound = tuple(bound)
        self.host = host
        # Two, because responses being sent must never wait for requests to make room: a
        # connection may hold a request's buffer until its responses are gone.
        self.request_budget = Budget(config.limits.in_flight_bytes // 2)
        self.response_budget = Budget(config.limits.in_flight_bytes // 2)
        self.producer_ids = ProducerIds(coordinator)
        self.groups = Groups(self, spawn)
        self.upkeep = Upkeep(self)
        self.server = Server(self, config.limits)

    @property
    def addresses(self) -> dict[str, str]:
        """Bootstrap address (`host:port`) of each listener, by its name."""
        return {bound.name: bound.address for bound in self.bound}

    @property
    def urls(self) -> dict[str, str]:
        """The URL each listener is bound to, by its name: what a transport connects to."""
        return {bound.name: bound.listener.address for bound in self.bound}

    @property
    def image(self) -> Image:
        """The cluster as this broker knows it."""
        return self.view.image

    def topic(self, name: str) -> HostedTopic:
        """Return a topic by name. Raises KafkaError UNKNOWN_TOPIC_OR_PARTITION."""
        hosted = self.hosting.by_name.get(name)
        if hosted is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return hosted

    def topic_by_id(self, topic_id: UUID) -> HostedTopic:
        """Return a topic by id. Raises KafkaError UNKNOWN_TOPIC_ID."""
        hosted = self.hosting.by_id.get(topic_id)
        if hosted is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
        return hosted

    # -- changing topics ---------------------------------------------------------------------

    async def create_topic(
        self,
        name: str,
        *,
        partitions: int = -1,
        replication_factor: int = -1,
        configs: Mapping[str, str] | None = None,
        assignment: Sequence[tuple[int, ...]] | None = None,
        validate_only: bool = False,
    ) -> TopicImage:
        """Create a topic and wait until this broker serves its part of it.

        -1 takes the broker's default. Raises KafkaError with the code of what is wrong.
        """
        image = self.image
        topics.check_name(name)
        topics.check_collision(image, name)
        if name in image.topics:
            raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {name!r} already exists")
        settings = self.config.broker
        check_topic(configs or {}, self.config.topics)
        if assignment is None:
            count = settings.default_partitions if partitions == -1 else partitions
            replicas = (
                settings.default_replication_factor
                if replication_factor == -1
                else replication_factor
            )
            assignment = self.assign(count, replicas, first=len(image.topics))
        self.check_assignment(assignment)
        topic_id = self.host.new_id()
        if validate_only:
            return TopicImage(name, topic_id, len(assignment), len(assignment[0]), configs or {})
        topic = await topics.create(self.coordinator, topic_id, name, assignment, configs or {})
        leaders = [(number, replicas[0]) for number, replicas in enumerate(assignment)]
        await self._wait_settled(topic, leaders)
        return topic

    async def _wait_settled(self, topic: TopicImage, leaders: Sequence[tuple[int, int]]) -> None:
        """Wait until this broker serves its part of a topic, or the topic is gone again."""
        while True:
            with trio.move_on_after(GONE_CHECK_S):
                await self.hosting.wait_for(lambda: self.hosting.settled(topic, leaders))
                return
            # Nobody promises that the view saw a topic that lived for a moment.
            entry = await self.coordinator.get(keys.topic_key(topic.name))
            if entry is None or keys.topic_of(entry).id != topic.id:
                return

    def assign(
        self, partitions: int, replication_factor: int, first: int = 0
    ) -> list[tuple[int, ...]]:
        """Choose replicas. Raises INVALID_PARTITIONS, INVALID_REPLICATION_FACTOR."""
        brokers = sorted(self.image.brokers)
        if not 1 <= partitions <= topics.MAX_PARTITIONS:
            raise KafkaError(
                ErrorCode.INVALID_PARTITIONS,
                f"{partitions} partitions: from 1 to {topics.MAX_PARTITIONS} are possible",
            )
        if not 1 <= replication_factor <= len(brokers):
            raise KafkaError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"replication factor {replication_factor} with {len(brokers)} broker(s) alive",
            )
        return planner.assign_replicas(brokers, partitions, replication_factor, first)

    def check_assignment(self, assignment: Sequence[tuple[int, ...]]) -> None:
        """Raise INVALID_REPLICA_ASSIGNMENT unless it can be carried out."""
        problem = None
        if not assignment or any(not replicas for replicas in assignment):
            problem = "every partition needs a replica"
        elif len(assignment) > topics.MAX_PARTITIONS:
            problem = f"more than {topics.MAX_PARTITIONS} partitions"
        elif len({len(replicas) for replicas in assignment}) > 1:
            problem = "partitions have different numbers of replicas"
        elif any(len(set(replicas)) != len(replicas) for replicas in assignment):
            problem = "a partition has two replicas on one broker"
        else:
            unknown = {b for replicas in assignment for b in replicas} - set(self.image.brokers)
            if unknown:
                problem = f"no such broker alive: {sorted(unknown)}"
        if problem is not None:
            raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, problem)

    async def delete_topic(self, topic: TopicImage) -> None:
        """Delete a topic and wait until this broker has let go of it."""
        await topics.delete(self.coordinator, topic, self.image.partitions)
        await self.hosting.wait_for(lambda: topic.id not in self.hosting.by_id)

    async def add_partitions(
        self, topic: TopicImage, assignment: Sequence[tuple[int, ...]]
    ) -> None:
        """Add partitions and wait until this broker serves its part of them."""
        self.check_assignment(assignment)
        await topics.add_partitions(self.coordinator, topic, assignment)
        leaders = [
            (number, replicas[0]) for number, replicas in enumerate(assignment, topic.partitions)
        ]
        await self._wait_settled(topic, leaders)

    async def set_configs(self, topic: TopicImage, configs: Mapping[str, str]) -> None:
        """Replace a topic's own settings and wait until they are in force here.

        Raises Conflict when the topic was changed since it was looked at.
        """
        check_topic(configs, self.config.topics)
        await topics.set_configs(self.coordinator, topic, configs)
        # Not until exactly these are seen: a later change may hide them from the view.
        await self.hosting.wait_for(
            lambda: (
                (hosted := self.hosting.by_id.get(topic.id)) is None
                or hosted.image.version != topic.version
            )
        )


async def _cluster_id(coordinator: Coordinator, host: Host) -> str:
    """The cluster's id; the first broker ever chooses it."""
    while True:
        entry = await coordinator.get(keys.CLUSTER_ID)
        if entry is not None:
            return str(keys.load(entry)["cluster_id"])
        value = keys.dump({"format": 1, "cluster_id": _short(host.new_id())})
        try:
            await coordinator.txn(Put(keys.CLUSTER_ID, value, ABSENT))
        except Conflict:
            continue


def _short(uuid: UUID) -> str:
    """A uuid as Kafka writes cluster ids: 22 characters of URL-safe base64."""
    from base64 import urlsafe_b64encode

    return urlsafe_b64encode(uuid.bytes).decode().rstrip("=")


async def _adopt(coordinator: Coordinator, view: ClusterView, broker_id: int) -> None:
    """Take the lead where it falls to this broker, under new epochs; sweep what a crash left."""
    taken = planner.adopt(view.image, broker_id)
    await topics.write_partitions(coordinator, taken)
    epochs = {key: partition.leader_epoch for key, partition in taken}
    await view.wait_until(
        lambda image: all(
            key not in image.partitions or image.partitions[key].leader_epoch >= epoch
            for key, epoch in epochs.items()
        )
    )
    orphans = [
        (key, partition.version)
        for key, partition in planner.orphans(view.image)
        if partition.version is not None
    ]
    if orphans:
        logger.info("removing %d partitions of topics that were never finished", len(orphans))
        await topics.sweep(coordinator, orphans)


async def _bind(config: Config, parts: plugins.Parts, stack: AsyncExitStack) -> list[Bound]:
    bound = []
    for settings, part in zip(config.listeners, parts.listeners, strict=True):
        transport = await stack.enter_async_context(part.open())
        listener = await transport.listen(part.url)
        stack.push_async_callback(listener.aclose)
        where = urlsplit(listener.address)
        host, port = settings.advertised_address or (where.hostname or where.netloc, where.port)
        bound.append(Bound(settings.name, listener, Endpoint(settings.name, host, port or 0)))
    return bound


def open_broker(
    config: Config,
    *,
    installed: plugins.Plugins | None = None,
    host: Host | None = None,
) -> AbstractAsyncContextManager[Broker]:
    """Run a broker while the context is open.

    On entry it serves: every partition it leads is open and every listener accepts. On exit, by
    cancellation too, it reads no more requests, answers those it has read, closes its logs
    cleanly and leaves nothing behind. Who waits for others is answered at once: a fetch with
    what there is, a member that joins a group with NOT_COORDINATOR. That takes milliseconds, and
    some seconds when a client does not take its answers or a request does not end (at most
    `serve.HANDLER_TIMEOUT`, and a second for connections that have to be reset).

    `installed` are the plugins, those of this Python if left out.

    Raises ConfigError and PluginError for the configuration, IdInUse, and the errors of the
    contracts (`AddressInUse`, `Unsafe`, ...) for what the plugins met.
    """
    return open_sheltered(partial(_open, config, installed, host or Host()))


@asynccontextmanager
async def _open(
    config: Config,
    installed: plugins.Plugins | None,
    host: Host,
    shelter: trio.CancelScope,
) -> AsyncIterator[Broker]:
    parts = (installed or plugins.load()).parts(config)
    for warning in config.warnings:
        logger.warning("%s", warning)
    async with AsyncExitStack() as stack:
        bound = await _bind(config, parts, stack)
        coordinator = await stack.enter_async_context(parts.coordinator.open())
        cluster_id = await _cluster_id(coordinator, host)
        view = await stack.enter_async_context(open_view(coordinator, cluster_id))
        image = BrokerImage(
            config.broker.id, tuple(each.endpoint for each in bound), config.broker.rack
        )
        membership = await stack.enter_async_context(open_membership(coordinator, view, image))
        store = await stack.enter_async_context(parts.storage.open())
        await store.probe()
        if not store.traits.shared:
            stored = frozenset(await store.partitions())
            for difference in differences(view.image, config.broker.id, stored):
                logger.error("%s", difference)
        await _adopt(coordinator, view, config.broker.id)
        tasks = await stack.enter_async_context(open_tasks())
        hosting = Hosting(
            config.broker.id,
            view,
            coordinator,
            store,
            membership.alive,
            config.topics,
            tasks.start_soon,
        )
        broker = Broker(config, coordinator, store, view, hosting, bound, host, tasks.start_soon)
        try:
            await broker.upkeep.clock.load()
            await hosting.settle()
            tasks.start_soon(hosting.run)
            tasks.start_soon(broker.groups.run)
            tasks.start_soon(broker.upkeep.run)
            for each in bound:
                tasks.start_soon(broker.server.serve, each.listener, each.name)
            yield broker
        finally:
            with trio.CancelScope(shield=True):
                for each in bound:
                    await each.listener.aclose()
                broker.server.drain()
                await broker.server.drained()
                broker.groups.aclose()
                await broker.upkeep.aclose()
                await hosting.aclose()
                # What is left waits for others, such as the coordinator: no reason to outstay.
                shelter.shield = False
