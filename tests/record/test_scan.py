"""Walking batches, and telling a torn tail from damage in the middle."""

import random

import pytest

from odradek.record import assign, find_next_valid, parse_header, scan


@pytest.fixture
def log(make_batch):
    """Three batches of a small log, and where they start and end."""
    data = bytearray()
    bounds = [0]
    offset = 100
    for count in (2, 1, 3):
        batch = make_batch(count)
        assign(batch, 0, offset, 5)
        offset += count
        data += batch
        bounds.append(len(data))
    return data, bounds


def test_scan_finds_every_batch_and_no_problem(log):
    data, bounds = log
    found = scan(memoryview(data))
    assert found.problem is None
    assert found.positions == bounds[:-1]
    assert found.end == len(data)
    assert [(m.base_offset, m.last_offset) for m in found.metas] == [
        (100, 101),
        (102, 102),
        (103, 105),
    ]


def test_scan_of_nothing_is_complete():
    found = scan(memoryview(b""))
    assert (found.metas, found.positions, found.end, found.problem) == ([], [], 0, None)


def test_scan_starts_at_a_position(log):
    data, bounds = log
    found = scan(memoryview(data), position=bounds[1])
    assert found.positions == bounds[1:-1]
    assert found.problem is None
    assert scan(memoryview(data), position=len(data)).end == len(data)


def test_scan_says_incomplete_wherever_the_log_is_cut(log):
    data, bounds = log
    view = memoryview(data)
    for size in range(len(data)):
        found = scan(view[:size])
        whole = [end for end in bounds if end <= size]
        assert found.end == whole[-1]
        assert found.positions == whole[:-1]
        if size in bounds:
            assert found.problem is None
        else:
            assert found.problem is not None
            assert found.problem.kind == "incomplete"
            assert found.problem.position == found.end
            assert find_next_valid(view[:size], found.end, min_offset=100) is None


def test_scan_stops_before_damage_at_any_byte_and_the_next_batch_is_found(log):
    data, bounds = log
    view = memoryview(data)
    for position in range(bounds[1], bounds[2]):
        in_batch = position - bounds[1]
        if in_batch < 8 or 12 <= in_batch < 16:
            continue  # base offset and leader epoch are not covered by the CRC
        data[position] ^= 0x41
        found = scan(view)
        assert found.end == bounds[1]
        assert found.problem is not None
        assert found.problem.position == bounds[1]
        assert find_next_valid(view, bounds[1], min_offset=102, max_size=1000) == bounds[2]
        data[position] ^= 0x41


def test_scan_calls_a_wrong_crc_magic_or_length_corrupt(log):
    data, bounds = log
    for position, value in ((17, 0xAA), (16, 1), (8, 0x80), (11, 10)):
        damaged = bytearray(data)
        damaged[bounds[1] + position] = value
        if position == 11:
            damaged[bounds[1] + 8 : bounds[1] + 11] = b"\0\0\0"
        found = scan(memoryview(damaged))
        assert found.problem is not None
        assert found.problem.kind == "corrupt"


@pytest.mark.parametrize("size", [12, 16, 17, 60, 61, 4096])
def test_scan_calls_zeros_corrupt_and_nothing_valid_follows(log, size):
    data, _ = log
    view = memoryview(bytes(data) + bytes(size))
    found = scan(view)
    assert found.end == len(data)
    assert found.problem is not None
    assert found.problem.kind == "corrupt"
    assert find_next_valid(view, found.end) is None


def test_scan_calls_a_cut_header_with_another_magic_corrupt(log):
    data, bounds = log
    cut = bytearray(data[: bounds[2] + 20])
    cut[bounds[2] + 16] = 1
    problem = scan(memoryview(cut)).problem
    assert problem is not None
    assert problem.kind == "corrupt"


def test_scan_without_verification_follows_lengths_alone(log):
    data, bounds = log
    data[bounds[1] + 70] ^= 1
    assert scan(memoryview(data), verify=False).problem is None
    problem = scan(memoryview(data)).problem
    assert problem is not None
    assert problem.position == bounds[1]


def test_find_next_valid_returns_the_position_itself_when_it_is_valid(log):
    data, bounds = log
    for start in bounds[:-1]:
        assert find_next_valid(memoryview(data), start) == start
    assert find_next_valid(memoryview(data), bounds[0] + 1) == bounds[1]


def test_find_next_valid_finds_a_batch_at_every_distance(make_batch):
    batch = make_batch(1)
    noise = random.Random(7)
    for distance in range(0, 200, 3):
        view = memoryview(noise.randbytes(distance) + batch + b"tail")
        assert find_next_valid(view, 0) == distance


def test_find_next_valid_does_not_take_overlapping_magic_bytes_for_the_end(make_batch):
    batch = make_batch(1)
    for count in range(40):
        view = memoryview(b"\x02" * count + batch)
        assert find_next_valid(view, 0) == count


def test_find_next_valid_skips_older_offsets_as_of_a_batch_inside_a_value(make_batch):
    inner = make_batch(1)
    torn = make_batch(1, keys=[bytes(inner)])
    cut = memoryview(torn)[:-1]
    assert find_next_valid(cut, 0) is not None
    assert find_next_valid(cut, 0, min_offset=100) is None


def test_find_next_valid_skips_what_is_larger_than_any_batch(make_batch):
    batch = make_batch(1)
    assert find_next_valid(memoryview(batch), 0, max_size=len(batch)) == 0
    assert find_next_valid(memoryview(batch), 0, max_size=len(batch) - 1) is None


def test_find_next_valid_skips_a_batch_that_is_not_whole(make_batch):
    first, second = make_batch(1), make_batch(2)
    view = memoryview(bytes(first[1:]) + bytes(second[:-1]))
    assert find_next_valid(view, 0) is None
    assert find_next_valid(memoryview(bytes(view) + second[-1:]), 0) == len(first) - 1


def test_find_next_valid_searches_from_the_position_on(log):
    data, bounds = log
    assert find_next_valid(memoryview(data), bounds[2] + 1) is None
    assert find_next_valid(memoryview(data), len(data)) is None
    assert parse_header(data, bounds[2]).base_offset == 103
