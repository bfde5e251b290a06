"""DeleteTopics (API key 20): delete topics.

Versions 1 to 6; flexible from 4.

    v1   the first one here: throttle time
    v2   throttled responses are sent before the wait (KIP-219)
    v3   TOPIC_DELETION_DISABLED may be answered (KIP-322)
    v4   flexible
    v5   error_message; THROTTLING_QUOTA_EXCEEDED may be answered (KIP-599)
    v6   topics by name or by id (KIP-516)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from odradek.wire.schema import Message, Struct, array, int16, int32, string, uuid

if TYPE_CHECKING:
    from uuid import UUID

__all__ = [
    "DeletableTopicResult",
    "DeleteTopicState",
    "DeleteTopicsRequest",
    "DeleteTopicsResponse",
]


class DeleteTopicState(Struct):
    """An element of `DeleteTopicsRequest.topics`."""

    name: str | None = string("6+", nullable="6+", default=None)
    topic_id: UUID = uuid("6+")


class DeleteTopicsRequest(Message, api_key=20, versions="1-6", flexible="4+"):
    """What a client sends."""

    topics: list[DeleteTopicState] = array(DeleteTopicState, "6+")
    topic_names: list[str] = array(string, "0-5", ignorable=True)
    timeout_ms: int = int32("0+")


class DeletableTopicResult(Struct):
    """An element of `DeleteTopicsResponse.responses`."""

    name: str | None = string("0+", nullable="6+")
    topic_id: UUID = uuid("6+", ignorable=True)
    error_code: int = int16("0+")
    error_message: str | None = string("5+", nullable="5+", default=None, ignorable=True)


class DeleteTopicsResponse(Message, api_key=20, versions="1-6", flexible="4+"):
    """What a broker answers."""

    throttle_time_ms: int = int32("1+", ignorable=True)
    responses: list[DeletableTopicResult] = array(DeletableTopicResult, "0+")
