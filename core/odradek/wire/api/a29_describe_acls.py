"""DescribeAcls (API key 29): list access control entries.

Versions 1 to 3; flexible from 2.

    v1   the first one here: the pattern type of a resource (KIP-290)
    v2   flexible
    v3   resource type USER (KIP-373)
"""

from __future__ import annotations

from odradek.wire.schema import Message, Struct, array, int8, int16, int32, string

__all__ = ["AclDescription", "DescribeAclsRequest", "DescribeAclsResource", "DescribeAclsResponse"]


class DescribeAclsRequest(Message, api_key=29, versions="1-3", flexible="2+"):
    """What a client sends."""

    resource_type_filter: int = int8("0+")
    resource_name_filter: str | None = string("0+", nullable="0+")
    pattern_type_filter: int = int8("1+", default=3)
    principal_filter: str | None = string("0+", nullable="0+")
    host_filter: str | None = string("0+", nullable="0+")
    operation: int = int8("0+")
    permission_type: int = int8("0+")


class AclDescription(Struct):
    """An element of `DescribeAclsResource.acls`."""

    principal: str = string("0+")
    host: str = string("0+")
    operation: int = int8("0+")
    permission_type: int = int8("0+")


class DescribeAclsResource(Struct):
    """An element of `DescribeAclsResponse.resources`."""

    resource_type: int = int8("0+")
    resource_name: str = string("0+")
    pattern_type: int = int8("1+", default=3)
    acls: list[AclDescription] = array(AclDescription, "0+")


class DescribeAclsResponse(Message, api_key=29, versions="1-3", flexible="2+"):
    """What a broker answers."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+")
    resources: list[DescribeAclsResource] = array(DescribeAclsResource, "0+")
