"""From a frame to a handler: which APIs are offered, at which versions.

A handler is the function `handle(caller, request, version)` of the module in
`odradek.broker.handlers` that carries the API's key and name. It returns the response, a
`Pending` that will become one, or None where the protocol has no response. It may be `async`:
the requests behind it on the same connection then wait, which is what keeps them in order.

Modules are imported when their API is first asked for: a broker is up before the code that most
clients never use is read.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from importlib import import_module
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, NamedTuple

from odradek.broker.waiting import Outstanding
from odradek.errors import UnsupportedVersion
from odradek.wire import (
    API,
    Message,
    RequestHeader,
    decode_request,
    decode_request_header,
    encode_response,
)

if TYPE_CHECKING:
    from odradek.broker.serve import Caller

__all__ = ["OFFERED", "Offer", "answer"]

logger = logging.getLogger(__name__)

PRODUCE = 0
API_VERSIONS = 18


class Offer(NamedTuple):
    """An API as ApiVersions advertises it; `served_from` is the lowest version answered in full."""

    key: int
    name: str
    min: int
    max: int
    served_from: int


def _offer(key: int, first: int, last: int, served_from: int | None = None) -> Offer:
    return Offer(key, API[key].name, first, last, first if served_from is None else served_from)


OFFERED: dict[int, Offer] = {
    offer.key: offer
    for offer in (
        # Produce: librdkafka before 2.11.1 switches gzip, snappy and lz4 off unless version 0 is
        # advertised (KAFKA-18659); what it then sends is version 3 or later.
        _offer(0, 0, 13, served_from=3),
        _offer(1, 4, 17),
        _offer(2, 1, 10),
        _offer(3, 0, 13),
        _offer(8, 2, 9),
        _offer(9, 1, 9),
        # FindCoordinator: without it librdkafka believes that lz4 is not supported.
        _offer(10, 0, 6),
        _offer(11, 0, 9),
        _offer(12, 0, 4),
        _offer(13, 0, 5),
        _offer(14, 0, 5),
        _offer(15, 0, 6),
        _offer(16, 0, 5),
        _offer(18, 0, 4),
        _offer(19, 2, 7),
        _offer(20, 1, 6),
        _offer(21, 0, 2),
        _offer(22, 0, 5),
        _offer(23, 2, 4),
        _offer(32, 1, 4),
        _offer(33, 0, 2),
        _offer(35, 1, 4),
        _offer(37, 0, 3),
        _offer(42, 0, 2),
        _offer(44, 0, 1),
        _offer(47, 0, 0),
        _offer(60, 0, 2),
    )
}
"""Every API of this broker, by key."""

Handler = Callable[["Caller", Any, int], Any]
"""Returns `Message | Pending | None`, or an awaitable of that where the third field says so."""

_new: Any = tuple.__new__  # a named tuple's own constructor costs three times as much

_handlers: dict[int, tuple[int, int, bool, Handler]] = {}


def _load(key: int) -> tuple[int, int, bool, Handler] | None:
    offer = OFFERED.get(key)
    if offer is None:
        return None
    name = API[key].module.rpartition(".")[2]
    handle = import_module(f"odradek.broker.handlers.{name}").handle
    loaded = (offer.served_from, offer.max, iscoroutinefunction(handle), handle)
    _handlers[key] = loaded
    return loaded


async def answer(caller: Caller, frame: memoryview) -> list[Any] | Outstanding | None:
    """Dispatch one request: the parts of its response, or one to come, or None for no response.

    Raises MalformedMessage and UnsupportedVersion: the connection has to be closed then.
    """
    header = decode_request_header(frame)
    key, version, correlation_id, caller.client_id, _ = header
    known = _handlers.get(key) or _load(key)
    if known is None or not known[0] <= version <= known[1]:
        return _refuse(header, frame)
    request = decode_request(header, frame)
    response = known[3](caller, request, version)
    if known[2]:
        with caller.undisturbed():
            response = await response
    if response is None:
        return None
    if isinstance(response, Message):
        return encode_response(key, version, correlation_id, response)
    outstanding: Outstanding = _new(Outstanding, (key, version, correlation_id, response))
    return outstanding


def _refuse(header: RequestHeader, frame: memoryview) -> list[Any]:
    """Answer ApiVersions and Produce; all else cannot be answered, and raises UnsupportedVersion.

    KIP-511: a client that starts with a version of ApiVersions that is too new gets version 0
    of the response, with the error, and starts again with what the response says. A Produce that
    is advertised and not served is refused partition by partition; acks=0 hears of nothing but
    the end of the connection. Raises MalformedMessage.
    """
    key, version, correlation_id, _, offset = header
    if key == API_VERSIONS:
        from odradek.broker.handlers.a18_api_versions import unsupported

        return encode_response(key, 0, correlation_id, unsupported())
    if key == PRODUCE and OFFERED[PRODUCE].min <= version < OFFERED[PRODUCE].served_from:
        from odradek.broker.old_produce import refusal

        refused = refusal(frame, offset, version, correlation_id)
        if refused is not None:
            return [refused]
    raise UnsupportedVersion(key, version)
