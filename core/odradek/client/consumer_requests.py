"""The requests of a fetcher, and what their answers say."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from odradek.client.cluster import Cluster
from odradek.client.errors import error_of
from odradek.client.metadata import Metadata, TopicPartition
from odradek.client.positions import FetchedBatch, Position
from odradek.client.settings import ReaderSettings
from odradek.errors import KafkaError
from odradek.record import scan
from odradek.wire.api.a01_fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from odradek.wire.api.a23_offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)

__all__ = ["EpochEnd", "answered", "ask_epoch_ends", "batches_of", "fetch_request"]

_CONSUMER = -1
"""The replica id of those who replicate nothing."""


def fetch_request(
    metadata: Metadata,
    positions: Iterable[Position],
    settings: ReaderSettings,
    *,
    max_wait: float,
    max_bytes: int,
) -> FetchRequest:
    """Return a request for the records at these positions; their topics are in `metadata`."""
    topics: dict[str, FetchTopic] = {}
    for position in positions:
        name = position.partition.topic
        topic = topics.get(name)
        if topic is None:
            topic = topics[name] = FetchTopic(topic=name, topic_id=metadata.topics[name].topic_id)
        leader = metadata.leader(position.partition)
        topic.partitions.append(
            FetchPartition(
                partition=position.partition.partition,
                current_leader_epoch=leader.epoch if leader is not None else -1,
                fetch_offset=position.fetched,
                partition_max_bytes=settings.partition_bytes,
            )
        )
    return FetchRequest(
        max_wait_ms=int(max_wait * 1000),
        min_bytes=settings.min_bytes,
        max_bytes=max_bytes,
        topics=list(topics.values()),
    )


def answered(
    metadata: Metadata, answer: FetchResponse
) -> Iterator[tuple[TopicPartition, PartitionData]]:
    """Yield what a broker answered for each partition."""
    for topic in answer.responses:
        name = topic.topic or metadata.names.get(topic.topic_id, "")
        for part in topic.partitions:
            yield TopicPartition(name, part.partition_index), part


def batches_of(
    position: Position, view: memoryview, check_crcs: bool
) -> tuple[list[FetchedBatch], str | None]:
    """Move `position` over the batches in `view`; return those to hand out, and what is broken.

    Control batches are left out: they hold nothing for applications.
    """
    found = scan(view, verify=False)  # the CRC is checked when the batch is decoded
    batches: list[FetchedBatch] = []
    for meta, at in zip(found.metas, found.positions, strict=True):
        if meta.last_offset < position.fetched:
            continue
        if position.finished:
            break
        if not meta.control:
            end = meta.last_offset + 1
            if position.end is not None:
                end = min(end, position.end)
            first = max(position.fetched, meta.base_offset)
            part = view[at : at + meta.size]
            batches.append(FetchedBatch(position.partition, meta, part, first, end, check_crcs))
        position.fetched = meta.last_offset + 1
        position.epoch = meta.leader_epoch
    problem = found.problem
    return batches, problem.text if problem is not None and problem.kind == "corrupt" else None


class EpochEnd(NamedTuple):
    """Where the largest leader epoch up to the one asked for ends; -1 twice when there is none."""

    leader_epoch: int
    end_offset: int


async def ask_epoch_ends(
    cluster: Cluster, node: int, positions: Iterable[Position]
) -> Mapping[TopicPartition, EpochEnd | KafkaError]:
    """Ask a leader where the epochs of these positions end in its log (KIP-320).

    Raises as `Cluster.call`.
    """
    topics: dict[str, OffsetForLeaderTopic] = {}
    for position in positions:
        name, partition = position.partition
        topic = topics.setdefault(name, OffsetForLeaderTopic(topic=name))
        leader = cluster.metadata.leader(position.partition)
        topic.partitions.append(
            OffsetForLeaderPartition(
                partition=partition,
                current_leader_epoch=leader.epoch if leader is not None else -1,
                leader_epoch=position.epoch,
            )
        )
    request = OffsetForLeaderEpochRequest(replica_id=_CONSUMER, topics=list(topics.values()))
    answer = await cluster.call(request, OffsetForLeaderEpochResponse, node=node)
    return {
        TopicPartition(result.topic, part.partition): (
            error_of(part.error_code, f"partition {result.topic}-{part.partition}")
            if part.error_code
            else EpochEnd(part.leader_epoch, part.end_offset)
        )
        for result in answer.topics
        for part in result.partitions
    }
