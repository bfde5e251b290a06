"""What a request of a group is answered with when its group could not be asked.

Each API puts an error where Kafka's does (`getErrorResponse` of its request's class).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from odradek.broker.configs import public_url
from odradek.contracts.storage import Corrupt, Full, StorageError, Unavailable
from odradek.errors import ErrorCode
from odradek.wire import Message
from odradek.wire.api.a08_offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from odradek.wire.api.a11_join_group import JoinGroupRequest, JoinGroupResponse
from odradek.wire.api.a12_heartbeat import HeartbeatRequest, HeartbeatResponse
from odradek.wire.api.a13_leave_group import LeaveGroupRequest, LeaveGroupResponse
from odradek.wire.api.a14_sync_group import SyncGroupRequest, SyncGroupResponse
from odradek.wire.api.a47_offset_delete import OffsetDeleteRequest, OffsetDeleteResponse

if TYPE_CHECKING:
    from odradek.log.partition import PartitionLog

__all__ = ["failed_append", "not_loaded", "refusal"]

NULL_PROTOCOL_FROM = 7
"""The version of JoinGroup from which no protocol is null; it is an empty name before."""


def refusal(request: Message, version: int, error: ErrorCode) -> Message:
    """Return the response that says `error` to a request."""
    if isinstance(request, HeartbeatRequest):
        return HeartbeatResponse(error_code=error)
    if isinstance(request, OffsetCommitRequest):
        return _commit(request, error)
    if isinstance(request, JoinGroupRequest):
        return JoinGroupResponse(
            error_code=error,
            member_id=request.member_id,
            protocol_name=None if version >= NULL_PROTOCOL_FROM else "",
        )
    if isinstance(request, SyncGroupRequest):
        return SyncGroupResponse(error_code=error)
    if isinstance(request, LeaveGroupRequest):
        return LeaveGroupResponse(error_code=error)
    assert isinstance(request, OffsetDeleteRequest), type(request)
    return OffsetDeleteResponse(error_code=error)


def _commit(request: OffsetCommitRequest, error: ErrorCode) -> OffsetCommitResponse:
    topics = []
    for topic in request.topics:
        partitions = [
            OffsetCommitResponsePartition(partition_index=each.partition_index, error_code=error)
            for each in topic.partitions
        ]
        topics.append(
            OffsetCommitResponseTopic(
                name=topic.name, topic_id=topic.topic_id, partitions=partitions
            )
        )
    return OffsetCommitResponse(topics=topics)


def failed_append(error: StorageError) -> ErrorCode:
    """What a group's client is told of an append to `__consumer_offsets` that was refused.

    As Kafka (`CoordinatorOperationExceptionHelper`): what may pass is COORDINATOR_NOT_AVAILABLE,
    which makes a client try again; a log that is not ours any more is NOT_COORDINATOR, which
    makes it look for the coordinator again.
    """
    if isinstance(error, (Full, Unavailable)):
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    return ErrorCode.NOT_COORDINATOR


def not_loaded(log: PartitionLog, offset: int, error: Exception, storage: str) -> str:
    """What the broker's log says when groups cannot be loaded: where it is, and the way out.

    `offset`: what was read, or is the first thing of what was; `storage`: its URL.
    """
    text = f"the groups of partition {log.key.partition} of {log.topic} cannot be loaded: {error}"
    if isinstance(error, Unavailable):
        return f"{text} (it is tried again)"
    url = public_url(storage)
    bases = [each.base_offset for each in log.segments if each.base_offset <= offset]
    text += f" (in segment {max(bases, default=0)} of {log.key} in {url}, from offset {offset} on)"
    if isinstance(error, Corrupt) and "log repair" not in str(error):
        text += (
            f"; with the broker stopped: `odradek log repair {log.key} --storage {url} --how skip`"
        )
    return f"{text}; until then nobody can use these groups, while all others are served"
