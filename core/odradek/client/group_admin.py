"""Administration of consumer groups: list, describe, delete them; their committed offsets.

A group is looked after by one broker, its coordinator. Requests go there, batched where the
brokers take several groups at once; a coordinator that moved, or is loading, is asked for again
within the timeout.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import TYPE_CHECKING, TypeVar

from odradek.client.errors import (
    Disconnected,
    NotOffered,
    NotReachable,
    error_of,
    is_retriable,
    raise_for,
)
from odradek.client.group_info import GroupDescription, GroupListing, described
from odradek.client.group_requests import (
    BY_NAME,
    commit_request,
    committed_offsets,
    delete_request,
    fetch_request,
)
from odradek.client.membership import CommittedOffset
from odradek.client.metadata import Broker, TopicPartition
from odradek.client.offset_reset import LogRange, OffsetChange, OffsetReset, ToTime, plan_reset
from odradek.client.offsets import EARLIEST, LATEST, list_offsets
from odradek.errors import ErrorCode, KafkaError, OdradekError
from odradek.wire.api.a08_offset_commit import OffsetCommitRequest, OffsetCommitResponse
from odradek.wire.api.a09_offset_fetch import OffsetFetchRequest, OffsetFetchResponse
from odradek.wire.api.a15_describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from odradek.wire.api.a16_list_groups import ListGroupsRequest, ListGroupsResponse
from odradek.wire.api.a42_delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from odradek.wire.api.a47_offset_delete import OffsetDeleteResponse

if TYPE_CHECKING:
    from odradek.client.cluster import Cluster
    from odradek.client.connection import BrokerConnection

__all__ = ["GroupAdmin"]

T = TypeVar("T")

_STATES_FROM = 4
_TYPES_FROM = 5

_ELSEWHERE = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)


class GroupAdmin:
    """The part of `Admin` that is about groups; see there for `timeout` and what is raised."""

    def __init__(self, cluster: Cluster, *, timeout: float = 30.0) -> None:
        self.cluster = cluster
        self.timeout = timeout

    async def list_groups(
        self,
        *,
        states: Collection[str] = (),
        types: Collection[str] = (),
        errors: dict[int, KafkaError] | None = None,
    ) -> list[GroupListing]:
        """Return the groups of every broker, by name; only those in one of `states`, of one of
        `types` ("classic", "consumer", ...), where given.

        `errors`: takes, by its id, the KAFKA_STORAGE_ERROR of a broker that cannot read some of
        its groups; the groups that it can read are returned. Without it, that is raised. Raises
        NotOffered for a filter that a broker is too old for.
        """

        async def attempt() -> list[GroupListing]:
            image = await self.cluster.renew()
            found = [
                each
                for broker in image.brokers.values()
                for each in await self._list_groups(broker, states, types, errors)
            ]
            return sorted(found, key=lambda each: each.group_id)

        def when(error: OdradekError) -> bool:
            return is_retriable(error) and not _damaged(error)

        return await self.cluster.retrying(attempt, timeout=self.timeout, when=when)

    async def _list_groups(
        self,
        broker: Broker,
        states: Collection[str],
        types: Collection[str],
        errors: dict[int, KafkaError] | None,
    ) -> list[GroupListing]:
        connection = await self.cluster.connection_to(broker)
        version = connection.version_of(ListGroupsRequest)
        if (states and version < _STATES_FROM) or (types and version < _TYPES_FROM):
            raise NotOffered(f"broker {broker.node_id} cannot filter groups: it is too old")
        request = ListGroupsRequest(states_filter=list(states), types_filter=list(types))
        answer = await connection.call(request, ListGroupsResponse)
        if answer.error_code:
            error = error_of(answer.error_code, f"groups of broker {broker.node_id}")
            if errors is None or not _damaged(error):
                raise error
            errors[broker.node_id] = error
        return [
            GroupListing(
                each.group_id, each.protocol_type, each.group_state, each.group_type, broker
            )
            for each in answer.groups
        ]

    async def describe_groups(
        self, groups: Collection[str]
    ) -> dict[str, GroupDescription | KafkaError]:
        """Return the groups of these names; GROUP_ID_NOT_FOUND for one that does not exist, or
        is of a type that DescribeGroups does not show (KIP-848)."""

        async def ask(
            connection: BrokerConnection, broker: Broker, names: list[str]
        ) -> dict[str, GroupDescription | KafkaError]:
            request = DescribeGroupsRequest(groups=names)
            answer = await connection.call(request, DescribeGroupsResponse)
            return {each.group_id: described(each, broker) for each in answer.groups}

        return await self._of_groups(groups, ask, when=is_retriable)

    async def delete_groups(self, groups: Collection[str]) -> dict[str, KafkaError | None]:
        """Delete groups with their committed offsets; None stands for done.

        NON_EMPTY_GROUP: it has members. GROUP_ID_NOT_FOUND: there is none.
        """

        async def ask(
            connection: BrokerConnection, broker: Broker, names: list[str]
        ) -> dict[str, KafkaError | None]:
            request = DeleteGroupsRequest(groups_names=names)
            answer = await connection.call(request, DeleteGroupsResponse)
            return {
                each.group_id: _outcome(each.error_code, f"group {each.group_id!r}")
                for each in answer.results
            }

        # Asked twice, a group that was deleted would be reported as one that never was.
        return await self._of_groups(groups, ask, when=_not_sent)

    async def group_offsets(
        self, group: str, partitions: Collection[TopicPartition] | None = None
    ) -> dict[TopicPartition, CommittedOffset]:
        """Return what a group has committed, for `partitions` or for all; without those for
        which it has nothing, so that an unknown group has an empty result."""

        async def attempt() -> dict[TopicPartition, CommittedOffset]:
            broker = await self.cluster.coordinator_of(group, timeout=0)
            connection = await self.cluster.connection_to(broker)
            version = connection.version_of(OffsetFetchRequest, BY_NAME)
            request = fetch_request(group, partitions, version)
            answer = await connection.call(request, OffsetFetchResponse, version=version)
            return committed_offsets(group, answer, version)

        return await self._of_group(group, attempt)

    async def alter_group_offsets(
        self, group: str, offsets: Mapping[TopicPartition, CommittedOffset | int]
    ) -> dict[TopicPartition, KafkaError | None]:
        """Commit offsets in a group's place; None stands for done. Creates the group at need.

        UNKNOWN_MEMBER_ID for every partition: the group has members, and only they may commit.
        UNKNOWN_TOPIC_OR_PARTITION, OFFSET_METADATA_TOO_LARGE: of single partitions.
        """
        if not offsets:
            return {}
        request = commit_request(
            group,
            {
                partition: each if isinstance(each, CommittedOffset) else CommittedOffset(each)
                for partition, each in offsets.items()
            },
        )

        async def attempt() -> dict[TopicPartition, KafkaError | None]:
            broker = await self.cluster.coordinator_of(group, timeout=0)
            connection = await self.cluster.connection_to(broker)
            version = connection.version_of(OffsetCommitRequest, BY_NAME)
            answer = await connection.call(request, OffsetCommitResponse, version=version)
            results = {
                TopicPartition(topic.name, part.partition_index): _outcome(
                    part.error_code,
                    f"group {group!r} has members: only they may commit"
                    if part.error_code == ErrorCode.UNKNOWN_MEMBER_ID
                    else f"partition {topic.name}-{part.partition_index}",
                )
                for topic in answer.topics
                for part in topic.partitions
            }
            _raise_elsewhere(results)
            return results

        return await self._of_group(group, attempt)

    async def delete_group_offsets(
        self, group: str, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, KafkaError | None]:
        """Delete committed offsets (KIP-496); None stands for done, and for never committed.

        GROUP_SUBSCRIBED_TO_TOPIC: the group has members that read this topic. Raises
        GROUP_ID_NOT_FOUND, and NON_EMPTY_GROUP where members are no consumers.
        """
        if not partitions:
            return {}
        request = delete_request(group, partitions)

        async def attempt() -> dict[TopicPartition, KafkaError | None]:
            broker = await self.cluster.coordinator_of(group, timeout=0)
            connection = await self.cluster.connection_to(broker)
            answer = await connection.call(request, OffsetDeleteResponse)
            raise_for(answer.error_code, f"group {group!r}")
            results = {
                TopicPartition(topic.name, part.partition_index): _outcome(
                    part.error_code, f"partition {topic.name}-{part.partition_index}"
                )
                for topic in answer.topics
                for part in topic.partitions
            }
            _raise_elsewhere(results)
            return results

        return await self._of_group(group, attempt)

    async def log_ranges(
        self, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, LogRange]:
        """Return what the logs of these partitions hold. Raises as `list_offsets` does."""
        starts = await self._offsets_of(partitions, EARLIEST)
        ends = await self._offsets_of(partitions, LATEST)
        return {each: LogRange(starts[each], ends[each]) for each in partitions}

    async def plan_group_reset(
        self, group: str, partitions: Collection[TopicPartition], reset: OffsetReset
    ) -> list[OffsetChange]:
        """Return what a reset would do; nothing is changed. `alter_group_offsets` does it.

        Raises ResetImpossible as `plan_reset` does, and as `list_offsets` for a partition that
        does not exist.
        """
        committed = await self.group_offsets(group, partitions)
        at_time: dict[TopicPartition, int] = {}
        if isinstance(reset, ToTime) and reset.timestamp >= 0:
            at_time = await self._offsets_of(partitions, reset.timestamp)
        return plan_reset(
            reset,
            partitions,
            committed={partition: each.offset for partition, each in committed.items()},
            logs=await self.log_ranges(partitions),
            at_time=at_time,
        )

    async def _offsets_of(
        self, partitions: Collection[TopicPartition], time: int
    ) -> dict[TopicPartition, int]:
        if not partitions:
            return {}
        times = dict.fromkeys(partitions, time)
        found = await list_offsets(self.cluster, times, timeout=self.timeout)
        return {partition: each.offset for partition, each in found.items()}

    # Finding coordinators, and finding them again

    async def _of_group(self, group: str, attempt: Callable[[], Awaitable[T]]) -> T:
        """Return what `attempt` returns, repeated while the coordinator is not where or not as
        it should be."""

        async def aware() -> T:
            try:
                return await attempt()
            except OdradekError as error:
                if _elsewhere(error) or isinstance(error, Disconnected | NotReachable):
                    self.cluster.forget_coordinator(group)
                raise

        return await self.cluster.retrying(aware, timeout=self.timeout, when=_may_pass)

    async def _of_groups(
        self,
        groups: Collection[str],
        ask: Callable[
            [BrokerConnection, Broker, list[str]], Awaitable[Mapping[str, T | KafkaError]]
        ],
        *,
        when: Callable[[OdradekError], bool],
    ) -> dict[str, T | KafkaError]:
        """Ask the coordinators of groups, each once for all of its groups; repeat for those
        whose coordinator was not there."""
        done: dict[str, T | KafkaError] = {}

        async def attempt() -> None:
            left = [each for each in groups if each not in done or _elsewhere(done[each])]
            nodes: dict[Broker, list[str]] = {}
            for group, found in (await self.cluster.coordinators_of(left)).items():
                if isinstance(found, KafkaError):
                    done[group] = found
                else:
                    nodes.setdefault(found, []).append(group)
            for broker, names in nodes.items():
                try:
                    connection = await self.cluster.connection_to(broker)
                    answers = await ask(connection, broker, names)
                except (Disconnected, NotReachable):
                    for group in names:
                        self.cluster.forget_coordinator(group)
                    raise
                for group in names:
                    answer = answers.get(group, _unanswered(group))
                    done[group] = answer
                    if _elsewhere(answer):
                        self.cluster.forget_coordinator(group)
            for each in done.values():
                if isinstance(each, KafkaError) and _elsewhere(each):
                    raise each

        try:
            await self.cluster.retrying(attempt, timeout=self.timeout, when=when)
        except KafkaError:
            if len(done) < len(set(groups)):
                raise
        return {group: done[group] for group in groups}


def _elsewhere(result: object) -> bool:
    return isinstance(result, KafkaError) and result.code in _ELSEWHERE


def _damaged(error: OdradekError) -> bool:
    return isinstance(error, KafkaError) and error.code == ErrorCode.KAFKA_STORAGE_ERROR


def _may_pass(error: OdradekError) -> bool:
    """UNKNOWN_TOPIC_OR_PARTITION, retriable for a leader, is the answer of a coordinator."""
    if isinstance(error, KafkaError):
        return _elsewhere(error) or error.code == ErrorCode.UNSTABLE_OFFSET_COMMIT
    return is_retriable(error)


def _not_sent(error: OdradekError) -> bool:
    return is_retriable(error) and not (isinstance(error, Disconnected) and error.sent)


def _raise_elsewhere(results: Mapping[TopicPartition, KafkaError | None]) -> None:
    for each in results.values():
        if each is not None and _elsewhere(each):
            raise each


def _outcome(code: int, detail: str) -> KafkaError | None:
    return error_of(code, detail) if code else None


def _unanswered(group: str) -> KafkaError:
    return KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"no answer for group {group!r}")
