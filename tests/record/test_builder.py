"""BatchBuilder: records in bulk, and who owns the buffer."""

from array import array
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.record.implementations import new_builder

from odradek.record import CompressionType, Record, decode_records, parse_header
from odradek.record.batch import HEADER_SIZE

pytestmark = pytest.mark.usefixtures("implementation")

LARGE = 1 << 20
MIN, MAX = -(2**63), 2**63 - 1

# A machine with much else to do says nothing about the codec.
patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

_bytes = st.none() | st.binary(max_size=300)
_pairs = st.lists(st.tuples(_bytes, _bytes), max_size=40)


@patient
@given(st.lists(st.tuples(st.integers(0, 2**42), _pairs, st.booleans()), max_size=4))
def test_extend_writes_what_as_many_appends_write(groups):
    bulk, single = new_builder(LARGE), new_builder(LARGE)
    for timestamp, pairs, keyed in groups:
        keys = [key for key, _ in pairs] if keyed else None
        values = [value for _, value in pairs]
        assert bulk.extend(timestamp, values, keys) == len(pairs)
        for key, value in pairs:
            assert single.append(timestamp, key if keyed else None, value)
        assert (len(bulk), bulk.size) == (len(single), single.size)
    if len(bulk):
        assert bulk.build() == single.build()


@patient
@given(st.integers(HEADER_SIZE, 3000), _pairs, st.integers(0, 45), st.booleans())
def test_extend_takes_what_fits_and_says_how_many(size, pairs, start, keyed):
    keys = [key for key, _ in pairs] if keyed else None
    values = tuple(value for _, value in pairs)
    bulk, single = new_builder(size), new_builder(size)
    taken = 0
    for key, value in pairs[start:]:
        if not single.append(7, key if keyed else None, value):
            break
        taken += 1
    assert bulk.extend(7, values, keys, start) == taken
    assert bulk.size == single.size <= size
    if taken:
        assert bulk.build() == single.build()


def test_extend_goes_on_where_it_stopped():
    values = [b"%d" % i for i in range(1000)]
    batches, start = [], 0
    while start < len(values):
        builder = new_builder(500)
        taken = builder.extend(1, values, start=start)
        assert taken > 0
        batches.append(builder.build())
        start += taken
    assert [r.value for batch in batches for r in decode_records(batch)] == values


def test_extend_keeps_the_first_and_the_newest_timestamp():
    builder = new_builder(LARGE)
    builder.extend(50, [b"a", b"b"])
    builder.extend(20, [b"c"])
    builder.extend(70, [])
    meta = parse_header(builder.build())
    assert (meta.base_timestamp, meta.max_timestamp) == (50, 50)
    assert [r.timestamp for r in decode_records(builder.build())] == [50, 50, 20]


def test_keys_and_values_may_be_of_a_kind_of_bytes():
    class kind(bytes):
        pass

    builder = new_builder(LARGE)
    assert builder.append(1, kind(b"k"), kind(b"v"))
    assert builder.extend(1, [kind(b"w"), None], [None, kind(b"l")]) == 2
    assert decode_records(builder.build()) == [
        Record(0, 1, b"k", b"v"),
        Record(1, 1, None, b"w"),
        Record(2, 1, b"l", None),
    ]


@pytest.mark.parametrize(
    "wrong",
    ["text", "", 3, 0, 2.5, [b"x"], bytearray(b"x"), memoryview(b"x"), array("i", [1])],
)
def test_what_is_no_bytes_is_refused_without_a_trace(wrong):
    builder = new_builder(LARGE)
    builder.append(1, b"k", b"v")
    before = builder.build()
    for call in (
        lambda: builder.append(9, None, wrong),
        lambda: builder.append(9, wrong, None),
        lambda: builder.extend(9, [b"a", b"b", wrong]),
        lambda: builder.extend(9, [b"a", b"b"], [b"c", wrong]),
        lambda: builder.append(9, None, None, [("name", wrong)]),
    ):
        with pytest.raises(TypeError, match=f"bytes or None, not {type(wrong).__name__}"):
            call()
    assert len(builder) == 1
    assert builder.build() == before


@pytest.mark.parametrize(
    ("first", "second"), [(0, MAX + 1), (0, MIN - 1), (MIN, 1), (1, MIN), (MAX, -2)]
)
def test_a_timestamp_of_more_than_64_bits_is_refused_without_a_trace(first, second):
    builder = new_builder(LARGE)
    builder.append(first, b"k", b"v")
    before = builder.build()
    with pytest.raises(OverflowError):
        builder.append(second, None, b"x")
    with pytest.raises(OverflowError):
        builder.extend(second, [b"x"])
    assert builder.build() == before


@pytest.mark.parametrize("wrong", [1.5, 2.0, "1", None])
def test_a_timestamp_that_is_no_whole_number_is_refused_without_a_trace(wrong):
    builder = new_builder(LARGE)
    builder.append(1, b"k", b"v")
    before = builder.build()
    with pytest.raises(TypeError, match="integer"):
        builder.append(wrong, None, b"x")
    with pytest.raises(TypeError, match="integer"):
        builder.extend(wrong, [b"x"])
    assert builder.build() == before


def test_a_timestamp_may_be_of_a_kind_of_whole_number():
    class Whole:
        def __index__(self):
            return 7

    builder = new_builder(LARGE)
    number: Any = Whole()
    assert builder.append(number, None, b"x")
    assert builder.extend(number, [b"x"]) == 1
    assert [r.timestamp for r in decode_records(builder.build())] == [7, 7]


@pytest.mark.parametrize("timestamps", [(MAX, 0), (MIN, -1), (0, MAX, 5)])
def test_timestamps_at_the_ends_of_64_bits_are_kept(timestamps):
    builder = new_builder(LARGE)
    for timestamp in timestamps:
        assert builder.append(timestamp, None, b"v")
    assert tuple(r.timestamp for r in decode_records(builder.build())) == timestamps


def test_extend_wants_as_many_keys_as_values_and_a_start_in_reach():
    builder = new_builder(LARGE)
    with pytest.raises(ValueError, match="keys"):
        builder.extend(1, [b"a"], [])
    with pytest.raises(ValueError, match="start"):
        builder.extend(1, [b"a"], start=-1)
    assert builder.extend(1, [b"a"], start=5) == 0


def test_headers_may_be_any_iterable():
    builder = new_builder(LARGE)
    pairs = [("a", b"1"), ("ü", None)]
    assert builder.append(1, None, None, pairs)
    assert builder.append(1, None, None, iter(pairs))
    lists: Any = [["a", b"1"], ("ü", None)]
    assert builder.append(1, None, None, lists)
    assert builder.append(1, None, None, tuple(pairs))
    assert builder.append(1, None, None, [])
    found = [r.headers for r in decode_records(builder.build())]
    assert found == [*[tuple(pairs)] * 4, ()]


def test_a_headers_name_that_is_no_text_is_refused_without_a_trace():
    builder = new_builder(LARGE)
    builder.append(1, b"k", b"v")
    before = builder.build()
    wrong: list[tuple[Any, type[Exception]]] = [
        ("\ud800", UnicodeEncodeError),
        (b"a", TypeError),
    ]
    for name, error in wrong:
        with pytest.raises(error):
            builder.append(1, None, None, [("fine", b"1"), (name, b"2")])
    assert builder.build() == before


def test_a_builder_goes_on_after_build_with_a_copy():
    builder = new_builder(LARGE)
    builder.append(1, None, b"a")
    first = builder.build()
    kept = bytes(first)
    builder.extend(1, [b"b" * 5000])
    second = builder.build()
    builder.producer_id, builder.producer_epoch, builder.base_sequence = 3, 0, 9
    third = builder.build()
    assert first == kept
    assert [r.value for r in decode_records(second)] == [b"a", b"b" * 5000]
    assert decode_records(third) == decode_records(second)
    assert parse_header(third).producer_id == 3
    assert not parse_header(second).has_producer


def test_a_batch_whose_size_was_changed_is_not_built_on():
    builder = new_builder(LARGE)
    builder.append(1, None, b"a" * 5000)
    builder.build().clear()
    with pytest.raises(BufferError):
        builder.append(1, None, b"b")
    with pytest.raises(BufferError):
        builder.build()


@patient
@given(_pairs.filter(bool), st.sampled_from(CompressionType))
def test_a_batch_is_never_larger_than_the_builder_said(pairs, codec):
    builder = new_builder(LARGE, compression=codec)
    builder.extend(1, [value for _, value in pairs], [key for key, _ in pairs])
    size = builder.size
    assert len(builder.build()) <= size
    assert builder.size == size
