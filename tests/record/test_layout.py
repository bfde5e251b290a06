"""The bytes of records: varints, structure, and every way to break it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.errors import CorruptBatch
from odradek.record.layout import encode_record, encode_varint, parse_records, read_varint

RECORD = bytes.fromhex("3a000a02010e76616c75652d31040a74726163650401020a656d70747901")


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (0, "00"),
        (-1, "01"),
        (1, "02"),
        (63, "7e"),
        (-64, "7f"),
        (64, "8001"),
        (-65, "8101"),
        (8191, "fe7f"),
        (8192, "808001"),
        (2**31 - 1, "feffffff0f"),
        (-(2**31), "ffffffff0f"),
        (2**63 - 1, "feffffffffffffffff01"),
        (-(2**63), "ffffffffffffffffff01"),
    ],
)
def test_varints_are_zigzag_with_the_low_bits_first(value, encoded):
    data = bytes.fromhex(encoded)
    assert encode_varint(value) == data
    assert read_varint(b"?" + data + b"?", 1) == (value, 1 + len(data))


@given(st.integers(-(2**63), 2**63 - 1))
def test_varint_round_trip(value):
    encoded = encode_varint(value)
    assert len(encoded) <= 10
    assert read_varint(encoded, 0) == (value, len(encoded))


def test_a_varint_of_more_than_ten_bytes_is_corrupt():
    assert read_varint(b"\x80" * 9 + b"\x01", 0)[1] == 10
    with pytest.raises(CorruptBatch):
        read_varint(b"\x80" * 10 + b"\x01", 0)


def test_a_record_is_encoded_as_kafka_does():
    headers = [("trace", b"\x01\x02"), ("empty", None)]
    assert encode_record(1, 5, None, b"value-1", headers) == RECORD
    (raw,) = parse_records(RECORD, 1)
    assert (raw.start, raw.end) == (0, len(RECORD))
    assert (raw.timestamp_delta, raw.offset_delta) == (5, 1)
    assert raw.key_size == -1
    assert RECORD[raw.value_at : raw.value_at + raw.value_size] == b"value-1"
    assert raw.headers == tuple(headers)


def test_a_header_name_that_is_not_utf_8_is_read_as_java_does():
    data = encode_record(0, 0, None, None, [("aa", b"")]).replace(b"aa", b"\xff\xfe")
    (raw,) = parse_records(data, 1)
    assert raw.headers == (("\ufffd\ufffd", b""),)


def test_a_cut_payload_is_corrupt_wherever_it_is_cut():
    payload = RECORD + encode_record(2, 0, b"k" * 100, b"v" * 200)
    assert len(list(parse_records(payload, 2))) == 2
    for size in range(len(payload)):
        with pytest.raises(CorruptBatch):
            list(parse_records(payload[:size], 2))


def test_a_payload_with_another_count_is_corrupt():
    for count in (0, 1, 3):
        with pytest.raises(CorruptBatch):
            list(parse_records(RECORD * 2, count))
    assert list(parse_records(b"", 0)) == []


def _record(*fields: bytes) -> bytes:
    body = b"".join(fields)
    return encode_varint(len(body)) + body


@pytest.mark.parametrize(
    "record",
    [
        pytest.param(encode_varint(-1) + bytes(8), id="negative length"),
        pytest.param(encode_varint(0) + bytes(8), id="no length"),
        pytest.param(encode_varint(2**40) + bytes(8), id="length beyond the payload"),
        pytest.param(_record(b"\0\0\0\x01\x01\0\0"), id="bytes behind the headers"),
        pytest.param(_record(b"\0\0\0", encode_varint(2**62), b"\x01\0"), id="huge key"),
        pytest.param(_record(b"\0\0\0\x01", encode_varint(2**62), b"\0"), id="huge value"),
        pytest.param(_record(b"\0\0\0\x01\x01", encode_varint(-1)), id="negative header count"),
        pytest.param(_record(b"\0\0\0\x01\x01", encode_varint(2**30), b"\0" * 9), id="headers"),
        pytest.param(_record(b"\0\0\0\x01\x01\x02\x01\x01"), id="null header name"),
        pytest.param(_record(b"\0\0\0\x01\x01\x02\x08\x01"), id="header name beyond the record"),
        pytest.param(_record(b"\0\0\0\x01\x01\x02\0\x08"), id="header value beyond the record"),
    ],
)
def test_a_broken_record_is_corrupt(record):
    with pytest.raises(CorruptBatch):
        list(parse_records(record, 1))
    with pytest.raises(CorruptBatch):
        list(parse_records(record + bytes(64), 2))


@given(st.binary(max_size=100), st.integers(1, 5))
def test_noise_is_parsed_to_its_end_or_corrupt(noise, count):
    end = 0
    try:
        for raw in parse_records(noise, count):
            assert raw.start == end
            end = raw.end
    except CorruptBatch:
        return
    assert end == len(noise)
