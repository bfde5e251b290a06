"""AddOffsetsToTxn (API key 25): make the offsets of a group part of a transaction.

Versions 0 to 4; flexible from 3.

    v0   the first one (KIP-98)
    v1   throttled responses are sent before the wait (KIP-219)
    v2   PRODUCER_FENCED may be answered (KIP-588)
    v3   flexible
    v4   TRANSACTION_ABORTABLE may be answered (KIP-890)
"""

from __future__ import annotations

from odradek.wire.schema import Message, int16, int32, int64, string

__all__ = ["AddOffsetsToTxnRequest", "AddOffsetsToTxnResponse"]


class AddOffsetsToTxnRequest(Message, api_key=25, versions="0-4", flexible="3+"):
    """What a client sends."""

    transactional_id: str = string("0+")
    producer_id: int = int64("0+")
    producer_epoch: int = int16("0+")
    group_id: str = string("0+")


class AddOffsetsToTxnResponse(Message, api_key=25, versions="0-4", flexible="3+"):
    """What a broker answers."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
