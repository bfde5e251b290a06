"""Errors in the shape of any API's response: for requests that are refused before their handler.

`refusal(caller, request, version, code)` gives the response that says `code` wherever the response
has room for an error: at the top, and for each topic, partition, group or resource that the request
names, as the `getErrorResponse` of Kafka's own requests does. It is made from the declared
schemas, so that an API needs no code of its own here, but for the few whose response means
something else when it has no content (Metadata, ApiVersions), or whose errors at the top and below
mean different things (Fetch).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from odradek.errors import ErrorCode
from odradek.wire import API, Message, Struct

if TYPE_CHECKING:
    from odradek.broker.serve import Caller

__all__ = ["refusal"]

PRODUCE, FETCH, METADATA, API_VERSIONS = 0, 1, 3, 18

ERROR_CODES = ("error_code", "partition_error_code")
ERROR_MESSAGE = "error_message"

KEYS = frozenset(
    {
        "group_id",
        "group_instance_id",
        "index",
        "key",
        "member_id",
        "name",
        "partition",
        "partition_index",
        "resource_name",
        "resource_type",
        "topic",
        "topic_id",
        "transactional_id",
    }
)
"""Fields that tell which of the things asked for an element of a response is about."""

NAMED_OTHERWISE = {
    "responses": ("topic_data", "topics", "topic_names", "resources"),
    "partition_responses": ("partition_data",),
    "partitions": ("partition_indexes",),
    "coordinators": ("coordinator_keys",),
    "results": ("resources", "topics", "groups_names"),
    "groups": ("group_ids",),
    "partition_index": ("partition",),
}
"""What a field of a response may be called in the request, besides the same."""

UNKNOWN = frozenset(
    {"base_offset", "committed_offset", "high_watermark", "low_watermark", "node_id", "port"}
)
"""Numbers whose default is 0, and which are -1 where they are not known."""

OF_THE_SESSION = frozenset(
    {
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    }
)
"""Errors of a Fetch as a whole. With one at the top, clients do not look at the partitions."""


async def refusal(
    caller: Caller, request: Message, version: int, code: ErrorCode
) -> Message | None:
    """Return the response to `request` that says `code`, or None where it gets no response."""
    key = request.api_key
    if key == PRODUCE and getattr(request, "acks", -1) == 0:
        return None
    if key == METADATA:
        return await _metadata(caller, request, version, code)
    if key == API_VERSIONS and code == ErrorCode.UNSUPPORTED_VERSION:
        from odradek.broker.handlers.a18_api_versions import unsupported

        return unsupported()  # a client starts again with what it says (KIP-511)
    response = API[key].response()
    _fill(response, request, version, code)
    if key == FETCH:
        _sort_out(response, code)
    return response


def _sort_out(fetch: Any, code: ErrorCode) -> None:
    if code in OF_THE_SESSION:
        fetch.responses = []
    elif fetch.responses:
        fetch.error_code = ErrorCode.NONE


async def _metadata(caller: Caller, request: Any, version: int, code: ErrorCode) -> Message:
    """Say the error of each topic asked for, beside the brokers.

    A response without brokers would cut a client off from the cluster, which is another fault.
    """
    from odradek.broker.handlers.a03_metadata import handle
    from odradek.wire.api.a03_metadata import MetadataRequest, MetadataResponseTopic

    response: Any = await handle(caller, MetadataRequest(topics=[]), version=1)
    if request.topics is None or (version == 0 and not request.topics):
        asked = [(each.name, each.id) for each in caller.broker.image.topics.values()]
    else:
        asked = [(each.name or "", each.topic_id) for each in request.topics]
    response.topics = [
        MetadataResponseTopic(error_code=code, name=name, topic_id=topic_id)
        for name, topic_id in asked
    ]
    if not asked:
        response.error_code = code
    message: Message = response
    return message


def _fill(response: Struct, request: object, version: int, code: ErrorCode) -> None:
    """Set what `response` and its elements say; `request` is what they are about."""
    for name, field in response.__fields__.items():
        if not field.present(version):
            continue
        of = field.of
        if name in ERROR_CODES:
            setattr(response, name, code)
        elif name == ERROR_MESSAGE:
            setattr(response, name, code.text)
        elif name in UNKNOWN:
            setattr(response, name, -1)
        elif name in KEYS:
            if isinstance(request, Struct):
                setattr(response, name, _asked(request, name, version, field.default))
            elif name == _key(type(response)):
                setattr(response, name, request)
        elif field.kind == "array" and isinstance(of, type) and _tells_errors(of, version):
            elements = []
            asked = _asked(request, name, version, ()) if _key(of) is not None else (None,)
            for each in asked or ():
                element = of()
                _fill(element, each, version, code)
                elements.append(element)
            setattr(response, name, elements)


def _asked(request: object, name: str, version: int, default: Any) -> Any:
    """What the request has by the name of a field of the response."""
    if isinstance(request, Struct):
        for candidate in (name, *NAMED_OTHERWISE.get(name, ())):
            field = request.__fields__.get(candidate)
            if field is not None and field.present(version):
                return getattr(request, candidate)
    return default


@cache
def _key(element: type[Struct]) -> str | None:
    """The field that an element is known by, where the request has a list of plain values."""
    return next((name for name in element.__fields__ if name in KEYS), None)


@cache
def _tells_errors(element: type[Struct], version: int) -> bool:
    nested: Sequence[type[Struct]] = [
        field.of
        for field in element.__fields__.values()
        if isinstance(field.of, type) and field.present(version)
    ]
    return any(
        name in ERROR_CODES and field.present(version) for name, field in element.__fields__.items()
    ) or any(_tells_errors(each, version) for each in nested)
