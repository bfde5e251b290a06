"""EndTxn (API key 26): commit or abort a transaction.

Versions 0 to 5; flexible from 3.

    v0   the first one (KIP-98)
    v1   throttled responses are sent before the wait (KIP-219)
    v2   PRODUCER_FENCED may be answered (KIP-588)
    v3   flexible
    v4   TRANSACTION_ABORTABLE may be answered (KIP-890)
    v5   a new epoch with every transaction, in the response (KIP-890, part 2)
"""

from __future__ import annotations

from odradek.wire.schema import Message, bool_, int16, int32, int64, string

__all__ = ["EndTxnRequest", "EndTxnResponse"]


class EndTxnRequest(Message, api_key=26, versions="0-5", flexible="3+"):
    """What a client sends."""

    transactional_id: str = string("0+")
    producer_id: int = int64("0+")
    producer_epoch: int = int16("0+")
    committed: bool = bool_("0+")  # commit, or else abort


class EndTxnResponse(Message, api_key=26, versions="0-5", flexible="3+"):
    """What a broker answers."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    producer_id: int = int64("5+", default=-1, ignorable=True)
    producer_epoch: int = int16("5+", default=-1, ignorable=True)
