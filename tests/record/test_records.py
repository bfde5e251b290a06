"""Records in and out of batches, against the batches of kafka-python and aiokafka."""

from typing import Any, NamedTuple

import pytest
from aiokafka.record.default_records import DefaultRecordBatch as AioBatch
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AioBuilder
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch as KafkaBatch
from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaBuilder
from tests.record.implementations import new_builder

from odradek.errors import CorruptBatch, ErrorCode, KafkaError
from odradek.record import (
    CompressionType,
    Header,
    Record,
    assemble,
    assign,
    batch_size_bound,
    check_crc,
    decode_records,
    filter_batch,
    iter_records,
    parse_header,
    set_log_append_time,
    widen_records,
)
from odradek.record.batch import HEADER_SIZE

pytestmark = pytest.mark.usefixtures("implementation")

LARGE = 1 << 20

_bytes = st.none() | st.binary(max_size=300)
_headers = st.lists(st.tuples(st.text(max_size=8), st.none() | st.binary(max_size=20)), max_size=4)
_appended = st.tuples(st.integers(0, 2**42), _bytes, _bytes, _headers)
_batches = st.lists(_appended, min_size=1, max_size=30)
_codecs = st.sampled_from(CompressionType)


def _build(appended, **options) -> bytearray:
    builder = new_builder(LARGE, **options)
    for one in appended:
        assert builder.append(*one)
    return builder.build()


def _expected(appended, base_offset=0) -> list[Record]:
    return [
        Record(base_offset + index, timestamp, key, value, tuple(headers))
        for index, (timestamp, key, value, headers) in enumerate(appended)
    ]


def _as_records(oracle) -> list[Record]:
    return [
        Record(
            r.offset,
            r.timestamp,
            None if r.key is None else bytes(r.key),
            None if r.value is None else bytes(r.value),
            tuple((name, None if v is None else bytes(v)) for name, v in r.headers),
        )
        for r in oracle
    ]


@given(_batches, _codecs, st.integers(0, 2**50))
def test_round_trip(appended, codec, base_offset):
    batch = _build(appended, compression=codec)
    view = memoryview(batch)
    assign(view, 0, base_offset, 3)
    assert decode_records(batch) == _expected(appended, base_offset)
    meta = parse_header(batch)
    assert meta.size == len(batch)
    assert meta.record_count == len(appended)
    assert meta.last_offset == base_offset + len(appended) - 1
    assert meta.base_timestamp == appended[0][0]
    assert meta.max_timestamp == max(one[0] for one in appended)
    assert check_crc(view, 0, len(batch))


@given(_batches, _codecs)
def test_other_clients_read_what_is_built(appended, codec):
    batch = bytes(_build(appended, compression=codec))
    for oracle in (KafkaBatch, AioBatch):
        read = oracle(batch)
        assert read.validate_crc()
        assert _as_records(read) == _expected(appended)


@pytest.mark.parametrize("builder", [KafkaBuilder, AioBuilder])
@given(appended=_batches, codec=_codecs)
def test_what_other_clients_build_is_read(builder, appended, codec):
    theirs = builder(
        magic=2,
        compression_type=codec,
        is_transactional=1,
        producer_id=77,
        producer_epoch=3,
        base_sequence=12,
        batch_size=LARGE,
    )
    for offset, one in enumerate(appended):
        assert theirs.append(offset, *one)
    batch = bytes(theirs.build())
    assert decode_records(batch) == _expected(appended)
    meta = parse_header(batch)
    assert (meta.producer_id, meta.producer_epoch, meta.base_sequence) == (77, 3, 12)
    assert meta.transactional


@given(_batches)
def test_an_uncompressed_batch_is_built_as_aiokafka_builds_it(appended):
    theirs = AioBuilder(
        magic=2,
        compression_type=0,
        is_transactional=0,
        producer_id=5,
        producer_epoch=1,
        base_sequence=9,
        batch_size=LARGE,
    )
    for offset, one in enumerate(appended):
        theirs.append(offset, *one)
    assert _build(appended, producer_id=5, producer_epoch=1, base_sequence=9) == theirs.build()


def test_the_producer_may_be_set_until_build():
    builder = new_builder(LARGE)
    builder.append(1, None, b"v")
    first = builder.build()
    builder.producer_id, builder.producer_epoch, builder.base_sequence = 8, 2, 40
    builder.transactional = True
    meta = parse_header(builder.build())
    assert (meta.producer_id, meta.producer_epoch, meta.base_sequence) == (8, 2, 40)
    assert meta.transactional
    assert not parse_header(first).has_producer


@given(st.integers(HEADER_SIZE, 2000), st.lists(_appended, max_size=40), _codecs)
def test_a_builder_never_exceeds_its_size_and_refuses_without_a_trace(size, appended, codec):
    builder = new_builder(size, compression=codec)
    taken = []
    for one in appended:
        before = builder.size
        if builder.append(*one):
            taken.append(one)
        else:
            assert builder.size == before
            assert before + batch_size_bound(*one[1:]) - HEADER_SIZE > size
    assert len(builder) == len(taken)
    if taken:
        batch = builder.build()
        assert len(batch) <= builder.size <= size
        assert decode_records(batch) == _expected(taken)


@given(_appended)
def test_batch_size_bound_is_enough_for_the_record(one):
    assert new_builder(batch_size_bound(*one[1:])).append(*one)


def test_an_empty_builder_builds_nothing():
    with pytest.raises(ValueError, match="at least one"):
        new_builder(LARGE).build()


def test_a_builder_refuses_a_level_out_of_range():
    with pytest.raises(ValueError, match="level"):
        new_builder(LARGE, compression=CompressionType.GZIP, level=10)


def test_under_log_append_time_every_record_has_the_max_timestamp(make_batch):
    batch = make_batch(3)
    set_log_append_time(memoryview(batch), 0, 99)
    assert [record.timestamp for record in decode_records(batch)] == [99, 99, 99]


def test_decode_records_checks_the_crc_unless_told_not_to(make_batch):
    batch = make_batch(1)
    batch[-1] ^= 1
    with pytest.raises(CorruptBatch, match="CRC"):
        decode_records(batch)
    assert len(decode_records(batch, verify=False)) == 1


def test_decode_records_refuses_a_batch_that_is_not_whole(make_batch):
    batch = make_batch(2)
    for size in range(len(batch)):
        with pytest.raises(CorruptBatch):
            decode_records(batch[:size])


@pytest.mark.parametrize("count", [-1, 0, 1, 3, 2**31 - 1])
@pytest.mark.parametrize("codec", [CompressionType.NONE, CompressionType.ZSTD])
def test_decode_records_refuses_a_count_that_is_not_true(make_batch, edit, codec, count):
    batch = edit(make_batch(2, 500, codec), record_count=count)
    with pytest.raises(CorruptBatch):
        decode_records(batch)


def test_decode_records_is_bounded(make_batch):
    batch = make_batch(2, 100_000, CompressionType.ZSTD)
    assert len(batch) < 1000
    with pytest.raises(KafkaError) as raised:
        decode_records(batch, limit=200_000)
    assert raised.value.code is ErrorCode.MESSAGE_TOO_LARGE


def test_decode_records_reads_an_empty_batch_as_compaction_leaves_it(make_batch, edit):
    batch = edit(make_batch(1)[:HEADER_SIZE], length=HEADER_SIZE - 12, record_count=0)
    assert decode_records(batch) == []


def test_iter_records_walks_batches_and_leaves_out_an_incomplete_one(make_batch):
    first, second = make_batch(2), make_batch(3, compression=CompressionType.LZ4)
    assign(first, 0, 10, 0)
    assign(second, 0, 12, 0)
    data = bytes(first) + bytes(second) + bytes(first[:-1])
    assert [record.offset for record in iter_records(data)] == [10, 11, 12, 13, 14]


def test_iter_records_raises_at_damage_after_what_is_whole(make_batch):
    batch = bytes(make_batch(2))
    records = iter_records(batch + b"\xff" * 80)
    assert [next(records).offset for _ in range(2)] == [0, 1]
    with pytest.raises(CorruptBatch, match=f"byte {len(batch)}"):
        next(records)


def test_iter_records_leaves_out_control_batches_unless_asked(make_batch):
    data = bytes(make_batch(1)) + bytes(make_batch(1, control=True, transactional=True))
    assert len(list(iter_records(data))) == 1
    assert len(list(iter_records(data, control=True))) == 2


@given(_batches, _codecs, st.data())
def test_filter_batch_leaves_chosen_records_and_the_batchs_bounds(appended, codec, data):
    batch = _build(
        appended, compression=codec, producer_id=5, producer_epoch=1, base_sequence=2**31 - 2
    )
    assign(batch, 0, 1000, 7)
    kept = data.draw(st.sets(st.sampled_from(range(1000, 1000 + len(appended)))))
    horizon = data.draw(st.none() | st.integers(0, 2**42))
    filtered = filter_batch(batch, lambda r: r.offset in kept, delete_horizon=horizon)
    if not kept:
        assert filtered is None
        return
    assert filtered is not None
    expected = [r for r in _expected(appended, 1000) if r.offset in kept]
    assert decode_records(filtered) == expected
    before, after = parse_header(batch), parse_header(filtered)
    assert after == before._replace(
        size=len(filtered),
        record_count=len(kept),
        max_timestamp=max(r.timestamp for r in expected),
        base_timestamp=before.base_timestamp if horizon is None else horizon,
        attributes=before.attributes | (0 if horizon is None else 0x40),
    )
    assert after.delete_horizon == horizon


def test_filter_batch_keeps_a_horizon_that_is_set(make_batch):
    first = filter_batch(make_batch(3), lambda r: r.offset > 0, delete_horizon=1000)
    assert first is not None
    second = filter_batch(first, lambda r: r.offset > 1, delete_horizon=2000)
    assert second is not None
    assert parse_header(second).delete_horizon == 1000
    assert decode_records(second) == decode_records(first)[1:]


def test_filter_batch_keeps_the_time_of_the_append(make_batch):
    batch = make_batch(3)
    set_log_append_time(memoryview(batch), 0, 99)
    filtered = filter_batch(batch, lambda r: r.offset == 0, delete_horizon=5)
    assert filtered is not None
    assert [r.timestamp for r in decode_records(filtered)] == [99]


def test_filter_batch_keeps_the_bytes_of_header_names_that_are_not_utf_8():
    batch = _build([(1, b"k", b"v", [("aa", b"x")]), (2, b"l", b"w", [])])
    damaged = bytes(batch).replace(b"aa", b"\xff\xfe")
    whole = assemble(parse_header(damaged), damaged[HEADER_SIZE:])
    for horizon in (None, 7):
        filtered = filter_batch(whole, lambda r: r.offset == 0, delete_horizon=horizon)
        assert filtered is not None
        assert b"\xff\xfe" in filtered


def test_filter_batch_checks_the_crc(make_batch):
    batch = make_batch(1)
    batch[-3] ^= 1
    with pytest.raises(CorruptBatch, match="CRC"):
        filter_batch(batch, lambda _: True)


def test_filter_batch_gives_a_batch_unchanged_when_every_record_stays(make_batch):
    batch = make_batch(3, compression=CompressionType.GZIP)
    assert filter_batch(batch, lambda _: True) == batch
    assert filter_batch(memoryview(bytes(batch) + b"next"), lambda _: True) == batch


class Placed(NamedTuple):
    topic: str
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]
    epoch: int


def test_records_are_widened(implementation: Any) -> None:
    records = [Record(number, number + 7, None, b"%d" % number) for number in range(1000)]
    wide = widen_records(Placed, ("t",), records, (3,))
    assert wide == [Placed("t", *record, 3) for record in records]
    assert {type(each) for each in wide} == {Placed}
    assert wide[5].value == b"5"
    assert widen_records(Placed, ("t",), [], (3,)) == []


@pytest.mark.parametrize(
    ("kind", "records"),
    [
        (Record, [Record(0, 0, None, None)]),
        (tuple, []),
        (Placed, [Placed("t", 0, 0, None, None, (), 1)]),
        (Placed, [(0, 0, None, None, ())]),
    ],
)
def test_only_records_are_widened_and_only_to_named_tuples_that_fit(
    implementation: Any, kind: Any, records: Any
) -> None:
    with pytest.raises(TypeError):
        widen_records(kind, ("t",), records, (3,))
