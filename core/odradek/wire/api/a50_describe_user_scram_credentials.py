"""DescribeUserScramCredentials (API key 50): list SCRAM mechanisms and iterations of users.

Version 0; all are flexible.

    v0   the only one, flexible (KIP-554)
"""

from __future__ import annotations

from odradek.wire.schema import Message, Struct, array, int8, int16, int32, string

__all__ = [
    "CredentialInfo",
    "DescribeUserScramCredentialsRequest",
    "DescribeUserScramCredentialsResponse",
    "DescribeUserScramCredentialsResult",
    "UserName",
]


class UserName(Struct):
    """An element of `DescribeUserScramCredentialsRequest.users`."""

    name: str = string("0+")


class DescribeUserScramCredentialsRequest(Message, api_key=50, versions="0", flexible="0+"):
    """What a client sends."""

    # Null or empty is all of them.
    users: list[UserName] | None = array(UserName, "0+", nullable="0+")


class CredentialInfo(Struct):
    """An element of `DescribeUserScramCredentialsResult.credential_infos`."""

    mechanism: int = int8("0+")
    iterations: int = int32("0+")


class DescribeUserScramCredentialsResult(Struct):
    """An element of `DescribeUserScramCredentialsResponse.results`."""

    user: str = string("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+")
    credential_infos: list[CredentialInfo] = array(CredentialInfo, "0+")


class DescribeUserScramCredentialsResponse(Message, api_key=50, versions="0", flexible="0+"):
    """What a broker answers."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+")
    results: list[DescribeUserScramCredentialsResult] = array(
        DescribeUserScramCredentialsResult, "0+"
    )
