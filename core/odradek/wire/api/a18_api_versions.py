"""ApiVersions (API key 18): what a broker speaks: the first request of nearly every client.

The response header is version 0 even in flexible versions, and a request of an unknown version
is answered in version 0 with UNSUPPORTED_VERSION and the supported range: a client can read the
answer before it knows anything (KIP-511).

Versions 0 to 4; flexible from 3.

    v0   the first one
    v1   throttle time
    v2   throttled responses are sent before the wait (KIP-219)
    v3   flexible; the client's software name and version (KIP-511); features (KIP-584)
    v4   features whose min_version is 0 may appear (KAFKA-17011)
"""

from __future__ import annotations

from odradek.wire.schema import Message, Struct, array, bool_, int16, int32, int64, string

__all__ = [
    "ApiVersion",
    "ApiVersionsRequest",
    "ApiVersionsResponse",
    "FinalizedFeatureKey",
    "SupportedFeatureKey",
]


class ApiVersionsRequest(Message, api_key=18, versions="0-4", flexible="3+"):
    """What a client sends."""

    client_software_name: str = string("3+", ignorable=True)
    client_software_version: str = string("3+", ignorable=True)


class ApiVersion(Struct):
    """An element of `ApiVersionsResponse.api_keys`."""

    api_key: int = int16("0+")
    min_version: int = int16("0+")
    max_version: int = int16("0+")


class SupportedFeatureKey(Struct):
    """An element of `ApiVersionsResponse.supported_features`."""

    name: str = string("3+")
    min_version: int = int16("3+")
    max_version: int = int16("3+")


class FinalizedFeatureKey(Struct):
    """An element of `ApiVersionsResponse.finalized_features`."""

    name: str = string("3+")
    max_version_level: int = int16("3+")
    min_version_level: int = int16("3+")


class ApiVersionsResponse(Message, api_key=18, versions="0-4", flexible="3+"):
    """What a broker answers."""

    error_code: int = int16("0+")
    api_keys: list[ApiVersion] = array(ApiVersion, "0+")
    throttle_time_ms: int = int32("1+", ignorable=True)
    supported_features: list[SupportedFeatureKey] = array(
        SupportedFeatureKey, "3+", tag=0, tagged="3+", ignorable=True
    )
    # -1 is unknown.
    finalized_features_epoch: int = int64("3+", tag=1, tagged="3+", default=-1, ignorable=True)
    finalized_features: list[FinalizedFeatureKey] = array(
        FinalizedFeatureKey, "3+", tag=2, tagged="3+", ignorable=True
    )
    zk_migration_ready: bool = bool_("3+", tag=3, tagged="3+", ignorable=True)
