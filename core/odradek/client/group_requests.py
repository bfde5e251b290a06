"""Requests about a group's committed offsets, and what their answers say, for every version."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from odradek.client.errors import raise_for
from odradek.client.membership import CommittedOffset
from odradek.client.metadata import TopicPartition
from odradek.errors import ErrorCode, KafkaError
from odradek.wire.api.a08_offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from odradek.wire.api.a09_offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
)
from odradek.wire.api.a47_offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)

__all__ = ["BY_NAME", "commit_request", "committed_offsets", "delete_request", "fetch_request"]

BY_NAME = 9
"""The last version of OffsetCommit and OffsetFetch with names of topics. Later ones have ids, by
which offsets of a topic that was deleted could not be told any more."""

_SEVERAL_FROM = 8


def fetch_request(
    group: str, partitions: Collection[TopicPartition] | None, version: int
) -> OffsetFetchRequest:
    """Return an OffsetFetch of one group, for `partitions` or (from version 2) None, all."""
    if version < _SEVERAL_FROM:
        topics = [
            OffsetFetchRequestTopic(name=name, partition_indexes=indexes)
            for name, indexes in _by_topic(partitions or ())
        ]
        return OffsetFetchRequest(group_id=group, topics=None if partitions is None else topics)
    of_group = OffsetFetchRequestGroup(
        group_id=group,
        topics=None
        if partitions is None
        else [
            OffsetFetchRequestTopics(name=name, partition_indexes=indexes)
            for name, indexes in _by_topic(partitions)
        ],
    )
    return OffsetFetchRequest(groups=[of_group])


def committed_offsets(
    group: str, answer: OffsetFetchResponse, version: int
) -> dict[TopicPartition, CommittedOffset]:
    """Return what an OffsetFetch of one group found, without what was never committed.

    Raises KafkaError for the group's error, or that of its first partition that has one.
    """
    found: list[tuple[str, OffsetFetchResponsePartition | OffsetFetchResponsePartitions]] = []
    error_code = answer.error_code
    for topic in answer.topics:
        found += [(topic.name, each) for each in topic.partitions]
    if version >= _SEVERAL_FROM:
        of_group = next((each for each in answer.groups if each.group_id == group), None)
        if of_group is None:
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"no answer for group {group!r}")
        error_code = of_group.error_code
        for topics in of_group.topics:
            found += [(topics.name, each) for each in topics.partitions]
    raise_for(error_code, f"group {group!r}")
    for name, each in found:
        raise_for(each.error_code, f"group {group!r}, partition {name}-{each.partition_index}")
    return {
        TopicPartition(name, each.partition_index): CommittedOffset(
            each.committed_offset, each.committed_leader_epoch, each.metadata or ""
        )
        for name, each in found
        if each.committed_offset >= 0
    }


def commit_request(
    group: str, offsets: Mapping[TopicPartition, CommittedOffset]
) -> OffsetCommitRequest:
    """Return an OffsetCommit of somebody who is no member."""
    return OffsetCommitRequest(
        group_id=group,
        topics=[
            OffsetCommitRequestTopic(
                name=name,
                partitions=[
                    OffsetCommitRequestPartition(
                        partition_index=index,
                        committed_offset=each.offset,
                        committed_leader_epoch=each.leader_epoch,
                        committed_metadata=each.metadata,
                    )
                    for index in indexes
                    for each in (offsets[TopicPartition(name, index)],)
                ],
            )
            for name, indexes in _by_topic(offsets)
        ],
    )


def delete_request(group: str, partitions: Collection[TopicPartition]) -> OffsetDeleteRequest:
    """Return an OffsetDelete of these partitions."""
    return OffsetDeleteRequest(
        group_id=group,
        topics=[
            OffsetDeleteRequestTopic(
                name=name,
                partitions=[OffsetDeleteRequestPartition(partition_index=i) for i in indexes],
            )
            for name, indexes in _by_topic(partitions)
        ],
    )


def _by_topic(partitions: Iterable[TopicPartition]) -> Iterable[tuple[str, list[int]]]:
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        topics.setdefault(topic, []).append(partition)
    return topics.items()
