"""Control batches: the markers that end a transaction (KIP-98).

A control batch is transactional, uncompressed, without sequence number, and holds one record:

    key    version int16 (0)   type int16 (0 abort, 1 commit)
    value  version int16 (0)   coordinator epoch int32

Readers accept higher versions, which may only append fields. (Apache Kafka,
`ControlRecordType.java`, `EndTransactionMarker.java`.)
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct

from attrs import frozen

from odradek.errors import CorruptBatch
from odradek.record import kernel
from odradek.record.batch import HEADER_SIZE, parse_header
from odradek.record.records import decode_records
from odradek.types import Buffer

__all__ = ["ControlType", "TransactionMarker", "decode_marker", "encode_marker"]

_KEY = Struct(">hh")
_VALUE = Struct(">hi")
_VERSION = 0
_MAX_SIZE = HEADER_SIZE + 64


class ControlType(IntEnum):
    """The types of control record that data partitions hold."""

    ABORT = 0
    COMMIT = 1


@frozen(slots=True)
class TransactionMarker:
    """The end of a producer's transaction in one partition, decided by the coordinator.

    `coordinator_epoch` fences markers of a transaction coordinator that was replaced.
    """

    type: ControlType
    coordinator_epoch: int
    producer_id: int
    producer_epoch: int


def encode_marker(marker: TransactionMarker, timestamp: int) -> bytearray:
    """Return the control batch of `marker`; offset and leader epoch are the log's to assign."""
    builder = kernel.active.BatchBuilder(
        _MAX_SIZE,
        producer_id=marker.producer_id,
        producer_epoch=marker.producer_epoch,
        transactional=True,
        control=True,
    )
    fits = builder.append(
        timestamp,
        _KEY.pack(_VERSION, marker.type),
        _VALUE.pack(_VERSION, marker.coordinator_epoch),
    )
    assert fits
    return builder.build()


def decode_marker(view: Buffer, position: int = 0) -> TransactionMarker | None:
    """Return the marker in the control batch at `position`; None for a type not known here.

    A reader skips what it does not know, as Kafka's do. Raises CorruptBatch when the batch is
    damaged, is no control batch, or its record has too few bytes or a negative version.
    """
    meta = parse_header(view, position)
    if not meta.control:
        raise CorruptBatch("the batch is no control batch")
    records = decode_records(view, position)
    if len(records) != 1:
        raise CorruptBatch(f"a control batch holds one record, not {len(records)}")
    key, value = records[0].key or b"", records[0].value or b""
    if len(key) < _KEY.size:
        raise CorruptBatch(f"the key of a control record has {len(key)} bytes")
    version, number = _KEY.unpack_from(key)
    if version < 0:
        raise CorruptBatch(f"the key of a control record has version {version}")
    try:
        kind = ControlType(number)
    except ValueError:
        return None
    if len(value) < _VALUE.size:
        raise CorruptBatch(f"the value of a transaction marker has {len(value)} bytes")
    version, coordinator_epoch = _VALUE.unpack_from(value)
    if version < 0:
        raise CorruptBatch(f"the value of a transaction marker has version {version}")
    return TransactionMarker(kind, coordinator_epoch, meta.producer_id, meta.producer_epoch)
