"""Windows cleaned: what stays of each batch, and in which bytes."""

import pytest
from aiokafka.record.default_records import DefaultRecordBatch as AioBatch
from kafka.record.default_records import DefaultRecordBatch as KafkaBatch
from tests.record.windows import (
    DAY,
    END,
    LIMIT,
    NOW,
    TIME,
    batch,
    clean,
    compact,
    joined,
    marker,
    new_map,
    noted_map,
    rows_of,
)

from odradek.record import (
    CompressionType,
    clean_window,
    decode_records,
    filter_batch,
    iter_records,
    note_window,
    parse_header,
    scan,
    set_log_append_time,
)
from odradek.record.batch import DELETE_HORIZON, LOG_APPEND_TIME, TRANSACTIONAL
from odradek.record.windows import BREATH

pytestmark = pytest.mark.usefixtures("implementation")

HEADERS = (("h", b"w"),)


def test_of_each_key_the_newest_record_stays_at_its_offset():
    data = batch(0, [(b"a", b"1"), (b"b", b"2"), (b"a", b"3")]) + batch(5, [(b"b", b"4")])
    cleaned = compact(data)
    assert rows_of(joined(cleaned)) == [(2, b"a", b"3"), (5, b"b", b"4")]
    assert [(m.base_offset, m.last_offset) for m in cleaned.metas] == [(0, 2), (5, 5)]
    assert cleaned.changed
    assert (cleaned.records_in, cleaned.records_out) == (4, 2)
    assert cleaned.position == len(data)
    assert cleaned.bytes_out == len(joined(cleaned))


@pytest.mark.parametrize("codec", CompressionType)
def test_a_cleaned_batch_is_what_filter_batch_makes_of_it(codec):
    old = batch(0, [(b"a", b"1"), (b"b", b"2"), (b"c", b"3"), (None, b"4")], codec, producer=9)
    cleaned = compact(old + batch(4, [(b"b", b"5")]))
    expected = filter_batch(old, lambda record: record.key in {b"a", b"c"})
    assert expected is not None
    assert joined(cleaned)[: len(expected)] == expected
    assert cleaned.metas[0] == parse_header(expected)


def test_what_loses_nothing_is_one_slice_of_the_window():
    data = b"".join(batch(i, [(b"k%d" % i, b"v")]) for i in range(50))
    cleaned = compact(data)
    (only,) = cleaned.buffers
    assert isinstance(only, memoryview)
    assert only == data
    assert only.obj is data
    assert not cleaned.changed
    assert cleaned.metas == scan(memoryview(data)).metas


def test_a_change_in_the_middle_leaves_two_slices():
    data = b"".join(batch(i, [(b"k%d" % (i if i != 5 else 6), b"v")]) for i in range(12))
    cleaned = compact(data)
    assert [buffer.obj is data for buffer in cleaned.buffers] == [True, True]
    assert [record.offset for record in iter_records(joined(cleaned))] == [
        i for i in range(12) if i != 5
    ]


def test_the_max_timestamp_is_that_of_the_records_left():
    data = batch(0, [(b"a", b"1"), (b"b", b"2")]) + batch(2, [(b"b", b"3")])
    first = compact(data).metas[0]
    assert (first.base_timestamp, first.max_timestamp) == (TIME, TIME)


def test_log_append_time_stays():
    old = bytearray(batch(0, [(b"a", b"1"), (b"b", b"2")]))
    set_log_append_time(memoryview(old), 0, TIME + 99)
    cleaned = compact(bytes(old) + batch(2, [(b"b", b"3")]))
    assert decode_records(joined(cleaned))[0].timestamp == TIME + 99


def test_a_tombstone_gets_a_horizon_and_goes_when_it_has_come():
    data = batch(0, [(b"a", b"1"), (b"b", b"2")]) + batch(2, [(b"a", None), (b"c", b"3")])
    cleaned = compact(data)
    assert rows_of(joined(cleaned)) == [(1, b"b", b"2"), (2, b"a", None), (3, b"c", b"3")]
    assert (cleaned.tombstones, cleaned.horizon) == (1, NOW + DAY)
    assert [meta.delete_horizon for meta in cleaned.metas] == [None, NOW + DAY]
    assert [r.timestamp for r in iter_records(joined(cleaned))] == [TIME + 3, TIME + 2, TIME + 5]
    assert [r.headers for r in iter_records(joined(cleaned))] == [
        (("h", b"w"),),
        (),
        (("h", b"w"),),
    ]
    data = joined(cleaned)
    early = clean(data, new_map(), now=NOW + DAY - 1)
    assert (early.changed, early.tombstones, early.horizon) == (False, 1, NOW + DAY)
    late = clean(data, new_map(), now=NOW + DAY)
    assert rows_of(joined(late)) == [(1, b"b", b"2"), (3, b"c", b"3")]
    assert (late.tombstones, late.horizon) == (0, None)
    assert late.metas[1].delete_horizon == NOW + DAY


def test_a_horizon_is_never_renewed():
    old = batch(0, [(b"a", None)], attributes=DELETE_HORIZON, base_timestamp=TIME)
    cleaned = compact(old, now=TIME - 1)
    assert cleaned.horizon == TIME
    assert joined(cleaned) == old


@pytest.mark.parametrize("codec", CompressionType)
def test_a_horizon_is_what_filter_batch_writes(codec):
    old = batch(0, [(b"a", b"1"), (b"b", None), (b"c", b"2")], codec)
    cleaned = compact(old + batch(3, [(b"c", b"5")]))
    expected = filter_batch(old, lambda r: r.key != b"c", delete_horizon=NOW + DAY)
    assert expected is not None
    assert joined(cleaned)[: len(expected)] == expected


def test_a_tombstone_that_was_not_noted_gets_no_horizon():
    """Without it an older record of its key, which nobody has removed, would count again."""
    data = batch(0, [(b"a", None), (b"b", b"1")])
    for offsets in (new_map(), noted_map(batch(9, [(b"b", b"2")]))):
        cleaned = clean(data, offsets)
        assert (cleaned.tombstones, cleaned.horizon) == (1, None)
        assert [meta.delete_horizon for meta in cleaned.metas] == [None]


def test_behind_an_opaque_batch_tombstones_stay():
    opaque = batch(0, [(b"a", b"1")], attributes=TRANSACTIONAL, producer=1)
    fresh = batch(1, [(b"a", None), (b"b", b"1")])
    old = batch(3, [(b"c", None)], attributes=DELETE_HORIZON, base_timestamp=TIME)
    data = opaque + fresh + old + batch(4, [(b"b", b"2")])
    cleaned = compact(data)
    assert cleaned.opaque == 1
    assert rows_of(joined(cleaned)) == [
        (0, b"a", b"1"),
        (1, b"a", None),
        (3, b"c", None),
        (4, b"b", b"2"),
    ]
    assert [meta.delete_horizon for meta in cleaned.metas] == [None, None, TIME, None]
    rest = data[len(opaque) :]
    assert joined(clean(rest, noted_map(rest), expire=False)) == joined(cleaned)[len(opaque) :]
    assert rows_of(joined(clean(rest, noted_map(rest)))) == [(1, b"a", None), (4, b"b", b"2")]


def test_an_opaque_batch_stays_whole():
    bomb = batch(0, [(b"a", bytes(LIMIT))], CompressionType.GZIP)
    unknown = batch(1, [(b"a", b"1")], attributes=6)
    more = batch(2, [(b"a", b"1")], record_count=2)
    fewer = batch(3, [(b"a", b"1"), (b"a", b"2")], record_count=1)
    backwards = batch(5, [(b"a", b"1"), (b"a", b"2")], deltas=[1, 0], last_offset=6)
    outside = batch(7, [(b"a", b"1")], deltas=[4], last_offset=8)
    endless = batch(9, [(b"a", b"1"), (b"a", b"1")], base_timestamp=2**63 - 1)
    data = b"".join([bomb, unknown, more, fewer, backwards, outside, endless])
    offsets = noted_map(batch(100, [(b"a", b"9")]))
    cleaned = clean(data, offsets)
    assert (cleaned.opaque, cleaned.changed, cleaned.records_in) == (7, False, 0)
    assert joined(cleaned) == data
    assert len(cleaned.buffers) == 1


def test_control_batches_stay_and_are_not_opaque():
    data = marker(0)
    cleaned = compact(data + batch(1, [(b"a", None)]))
    assert joined(cleaned)[: len(data)] == data
    assert cleaned.opaque == 0
    assert cleaned.horizon is not None


@pytest.mark.parametrize("codec", CompressionType)
def test_the_last_batch_of_a_producer_stays_without_records(codec):
    old = batch(0, [(b"a", b"1"), (b"b", b"1")], codec, producer=8, attributes=LOG_APPEND_TIME)
    data = old + batch(2, [(b"a", b"2"), (b"b", b"2")])
    assert [meta.base_offset for meta in compact(data).metas] == [2]
    cleaned = compact(data, producers={1, 77})
    was, is_now = parse_header(old), cleaned.metas[0]
    assert is_now == was._replace(
        size=61, attributes=LOG_APPEND_TIME, base_timestamp=-1, record_count=0
    )
    assert parse_header(joined(cleaned)) == is_now
    assert rows_of(joined(cleaned)) == [(2, b"a", b"2"), (3, b"b", b"2")]
    assert is_now.last_sequence == was.last_sequence
    again = compact(joined(cleaned), producers={1})
    assert not again.changed
    assert joined(again) == joined(cleaned)
    gone = compact(joined(cleaned), producers={5})
    assert gone.changed
    assert [meta.base_offset for meta in gone.metas] == [2]


def test_cleaning_stops_before_the_end_offset_and_before_a_batch_that_is_cut():
    first, second = batch(0, [(b"a", b"1")] * 3), batch(3, [(b"a", b"1")] * 3)
    offsets = noted_map(first + second)
    for data, end in ((first + second, 5), (first + second[:-1], END), (first + second[:30], END)):
        cleaned = clean(data, offsets, end=end)
        assert cleaned.position == len(first)
        assert cleaned.metas == []
        assert cleaned.changed
    assert clean(second[:-1], offsets).position == 0
    assert not clean(second, offsets, end=5).changed


def test_horizons_may_make_a_window_longer():
    data = b"".join(batch(i, [(b"k%d" % i, None)] * 1) for i in range(40))
    cleaned = compact(data)
    assert cleaned.bytes_out > len(data)
    assert rows_of(joined(cleaned)) == rows_of(data)
    assert [meta.delete_horizon for meta in cleaned.metas] == [NOW + DAY] * 40


def test_a_horizon_beyond_64_bits_is_the_last_moment_there_is():
    data = batch(0, [(b"a", None)])
    cleaned = clean_window(
        memoryview(data),
        noted_map(data),
        end_offset=END,
        now_ms=NOW,
        delete_retention_ms=2**63 - 1,
        last_of_producers=set(),
    )
    assert cleaned.horizon == 2**63 - 1
    assert list(iter_records(joined(cleaned))) == list(iter_records(data))


def test_a_time_that_no_horizon_can_tell_is_left_without():
    data = batch(0, [(b"a", None)], base_timestamp=-(2**63), max_timestamp=5)
    cleaned = compact(data)
    assert (cleaned.changed, cleaned.tombstones, cleaned.horizon) == (False, 1, None)


@pytest.mark.parametrize("codec", CompressionType)
@pytest.mark.parametrize("read", [AioBatch, KafkaBatch])
def test_other_clients_read_cleaned_batches(codec, read):
    data = batch(40, [(b"a", b"1"), (b"b", None), (b"c", b"3"), (b"d", b"4")], codec, producer=3)
    cleaned = compact(data + batch(44, [(b"c", b"5")]))
    first = joined(cleaned)[: cleaned.metas[0].size]
    theirs = read(first)
    assert theirs.validate_crc()
    assert [(r.offset, r.timestamp, r.key, r.value, list(r.headers)) for r in theirs] == [
        (r.offset, r.timestamp, r.key, r.value, list(r.headers)) for r in decode_records(first)
    ]
    assert [r.offset for r in decode_records(first)] == [40, 41, 43]


def test_other_clients_read_emptied_batches():
    data = batch(0, [(b"a", b"1")], producer=3) + batch(1, [(b"a", b"2")])
    first = joined(compact(data, producers={0}))[:61]
    for read in (AioBatch, KafkaBatch):
        theirs = read(first)
        assert theirs.validate_crc()
        assert list(theirs) == []
        assert (theirs.base_offset, theirs.next_offset) == (0, 1)


@pytest.mark.parametrize("codec", [CompressionType.LZ4, CompressionType.ZSTD])
def test_others_get_the_gil_between_small_batches_that_are_compressed(codec):
    count = 400
    data = memoryview(
        b"".join(batch(2 * n, [(b"a", b"v"), (b"%d" % n, b"v")], codec) for n in range(count))
    )
    breaths = []
    offsets = new_map(1 << 16)
    noted = note_window(data, offsets, END, limit=LIMIT, breathe=lambda: breaths.append(1))
    assert noted.position == len(data)
    assert len(breaths) >= count // BREATH - 1
    breaths.clear()
    cleaned = clean_window(
        data,
        offsets,
        end_offset=END,
        now_ms=NOW,
        delete_retention_ms=DAY,
        last_of_producers=frozenset(),
        limit=LIMIT,
        breathe=lambda: breaths.append(1),
    )
    assert cleaned.records_out == count + 1
    assert len(breaths) >= count // BREATH - 1


def test_an_error_of_a_breath_comes_through_and_the_map_can_be_used_again():
    def fail() -> None:
        raise InterruptedError

    data = memoryview(b"".join(batch(n, [(b"a", b"v")], CompressionType.ZSTD) for n in range(100)))
    offsets = new_map()
    with pytest.raises(InterruptedError):
        note_window(data, offsets, END, limit=LIMIT, breathe=fail)
    assert note_window(data, offsets, END, limit=LIMIT).position == len(data)
    assert offsets.get(b"a") == 99
