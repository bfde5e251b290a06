"""OffsetCommit (key 8), versions 2 to 9: keep how far a group has read.

Partitions of topics that do not exist are answered with UNKNOWN_TOPIC_OR_PARTITION, and the rest
goes to the group, which fences by member and generation; a request with nothing else in it is
answered without asking the group, as by Kafka. The response waits until the offsets are committed
to `__consumer_offsets`. An empty group id is allowed, for old clients that keep offsets alone.

More than a thousand partitions are written a thousand at a time: other requests have their turns
in between, and a crash may leave some of them stored and not answered for.

The retention time of versions 2 to 4 is kept with the offsets.

Left out: version 10 (topic ids).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from odradek.broker.guard import check_count
from odradek.broker.portions import PORTION, Several, Turns
from odradek.broker.waiting import Pending
from odradek.errors import ErrorCode
from odradek.wire import Message, Struct
from odradek.wire.api.a08_offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)

if TYPE_CHECKING:
    from odradek.broker.serve import Caller
    from odradek.broker.shard import PendingReply

__all__ = ["handle"]

PARTITION_BYTES = 200
"""Memory that one partition of a waiting request takes besides its metadata, about."""


async def handle(caller: Caller, request: OffsetCommitRequest, version: int) -> Message | Pending:
    """Answer when the offsets are stored."""
    hosting = caller.broker.hosting
    count = size = 0
    unknown = False
    for topic in request.topics:
        hosted = hosting.by_name.get(topic.name)
        partitions = 0 if hosted is None else len(hosted.logs)
        count += len(topic.partitions)
        check_count(count)
        for each in topic.partitions:
            size += PARTITION_BYTES + len(each.committed_metadata or "")
            if not 0 <= each.partition_index < partitions:
                unknown = True
    groups = caller.broker.groups
    if count <= PORTION and not unknown:
        return groups.ask(caller, request.group_id, request, version, size=size)
    turns = Turns()
    await turns.spend(count)
    portions: list[Message | PendingReply] = []
    for topics, asked, size in _portions(caller, request):
        part = OffsetCommitRequest(
            group_id=request.group_id,
            generation_id_or_member_epoch=request.generation_id_or_member_epoch,
            member_id=request.member_id,
            group_instance_id=request.group_instance_id,
            retention_time_ms=request.retention_time_ms,
            topics=topics,
        )
        portions.append(groups.ask(caller, request.group_id, part, version, size=size))
        await turns.spend(asked, size + len(request.group_id) * asked)
    return await Several(portions, partial(_merge, request)).response()


def _portions(
    caller: Caller, request: OffsetCommitRequest
) -> Iterator[tuple[list[OffsetCommitRequestTopic], int, int]]:
    """Yield what of a request names partitions that exist, with how many these are, and bytes."""
    topics: list[OffsetCommitRequestTopic] = []
    asked = size = 0
    for topic in request.topics:
        hosted = caller.broker.hosting.by_name.get(topic.name)
        count = 0 if hosted is None else len(hosted.logs)
        known = [each for each in topic.partitions if 0 <= each.partition_index < count]
        while known:
            taken, known = known[: PORTION - asked], known[PORTION - asked :]
            topics.append(OffsetCommitRequestTopic(name=topic.name, partitions=taken))
            asked += len(taken)
            size += sum([PARTITION_BYTES + len(each.committed_metadata or "") for each in taken])
            if asked == PORTION:
                yield topics, asked, size
                topics, asked, size = [], 0, 0
    if topics:
        yield topics, asked, size


async def _merge(request: OffsetCommitRequest, replies: list[Struct]) -> Message:
    """Answer for every partition asked for: what the group says, or that it is unknown."""
    turns = Turns()
    codes: dict[tuple[str, int], int] = {}
    for reply in replies:
        assert isinstance(reply, OffsetCommitResponse)
        for answered in reply.topics:
            for result in answered.partitions:
                codes[answered.name, result.partition_index] = result.error_code
        await turns.spend(PORTION // 10)
    topics = []
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    for topic in request.topics:
        results = []
        for each in topic.partitions:
            number = each.partition_index
            code = codes.get((topic.name, number), unknown)
            results.append(OffsetCommitResponsePartition(partition_index=number, error_code=code))
            if len(results) % PORTION == 0:
                await turns.spend(PORTION // 10)
        topics.append(OffsetCommitResponseTopic(name=topic.name, partitions=results))
        await turns.spend()
    return OffsetCommitResponse(topics=topics)
