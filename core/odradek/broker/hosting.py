"""The partitions that this broker leads: opened, changed and dropped as the cluster's image says.

The image says what should be; `Hosting` makes it so, one change at a time, in one task. Requests
look here and never wait: a partition is open, or the answer is an error that makes the client
come back.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable
from typing import Protocol
from uuid import UUID

import trio
from attrs import evolve

from odradek.broker.acknowledgement import Template
from odradek.cluster import keys
from odradek.cluster.image import DeletedTopic, TopicImage
from odradek.cluster.topics import INTERNAL_TOPICS
from odradek.cluster.view import ClusterView
from odradek.config import TopicSettings
from odradek.contracts.coordinator import Conflict, Coordinator, CoordinatorError, Delete, Put
from odradek.contracts.storage import (
    Claim,
    Full,
    Offline,
    SegmentStore,
    StorageError,
    Unavailable,
)
from odradek.errors import CorruptBatch, ErrorCode, KafkaError, OdradekError
from odradek.log.index_cache import IndexCache
from odradek.log.opening import open_log
from odradek.log.partition import PartitionLog, Spawn
from odradek.record import Rules
from odradek.types import PartitionKey

__all__ = ["Follower", "HostedTopic", "Hosting", "rules_of"]

logger = logging.getLogger(__name__)

OPENING_AT_ONCE = 16

CLOSE_PATIENCE_S = 10.0

RETRY_S = 1.0
"""How long to wait before what the disk or the coordinator refused for now is tried again."""


async def _close_log(log: PartitionLog) -> None:
    try:
        await log.aclose()
    except StorageError as error:
        logger.error("closing partition %s of topic %s: %s", log.key, log.topic, error)


class Follower(Protocol):
    """Somebody who acts on the logs that are open here. Called in the middle of a change."""

    def opened(self, topic: HostedTopic, number: int, log: PartitionLog) -> None:
        """A log was opened, or opened again under a newer epoch."""

    def altered(self, topic: HostedTopic) -> None:
        """The settings of a topic whose logs may be open were altered."""

    def closing(self, log: PartitionLog) -> None:
        """A log is closed next: appends to it still work, and nobody else does them yet."""

    def deleted(self, name: str) -> None:
        """A topic was deleted, and cannot be found here any more."""


class HostedTopic:
    """A topic as requests need it: its settings in force, and the logs that are open here.

    `logs[n]` is None when partition n is led by another broker, is being opened, or could not
    be: then `failures[n]` says why.
    """

    __slots__ = (
        "acknowledgements",
        "failures",
        "image",
        "internal",
        "logs",
        "rules",
        "settings",
    )

    def __init__(self, image: TopicImage, settings: TopicSettings) -> None:
        self.image = image
        self.internal = image.name in INTERNAL_TOPICS
        self.settings = settings
        self.rules = rules_of(settings)
        self.logs: list[PartitionLog | None] = [None] * image.partitions
        self.failures: dict[int, OdradekError] = {}
        self.acknowledgements: dict[tuple[int, int], Template] = {}  # by version and partition

    def log(self, number: int) -> PartitionLog:
        """Return an open log. Raises KafkaError with what the client should be told."""
        logs = self.logs
        if 0 <= number < len(logs):
            log = logs[number]
            if log is not None:
                return log
            failure = self.failures.get(number)
            if failure is not None:
                raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(failure))
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        raise KafkaError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            f"topic {self.image.name!r} has {len(logs)} partitions",
        )


def rules_of(settings: TopicSettings) -> Rules:
    """What a topic's settings mean for batches on their way in."""
    return Rules(
        compression_type=settings.compression_type,  # type: ignore[arg-type]  # checked there
        timestamp_type=settings.message_timestamp_type,  # type: ignore[arg-type]  # likewise
        max_message_bytes=settings.max_message_bytes,
        timestamp_before_max_ms=settings.message_timestamp_before_max_ms,
        timestamp_after_max_ms=settings.message_timestamp_after_max_ms,
        compacted=settings.compacted,
    )


class Hosting:
    """Keeps the open logs in step with the image. `by_name` and `by_id` are for requests."""

    def __init__(
        self,
        broker_id: int,
        view: ClusterView,
        coordinator: Coordinator,
        store: SegmentStore,
        held: Callable[[], bool],
        defaults: TopicSettings,
        spawn: Spawn,
    ) -> None:
        self.by_name: dict[str, HostedTopic] = {}
        self.by_id: dict[UUID, HostedTopic] = {}
        self.follower: Follower | None = None
        self._broker_id = broker_id
        self._view = view
        self._coordinator = coordinator
        self._store = store
        self._held = held
        self._defaults = defaults
        self._spawn = spawn
        self._indexes = IndexCache()
        self._dirty: dict[str, None] = {}
        self._later: set[str] = set()
        self._told: set[str] = set()
        self._woken = trio.Event()
        self._done = trio.lowlevel.ParkingLot()
        self._closing = False
        self._settling = trio.Lock()
        view.on_change = self._note
        for topic in view.image.topics.values():
            self._note(keys.topic_key(topic.name))
        for topic_id in view.image.deleted:
            self._note(keys.deleted_key(topic_id))

    def _note(self, key: str) -> None:
        self._dirty[key] = None
        self._woken.set()

    async def run(self) -> None:
        """Follow the image until `aclose`."""
        while not self._closing:
            await self.settle()
            with trio.move_on_after(RETRY_S if self._later else math.inf):
                await self._woken.wait()
                continue
            later, self._later = self._later, set()
            for key in later:
                self._note(key)

    async def settle(self) -> None:
        """Bring everything known to have changed up to date."""
        while self._dirty and not self._closing:
            key = next(iter(self._dirty))
            del self._dirty[key]
            async with self._settling:
                await self._apply(key)
            self._done.unpark_all()
        self._woken = trio.Event()

    async def _apply(self, key: str) -> None:
        directory, _, name = key.partition("/")
        if directory == keys.TOPICS:
            await self._topic(name)
        elif directory == keys.PARTITIONS:
            await self._partition(name)
        elif directory == keys.DELETED:
            await self._deleted(UUID(name))

    async def wait_for(self, condition: Callable[[], bool]) -> None:
        """Return once the condition holds; it is asked after every change that was applied."""
        while not condition():
            await self._done.park()

    def settled(self, topic: TopicImage, leaders: Iterable[tuple[int, int]]) -> bool:
        """Whether this broker serves what it leads of a topic, as far as its disk lets it.

        `leaders`: partitions, each with its leader.
        """
        hosted = self.by_id.get(topic.id)
        return hosted is not None and all(
            number < len(hosted.logs)
            and (hosted.logs[number] is not None or number in hosted.failures)
            for number, leader in leaders
            if leader == self._broker_id
        )

    async def _topic(self, name: str) -> None:
        image = self._view.image.topics.get(name)
        hosted = self.by_name.get(name)
        if hosted is not None and (image is None or image.id != hosted.image.id):
            await self._close(hosted)
            hosted = None
        if image is None:
            return
        if hosted is None:
            hosted = HostedTopic(image, self._settings(image))
        elif image.configs != hosted.image.configs:
            hosted.settings = self._settings(image)
            hosted.rules = rules_of(hosted.settings)
            for log in hosted.logs:
                if log is not None:
                    log.settings = hosted.settings
            if self.follower is not None:
                self.follower.altered(hosted)
        hosted.image = image
        hosted.logs += [None] * (image.partitions - len(hosted.logs))
        await self._open_all(hosted)
        self.by_name[name] = hosted
        self.by_id[image.id] = hosted

    async def _open_all(self, hosted: HostedTopic) -> None:
        """Bring every partition to where it should be, several at a time.

        Opening waits for the disk, and a file system answers many at once almost as soon as one.
        """
        gate = trio.CapacityLimiter(OPENING_AT_ONCE)

        async def open_one(number: int) -> None:
            async with gate:
                await self._open(hosted, PartitionKey(hosted.image.id, number))

        async with trio.open_nursery() as nursery:
            for number in range(hosted.image.partitions):
                nursery.start_soon(open_one, number)

    async def _partition(self, name: str) -> None:
        topic_id, _, number = name.rpartition("-")
        hosted = self.by_id.get(UUID(topic_id))
        if hosted is not None and int(number) < len(hosted.logs):
            await self._open(hosted, PartitionKey(UUID(topic_id), int(number)))

    async def _open(self, hosted: HostedTopic, key: PartitionKey) -> None:
        """Open, reopen under a newer epoch, or close one partition, as the image says."""
        state = self._view.image.partitions.get(key)
        log = hosted.logs[key.partition]
        mine = state is not None and state.leader == self._broker_id
        if log is not None and not (mine and state and state.leader_epoch == log.leader_epoch):
            hosted.logs[key.partition] = None
            await self._close_log(log)
            log = None
        if not mine:
            hosted.failures.pop(key.partition, None)  # its new leader's affair
        if log is not None or not mine or state is None:
            return
        claim = Claim(state.leader_epoch, self._broker_id, self._held)
        try:
            log = hosted.logs[key.partition] = await open_log(
                self._store,
                key,
                hosted.image.name,
                hosted.settings,
                claim,
                self._indexes,
                self._spawn,
            )
        except (CorruptBatch, StorageError) as error:
            told = {str(each) for each in hosted.failures.values()}
            before = hosted.failures.get(key.partition)
            hosted.failures[key.partition] = error
            if isinstance(error, (Full, Unavailable)):
                self._later.add(keys.partition_key(key))
                if str(error) not in told:  # a full disk is in the way of all of them
                    logger.warning(
                        "topic %s: partition %d, and perhaps others, cannot be opened for now, "
                        "and is tried again every second: %s",
                        hosted.image.name,
                        key.partition,
                        error,
                    )
            elif before is None or str(before) != str(error):
                logger.error(
                    "partition %d of topic %s is offline: %s",
                    key.partition,
                    hosted.image.name,
                    error,
                )
        else:
            failure = hosted.failures.pop(key.partition, None)
            if failure is not None:
                logger.log(
                    logging.INFO if isinstance(failure, (Full, Unavailable)) else logging.WARNING,
                    "partition %d of topic %s is online again",
                    key.partition,
                    hosted.image.name,
                )
            if self.follower is not None:
                self.follower.opened(hosted, key.partition, log)

    def _settings(self, image: TopicImage) -> TopicSettings:
        settings, problems = TopicSettings.salvage(image.configs, self._defaults)
        for problem in problems:
            # Written by another version, or by hand: the topic must still be served.
            logger.error("topic %s: a setting is ignored: %s", image.name, problem)
        most = self._store.traits.segment_bytes
        return evolve(settings, segment_bytes=most) if settings.segment_bytes > most else settings

    async def _close(self, hosted: HostedTopic) -> None:
        if self.by_name.get(hosted.image.name) is hosted:
            del self.by_name[hosted.image.name]
        self.by_id.pop(hosted.image.id, None)
        if self.follower is not None:
            self.follower.deleted(hosted.image.name)
        for number, log in enumerate(hosted.logs):
            hosted.logs[number] = None
            if log is not None:
                await self._close_log(log)
        # At once: removing the bytes and saying so to the coordinator may take long, and whoever
        # deleted the topic need not wait for it. Which of the two keys is seen first is chance.
        self._done.unpark_all()

    async def _close_log(self, log: PartitionLog) -> None:
        if self.follower is not None:
            self.follower.closing(log)
        await _close_log(log)

    async def _deleted(self, topic_id: UUID) -> None:
        """Drop a deleted topic's logs, and take this broker off the list of those who have to."""
        tombstone = self._view.image.deleted.get(topic_id)
        if tombstone is None or (tombstone.brokers and self._broker_id not in tombstone.brokers):
            return  # one that names nobody was written by a version that overlooked the brokers
        hosted = self.by_id.get(topic_id)
        if hosted is not None:
            await self._close(hosted)
        try:
            for number in range(tombstone.partitions):
                await self._store.drop(PartitionKey(topic_id, number))
        except StorageError as error:
            self._put_off(tombstone, error)
            return
        left = tuple(broker for broker in tombstone.brokers if broker != self._broker_id)
        assert tombstone.version is not None
        key = keys.deleted_key(topic_id)
        change = (
            Put(key, keys.deleted_value(evolve(tombstone, brokers=left)), tombstone.version)
            if left
            else Delete(key, tombstone.version)
        )
        try:
            await self._coordinator.txn(change)
        except Conflict:
            self._note(key)  # another broker was faster: look again
        except CoordinatorError as error:
            self._put_off(tombstone, error)

    def _put_off(self, topic: DeletedTopic, error: OdradekError) -> None:
        """Try again later to remove a deleted topic's logs: the tombstone keeps it known."""
        key = keys.deleted_key(topic.id)
        if not isinstance(error, Offline):  # a failed disk is for the next start
            self._later.add(key)
        if key not in self._told:
            self._told.add(key)
            logger.error("cannot remove the log of deleted topic %s yet: %s", topic.id, error)

    def logs(self) -> Iterable[PartitionLog]:
        """Every open log."""
        for hosted in self.by_name.values():
            for log in hosted.logs:
                if log is not None:
                    yield log

    async def aclose(self) -> None:
        """Close every log, several at a time: closing waits for the disk. Ends `run`."""
        gate = trio.CapacityLimiter(64)

        async def close(log: PartitionLog) -> None:
            async with gate:
                await self._close_log(log)

        self._closing = True
        self._woken.set()
        # A log that is being opened at this moment is to be closed as well; but a coordinator that
        # does not answer must not keep the others open.
        with trio.move_on_after(CLOSE_PATIENCE_S):
            await self._settling.acquire()
        async with trio.open_nursery() as nursery:
            for log in list(self.logs()):
                nursery.start_soon(close, log)
