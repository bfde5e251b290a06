"""CreateAcls (API key 30): add access control entries.

Versions 1 to 3; flexible from 2.

    v1   the first one here: the pattern type of a resource (KIP-290)
    v2   flexible
    v3   resource type USER (KIP-373)
"""

from __future__ import annotations

from odradek.wire.schema import Message, Struct, array, int8, int16, int32, string

__all__ = ["AclCreation", "AclCreationResult", "CreateAclsRequest", "CreateAclsResponse"]


class AclCreation(Struct):
    """An element of `CreateAclsRequest.creations`."""

    resource_type: int = int8("0+")
    resource_name: str = string("0+")
    resource_pattern_type: int = int8("1+", default=3)
    principal: str = string("0+")
    host: str = string("0+")
    operation: int = int8("0+")
    permission_type: int = int8("0+")


class CreateAclsRequest(Message, api_key=30, versions="1-3", flexible="2+"):
    """What a client sends."""

    creations: list[AclCreation] = array(AclCreation, "0+")


class AclCreationResult(Struct):
    """An element of `CreateAclsResponse.results`."""

    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+")


class CreateAclsResponse(Message, api_key=30, versions="1-3", flexible="2+"):
    """What a broker answers."""

    throttle_time_ms: int = int32("0+")
    results: list[AclCreationResult] = array(AclCreationResult, "0+")
