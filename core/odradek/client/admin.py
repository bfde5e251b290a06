"""Administration: topics, partitions, records, settings, log directories, groups, the cluster.

Requests about several things answer for each: the result maps its name to what became of it, a
value or the `KafkaError`. An exception means that nothing is known of any of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TypeVar
from uuid import UUID

from attrs import frozen

from odradek.client.configs import Configs
from odradek.client.errors import Disconnected, error_of, is_retriable, raise_for
from odradek.client.group_admin import GroupAdmin
from odradek.client.metadata import Broker, TopicInfo, TopicPartition
from odradek.errors import ErrorCode, KafkaError, OdradekError
from odradek.wire import Message
from odradek.wire.api.a19_create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from odradek.wire.api.a20_delete_topics import (
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from odradek.wire.api.a21_delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from odradek.wire.api.a35_describe_log_dirs import (
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from odradek.wire.api.a37_create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from odradek.wire.api.a60_describe_cluster import (
    DescribeClusterRequest,
    DescribeClusterResponse,
)

__all__ = [
    "Admin",
    "ClusterInfo",
    "CreatedTopic",
    "LogDir",
    "NewTopic",
    "ReplicaInfo",
]

ResponseT = TypeVar("ResponseT", bound=Message)


@frozen(slots=True, kw_only=True)
class NewTopic:
    """A topic to create. -1 leaves partitions or replication factor to the broker (KIP-464).

    `assignments[i]` are the brokers of partition i, the preferred leader first; given, they
    decide both numbers.
    """

    name: str
    partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str] = MappingProxyType({})
    assignments: Sequence[Sequence[int]] = ()


@frozen(slots=True)
class CreatedTopic:
    """A topic as the broker created it; -1 and the nil uuid where it did not say."""

    name: str
    topic_id: UUID
    partitions: int
    replication_factor: int


@frozen(slots=True)
class ReplicaInfo:
    """A partition's data on one broker: `size` in bytes, `lag` in offsets behind the leader."""

    partition: TopicPartition
    size: int
    lag: int


@frozen(slots=True)
class LogDir:
    """A log directory of a broker; sizes in bytes, -1 where unknown."""

    node_id: int
    path: str
    error: KafkaError | None
    replicas: tuple[ReplicaInfo, ...]
    total_bytes: int
    usable_bytes: int


@frozen(slots=True)
class ClusterInfo:
    """The cluster: its id, the controller's broker id (-1: none), and the brokers."""

    cluster_id: str
    controller_id: int
    brokers: tuple[Broker, ...]


class Admin(GroupAdmin):
    """Administrative requests; holds no state but the cluster's. Groups: see `GroupAdmin`.

    `timeout`, in seconds, bounds each operation with its retries; what the broker is asked to
    finish within is the same. Retriable errors of an operation as a whole are retried, those
    of a single item are in the result. Every method raises NotReachable, Disconnected,
    NotOffered, and KafkaError for a refusal as a whole.
    """

    @property
    def configs(self) -> Configs:
        """Settings of topics and brokers."""
        return Configs(self.cluster, timeout=self.timeout)

    async def list_topics(self, *, internal: bool = False) -> dict[str, TopicInfo]:
        """Return all topics by name, in order; those of the cluster itself only on request."""

        async def attempt() -> dict[str, TopicInfo]:
            image = await self.cluster.renew(None)
            return {
                name: image.topics[name]
                for name in sorted(image.topics)
                if internal or not image.topics[name].internal
            }

        return await self.cluster.retrying(attempt, timeout=self.timeout)

    async def describe_topics(self, names: Collection[str]) -> dict[str, TopicInfo | KafkaError]:
        """Return the topics of these names."""

        async def attempt() -> dict[str, TopicInfo | KafkaError]:
            image = await self.cluster.renew(names)
            missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            return {
                name: image.topics.get(name)
                or KafkaError(image.errors.get(name, missing), f"there is no topic {name!r}")
                for name in names
            }

        return await self.cluster.retrying(attempt, timeout=self.timeout)

    async def create_topics(
        self, topics: Iterable[NewTopic], *, validate_only: bool = False
    ) -> dict[str, CreatedTopic | KafkaError]:
        """Create topics, or only check whether they could be created."""
        request = CreateTopicsRequest(
            topics=[_creatable(topic) for topic in topics],
            timeout_ms=self._timeout_ms,
            validate_only=validate_only,
        )
        answer = await self._controller(request, CreateTopicsResponse)
        return {
            each.name: error_of(each.error_code, each.error_message)
            if each.error_code
            else CreatedTopic(
                each.name, each.topic_id, each.num_partitions, each.replication_factor
            )
            for each in answer.topics
        }

    async def create_topic(self, topic: NewTopic) -> CreatedTopic:
        """Create one topic. Raises its KafkaError, such as TOPIC_ALREADY_EXISTS."""
        result = (await self.create_topics([topic]))[topic.name]
        if isinstance(result, KafkaError):
            raise result
        return result

    async def delete_topics(self, names: Collection[str]) -> dict[str, KafkaError | None]:
        """Delete topics with all their records; None stands for done."""
        request = DeleteTopicsRequest(
            topics=[DeleteTopicState(name=name) for name in names],
            topic_names=list(names),
            timeout_ms=self._timeout_ms,
        )
        answer = await self._controller(request, DeleteTopicsResponse)
        return {
            each.name or "": _outcome(each.error_code, each.error_message)
            for each in answer.responses
        }

    async def create_partitions(self, totals: Mapping[str, int]) -> dict[str, KafkaError | None]:
        """Raise topics' numbers of partitions to the totals given; None stands for done."""
        request = CreatePartitionsRequest(
            topics=[
                CreatePartitionsTopic(name=name, count=total, assignments=None)
                for name, total in totals.items()
            ],
            timeout_ms=self._timeout_ms,
        )
        answer = await self._controller(request, CreatePartitionsResponse)
        return {each.name: _outcome(each.error_code, each.error_message) for each in answer.results}

    async def delete_records(
        self, before: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int | KafkaError]:
        """Delete every record below an offset (-1: the high watermark), for good.

        Return the new log start offset of each partition. Errors that a newer image of the
        cluster would mend are retried for the partitions they hit.
        """
        done: dict[TopicPartition, int | KafkaError] = {}

        async def attempt() -> None:
            left = [
                each
                for each in before
                if not isinstance(found := done.get(each), int)
                and not (isinstance(found, KafkaError) and not found.retriable)
            ]
            failure: OdradekError | None = None
            for partition in left:
                try:
                    groups = await self.cluster.by_leader([partition])
                except KafkaError as error:
                    done[partition] = error
                    failure = error
                    continue
                for node in groups:
                    result = await self._delete_records(node, partition, before[partition])
                    done[partition] = result
                    if isinstance(result, KafkaError):
                        failure = result
            if failure is not None:
                raise failure

        try:
            await self.cluster.retrying(attempt, timeout=self.timeout)
        except KafkaError:
            if len(done) < len(before):
                raise
        return done

    async def _delete_records(
        self, node: int, partition: TopicPartition, offset: int
    ) -> int | KafkaError:
        request = DeleteRecordsRequest(
            topics=[
                DeleteRecordsTopic(
                    name=partition.topic,
                    partitions=[
                        DeleteRecordsPartition(partition_index=partition.partition, offset=offset)
                    ],
                )
            ],
            timeout_ms=self._timeout_ms,
        )
        answer = await self.cluster.call(request, DeleteRecordsResponse, node=node)
        for topic in answer.topics:
            for part in topic.partitions:
                if part.error_code:
                    return error_of(part.error_code, f"partition {partition}")
                return part.low_watermark
        raise Disconnected(f"DeleteRecords: no answer for partition {partition}")

    async def describe_cluster(self) -> ClusterInfo:
        """Return the cluster's id, controller and brokers."""

        async def attempt() -> ClusterInfo:
            answer = await self.cluster.call(DescribeClusterRequest(), DescribeClusterResponse)
            raise_for(answer.error_code, answer.error_message)
            brokers = sorted(answer.brokers, key=lambda broker: broker.broker_id)
            return ClusterInfo(
                answer.cluster_id,
                answer.controller_id,
                tuple(Broker(b.broker_id, b.host, b.port, b.rack) for b in brokers),
            )

        return await self.cluster.retrying(attempt, timeout=self.timeout)

    async def describe_log_dirs(self) -> list[LogDir]:
        """Return the log directories of every broker, with the replicas in them."""

        async def attempt() -> list[LogDir]:
            image = await self.cluster.renew()
            return [
                found
                for node in sorted(image.brokers)
                for found in await self._describe_log_dirs(node)
            ]

        return await self.cluster.retrying(attempt, timeout=self.timeout)

    async def _describe_log_dirs(self, node: int) -> list[LogDir]:
        request = DescribeLogDirsRequest(topics=None)
        answer = await self.cluster.call(request, DescribeLogDirsResponse, node=node)
        raise_for(answer.error_code)
        return [
            LogDir(
                node,
                found.log_dir,
                _outcome(found.error_code, None),
                tuple(
                    ReplicaInfo(
                        TopicPartition(topic.name, part.partition_index),
                        part.partition_size,
                        part.offset_lag,
                    )
                    for topic in found.topics
                    for part in topic.partitions
                ),
                found.total_bytes,
                found.usable_bytes,
            )
            for found in answer.results
        ]

    @property
    def _timeout_ms(self) -> int:
        return int(self.timeout * 1000)

    async def _controller(self, request: Message, response: type[ResponseT]) -> ResponseT:
        """Ask the controller, or any broker while the controller is unknown.

        A connection that broke is no reason to repeat these: the topic may have been created.
        """

        async def attempt() -> ResponseT:
            if not self.cluster.metadata.brokers:
                await self.cluster.renew()
            controller = self.cluster.metadata.controller_id
            known = controller in self.cluster.metadata.brokers
            answer = await self.cluster.call(
                request, response, node=controller if known else None, timeout=self.timeout + 1
            )
            for code in _codes(answer):
                if code == ErrorCode.NOT_CONTROLLER:
                    raise error_of(code)
            return answer

        return await self.cluster.retrying(attempt, timeout=self.timeout, when=_not_sent)


def _not_sent(error: OdradekError) -> bool:
    return is_retriable(error) and not (isinstance(error, Disconnected) and error.sent)


def _codes(answer: Message) -> Iterable[int]:
    for name in ("topics", "responses", "results"):
        for item in getattr(answer, name, ()):
            yield item.error_code


def _outcome(code: int, detail: str | None) -> KafkaError | None:
    return error_of(code, detail) if code else None


def _creatable(topic: NewTopic) -> CreatableTopic:
    given = bool(topic.assignments)
    return CreatableTopic(
        name=topic.name,
        num_partitions=-1 if given else topic.partitions,
        replication_factor=-1 if given else topic.replication_factor,
        assignments=[
            CreatableReplicaAssignment(partition_index=index, broker_ids=list(brokers))
            for index, brokers in enumerate(topic.assignments)
        ],
        configs=[
            CreatableTopicConfig(name=name, value=value) for name, value in topic.configs.items()
        ],
    )
