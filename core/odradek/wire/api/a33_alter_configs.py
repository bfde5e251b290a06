"""AlterConfigs (API key 33): replace all settings of topics or brokers.

IncrementalAlterConfigs is its successor: this one resets every setting that it does not name.

Versions 0 to 2; flexible from 2.

    v0   the first one (KIP-133)
    v1   throttled responses are sent before the wait (KIP-219)
    v2   flexible
"""

from __future__ import annotations

from odradek.wire.schema import Message, Struct, array, bool_, int8, int16, int32, string

__all__ = [
    "AlterConfigsRequest",
    "AlterConfigsResource",
    "AlterConfigsResourceResponse",
    "AlterConfigsResponse",
    "AlterableConfig",
]


class AlterableConfig(Struct):
    """An element of `AlterConfigsResource.configs`."""

    name: str = string("0+")
    value: str | None = string("0+", nullable="0+")


class AlterConfigsResource(Struct):
    """An element of `AlterConfigsRequest.resources`."""

    resource_type: int = int8("0+")
    resource_name: str = string("0+")
    configs: list[AlterableConfig] = array(AlterableConfig, "0+")


class AlterConfigsRequest(Message, api_key=33, versions="0-2", flexible="2+"):
    """What a client sends."""

    resources: list[AlterConfigsResource] = array(AlterConfigsResource, "0+")
    validate_only: bool = bool_("0+")


class AlterConfigsResourceResponse(Struct):
    """An element of `AlterConfigsResponse.responses`."""

    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+")
    resource_type: int = int8("0+")
    resource_name: str = string("0+")


class AlterConfigsResponse(Message, api_key=33, versions="0-2", flexible="2+"):
    """What a broker answers."""

    throttle_time_ms: int = int32("0+")
    responses: list[AlterConfigsResourceResponse] = array(AlterConfigsResourceResponse, "0+")
