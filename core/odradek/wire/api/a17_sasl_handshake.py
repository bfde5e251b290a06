"""SaslHandshake (API key 17): choose a SASL mechanism.

Never flexible: old clients negotiate this one wrongly (KAFKA-9577).

Versions 0 to 1; none is flexible.

    v0   what follows are bare SASL tokens without Kafka's framing
    v1   what follows are SaslAuthenticate requests (KIP-152)
"""

from __future__ import annotations

from odradek.wire.schema import Message, array, int16, string

__all__ = ["SaslHandshakeRequest", "SaslHandshakeResponse"]


class SaslHandshakeRequest(Message, api_key=17, versions="0-1"):
    """What a client sends."""

    mechanism: str = string("0+")


class SaslHandshakeResponse(Message, api_key=17, versions="0-1"):
    """What a broker answers."""

    error_code: int = int16("0+")
    mechanisms: list[str] = array(string, "0+")
