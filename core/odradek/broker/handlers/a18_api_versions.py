"""ApiVersions (key 18), versions 0 to 4: what this broker offers (KIP-35, KIP-511, KIP-482).

The response header is always version 0, and a request of a version that is too new is answered
with version 0 and UNSUPPORTED_VERSION, so that any client can read it. Telemetry (71, 72) is
not offered, or clients would start to push. No features are reported: their names configure
Kafka's own brokers.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from odradek.broker.dispatch import OFFERED
from odradek.errors import ErrorCode
from odradek.wire import Message
from odradek.wire.api.a18_api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
)

if TYPE_CHECKING:
    from odradek.broker.serve import Caller

__all__ = ["handle", "unsupported"]

NAMED_FROM = 3
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


def handle(caller: Caller, request: ApiVersionsRequest, version: int) -> Message:
    """List every offered API."""
    if version >= NAMED_FROM and not (
        _SOFTWARE.fullmatch(request.client_software_name)
        and _SOFTWARE.fullmatch(request.client_software_version)
    ):
        return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST, api_keys=_offers())
    return ApiVersionsResponse(api_keys=_offers())


def unsupported() -> Message:
    """The answer to a version that is not known here: encode it at version 0."""
    return ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=_offers())


def _offers() -> list[ApiVersion]:
    return [
        ApiVersion(api_key=offer.key, min_version=offer.min, max_version=offer.max)
        for offer in OFFERED.values()
    ]
