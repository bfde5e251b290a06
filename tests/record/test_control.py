"""Transaction markers in control batches."""

import struct

import pytest
from aiokafka.record.default_records import DefaultRecordBatch as AioBatch
from tests.record.implementations import new_builder

from odradek.errors import CorruptBatch
from odradek.record import (
    ControlType,
    TransactionMarker,
    assign,
    decode_marker,
    encode_marker,
    parse_header,
)

pytestmark = pytest.mark.usefixtures("implementation")

COMMIT = TransactionMarker(ControlType.COMMIT, 3, 4242, 7)


def _control_batch(key: bytes | None, value: bytes | None, **options) -> bytearray:
    builder = new_builder(1000, control=True, transactional=True, **options)
    assert builder.append(1, key, value)
    return builder.build()


@pytest.mark.parametrize("kind", ControlType)
def test_marker_round_trip(kind):
    marker = TransactionMarker(kind, 2**31 - 1, 2**62, 32767)
    batch = encode_marker(marker, 1234)
    assign(batch, 0, 50, 2)
    assert decode_marker(b"?" + batch, 1) == marker
    meta = parse_header(batch)
    assert meta.control
    assert meta.transactional
    assert meta.max_timestamp == 1234
    assert (meta.record_count, meta.base_sequence, meta.last_sequence) == (1, -1, -1)


def test_marker_is_encoded_as_kafka_does():
    batch = encode_marker(COMMIT, 1234)
    read = AioBatch(bytes(batch))
    assert read.is_control_batch
    assert read.is_transactional
    assert read.validate_crc()
    (record,) = read
    assert bytes(record.key) == struct.pack(">hh", 0, 1)
    assert bytes(record.value) == struct.pack(">hi", 0, 3)


def test_marker_of_a_newer_version_is_read():
    batch = _control_batch(
        struct.pack(">hhb", 5, 0, 9), struct.pack(">hiq", 1, 8, 9), producer_id=1, producer_epoch=2
    )
    assert decode_marker(batch) == TransactionMarker(ControlType.ABORT, 8, 1, 2)


def test_control_record_of_another_type_is_none():
    assert decode_marker(_control_batch(struct.pack(">hh", 0, 2), b"")) is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, struct.pack(">hi", 0, 1)),
        (b"\0\0\0", struct.pack(">hi", 0, 1)),
        (struct.pack(">hh", -1, 1), struct.pack(">hi", 0, 1)),
        (struct.pack(">hh", 0, 1), None),
        (struct.pack(">hh", 0, 1), b"\0\0\0\0\0"),
        (struct.pack(">hh", 0, 1), struct.pack(">hi", -1, 1)),
    ],
)
def test_broken_marker_is_corrupt(key, value):
    with pytest.raises(CorruptBatch):
        decode_marker(_control_batch(key, value))


def test_data_batch_is_no_marker(make_batch):
    with pytest.raises(CorruptBatch, match="no control batch"):
        decode_marker(make_batch(1))


def test_control_batch_of_two_records_is_corrupt(make_batch):
    with pytest.raises(CorruptBatch, match="one record"):
        decode_marker(make_batch(2, control=True))


def test_damaged_marker_is_corrupt():
    batch = encode_marker(COMMIT, 1)
    batch[-2] ^= 1
    with pytest.raises(CorruptBatch, match="CRC"):
        decode_marker(batch)
