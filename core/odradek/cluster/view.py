"""A broker's view of the cluster: an image kept up to date by watches."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from uuid import UUID

import trio

from odradek.cluster import keys
from odradek.cluster.image import BrokerImage, DeletedTopic, Image, PartitionImage, TopicImage
from odradek.contracts.background import background
from odradek.contracts.coordinator import Coordinator, Entry, Unavailable, Watch
from odradek.errors import OdradekError
from odradek.types import PartitionKey

__all__ = ["ClusterView", "open_view"]

logger = logging.getLogger(__name__)


class ClusterView:
    """The newest known image. Between two awaits it does not change."""

    def __init__(self, cluster_id: str) -> None:
        self._cluster_id = cluster_id
        self._topics: dict[str, TopicImage] = {}
        self._names: dict[UUID, str] = {}
        self._partitions: dict[PartitionKey, PartitionImage] = {}
        self._brokers: dict[int, BrokerImage] = {}
        self._deleted: dict[UUID, DeletedTopic] = {}
        self._image: Image | None = None
        self._moved = trio.lowlevel.ParkingLot()
        self.on_change: Callable[[str], None] = lambda key: None

    @property
    def image(self) -> Image:
        """The image; the same object until something changes.

        Copied when first asked for after a change: 1,000 partitions cost 20 microseconds then,
        and a burst of changes costs one copy.
        """
        if self._image is None:
            self._image = Image(
                cluster_id=self._cluster_id,
                topics=dict(self._topics),
                names=dict(self._names),
                partitions=dict(self._partitions),
                brokers=dict(self._brokers),
                deleted=dict(self._deleted),
            )
        return self._image

    async def wait_until(self, condition: Callable[[Image], bool]) -> None:
        """Return once the image fulfils the condition."""
        while not condition(self.image):
            await self._moved.park()

    def apply(self, key: str, entry: Entry | None) -> None:
        """Take in one entry, or its absence.

        One that cannot be understood (from a newer version, or written by hand) is reported and
        left out: it must not take the broker down.
        """
        try:
            self._apply(key, entry)
        except (OdradekError, ValueError) as error:
            logger.error("ignoring a change of the cluster: %s", error)
            return
        self._image = None
        self.on_change(key)
        self._moved.unpark_all()

    def _apply(self, key: str, entry: Entry | None) -> None:
        directory, _, name = key.partition("/")
        if directory == keys.TOPICS:
            self._apply_topic(name, entry)
        elif directory == keys.PARTITIONS:
            if entry is not None:
                partition_key, partition = keys.partition_of(entry)
                self._partitions[partition_key] = partition
            else:
                topic_id, _, number = name.rpartition("-")
                self._partitions.pop(PartitionKey(UUID(topic_id), int(number)), None)
        elif directory == keys.BROKERS:
            if entry is not None:
                broker = keys.broker_of(entry)
                self._brokers[broker.id] = broker
            else:
                self._brokers.pop(int(name), None)
        elif directory == keys.DELETED:
            if entry is not None:
                self._deleted[UUID(name)] = keys.deleted_of(entry)
            else:
                self._deleted.pop(UUID(name), None)

    def _apply_topic(self, name: str, entry: Entry | None) -> None:
        topic = keys.topic_of(entry) if entry is not None else None
        before = self._topics.pop(name, None)
        if before is not None:
            self._names.pop(before.id, None)
        if topic is not None:
            self._topics[name] = topic
            self._names[topic.id] = name


@asynccontextmanager
async def open_view(coordinator: Coordinator, cluster_id: str) -> AsyncIterator[ClusterView]:
    """Open a view that holds everything there is, and follows what happens, while open."""
    view = ClusterView(cluster_id)

    async def follow(watch: Watch) -> None:
        try:
            async for change in watch:
                view.apply(change.key, change.entry)
        except Unavailable as error:
            # The coordinator is closed or beyond repair. What is led here can still be served.
            logger.error("the cluster is followed no further: %s", error)

    async with AsyncExitStack() as stack:
        watches = []
        # Partitions first: a topic that can be seen then always has its partitions in view.
        for directory in (keys.PARTITIONS, keys.TOPICS, keys.BROKERS, keys.DELETED):
            watch = await stack.enter_async_context(coordinator.watch(directory))
            for key, entry in watch.snapshot.items():
                view.apply(key, entry)
            watches.append(watch)
        for watch in watches:
            await stack.enter_async_context(background(partial(follow, watch)))
        yield view
