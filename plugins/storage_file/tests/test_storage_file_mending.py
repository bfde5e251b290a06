"""Offsets and epochs that no CRC covers: put right where they are known, left out where not."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_storage_file_damage import damaged, make, open_log, segment_path

from odradek.contracts.storage import BatchMeta, parse_header
from odradek.record import assign
from odradek.testing.storage import KEY
from odradek_storage_file.mending import mend
from odradek_storage_file.repair import repair


def meta(base: int, count: int = 2, epoch: int = 1) -> BatchMeta:
    return BatchMeta(base, base + count - 1, 100, epoch, 0, 0, 0, -1, -1, -1, count)


def dense(start: int, counts: list[int]) -> list[BatchMeta]:
    made = []
    for count in counts:
        made.append(meta(start, count))
        start += count
    return made


def unknown(_: int) -> int | None:
    return None


COUNTS = st.lists(st.integers(1, 5), min_size=1, max_size=12)


@given(COUNTS, st.integers(0, 1000))
def test_what_is_right_stays_as_it_is(counts: list[int], start: int) -> None:
    made = dense(start, counts)
    assert mend(made, start, start, None, (), unknown) == made
    assert mend(made, start, start, start + sum(counts), (), unknown) == made


@given(COUNTS, st.data())
def test_one_wrong_offset_between_neighbours_is_put_right(
    counts: list[int], chosen: st.DataObject
) -> None:
    made = dense(100, counts)
    number = chosen.draw(st.integers(0, len(made) - 1))
    wrong = list(made)
    offset = made[number].base_offset ^ (1 << chosen.draw(st.integers(10, 62)))
    wrong[number] = made[number].assigned(offset, 1)
    assert mend(wrong, 100, 100, 100 + sum(counts), (), unknown) == made


def test_a_wrong_offset_beside_missing_bytes_has_no_place() -> None:
    made = dense(0, [2, 2, 2, 2])
    made[1] = made[1].assigned(2**40, 1)
    for hole in (1, 2):
        found = mend(made, 0, 0, 8, {hole}, unknown)
        assert found == [made[0], None, *made[2:]]


def test_two_wrong_offsets_side_by_side_have_no_place() -> None:
    made = dense(0, [2, 2, 2, 2])
    wrong = [made[0], made[1].assigned(2**40, 1), made[2].assigned(2**41, 1), made[3]]
    assert mend(wrong, 0, 0, 8, (), unknown) == [made[0], None, None, made[3]]


def test_the_fewest_are_taken_for_wrong() -> None:
    made = dense(0, [2] * 8)
    wrong = list(made)
    wrong[2] = made[2].assigned(13, 1)  # within the segment, ahead of most of the others
    assert mend(wrong, 0, 0, 16, (), unknown) == made


def test_a_gap_stays_one() -> None:
    made = [meta(0), meta(10), meta(20)]
    assert mend(made, 0, 0, 30, (), unknown) == made


@given(COUNTS)
def test_epochs_are_those_that_were_in_force(counts: list[int]) -> None:
    made = dense(0, counts)
    found = mend(made, 0, 0, None, (), lambda offset: 7 if offset < 5 else None)
    assert [each.leader_epoch for each in found if each] == [
        7 if each.base_offset < 5 else 1 for each in made
    ]


@pytest.mark.parametrize("how", ["cut", "skip"])
@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("field", ["offset", "epoch"])
async def test_a_repair_loses_nothing_of_a_batch_whose_crc_is_right(
    tmp_path: Path, how: str, number: int, field: str
) -> None:
    root = tmp_path / "log"
    path, log = await make(root)
    file = segment_path(path, number)
    whole = file.read_bytes()
    data = bytearray(whole)
    at = 3 * log.batches[0][0].size
    held = parse_header(data, at)
    if field == "offset":
        assign(data, at, held.base_offset ^ 1 << 45, held.leader_epoch)
    else:
        assign(data, at, held.base_offset, held.leader_epoch ^ 1 << 20)
    file.write_bytes(data)
    report = repair(str(root), KEY, how="cut" if how == "cut" else "skip")
    assert any("put right" in action for action in report.actions)
    assert file.read_bytes() == whole, report.actions
    assert not damaged(path)
    found, blobs = await open_log(root)
    assert found == log.bytes()
    assert blobs == {"state": b"13"}
