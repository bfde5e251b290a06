"""InitProducerId (API key 22): get a producer id and epoch to be idempotent or transactional.

Versions 0 to 6; flexible from 2.

    v0   the first one (KIP-98)
    v1   throttled responses are sent before the wait (KIP-219)
    v2   flexible
    v3   producer_id and producer_epoch to go on from (KIP-360)
    v4   PRODUCER_FENCED may be answered (KIP-588)
    v5   TRANSACTION_ABORTABLE may be answered (KIP-890)
    v6   two-phase commit (KIP-939)
"""

from __future__ import annotations

from odradek.wire.schema import Message, bool_, int16, int32, int64, string

__all__ = ["InitProducerIdRequest", "InitProducerIdResponse"]


class InitProducerIdRequest(Message, api_key=22, versions="0-6", flexible="2+"):
    """What a client sends."""

    transactional_id: str | None = string("0+", nullable="0+")  # null for an idempotent producer
    transaction_timeout_ms: int = int32("0+")
    producer_id: int = int64("3+", default=-1)  # to go on with; -1 is none
    producer_epoch: int = int16("3+", default=-1)
    enable2_pc: bool = bool_("6+")
    keep_prepared_txn: bool = bool_("6+")


class InitProducerIdResponse(Message, api_key=22, versions="0-6", flexible="2+"):
    """What a broker answers."""

    throttle_time_ms: int = int32("0+", ignorable=True)
    error_code: int = int16("0+")
    producer_id: int = int64("0+", default=-1)
    producer_epoch: int = int16("0+")
    ongoing_txn_producer_id: int = int64("6+", default=-1)
    ongoing_txn_producer_epoch: int = int16("6+", default=-1)
