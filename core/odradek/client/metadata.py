"""What a client knows of a cluster: an immutable image, renewed as a whole. Sans-IO."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple
from uuid import UUID

from attrs import evolve, frozen

from odradek.errors import ErrorCode
from odradek.wire.api.a03_metadata import MetadataResponse, MetadataResponseTopic

__all__ = ["Broker", "Leader", "Metadata", "PartitionInfo", "TopicInfo", "TopicPartition"]


class TopicPartition(NamedTuple):
    """A partition by its topic's name."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class Leader(NamedTuple):
    """Who leads a partition, since which leader epoch (-1 where the broker did not say)."""

    node_id: int
    epoch: int


@frozen(slots=True)
class Broker:
    """A broker as it advertises itself."""

    node_id: int
    host: str
    port: int
    rack: str | None = None

    def url(self, scheme: str) -> str:
        """Return its address for a transport; an IPv6 address gets its brackets.

        Transports whose addresses have no port, such as `memory`, advertise port 0.
        """
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{scheme}://{host}:{self.port}" if self.port else f"{scheme}://{host}"


@frozen(slots=True)
class PartitionInfo:
    """A partition as metadata shows it. `leader` is None while there is none."""

    partition: int
    leader: Leader | None
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline: tuple[int, ...]


@frozen(slots=True)
class TopicInfo:
    """A topic: `partitions[i]` is partition i; `available` those with a leader, ascending."""

    name: str
    topic_id: UUID
    internal: bool
    partitions: tuple[PartitionInfo, ...]
    available: tuple[int, ...]


@frozen(slots=True)
class Metadata:
    """An image of the cluster.

    `errors` holds the topics that were asked for and that the cluster would not describe. A topic
    in `topics` has at least one partition: one of which no partition is known yet, as while it is
    being created, is in `errors` under LEADER_NOT_AVAILABLE.
    `generation` grows with each renewal: who finds the image wrong asks for a newer one.
    """

    generation: int = 0
    cluster_id: str | None = None
    controller_id: int = -1
    brokers: Mapping[int, Broker] = MappingProxyType({})
    topics: Mapping[str, TopicInfo] = MappingProxyType({})
    errors: Mapping[str, ErrorCode] = MappingProxyType({})
    names: Mapping[UUID, str] = MappingProxyType({})

    def leader(self, partition: TopicPartition) -> Leader | None:
        """Return the partition's leader if partition, leader and its address are known."""
        topic = self.topics.get(partition.topic)
        if topic is None or not 0 <= partition.partition < len(topic.partitions):
            return None
        leader = topic.partitions[partition.partition].leader
        return leader if leader is not None and leader.node_id in self.brokers else None

    def renewed(self, response: MetadataResponse, *, complete: bool) -> Metadata:
        """Return the image after `response`.

        `complete`: it names every topic, so that others are gone. Otherwise topics that were not
        asked for are kept. A leader of a lower epoch than the one known does not replace it: the
        answer came from a broker that is behind (KIP-320).
        """
        topics = {} if complete else dict(self.topics)
        errors: dict[str, ErrorCode] = {}
        for answer in response.topics:
            name = answer.name
            if name is None:  # asked for by its id, and gone
                continue
            if answer.error_code and answer.error_code != ErrorCode.LEADER_NOT_AVAILABLE:
                topics.pop(name, None)
                errors[name] = ErrorCode.of(answer.error_code)
                continue
            topic = _topic(name, answer, self.topics.get(name))
            if topic.partitions:
                topics[name] = topic
            else:
                topics.pop(name, None)
                errors[name] = ErrorCode.LEADER_NOT_AVAILABLE
        return evolve(
            self,
            generation=self.generation + 1,
            cluster_id=response.cluster_id,
            controller_id=response.controller_id,
            brokers=MappingProxyType(
                {
                    broker.node_id: Broker(broker.node_id, broker.host, broker.port, broker.rack)
                    for broker in response.brokers
                }
            ),
            topics=MappingProxyType(topics),
            errors=MappingProxyType(errors),
            names=MappingProxyType({topic.topic_id: name for name, topic in topics.items()}),
        )


def _topic(name: str, answer: MetadataResponseTopic, before: TopicInfo | None) -> TopicInfo:
    if before is not None and before.topic_id != answer.topic_id:
        before = None  # deleted and created again: its epochs begin anew
    partitions: list[PartitionInfo] = []
    for index, part in enumerate(sorted(answer.partitions, key=lambda p: p.partition_index)):
        if index != part.partition_index:
            break  # a hole: the broker is behind, and what follows cannot be addressed yet
        leader = Leader(part.leader_id, part.leader_epoch) if part.leader_id >= 0 else None
        if before is not None and index < len(before.partitions):
            known = before.partitions[index].leader
            if known is not None and 0 <= part.leader_epoch < known.epoch:
                leader = known
        partitions.append(
            PartitionInfo(
                index,
                leader,
                tuple(part.replica_nodes),
                tuple(part.isr_nodes),
                tuple(part.offline_replicas),
            )
        )
    available = tuple(part.partition for part in partitions if part.leader is not None)
    if before is not None and before.available == available:
        available = before.available  # the same tuple: the sticky partitioner looks no further
    return TopicInfo(name, answer.topic_id, answer.is_internal, tuple(partitions), available)
