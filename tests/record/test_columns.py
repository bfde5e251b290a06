"""Columns: the records of batches in Arrow's layout, wrapped by pyarrow without a copy."""

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.record.implementations import new_builder

from odradek.errors import CorruptBatch, ErrorCode, KafkaError
from odradek.record import (
    Columns,
    CompressionType,
    assign,
    decode_columns,
    decode_records,
    iter_records,
    set_log_append_time,
)

pytestmark = pytest.mark.usefixtures("implementation")

LARGE = 1 << 20

# A machine with much else to do says nothing about the codec.
patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

_bytes = st.none() | st.binary(max_size=100)
_headers = st.lists(st.tuples(st.text(max_size=8), st.none() | st.binary(max_size=20)), max_size=4)
_appended = st.tuples(st.integers(0, 2**42), _bytes, _bytes, _headers)
_logs = st.lists(
    st.tuples(
        st.lists(_appended, min_size=1, max_size=20),
        st.sampled_from(CompressionType),
        st.booleans(),
        st.integers(0, 3),
    ),
    max_size=4,
)


def _log(batches) -> bytes:
    """Write batches one after another: records, codec, control or not, a gap before."""
    data, offset = b"", 0
    for records, codec, control, gap in batches:
        builder = new_builder(LARGE, compression=codec, control=control)
        for one in records:
            assert builder.append(*one)
        batch = builder.build()
        assign(batch, 0, offset + gap, 0)
        offset += gap + len(records)
        data += batch
    return data


def _binary(column, kind=None) -> pa.Array:
    buffers = [None if part is None else pa.py_buffer(part) for part in column.buffers]
    return pa.Array.from_buffers(kind or pa.binary(), len(column), buffers, column.null_count)


def _table(columns: Columns) -> pa.Table:
    """Wrap every buffer, as docs/reference/accelerator.md shows it."""
    size = len(columns)
    fields = {
        "offset": pa.Array.from_buffers(pa.int64(), size, [None, pa.py_buffer(columns.offsets)], 0),
        "timestamp": pa.Array.from_buffers(
            pa.int64(), size, [None, pa.py_buffer(columns.timestamps)], 0
        ),
        "key": _binary(columns.keys),
        "value": _binary(columns.values),
    }
    if columns.headers is not None:
        pairs = pa.StructArray.from_arrays(
            [_binary(columns.headers.names, pa.string()), _binary(columns.headers.values)],
            names=["key", "value"],
        )
        fields["headers"] = pa.Array.from_buffers(
            pa.list_(pairs.type),
            size,
            [None, pa.py_buffer(columns.headers.offsets)],
            0,
            children=[pairs],
        )
    table = pa.table(fields)
    table.validate(full=True)
    return table


def _rows(records) -> list[dict[str, object]]:
    return [
        {
            "offset": record.offset,
            "timestamp": record.timestamp,
            "key": record.key,
            "value": record.value,
            "headers": [{"key": name, "value": value} for name, value in record.headers],
        }
        for record in records
    ]


@patient
@given(_logs)
def test_columns_hold_what_iter_records_gives(batches):
    data = _log(batches)
    columns = decode_columns(data, headers=True)
    assert _table(columns).to_pylist() == _rows(iter_records(data))
    assert columns.position == len(data)


@patient
@given(_logs, st.integers(-5, 90), st.integers(-5, 90))
def test_records_outside_of_the_offsets_asked_for_are_left_out(batches, start, end):
    data = _log(batches)
    columns = decode_columns(data, start_offset=start, end_offset=end, headers=True)
    expected = [r for r in iter_records(data) if start <= r.offset < end]
    assert _table(columns).to_pylist() == _rows(expected)


@patient
@given(_logs)
def test_a_column_tells_its_items(batches):
    data = _log(batches)
    columns = decode_columns(data)
    records = list(iter_records(data))
    assert len(columns) == len(columns.keys) == len(columns.values) == len(records)
    assert list(columns.offsets) == [r.offset for r in records]
    assert list(columns.timestamps) == [r.timestamp for r in records]
    assert [columns.keys[i] for i in range(len(columns))] == [r.key for r in records]
    assert [columns.values[i] for i in range(len(columns))] == [r.value for r in records]
    assert columns.keys.null_count == sum(r.key is None for r in records)
    assert (columns.values.validity is None) == all(r.value is not None for r in records)
    assert columns.headers is None
    with pytest.raises(IndexError):
        columns.keys[len(columns)]
    with pytest.raises(IndexError):
        columns.keys[-1]


def test_pyarrow_wraps_the_buffers_without_a_copy(make_batch):
    columns = decode_columns(make_batch(200), headers=True)
    table = _table(columns)
    assert columns.headers is not None
    for name, views in {
        "offset": [columns.offsets],
        "timestamp": [columns.timestamps],
        "key": [columns.keys.offsets, columns.keys.data],
        "value": [columns.values.offsets, columns.values.data],
        "headers": [columns.headers.offsets, columns.headers.names.data],
    }.items():
        addresses = [b.address for b in table[name].chunk(0).buffers() if b is not None]
        for view in views:
            assert pa.py_buffer(view).address in addresses


def test_columns_are_aligned_to_their_items(make_batch):
    for count in (1, 7, 200):
        columns = decode_columns(make_batch(count), headers=True)
        for view in (columns.offsets, columns.timestamps, columns.keys.offsets):
            assert pa.py_buffer(view).address % 8 == 0


def test_columns_outlive_the_batch(make_batch):
    batch = make_batch(3)
    columns = decode_columns(memoryview(batch))
    expected = [r.value for r in decode_records(batch)]
    batch[:] = bytes(len(batch))
    assert [columns.values[i] for i in range(3)] == expected


def test_no_batch_gives_empty_columns_that_arrow_takes(make_batch):
    for data in (b"", bytes(make_batch(2))[:-1]):
        columns = decode_columns(data, headers=True)
        assert _table(columns).num_rows == 0
        assert columns.position == 0


def test_names_of_headers_are_valid_utf_8_whatever_was_written(make_batch):
    builder = new_builder(LARGE)
    builder.append(1, None, None, [("aa", b"x"), ("plain", b"y")])
    damaged = bytes(builder.build()).replace(b"aa", b"\xff\xfe")
    columns = decode_columns(damaged, headers=True, verify=False)
    names = [pair["key"] for pair in _table(columns).to_pylist()[0]["headers"]]
    assert names == ["\ufffd\ufffd", "plain"]


def test_under_log_append_time_every_record_has_the_max_timestamp(make_batch):
    batch = make_batch(3)
    set_log_append_time(memoryview(batch), 0, 99)
    assert list(decode_columns(batch).timestamps) == [99, 99, 99]


def test_an_incomplete_batch_at_the_end_is_left_for_the_next_call(make_batch):
    whole = bytes(make_batch(3))
    columns = decode_columns(whole + whole[:-1])
    assert (len(columns), columns.position) == (3, len(whole))
    again = decode_columns(whole + whole, columns.position)
    assert (len(again), again.position) == (3, 2 * len(whole))


@pytest.mark.parametrize("codec", [CompressionType.NONE, CompressionType.ZSTD])
def test_decoding_stops_before_the_batch_that_would_be_too_much(make_batch, codec):
    batch = bytes(make_batch(10, 1000, codec))
    data, positions, position = batch * 5, [], 0
    while position < len(data):
        columns = decode_columns(data, position, max_bytes=25_000)
        positions.append(position := columns.position)
    assert positions == [2 * len(batch), 4 * len(batch), 5 * len(batch)]
    alone = decode_columns(data, max_bytes=1)
    assert (len(alone), alone.position) == (10, len(batch))


def test_one_batch_is_bounded_too(make_batch):
    batch = make_batch(2, 100_000, CompressionType.ZSTD)
    with pytest.raises(KafkaError) as raised:
        decode_columns(batch, limit=200_000)
    assert raised.value.code is ErrorCode.MESSAGE_TOO_LARGE


def test_damage_anywhere_is_raised(make_batch):
    whole = bytes(make_batch(3))
    broken = bytearray(whole)
    broken[-3] ^= 1
    with pytest.raises(CorruptBatch, match="CRC"):
        decode_columns(whole + broken)
    with pytest.raises(CorruptBatch, match="magic"):
        decode_columns(whole + b"\xff" * 80)
    broken = bytearray(whole)
    broken[61] = 0xFF
    with pytest.raises(CorruptBatch, match="record"):
        decode_columns(whole + broken, verify=False)


def test_a_collector_gives_its_columns_once(implementation):
    collector = implementation.ColumnCollector(False)
    payload = b"\x0c\x00\x00\x00\x01\x01\x00"  # a record of nulls
    collector.add(payload, 1, 0, 0, None, 0, 1)
    assert len(collector.finish(0)) == 1
    with pytest.raises(ValueError, match="used up"):
        collector.finish(0)
    with pytest.raises(ValueError, match="used up"):
        collector.add(payload, 1, 0, 0, None, 0, 1)
