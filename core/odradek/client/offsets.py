"""Looking up offsets: the ends of partitions, and the offset for a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from odradek.client.cluster import Cluster
from odradek.client.errors import error_of
from odradek.client.metadata import TopicPartition
from odradek.errors import ErrorCode, KafkaError
from odradek.wire.api.a02_list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)

__all__ = ["EARLIEST", "LATEST", "MAX_TIMESTAMP", "FoundOffset", "list_offsets"]

LATEST = -1
"""Instead of a time: the high watermark, where the next record will be."""
EARLIEST = -2
"""Instead of a time: the log start offset."""
MAX_TIMESTAMP = -3
"""Instead of a time: the record with the largest timestamp (KIP-734)."""


class FoundOffset(NamedTuple):
    """An offset, with the record's timestamp in ms (-1 for an end) and its leader epoch.

    `offset` is -1 when no record has the time that was asked for, or a later one.
    """

    offset: int
    timestamp: int
    leader_epoch: int


async def list_offsets(
    cluster: Cluster,
    times: Mapping[TopicPartition, int],
    *,
    timeout: float | None = None,
) -> dict[TopicPartition, FoundOffset]:
    """Return, for each partition, the first offset whose timestamp is at least the time given.

    Times are in ms since 1970, or EARLIEST, LATEST, MAX_TIMESTAMP. Asks each leader once;
    retries for `timeout` seconds, the request timeout by default.

    Raises KafkaError of the first partition that fails, NotReachable, Disconnected, NotOffered.
    """
    found: dict[TopicPartition, FoundOffset] = {}

    async def attempt() -> None:
        left = [partition for partition in times if partition not in found]
        for node, partitions in (await cluster.by_leader(left)).items():
            found.update(await _ask(cluster, node, {each: times[each] for each in partitions}))

    timeout = cluster.settings.request_timeout if timeout is None else timeout
    await cluster.retrying(attempt, timeout=timeout)
    return found


async def _ask(
    cluster: Cluster, node: int, times: Mapping[TopicPartition, int]
) -> dict[TopicPartition, FoundOffset]:
    topics: dict[str, ListOffsetsTopic] = {}
    for partition, time in times.items():
        topic = topics.setdefault(partition.topic, ListOffsetsTopic(name=partition.topic))
        leader = cluster.metadata.leader(partition)
        topic.partitions.append(
            ListOffsetsPartition(
                partition_index=partition.partition,
                current_leader_epoch=leader.epoch if leader is not None else -1,
                timestamp=time,
            )
        )
    request = ListOffsetsRequest(
        replica_id=-1,
        topics=list(topics.values()),
        timeout_ms=int(cluster.settings.request_timeout * 1000),
    )
    answer = await cluster.call(request, ListOffsetsResponse, node=node)
    found: dict[TopicPartition, FoundOffset] = {}
    for answered in answer.topics:
        for part in answered.partitions:
            partition = TopicPartition(answered.name, part.partition_index)
            if part.error_code:
                raise error_of(part.error_code, f"partition {partition}")
            found[partition] = FoundOffset(part.offset, part.timestamp, part.leader_epoch)
    if missing := times.keys() - found.keys():
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"no answer for partition {min(missing)}")
    return found
