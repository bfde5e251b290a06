"""OffsetDelete (key 47), version 0: forget a group's offsets of some partitions (KIP-496).

What the group is still subscribed to is answered with GROUP_SUBSCRIBED_TO_TOPIC, and partitions of
topics that do not exist with UNKNOWN_TOPIC_OR_PARTITION.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from odradek.broker.guard import check_count
from odradek.broker.waiting import Pending
from odradek.errors import ErrorCode
from odradek.wire import Message
from odradek.wire.api.a47_offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)

if TYPE_CHECKING:
    from odradek.broker.serve import Caller

__all__ = ["handle"]

PARTITION_BYTES = 100
"""Memory that one partition of a waiting request takes, about."""


def handle(caller: Caller, request: OffsetDeleteRequest, version: int) -> Message | Pending:
    """Answer when the deletion is stored."""
    if not request.group_id:
        return OffsetDeleteResponse(error_code=ErrorCode.INVALID_GROUP_ID)
    known: list[OffsetDeleteRequestTopic] = []
    size = 0
    check_count(sum([len(topic.partitions) for topic in request.topics]))
    for topic in request.topics:
        hosted = caller.broker.hosting.by_name.get(topic.name)
        count = 0 if hosted is None else len(hosted.logs)
        size += PARTITION_BYTES * len(topic.partitions)
        distinct = {each.partition_index: each for each in topic.partitions}
        there = [each for number, each in distinct.items() if 0 <= number < count]
        if there:
            known.append(OffsetDeleteRequestTopic(name=topic.name, partitions=there))
    asked = OffsetDeleteRequest(group_id=request.group_id, topics=known)
    found = caller.broker.groups.ask(caller, request.group_id, asked, version, size=size)
    if isinstance(found, Message):
        return _complete(request, found)
    return found.then(lambda response: _complete(request, response))


def _complete(request: OffsetDeleteRequest, response: Message) -> Message:
    """Answer for every partition asked for, unless the group itself is the problem."""
    assert isinstance(response, OffsetDeleteResponse)
    if response.error_code:
        return response
    codes = {
        (topic.name, partition.partition_index): partition.error_code
        for topic in response.topics
        for partition in topic.partitions
    }
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return OffsetDeleteResponse(
        topics=[
            OffsetDeleteResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetDeleteResponsePartition(
                        partition_index=each.partition_index,
                        error_code=codes.get((topic.name, each.partition_index), unknown),
                    )
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )
