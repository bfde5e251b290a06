"""Windows noted and cleaned: what stays of a log, by each implementation."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.record.windows import (
    DAY,
    LIMIT,
    TIME,
    batch,
    joined,
    logs,
    new_map,
    rebased,
    rows_of,
    sound_batches,
)

from odradek.errors import CorruptBatch
from odradek.record import (
    Cleaned,
    CompressionType,
    CorruptWindow,
    assemble,
    clean_window,
    decode_records,
    encode_marker,
    filter_batch,
    iter_records,
    kernel,
    note_window,
    parse_header,
    scan,
    set_log_append_time,
)
from odradek.record.batch import DELETE_HORIZON, LOG_APPEND_TIME, TRANSACTIONAL
from odradek.record.control import ControlType, TransactionMarker

pytestmark = pytest.mark.usefixtures("implementation")

# The function-scoped fixture is the module's: `implementation` has the scope of the module.
patient = settings(
    deadline=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)

HEADERS = (("h", b"w"),)
NOW = TIME + 30 * DAY
END = 2**62


def noted_map(data, end=END, **options):
    offsets = new_map(**options)
    noted = note_window(memoryview(data), offsets, end, limit=LIMIT)
    assert not noted.full
    return offsets


def clean(data, offsets, end=END, now=NOW, producers=frozenset(), **options):
    return clean_window(
        memoryview(data),
        offsets,
        end_offset=end,
        now_ms=now,
        delete_retention_ms=DAY,
        last_of_producers=producers,
        limit=LIMIT,
        **options,
    )


def marker(base_offset):
    made = encode_marker(TransactionMarker(ControlType.COMMIT, 1, 0, 0), TIME)
    return rebased(made, base_offset)


def compact(data, now=NOW, producers=frozenset()):
    return clean(data, noted_map(data), now=now, producers=producers)


# Noting


def test_noting_finds_the_newest_offset_of_each_key():
    data = batch(7, [(b"a", b"1"), (b"b", b"1"), (b"a", b"2")]) + batch(20, [(b"c", b"1")])
    offsets = new_map(base_offset=5)
    noted = note_window(memoryview(data), offsets, END, limit=LIMIT)
    assert (noted.position, noted.next_offset, noted.full) == (len(data), 21, False)
    assert [offsets.get(key) for key in (b"a", b"b", b"c", b"d")] == [9, 8, 20, None]
    assert len(offsets) == 3


@pytest.mark.parametrize("codec", CompressionType)
def test_compressed_batches_are_noted(codec):
    offsets = noted_map(batch(0, [(b"a", b"1"), (b"b", None)], codec))
    assert (offsets.get(b"a"), offsets.get(b"b")) == (0, 1)


def test_noting_stops_before_the_end_offset_and_before_a_batch_that_is_cut():
    first, second = batch(0, [(b"a", b"1")] * 3), batch(3, [(b"b", b"1")] * 3)
    offsets = new_map()
    for data, end in ((first + second, 5), (first + second[:-1], END), (first + second[:30], END)):
        noted = note_window(memoryview(data), offsets, end, limit=LIMIT)
        assert (noted.position, noted.next_offset) == (len(first), 3)
        assert offsets.get(b"b") is None
    assert note_window(memoryview(second), offsets, 5, limit=LIMIT).next_offset == 3
    assert note_window(memoryview(second[:-1]), offsets, END, limit=LIMIT).next_offset == 3
    assert note_window(memoryview(second[:60]), offsets, END, limit=LIMIT).next_offset == -1


def test_a_full_map_takes_nothing_of_a_batch():
    offsets = new_map(160)
    assert offsets.capacity == 8
    first = batch(0, [(b"k%d" % i, b"v") for i in range(6)])
    second = batch(6, [(b"k%d" % i, b"v") for i in range(3)])
    third = batch(9, [(b"k7", b"v"), (b"k8", b"v")])
    noted = note_window(memoryview(first + second + third), offsets, END, limit=LIMIT)
    assert (noted.position, noted.next_offset, noted.full) == (len(first), 6, True)
    assert offsets.get(b"k0") == 0
    noted = note_window(memoryview(third), offsets, END, limit=LIMIT)
    assert (noted.position, noted.full, len(offsets)) == (len(third), False, 8)
    noted = note_window(memoryview(batch(11, [(b"k9", b"v")])), offsets, END, limit=LIMIT)
    assert (noted.position, noted.full, noted.next_offset) == (0, True, 11)


def test_batches_that_no_map_takes_are_passed_over():
    offsets = new_map(160)
    large = batch(0, [(b"k%d" % i, b"v") for i in range(9)])
    bomb = batch(9, [(b"bomb", bytes(LIMIT))], CompressionType.ZSTD)
    unknown = batch(10, [(b"unknown", b"v")], attributes=7)
    broken = batch(11, [(b"broken", b"v")], record_count=2)
    far = batch(12, [(b"far", b"v")], deltas=[1], last_offset=12)
    transaction = batch(13, [(b"transaction", b"v")], attributes=TRANSACTIONAL, producer=1)
    last = batch(15, [(b"last", b"v"), (None, b"v")])
    data = b"".join([large, bomb, unknown, broken, far, transaction, marker(14), last])
    noted = note_window(memoryview(data), offsets, END, limit=LIMIT)
    assert (noted.position, noted.next_offset, noted.full) == (len(data), 17, False)
    assert (noted.passed_over, noted.keyless, len(offsets)) == (6, 1, 1)
    assert offsets.get(b"last") == 15


def test_records_below_the_base_offset_are_not_noted():
    offsets = noted_map(batch(3, [(b"a", b"1"), (b"b", b"1"), (b"a", b"1")]), base_offset=4)
    assert (offsets.get(b"a"), offsets.get(b"b")) == (5, 4)
    offsets = noted_map(batch(3, [(b"a", b"1"), (b"b", b"1")]), base_offset=4)
    assert (offsets.get(b"a"), offsets.get(b"b")) == (None, 4)


def test_an_empty_map_takes_its_base_from_a_batch_far_ahead():
    far = 2**40 + 5
    offsets = new_map()
    data = batch(far, [(b"a", b"1")]) + batch(far + 1, [(b"b", b"1")])
    noted = note_window(memoryview(data), offsets, END, limit=LIMIT)
    assert (noted.position, offsets.base_offset) == (len(data), far)
    assert offsets.get(b"b") == far + 1
    further = batch(far + 2**40, [(b"c", b"1")])
    assert note_window(memoryview(further), offsets, END, limit=LIMIT).full
    assert len(offsets) == 2


# Cleaning


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


# Damage


@pytest.mark.parametrize("position", [8, 16, 17, 21, 30, 61, 69])
def test_damage_is_told_with_its_position(position):
    first, second = batch(0, [(b"a", b"1")]), bytearray(batch(1, [(b"a", b"2")]))
    second[position] ^= 0x81
    data = first + bytes(second)
    offsets = new_map()
    with pytest.raises(CorruptBatch, match=rf"\(at byte {len(first)}\)") as noting:
        note_window(memoryview(data), offsets, END, limit=LIMIT)
    assert isinstance(noting.value, CorruptWindow)
    assert noting.value.position == len(first)
    assert offsets.get(b"a") == 0
    with pytest.raises(CorruptWindow) as cleaning:
        clean(data, offsets)
    assert (cleaning.value.position, str(cleaning.value)) == (len(first), str(noting.value))


@pytest.mark.parametrize("base", [0, 1, -1, -(2**63), 2**63 - 1])
def test_offsets_that_do_not_grow_are_damage(base):
    """The base offset is outside of the CRC; a wrong one would have the newest records removed."""
    second = bytearray(batch(2, [(b"a", b"1"), (b"b", b"1")]))
    second[:8] = base.to_bytes(8, "big", signed=True)
    data = batch(0, [(b"a", b"1"), (b"b", b"1")]) + bytes(second)
    with pytest.raises(CorruptWindow, match="do not follow"):
        note_window(memoryview(data), new_map(), END, limit=LIMIT)


def test_damage_beyond_the_end_offset_is_not_looked_at():
    data = bytearray(batch(0, [(b"a", b"1")]) + batch(1, [(b"a", b"2")]))
    data[-1] ^= 1
    assert note_window(memoryview(data), new_map(), 1, limit=LIMIT).next_offset == 1


# Any log


@patient
@given(logs(sound_batches()), st.integers(1, 400), st.integers(0, 3), st.data())
def test_any_log_against_a_dictionary(log, step, days, draw):
    """Read in windows of any size: each key's newest, each tombstone in time, and nothing else."""
    data, end = log
    now = TIME + days * DAY
    producers = set(draw.draw(st.lists(st.integers(0, end), max_size=4)))
    offsets = new_map()
    newest: dict[bytes, int] = {}
    opened = [
        (meta, decode_records(data, at))
        for meta, at in zip(*_walk(data), strict=True)
        if not meta.control
    ]
    for meta, records in opened:
        if not meta.transactional:
            newest |= {r.key: r.offset for r in records if r.key is not None}
    for noted in _in_windows(data, step, lambda v: note_window(v, offsets, end, limit=LIMIT)):
        assert not noted.full
    assert {key: offsets.get(key) for key in newest} == newest
    assert len(offsets) == len(newest)

    expected = []
    expire = True
    for meta, records in opened:
        if meta.transactional:
            expire = False
            expected += records
            continue
        horizon = meta.delete_horizon
        expired = expire and horizon is not None and now >= horizon
        expected += [
            r
            for r in records
            if r.key is not None and newest[r.key] == r.offset and not (r.value is None and expired)
        ]
    output = bytearray()
    results: list[Cleaned] = []

    def clean_next(view):
        expire = not any(cleaned.opaque for cleaned in results)
        results.append(clean(view, offsets, end, now, producers, expire=expire))
        return results[-1]

    for cleaned in _in_windows(data, step, clean_next):
        output += joined(cleaned)
        assert cleaned.metas == scan(memoryview(joined(cleaned))).metas
        assert cleaned.bytes_out == sum(map(len, cleaned.buffers))
    assert list(iter_records(output)) == expected
    metas, before = _walk(bytes(output))[0], _walk(data)[0]
    was = {meta.base_offset: meta for meta in before}
    for meta in metas:
        old = was[meta.base_offset]
        assert meta[:2] + meta[7:10] == old[:2] + old[7:10]
        whole = meta.control or meta.transactional
        assert whole or meta.record_count or meta.last_offset in producers
        assert meta.compression == (old.compression if meta.record_count else 0)
    ends = {meta.last_offset for meta in before}
    assert {meta.last_offset for meta in metas} >= producers & ends


def _walk(data):
    found = scan(memoryview(data))
    assert found.problem is None
    return found.metas, found.positions


def _in_windows(data, step, work):
    """Yield what `work` makes of windows of `step` bytes, or of one batch that is larger."""
    position = 0
    while position < len(data):
        size = max(step, parse_header(data, position).size)
        done = work(memoryview(data)[position : position + size])
        assert done.position
        position += done.position
        yield done


def test_cleaning_again_changes_nothing():
    rows = [(b"k%d" % (i % 7), None if i % 3 else b"v%d" % i) for i in range(40)]
    data = b"".join(batch(4 * i, rows[4 * i : 4 * i + 4], producer=3) for i in range(10))
    once = compact(data, producers={39})
    twice = compact(joined(once), producers={39})
    assert not twice.changed
    assert joined(twice) == joined(once)


def test_the_implementation_under_test_is_in_force(implementation):
    assert kernel.active is implementation
    assert type(new_map()) is implementation.OffsetMap
    assert assemble(parse_header(batch(0, [])), b"") == batch(0, [])
