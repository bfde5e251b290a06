"""The consumer groups that this broker coordinates: a shard for each partition it leads.

A group belongs to the partition of `__consumer_offsets` that its id's hash chooses, and the
broker that leads the partition coordinates the group. `Hosting` says when a partition's log is
opened and before it is closed; one task calls the shards when a timer of theirs is due.

The topic is created when a group is first asked for. Its number of partitions is fixed then: the
groups of a topic that grew would be looked for in other partitions than they are in.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from functools import lru_cache
from itertools import count
from typing import TYPE_CHECKING

import trio

from odradek.broker.guard import as_kafka_error
from odradek.cluster.topics import INTERNAL_TOPICS, OFFSETS_TOPIC
from odradek.contracts.storage import Fenced, Unavailable
from odradek.errors import ErrorCode, KafkaError, OdradekError
from odradek.group.member_budget import MemberBudget
from odradek.types import PartitionKey
from odradek.wire import Message

if TYPE_CHECKING:
    from odradek.broker.broker import Broker
    from odradek.broker.hosting import HostedTopic
    from odradek.broker.serve import Caller
    from odradek.broker.shard import PendingReply, Shard
    from odradek.cluster.image import BrokerImage
    from odradek.config import Config
    from odradek.group.settings import GroupSettings
    from odradek.log.partition import PartitionLog, Spawn

__all__ = ["Groups"]

logger = logging.getLogger(__name__)

CREATION_PATIENCE_S = 10.0
GROUP_SHARE = 4
"""One group may have this part, a fourth, of what may wait for members altogether."""

REMEMBERED_ID = 200
"""Characters of a group's id up to which the hash of it is kept: the hash is a loop over them."""

RETRY_S = 1.0
"""Seconds until a shard that could not be loaded, or met a defect, is tried again."""


class Groups:
    """Every shard of this broker. Requests find theirs by `shard_of`, and never wait here."""

    def __init__(self, broker: Broker, spawn: Spawn) -> None:
        self._broker = broker
        self._spawn = spawn
        self._shards: dict[int, Shard] = {}
        self._creating = trio.Lock()
        self._closing = False
        self._timer = trio.CancelScope()
        self._settings: GroupSettings | None = None
        self._warned_of_delete = False
        self._told: dict[int, str] = {}  # by partition: what keeps its groups from being loaded
        self.wake_at = -math.inf  # a timer that is not running needs no waking
        self.tickets = count(1)
        self.member_budget = MemberBudget(broker.config.groups.members_max_bytes)
        self.waiting_bytes = 0
        self.waiting_max_bytes = broker.config.limits.in_flight_bytes // 4
        self._waiting_of: dict[str, int] = {}
        broker.hosting.follower = self

    @property
    def record_max_bytes(self) -> int:
        """What one record of a group may take."""
        hosted = self._broker.hosting.by_name.get(OFFSETS_TOPIC)
        settings = self._broker.config.topics if hosted is None else hosted.settings
        return settings.max_message_bytes

    @property
    def settings(self) -> GroupSettings:
        """What the configuration asks of groups."""
        if self._settings is None:
            self._settings = _settings(self._broker.config)
        return self._settings

    def may_wait(self, group_id: str, weight: int) -> bool:
        """Whether there is room for a request that waits for other members of its group.

        One group has a part of it at most: no client can keep the others from joining theirs.
        """
        limit = self.waiting_max_bytes
        return (
            self.waiting_bytes + weight <= limit
            and self._waiting_of.get(group_id, 0) + weight <= limit // GROUP_SHARE
        )

    def count_waiting(self, group_id: str, weight: int) -> None:
        """Count bytes of such requests, or, where negative, count them no more."""
        self.waiting_bytes += weight
        left = self._waiting_of.get(group_id, 0) + weight
        if left:
            self._waiting_of[group_id] = left
        else:
            self._waiting_of.pop(group_id, None)

    def topic_exists(self, name: str) -> bool:
        """Whether there is a topic of this name."""
        return name in self._broker.image.topics

    def now_ms(self) -> int:
        """Milliseconds since 1970: the time that is known to have passed, not the wall clock.

        Offsets are stamped and expire by it, so that a clock that jumps a year expires none.
        """
        return self._broker.upkeep.clock.proven_ms()

    def counts_from(self, stamp_ms: int) -> int:
        """Return what time it was by the clock of now, when `now_ms` was `stamp_ms`."""
        return self._broker.upkeep.clock.counts_from(stamp_ms)

    def new_id(self) -> str:
        """Return what makes a member's id unique."""
        return str(self._broker.host.new_id())

    # -- finding -----------------------------------------------------------------------------

    def shard_of(self, group_id: str) -> Shard:
        """Return the active shard of a group.

        Raises KafkaError NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS.
        """
        topic = self._broker.hosting.by_name.get(OFFSETS_TOPIC)
        if topic is None:
            raise KafkaError(ErrorCode.NOT_COORDINATOR)
        shard = self._shards.get(_partition_of(group_id, topic.image.partitions))
        if shard is None:
            raise KafkaError(ErrorCode.NOT_COORDINATOR)
        shard.check()
        return shard

    def ask(
        self,
        caller: Caller,
        group_id: str,
        request: Message,
        version: int,
        *,
        size: int = 0,
        host: str = "",
    ) -> Message | PendingReply:
        """Hand a request to its group; return the response, or what will become one.

        `size`: bytes that the request carries; `host`: of the client, as DescribeGroups shows it.
        """
        try:
            waiting = self.shard_of(group_id).submit(
                request, version, caller.client_id or "", host, size
            )
        except KafkaError as error:
            from odradek.broker.group_errors import refusal

            return refusal(request, version, error.code)
        return waiting.response()

    def shards(self) -> Iterator[Shard]:
        """Every shard that is loading or active."""
        yield from self._shards.values()

    def coordinator_of(self, group_id: str) -> BrokerImage:
        """Return the broker to ask for a group. Raises KafkaError COORDINATOR_NOT_AVAILABLE."""
        broker = self._broker
        image = broker.image
        topic = image.topics.get(OFFSETS_TOPIC)
        if topic is not None and not self._closing:
            number = _partition_of(group_id, topic.partitions)
            state = image.partitions.get(PartitionKey(topic.id, number))
            live = image.brokers.get(state.leader) if state is not None else None
            # A partition that is led here and not open cannot be served by anybody else either.
            if live is not None and (live.id != broker.id or self._serves(number)):
                return live
            trouble = self.troubles().get(number)
            if trouble is not None:
                raise KafkaError(
                    ErrorCode.COORDINATOR_NOT_AVAILABLE,
                    f"partition {number} of {OFFSETS_TOPIC} cannot be read: {trouble}",
                )
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def troubles(self) -> dict[int, Exception]:
        """Partitions that this broker leads and whose groups it cannot serve, each with why.

        `Full` and `Unavailable` may pass, and are tried again; all else is for the operator.
        """
        topic = self._broker.hosting.by_name.get(OFFSETS_TOPIC)
        found: dict[int, Exception] = {} if topic is None else {**topic.failures}
        for number, shard in self._shards.items():
            if not (shard.active or shard.loading):
                error = shard.failure or shard.log.failure or Unavailable("it is loaded again")
                if not isinstance(error, Fenced):  # another broker serves these
                    found[number] = error
        return found

    def _serves(self, number: int) -> bool:
        shard = self._shards.get(number)
        return shard is not None and (shard.active or shard.loading)

    # -- the topic ---------------------------------------------------------------------------

    async def create_topic(self) -> None:
        """Create `__consumer_offsets` unless it is there, and wait until its part here is open.

        Whoever else creates it at the same time, here or elsewhere, creates it once. Raises
        KafkaError with what is in the way.
        """
        broker = self._broker
        async with self._creating:
            if OFFSETS_TOPIC in broker.hosting.by_name:
                return
            with trio.move_on_after(CREATION_PATIENCE_S):
                if OFFSETS_TOPIC not in broker.image.topics:
                    await self._create()
                await broker.hosting.wait_for(lambda: OFFSETS_TOPIC in broker.hosting.by_name)
                return
        raise KafkaError(
            ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{OFFSETS_TOPIC} is still being created"
        )

    async def _create(self) -> None:
        broker = self._broker
        settings = broker.config.groups
        alive = max(len(broker.image.brokers), 1)
        try:
            async with as_kafka_error():
                await broker.create_topic(
                    OFFSETS_TOPIC,
                    partitions=settings.offsets_partitions,
                    replication_factor=min(settings.offsets_replication_factor, alive),
                    configs={
                        "cleanup.policy": "compact",
                        "compression.type": "producer",
                        "segment.bytes": str(settings.offsets_segment_bytes),
                    },
                )
        except KafkaError as error:
            if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                logger.warning("%s is not created: %s", OFFSETS_TOPIC, error)
                raise

    # -- following the logs: see `hosting.Follower` -------------------------------------------

    def opened(self, topic: HostedTopic, number: int, log: PartitionLog) -> None:
        """Begin to answer for the groups of a partition, at once where it is empty."""
        if topic.image.name == OFFSETS_TOPIC and not self._closing:
            self.altered(topic)
            self._open(number, log)

    def altered(self, topic: HostedTopic) -> None:
        """Warn of settings of `__consumer_offsets` that lose offsets; once, until they are right.

        They are not refused: Apache Kafka takes them too.
        """
        if topic.image.name != OFFSETS_TOPIC:
            return
        deletes = "delete" in topic.settings.cleanup_policy
        if deletes and not self._warned_of_delete:
            logger.warning(
                "cleanup.policy of %s has delete in it: committed offsets are lost when "
                "retention.ms or retention.bytes removes them, of groups that are in use too. "
                "Set it to compact",
                OFFSETS_TOPIC,
            )
        self._warned_of_delete = deletes

    def _open(self, number: int, log: PartitionLog) -> None:
        from odradek.broker.shard import Shard  # a broker without groups starts without it

        shard = self._shards[number] = Shard(self, number, log)
        if shard.empty:
            shard.start()
        else:
            self._spawn(self._load, shard)

    async def _load(self, shard: Shard) -> None:
        try:
            await shard.load()
        except Exception as error:
            shard.failure = error
            shard.close(ErrorCode.NOT_COORDINATOR)
            if not isinstance(error, OdradekError):
                logger.error("a defect while groups are loaded", exc_info=error)
            if shard.log.failure is not None:
                return  # told already
            transient = isinstance(error, Unavailable)
            if str(error) != self._told.get(shard.number):
                from odradek.broker.group_errors import not_loaded

                self._told[shard.number] = str(error)
                logger.log(
                    logging.WARNING if transient else logging.ERROR,
                    "%s",
                    not_loaded(shard.log, shard.position, error, self._broker.config.storage.url),
                )
            if transient:
                self.reopen(shard)
        else:
            self._told.pop(shard.number, None)

    def reopen(self, shard: Shard) -> None:
        """Build a closed shard again from its log, in a moment."""
        self._spawn(self._reopen, shard)

    async def _reopen(self, shard: Shard) -> None:
        await trio.sleep(RETRY_S)
        if self._shards.get(shard.number) is shard and shard.log.failure is None:
            self._open(shard.number, shard.log)

    def closing(self, log: PartitionLog) -> None:
        """Let go of the groups of a partition whose log is about to be closed."""
        for number, shard in tuple(self._shards.items()):
            if shard.log is log:
                del self._shards[number]
                shard.close(ErrorCode.NOT_COORDINATOR)

    def deleted(self, name: str) -> None:
        """Forget the offsets of a deleted topic."""
        if name not in INTERNAL_TOPICS:
            for shard in tuple(self._shards.values()):
                shard.forget_topics({name})

    # -- time --------------------------------------------------------------------------------

    async def run(self) -> None:
        """Call the shards when their timers are due, until cancelled."""
        while True:
            due = min(
                (s.next_deadline for s in self._shards.values() if s.active), default=math.inf
            )
            self.wake_at = due
            with trio.CancelScope(deadline=due) as self._timer:
                await trio.sleep_forever()
            self.wake_at = -math.inf
            now = trio.current_time()
            for shard in tuple(self._shards.values()):
                if shard.active and shard.next_deadline <= now:
                    shard.tick(now)
                    await trio.lowlevel.checkpoint()

    def wake(self, deadline: float) -> None:
        """Have the shards looked at by then."""
        self.wake_at = deadline
        self._timer.deadline = deadline

    def aclose(self) -> None:
        """Answer everybody who waits, and close every shard; their logs stay open."""
        self._closing = True
        shards, self._shards = self._shards, {}
        for shard in shards.values():
            shard.close(ErrorCode.NOT_COORDINATOR)


def _partition_of(group_id: str, partitions: int) -> int:
    if len(group_id) <= REMEMBERED_ID:
        return _remembered_partition_of(group_id, partitions)
    return _remembered_partition_of.__wrapped__(group_id, partitions)


@lru_cache(maxsize=4096)
def _remembered_partition_of(group_id: str, partitions: int) -> int:
    from odradek.group.shard import partition_for_group

    return partition_for_group(group_id, partitions)


def _settings(config: Config) -> GroupSettings:
    from odradek.group.settings import GroupSettings

    given = config.groups
    return GroupSettings(
        session_timeout_min_ms=given.min_session_timeout_ms,
        session_timeout_max_ms=given.max_session_timeout_ms,
        initial_rebalance_delay_ms=given.initial_rebalance_delay_ms,
        max_size=given.max_size,
        offset_metadata_max_bytes=given.offset_metadata_max_bytes,
        offsets_retention_ms=given.offsets_retention_minutes * 60_000,
        offsets_retention_check_interval_ms=given.offsets_retention_check_interval_ms,
    )
