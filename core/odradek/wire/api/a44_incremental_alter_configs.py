"""IncrementalAlterConfigs (API key 44): change single settings of topics or brokers.

Operations: 0 set, 1 delete, 2 append, 3 subtract.

Versions 0 to 1; flexible from 1.

    v0   the first one (KIP-339)
    v1   flexible
"""

from __future__ import annotations

from odradek.wire.schema import Message, Struct, array, bool_, int8, int16, int32, string

__all__ = [
    "AlterConfigsResource",
    "AlterConfigsResourceResponse",
    "AlterableConfig",
    "IncrementalAlterConfigsRequest",
    "IncrementalAlterConfigsResponse",
]


class AlterableConfig(Struct):
    """An element of `AlterConfigsResource.configs`."""

    name: str = string("0+")
    config_operation: int = int8("0+")  # 0 set, 1 delete, 2 append, 3 subtract
    value: str | None = string("0+", nullable="0+")


class AlterConfigsResource(Struct):
    """An element of `IncrementalAlterConfigsRequest.resources`."""

    resource_type: int = int8("0+")  # as in DescribeConfigs
    resource_name: str = string("0+")
    configs: list[AlterableConfig] = array(AlterableConfig, "0+")


class IncrementalAlterConfigsRequest(Message, api_key=44, versions="0-1", flexible="1+"):
    """What a client sends."""

    resources: list[AlterConfigsResource] = array(AlterConfigsResource, "0+")
    validate_only: bool = bool_("0+")


class AlterConfigsResourceResponse(Struct):
    """An element of `IncrementalAlterConfigsResponse.responses`."""

    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+")
    resource_type: int = int8("0+")
    resource_name: str = string("0+")


class IncrementalAlterConfigsResponse(Message, api_key=44, versions="0-1", flexible="1+"):
    """What a broker answers."""

    throttle_time_ms: int = int32("0+")
    responses: list[AlterConfigsResourceResponse] = array(AlterConfigsResourceResponse, "0+")
