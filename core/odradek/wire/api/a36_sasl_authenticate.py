"""SaslAuthenticate (API key 36): exchange SASL tokens.

Versions 0 to 2; flexible from 2.

    v0   the first one (KIP-152)
    v1   session_lifetime_ms in the response: authenticate again in time (KIP-368)
    v2   flexible
"""

from __future__ import annotations

from odradek.wire.schema import Message, bytes_, int16, int64, string

__all__ = ["SaslAuthenticateRequest", "SaslAuthenticateResponse"]


class SaslAuthenticateRequest(Message, api_key=36, versions="0-2", flexible="2+"):
    """What a client sends."""

    auth_bytes: bytes = bytes_("0+")


class SaslAuthenticateResponse(Message, api_key=36, versions="0-2", flexible="2+"):
    """What a broker answers."""

    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+")
    auth_bytes: bytes = bytes_("0+")
    session_lifetime_ms: int = int64("1+", ignorable=True)
