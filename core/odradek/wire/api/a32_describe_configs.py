"""DescribeConfigs (API key 32): settings of topics and brokers.

Versions 1 to 4; flexible from 4.

    v1   the first one here: include_synonyms, the source of each value (KIP-226)
    v2   throttled responses are sent before the wait (KIP-219)
    v3   include_documentation, and the type of each value (KIP-569)
    v4   flexible
"""

from __future__ import annotations

from odradek.wire.schema import Message, Struct, array, bool_, int8, int16, int32, string

__all__ = [
    "DescribeConfigsRequest",
    "DescribeConfigsResource",
    "DescribeConfigsResourceResult",
    "DescribeConfigsResponse",
    "DescribeConfigsResult",
    "DescribeConfigsSynonym",
]


class DescribeConfigsResource(Struct):
    """An element of `DescribeConfigsRequest.resources`."""

    # 2 topic, 4 broker, 8 broker logger, 16 client metrics, 32 group.
    resource_type: int = int8("0+")
    resource_name: str = string("0+")
    configuration_keys: list[str] | None = array(string, "0+", nullable="0+")  # null is all of them


class DescribeConfigsRequest(Message, api_key=32, versions="1-4", flexible="4+"):
    """What a client sends."""

    resources: list[DescribeConfigsResource] = array(DescribeConfigsResource, "0+")
    include_synonyms: bool = bool_("1+")
    include_documentation: bool = bool_("3+")


class DescribeConfigsSynonym(Struct):
    """An element of `DescribeConfigsResourceResult.synonyms`."""

    name: str = string("1+")
    value: str | None = string("1+", nullable="0+")
    source: int = int8("1+")


class DescribeConfigsResourceResult(Struct):
    """An element of `DescribeConfigsResult.configs`."""

    name: str = string("0+")
    value: str | None = string("0+", nullable="0+")  # null where it is sensitive
    read_only: bool = bool_("0+")
    # 1 topic, 2 dynamic broker, 3 dynamic default, 4 static, 5 default.
    config_source: int = int8("1+", default=-1, ignorable=True)
    is_sensitive: bool = bool_("0+")
    synonyms: list[DescribeConfigsSynonym] = array(DescribeConfigsSynonym, "1+", ignorable=True)
    # 1 boolean, 2 string, 3 int, 4 short, 5 long, 6 double, 7 list, 8 class, 9 password.
    config_type: int = int8("3+", ignorable=True)
    documentation: str | None = string("3+", nullable="0+", ignorable=True)


class DescribeConfigsResult(Struct):
    """An element of `DescribeConfigsResponse.results`."""

    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+")
    resource_type: int = int8("0+")
    resource_name: str = string("0+")
    configs: list[DescribeConfigsResourceResult] = array(DescribeConfigsResourceResult, "0+")


class DescribeConfigsResponse(Message, api_key=32, versions="1-4", flexible="4+"):
    """What a broker answers."""

    throttle_time_ms: int = int32("0+")
    results: list[DescribeConfigsResult] = array(DescribeConfigsResult, "0+")
