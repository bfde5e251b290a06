"""Keys noted in the map: of which batches, and how far."""

import pytest
from tests.record.windows import END, LIMIT, batch, clean, marker, new_map, noted_map

from odradek.errors import CorruptBatch
from odradek.record import CompressionType, CorruptWindow, note_window
from odradek.record.batch import TRANSACTIONAL

pytestmark = pytest.mark.usefixtures("implementation")


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
