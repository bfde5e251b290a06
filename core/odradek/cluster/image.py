"""The cluster at one moment: topics, partitions, brokers. Immutable values, no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from uuid import UUID

from attrs import field, frozen

from odradek.contracts.coordinator import Version
from odradek.types import PartitionKey

__all__ = [
    "NO_LEADER",
    "BrokerImage",
    "DeletedTopic",
    "Endpoint",
    "Image",
    "PartitionImage",
    "TopicImage",
]

NO_LEADER = -1

_EMPTY: Mapping[str, str] = MappingProxyType({})


@frozen(slots=True)
class Endpoint:
    """Where clients of one listener reach a broker."""

    listener: str
    host: str
    port: int


@frozen(slots=True)
class BrokerImage:
    """A live broker: it exists as long as its session does."""

    id: int
    endpoints: tuple[Endpoint, ...]
    rack: str | None = None

    def endpoint(self, listener: str) -> Endpoint | None:
        """The address to give to clients that came in by `listener`, or the first one."""
        for endpoint in self.endpoints:
            if endpoint.listener == listener:
                return endpoint
        return self.endpoints[0] if self.endpoints else None


@frozen(slots=True)
class TopicImage:
    """A topic: `id` is unique for ever, `configs` are the settings that differ from the defaults.

    `version` is the coordinator's token for the next change.
    """

    name: str
    id: UUID
    partitions: int
    replication_factor: int
    configs: Mapping[str, str] = _EMPTY
    version: Version | None = field(default=None, eq=False)

    def partition_keys(self) -> list[PartitionKey]:
        """Every partition of the topic."""
        return [PartitionKey(self.id, number) for number in range(self.partitions)]


@frozen(slots=True)
class PartitionImage:
    """Who leads a partition. Leader, epoch and in-sync set change together or not at all."""

    replicas: tuple[int, ...]
    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    version: Version | None = field(default=None, eq=False)


@frozen(slots=True)
class DeletedTopic:
    """A topic that is gone, while `brokers` still have to remove its logs.

    Written with the deletion, so that a broker that was down, or died in the middle, removes
    them later instead of keeping them for ever.
    """

    id: UUID
    partitions: int
    brokers: tuple[int, ...]
    version: Version | None = field(default=None, eq=False)


@frozen(slots=True)
class Image:
    """Everything above, at one moment."""

    cluster_id: str
    topics: Mapping[str, TopicImage] = MappingProxyType({})
    names: Mapping[UUID, str] = MappingProxyType({})
    partitions: Mapping[PartitionKey, PartitionImage] = MappingProxyType({})
    brokers: Mapping[int, BrokerImage] = MappingProxyType({})
    deleted: Mapping[UUID, DeletedTopic] = MappingProxyType({})

    @property
    def controller(self) -> int:
        """The broker that administrative requests are sent to: any can, so the lowest alive."""
        return min(self.brokers, default=NO_LEADER)

    def topic_by_id(self, topic_id: UUID) -> TopicImage | None:
        """Find a topic by its id."""
        name = self.names.get(topic_id)
        return None if name is None else self.topics.get(name)
