"""The header of a batch: read, checked, and changed in place."""

import pytest

from odradek.errors import CorruptBatch
from odradek.record import (
    BatchMeta,
    assemble,
    assign,
    check_crc,
    crc32c,
    parse_header,
    set_log_append_time,
)
from odradek.record.batch import HEADER_SIZE, increment_sequence

# Written by aiokafka 0.14 and, but for the leader epoch (0), by kafka-python 3.0.12: three records,
# transactional, producer 4242 with epoch 7, first sequence 100.
GOLDEN = bytes.fromhex(
    "0000000000000000"
    "0000006a"
    "ffffffff"
    "02"
    "85b90914"
    "0010"
    "00000002"
    "0000018bcfe56800"
    "0000018bcfe56805"
    "0000000000001092"
    "0007"
    "00000064"
    "00000003"
    "240000000a6b65792d300e76616c75652d3000"
    "3a000a02010e76616c75652d31040a74726163650401020a656d70747901"
    "0e008b0104000100"
)


def test_parse_header_reads_every_field_of_a_golden_batch():
    assert parse_header(GOLDEN) == BatchMeta(
        base_offset=0,
        last_offset=2,
        size=len(GOLDEN),
        leader_epoch=-1,
        attributes=0x10,
        base_timestamp=1_700_000_000_000,
        max_timestamp=1_700_000_000_005,
        producer_id=4242,
        producer_epoch=7,
        base_sequence=100,
        record_count=3,
    )
    assert check_crc(memoryview(GOLDEN), 0, len(GOLDEN))


def test_parse_header_reads_at_a_position():
    view = memoryview(b"\xff" * 7 + GOLDEN + b"\xff")
    assert parse_header(view, 7) == parse_header(GOLDEN)
    assert check_crc(view, 7, len(GOLDEN))


def test_meta_derives_what_the_attributes_say():
    meta = parse_header(GOLDEN)
    assert meta.next_offset == 3
    assert meta.last_sequence == 102
    assert meta.has_producer
    assert (meta.transactional, meta.control, meta.log_append_time) == (True, False, False)
    assert meta.delete_horizon is None
    other = meta._replace(attributes=0x6C)
    assert other.compression == 4
    assert (other.transactional, other.control, other.log_append_time) == (False, True, True)
    assert other.delete_horizon == meta.base_timestamp
    assert meta._replace(base_sequence=-1).last_sequence == -1
    assert not meta._replace(producer_id=-1).has_producer


@pytest.mark.parametrize(
    ("sequence", "increment", "following"),
    [(0, 5, 5), (2**31 - 1, 1, 0), (2**31 - 3, 4, 1), (2**31 - 3, 2, 2**31 - 1)],
)
def test_sequence_numbers_wrap_to_zero(sequence, increment, following):
    assert increment_sequence(sequence, increment) == following


@pytest.mark.parametrize("size", range(HEADER_SIZE))
def test_parse_header_refuses_a_cut_header(size):
    with pytest.raises(CorruptBatch):
        parse_header(GOLDEN[:size])


def test_parse_header_refuses_a_position_before_the_buffer():
    with pytest.raises(CorruptBatch):
        parse_header(GOLDEN, -1)


@pytest.mark.parametrize("magic", [0, 1, 3, 127, -1])
def test_parse_header_refuses_another_magic(edit, magic):
    with pytest.raises(CorruptBatch, match="magic"):
        parse_header(edit(GOLDEN, magic=magic))


@pytest.mark.parametrize("length", [-(2**31), -1, 0, 48])
def test_parse_header_refuses_an_impossible_length(edit, length):
    with pytest.raises(CorruptBatch, match="length"):
        parse_header(edit(GOLDEN, length=length))


def test_check_crc_finds_every_flipped_bit_of_the_covered_area():
    batch = bytearray(GOLDEN)
    view = memoryview(batch)
    for position in range(17, len(batch)):
        for bit in range(8):
            batch[position] ^= 1 << bit
            assert not check_crc(view, 0, len(batch))
            batch[position] ^= 1 << bit
    assert check_crc(view, 0, len(batch))


def test_check_crc_is_false_for_a_batch_that_is_not_whole():
    view = memoryview(GOLDEN)
    assert not check_crc(view, 0, len(GOLDEN) + 1)
    assert not check_crc(view, 1, len(GOLDEN))
    assert not check_crc(view, 0, HEADER_SIZE - 1)


def test_assign_changes_offset_and_epoch_alone_and_keeps_the_crc_right():
    batch = bytearray(b"\xee" * 3 + GOLDEN)
    view = memoryview(batch)
    assign(view, 3, 2**40, 9)
    assert parse_header(view, 3) == parse_header(GOLDEN).assigned(2**40, 9)
    assert check_crc(view, 3, len(GOLDEN))
    assert parse_header(view, 3).last_offset == 2**40 + 2
    assert batch[:3] == b"\xee" * 3
    assert batch[3 + 16 :] == GOLDEN[16:]


def test_assigned_moves_a_batch_that_has_offsets_already():
    meta = parse_header(GOLDEN).assigned(100, 1).assigned(7, 2)
    assert (meta.base_offset, meta.last_offset, meta.leader_epoch) == (7, 9, 2)


def test_set_log_append_time_sets_attribute_and_max_timestamp_and_renews_the_crc():
    batch = bytearray(b"\xee" * 3 + GOLDEN + b"\xee" * 5)
    view = memoryview(batch)
    set_log_append_time(view, 3, 1234)
    before, after = parse_header(GOLDEN), parse_header(view, 3)
    assert after == before._replace(attributes=before.attributes | 8, max_timestamp=1234)
    assert check_crc(view, 3, len(GOLDEN))
    assert batch[-5:] == b"\xee" * 5


def test_assemble_writes_what_parse_header_reads():
    meta = parse_header(GOLDEN)
    assert assemble(meta._replace(size=0), GOLDEN[HEADER_SIZE:]) == GOLDEN


def test_crc_is_castagnoli_over_any_buffer():
    for kind in (bytes, bytearray, memoryview, lambda data: memoryview(bytearray(data))):
        assert crc32c(kind(b"123456789")) == 0xE3069283
    assert crc32c(b"6789", crc32c(b"12345")) == 0xE3069283
