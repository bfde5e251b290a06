"""OffsetFetch (key 9), versions 1 to 9: how far a group has read; several groups from version 8.

What was never committed has offset -1 and no error, whether the topic exists or not. A null list
of topics asks for all. `require_stable` asks to wait for transactions, of which there are none
yet. An error of the whole group stands where the version has room for it: with each partition in
version 1, at the top from 2, with the group from 8.

Left out: version 10 (topic ids).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from odradek.broker.guard import check_count
from odradek.broker.portions import PORTION, Turns
from odradek.errors import KafkaError
from odradek.wire import Message
from odradek.wire.api.a09_offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
)

if TYPE_CHECKING:
    from odradek.broker.serve import Caller

__all__ = ["handle"]

GROUPS_FROM = 8
TOP_LEVEL_ERROR_FROM = 2
NO_OFFSET = -1


async def handle(caller: Caller, request: OffsetFetchRequest, version: int) -> Message:
    """Look the offsets up."""
    check_count(_asked(request))
    turns = Turns()
    if version >= GROUPS_FROM:
        response = OffsetFetchResponse()
        for group in request.groups:
            response.groups.append(await _fetch(caller, group, version, turns))
        return response
    topics = request.topics
    group = OffsetFetchRequestGroup(
        group_id=request.group_id,
        topics=None
        if topics is None
        else [
            OffsetFetchRequestTopics(name=topic.name, partition_indexes=topic.partition_indexes)
            for topic in topics
        ],
    )
    found = await _fetch(caller, group, version, turns)
    if found.error_code and version < TOP_LEVEL_ERROR_FROM:
        return _error_everywhere(request, found.error_code)
    return OffsetFetchResponse(
        error_code=found.error_code,
        topics=[
            OffsetFetchResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetFetchResponsePartition(
                        partition_index=each.partition_index,
                        committed_offset=each.committed_offset,
                        committed_leader_epoch=each.committed_leader_epoch,
                        metadata=each.metadata,
                        error_code=each.error_code,
                    )
                    for each in topic.partitions
                ],
            )
            for topic in found.topics
        ],
    )


def _asked(request: OffsetFetchRequest) -> int:
    """Groups and partitions that a request names."""
    return (
        len(request.groups)
        + sum([len(topic.partition_indexes) for topic in request.topics or ()])
        + sum(
            [
                len(topic.partition_indexes)
                for group in request.groups
                for topic in group.topics or ()
            ]
        )
    )


async def _fetch(
    caller: Caller, group: OffsetFetchRequestGroup, version: int, turns: Turns
) -> OffsetFetchResponseGroup:
    groups = caller.broker.groups
    answer = OffsetFetchResponseGroup(group_id=group.group_id)
    try:
        shard = groups.shard_of(group.group_id)
        await turns.spend(characters=len(group.group_id))
        for topics, asked, goes_on in _portions(group):
            part = OffsetFetchRequestGroup(group_id=group.group_id, topics=topics)
            found = shard.machine.fetch_offsets(part, version, groups.now_ms())
            if found.error_code:
                return found
            if goes_on:
                answer.topics[-1].partitions += found.topics.pop(0).partitions
            answer.topics += found.topics
            await turns.spend(asked // 5)  # a partition costs a fifth of a group
    except KafkaError as error:
        return OffsetFetchResponseGroup(group_id=group.group_id, error_code=error.code)
    return answer


def _portions(
    group: OffsetFetchRequestGroup,
) -> Iterator[tuple[list[OffsetFetchRequestTopics] | None, int, bool]]:
    """Yield the topics asked for, a portion at a time, with the number of things in it.

    True: its first topic is the last one of the portion before, gone on with.
    """
    if group.topics is None:
        yield None, PORTION, False
        return
    topics: list[OffsetFetchRequestTopics] = []
    asked = 0
    goes_on = False
    for topic in group.topics:
        start = 0
        while True:
            taken = topic.partition_indexes[start : start + PORTION - asked]
            start += len(taken)
            topics.append(OffsetFetchRequestTopics(name=topic.name, partition_indexes=taken))
            asked += 1 + len(taken)
            if asked >= PORTION:
                yield topics, asked, goes_on
                topics, asked = [], 0
                goes_on = start < len(topic.partition_indexes)
            if start >= len(topic.partition_indexes):
                break
    if topics:
        yield topics, asked, goes_on


def _error_everywhere(request: OffsetFetchRequest, code: int) -> Message:
    return OffsetFetchResponse(
        topics=[
            OffsetFetchResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetFetchResponsePartition(
                        partition_index=index,
                        committed_offset=NO_OFFSET,
                        metadata="",
                        error_code=code,
                    )
                    for index in topic.partition_indexes
                ],
            )
            for topic in request.topics or ()
        ]
    )
