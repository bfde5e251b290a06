"""InitProducerId (key 22), versions 0 to 5: an id for an idempotent producer (KIP-98).

A producer that comes back with the id and epoch it has gets a new id, as from Kafka: who has no
transactional id raises its epoch by itself (KIP-360), and nobody can tell whether the id is
really its own. Transactional ids are not offered yet and are refused with INVALID_REQUEST, which
clients report as fatal, rather than with something they would try again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from odradek.broker.guard import as_kafka_error
from odradek.errors import ErrorCode, KafkaError
from odradek.wire import Message
from odradek.wire.api.a22_init_producer_id import InitProducerIdRequest, InitProducerIdResponse

if TYPE_CHECKING:
    from odradek.broker.serve import Caller

__all__ = ["handle"]


async def handle(caller: Caller, request: InitProducerIdRequest, version: int) -> Message:
    """Give out an id that nobody has had."""
    if request.transactional_id is not None:
        return InitProducerIdResponse(
            error_code=ErrorCode.INVALID_REQUEST, producer_id=-1, producer_epoch=-1
        )
    try:
        async with as_kafka_error():
            taken = await caller.broker.producer_ids.take()
    except KafkaError as error:
        return InitProducerIdResponse(error_code=error.code, producer_id=-1, producer_epoch=-1)
    return InitProducerIdResponse(producer_id=taken, producer_epoch=0)
