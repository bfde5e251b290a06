"""A group's committed offsets, kept by its coordinator: OffsetCommit and OffsetFetch."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from typing import TypeVar

from attrs import frozen

from odradek.client.cluster import Cluster
from odradek.client.connection import BrokerConnection
from odradek.client.errors import Disconnected, NotReachable, error_of, is_retriable, raise_for
from odradek.client.membership import CommitFailed, CommittedOffset
from odradek.client.metadata import TopicPartition
from odradek.errors import ErrorCode, KafkaError, OdradekError
from odradek.wire.api.a08_offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from odradek.wire.api.a09_offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)

__all__ = ["GroupOffsets", "Identity", "coordinator_connection"]

T = TypeVar("T")

_BY_NAME = 9
"""From version 10 on both have topic ids in place of names; names serve every coordinator."""

_GROUPS_FROM = 8
"""OffsetFetch for several groups."""

_STABLE_FROM = 7

_GENERATION_OVER = frozenset(
    {
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.REBALANCE_IN_PROGRESS,
    }
)
_NO_COORDINATOR = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})


@frozen
class Identity:
    """Whom offsets are committed as. The default: nobody, for groups that have no members."""

    generation: int = -1
    member_id: str = ""
    instance_id: str | None = None


class GroupOffsets:
    """The offsets of one group.

    `identity` is asked anew for each attempt, since a rebalance may end between two of them; it
    is told the partitions and raises CommitFailed when one of them is not the member's. `may_heal`
    is asked whether a commit that was refused for its generation or its member may yet succeed.
    """

    def __init__(
        self,
        cluster: Cluster,
        group: str,
        identity: Callable[[Collection[TopicPartition]], Identity] = lambda _: Identity(),
        may_heal: Callable[[KafkaError], bool] = lambda _: False,
    ) -> None:
        self._cluster = cluster
        self._group = group
        self._identity = identity
        self._may_heal = may_heal

    async def commit(self, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        """Store offsets. Raises as `Membership.commit`."""
        used = Identity()

        async def attempt() -> None:
            nonlocal used
            used = self._identity(offsets.keys())
            async with coordinator_connection(self._cluster, self._group) as connection:
                version = connection.version_of(OffsetCommitRequest, _BY_NAME)
                request = _commit_request(self._group, used, offsets)
                answer = await connection.call(request, OffsetCommitResponse, version=version)
                _check(answer)

        def worth_repeating(error: OdradekError) -> bool:
            if not isinstance(error, KafkaError):
                return is_retriable(error)
            if error.code in (ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID):
                # or it has joined again meanwhile
                return used != self._identity(offsets.keys()) or self._may_heal(error)
            # a topic that is gone does not come back for being asked again
            return error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and (
                error.retriable or error.code == ErrorCode.REBALANCE_IN_PROGRESS
            )

        if offsets:
            try:
                await self._retrying(attempt, worth_repeating)
            except KafkaError as error:
                if error.code not in _GENERATION_OVER:
                    raise
                raise CommitFailed(
                    f"group {self._group!r} shares out its partitions without this member: {error}"
                ) from error

    async def committed(
        self, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, CommittedOffset]:
        """Return stored offsets. Raises as `Membership.committed`."""
        numbers: dict[str, list[int]] = {}
        for name, number in sorted(partitions):
            numbers.setdefault(name, []).append(number)

        async def attempt() -> dict[TopicPartition, CommittedOffset]:
            async with coordinator_connection(self._cluster, self._group) as connection:
                version = connection.version_of(OffsetFetchRequest, _BY_NAME)
                request = _fetch_request(self._group, numbers, version)
                answer = await connection.call(request, OffsetFetchResponse, version=version)
                return _found(self._group, answer)

        return await self._retrying(attempt, is_retriable) if numbers else {}

    async def _retrying(
        self, attempt: Callable[[], Awaitable[T]], when: Callable[[OdradekError], bool]
    ) -> T:
        timeout = self._cluster.settings.request_timeout
        return await self._cluster.retrying(attempt, timeout=timeout, when=when)


@asynccontextmanager
async def coordinator_connection(
    cluster: Cluster, group: str, purpose: str = "group", *, timeout: float = 0.0
) -> AsyncIterator[BrokerConnection]:
    """Give a connection to the group's coordinator, found within `timeout` seconds; one try at 0.

    Whoever raises NOT_COORDINATOR or COORDINATOR_NOT_AVAILABLE out of the block, or loses the
    connection in it, makes the next one look for the coordinator again. Raises as
    `Cluster.coordinator_of` and `Cluster.connection_to`.
    """
    broker = await cluster.coordinator_of(group, timeout=timeout)
    try:
        yield await cluster.connection_to(broker, purpose)
    except (Disconnected, NotReachable):
        cluster.forget_coordinator(group)
        raise
    except KafkaError as error:
        if error.code in _NO_COORDINATOR:
            cluster.forget_coordinator(group)
        raise


def _commit_request(
    group: str, identity: Identity, offsets: Mapping[TopicPartition, CommittedOffset]
) -> OffsetCommitRequest:
    topics: dict[str, OffsetCommitRequestTopic] = {}
    for (name, number), committed in offsets.items():
        topic = topics.setdefault(name, OffsetCommitRequestTopic(name=name))
        topic.partitions.append(
            OffsetCommitRequestPartition(
                partition_index=number,
                committed_offset=committed.offset,
                committed_leader_epoch=committed.leader_epoch,
                committed_metadata=committed.metadata,
            )
        )
    return OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=identity.generation,
        member_id=identity.member_id,
        group_instance_id=identity.instance_id,
        topics=list(topics.values()),
    )


def _check(answer: OffsetCommitResponse) -> None:
    """Raise the first error of a partition, one that repeating cannot heal if there is any."""
    errors = [
        error_of(part.error_code, f"partition {topic.name}-{part.partition_index}")
        for topic in answer.topics
        for part in topic.partitions
        if part.error_code
    ]
    if errors:
        raise min(errors, key=lambda error: error.retriable)


def _fetch_request(
    group: str, numbers: Mapping[str, list[int]], version: int
) -> OffsetFetchRequest:
    stable = version >= _STABLE_FROM
    if version < _GROUPS_FROM:
        return OffsetFetchRequest(
            group_id=group,
            topics=[
                OffsetFetchRequestTopic(name=name, partition_indexes=indexes)
                for name, indexes in numbers.items()
            ],
            require_stable=stable,
        )
    wanted = OffsetFetchRequestGroup(
        group_id=group,
        topics=[
            OffsetFetchRequestTopics(name=name, partition_indexes=indexes)
            for name, indexes in numbers.items()
        ],
    )
    return OffsetFetchRequest(groups=[wanted], require_stable=stable)


def _found(group: str, answer: OffsetFetchResponse) -> dict[TopicPartition, CommittedOffset]:
    for code in (answer.error_code, *(each.error_code for each in answer.groups)):
        raise_for(code, f"group {group!r}")
    found: dict[TopicPartition, CommittedOffset] = {}
    several = [topic for each in answer.groups for topic in each.topics]
    for topic in several or answer.topics:
        for part in topic.partitions:
            partition = TopicPartition(topic.name, part.partition_index)
            raise_for(part.error_code, f"partition {partition}")
            if part.committed_offset >= 0:
                found[partition] = CommittedOffset(
                    part.committed_offset, part.committed_leader_epoch, part.metadata or ""
                )
    return found
