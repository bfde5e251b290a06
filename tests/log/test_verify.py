"""Verifying a log: what is told, and what is no fault. Each test breaks one thing."""

from __future__ import annotations

import json
from types import MappingProxyType
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st
from tests.log.logs import NOW, batch

from odradek.contracts.storage import EpochStart, LogSnapshot, SegmentIndex, SegmentInfo
from odradek.contracts.storage_gaps import GAPS_BLOB, MAX_GAPS, decode_gaps, encode_gaps, join_gaps
from odradek.log.compaction import CLEANER_BLOB, CleanerState
from odradek.log.producers import Producers
from odradek.log.scrub import SCRUB_BLOB, ScrubState
from odradek.log.verify import PRODUCERS_BLOB, SHOWN, LogVerifier
from odradek.record import BatchMeta, CompressionType, assemble, assign, filter_batch, parse_header

PER_BATCH = 3
PER_SEGMENT = 4


class Made:
    """A log of segments of four batches of three records, and what a store would say of it."""

    def __init__(self, segments: int = 3, **options: Any) -> None:
        self.batches: list[list[bytes]] = []
        offset = 0
        for _ in range(segments):
            made = []
            for _ in range(PER_SEGMENT):
                data = batch(PER_BATCH, 50, NOW + 10 * offset, **options)
                assign(data, 0, offset, 1 if offset < 15 else 2)
                made.append(bytes(data))
                offset += PER_BATCH
            self.batches.append(made)
        self.bases = [PER_BATCH * PER_SEGMENT * i for i in range(segments)]
        self.ends = [base + PER_BATCH * PER_SEGMENT for base in self.bases]
        self.epochs = (EpochStart(1, 0), EpochStart(2, 15))
        self.log_start = 0
        self.blobs: dict[str, bytes] = {}
        self.rows: dict[int, tuple[int, int, int]] = {}  # of segment 0, changed

    def metas(self, number: int) -> list[BatchMeta]:
        return [parse_header(data) for data in self.batches[number]]

    def index(self, number: int) -> SegmentIndex:
        index = SegmentIndex()
        position, newest = 0, -1
        for row, meta in enumerate(self.metas(number)):
            offset = self.bases[number] if not row else meta.base_offset
            values = (offset, position, newest)
            index.add(*(self.rows.get(row, values) if not number else values))
            position += meta.size
            newest = max(newest, meta.max_timestamp)
        return index

    @property
    def snapshot(self) -> LogSnapshot:
        segments = tuple(
            SegmentInfo(
                number,
                self.bases[number],
                self.ends[number],
                sum(map(len, made)),
                max((meta.max_timestamp for meta in self.metas(number)), default=-1),
                -1,
                NOW,
                number < len(self.batches) - 1,
            )
            for number, made in enumerate(self.batches)
        )
        blobs = MappingProxyType(self.blobs)
        return LogSnapshot(segments, self.log_start, self.ends[-1], self.epochs, blobs)

    def verified(self, damage: tuple[int, int] | None = None) -> LogVerifier:
        """Verify it; `damage` is the segment and the number of a batch that fails its CRC."""
        verifier = LogVerifier(self.snapshot)
        for segment in self.snapshot.segments:
            verifier.begin(segment, self.index(segment.id))
            position = 0
            for number, data in enumerate(self.batches[segment.id]):
                if (segment.id, number) == damage:
                    verifier.damage(position, position + len(data), "bad")
                else:
                    verifier.batch(position, parse_header(data), memoryview(data))
                position += len(data)
            verifier.end()
        verifier.finish()
        return verifier

    @property
    def problem(self) -> str:
        """The only problem there is."""
        (only,) = self.verified().problems
        return only


@pytest.fixture
def made() -> Made:
    return Made()


def test_a_sound_log_has_no_problems(made: Made) -> None:
    verifier = made.verified()
    assert (verifier.problems, verifier.notes) == ([], [])
    assert (verifier.batches, verifier.records, verifier.end_offset) == (12, 36, 36)
    assert verifier.size == sum(segment.size for segment in made.snapshot.segments)


def test_an_empty_log_has_no_problems() -> None:
    made = Made(1)
    made.batches[0] = []
    made.bases = made.ends = [7]
    made.log_start = 7
    assert made.verified().problems == []


# -- gaps ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("segment", "number", "text"),
    [(0, 1, "offsets 3 to 5"), (0, 3, "offsets 9 to 11"), (1, 0, "offsets 12 to 14")],
)
def test_offsets_that_are_missing_are_lost_records(
    made: Made, segment: int, number: int, text: str
) -> None:
    del made.batches[segment][number]
    assert text in made.problem
    assert "are missing" in made.problem


def test_a_whole_segment_that_is_missing_is_told(made: Made) -> None:
    del made.batches[1], made.bases[1], made.ends[1]
    assert made.problem == "segment 24: offsets 12 to 23 are missing"


@pytest.mark.parametrize(
    ("blob", "value"),
    [
        (CLEANER_BLOB, CleanerState(cleaned_to=12).dump()),
        (CLEANER_BLOB, CleanerState(touched_to=6).dump()),
        (GAPS_BLOB, encode_gaps([(3, 6)])),
        (GAPS_BLOB, encode_gaps([(90, 91), (0, 100)])),
    ],
)
def test_a_gap_that_compaction_or_a_repair_made_is_no_problem(
    made: Made, blob: str, value: bytes
) -> None:
    del made.batches[0][1]
    made.blobs[blob] = value
    verifier = made.verified()
    assert (verifier.problems, verifier.notes) == ([], [])


@pytest.mark.parametrize(
    ("blob", "value"),
    [
        (CLEANER_BLOB, CleanerState(cleaned_to=5).dump()),
        (GAPS_BLOB, encode_gaps([(3, 5)])),
        (GAPS_BLOB, encode_gaps([(6, 9)])),
    ],
)
def test_a_gap_beyond_what_they_made_is_one(made: Made, blob: str, value: bytes) -> None:
    del made.batches[0][1]
    made.blobs[blob] = value
    assert "missing" in made.problem


def test_a_gap_below_the_log_start_is_nobodys_loss(made: Made) -> None:
    del made.batches[0][1]
    made.log_start = 6
    assert made.verified().problems == []


def test_a_gap_where_damage_is_is_told_once(made: Made) -> None:
    (problem,) = made.verified(damage=(1, 2)).problems
    assert problem.startswith("segment 12: bytes ")
    assert problem.endswith(": bad")


# -- batches ---------------------------------------------------------------------------------


def test_an_offset_twice_is_told(made: Made) -> None:
    made.batches[0].insert(1, made.batches[0][0])
    assert any("offsets 0 to 2, and 3 to 11 are due" in each for each in made.verified().problems)


def test_a_base_offset_that_was_changed_is_told(made: Made) -> None:
    data = bytearray(made.batches[1][1])
    assign(data, 0, 14, 2)
    made.batches[1][1] = bytes(data)
    assert any(
        "has offsets 14 to 16, and 15 to 23 are" in each for each in made.verified().problems
    )


def test_a_base_offset_that_is_far_too_high_is_told_alone(made: Made) -> None:
    data = bytearray(made.batches[0][1])
    assign(data, 0, 3 + 2**50, 1)
    made.batches[0][1] = bytes(data)
    found = made.verified().problems
    assert any(f"has offsets {3 + 2**50} to {5 + 2**50}, and 3 to 11" in each for each in found)
    assert not any("offsets 6 to 8" in each for each in found), "what follows is not blamed"


def test_fewer_records_than_offsets_are_told_unless_compacted(made: Made) -> None:
    kept = filter_batch(made.batches[0][1], lambda record: record.offset != 4)
    assert kept is not None
    made.batches[0][1] = bytes(kept)
    assert any("has 2 records for offsets 3 to 5" in each for each in made.verified().problems)
    made.blobs[CLEANER_BLOB] = CleanerState(cleaned_to=36).dump()
    assert not any("records for" in each for each in made.verified().problems)


def test_an_empty_batch_that_compaction_left_counts_for_its_offsets(made: Made) -> None:
    meta = parse_header(made.batches[0][1])._replace(record_count=0)
    made.batches[0][1] = bytes(assemble(meta, b""))
    made.blobs[CLEANER_BLOB] = CleanerState(cleaned_to=36).dump()
    verifier = made.verified()
    assert verifier.problems == []
    assert verifier.empty_batches == 1


@pytest.mark.parametrize("codec", [CompressionType.NONE, CompressionType.GZIP])
def test_records_that_cannot_be_read_are_told(codec: CompressionType) -> None:
    made = Made(compression=codec)
    meta = parse_header(made.batches[0][1])
    made.batches[0][1] = bytes(assemble(meta, b"\xff" * 60))
    assert any("cannot be read" in each for each in made.verified().problems)


def test_records_of_other_offsets_than_their_batch_are_told(made: Made) -> None:
    data = made.batches[0][1]
    meta = parse_header(data)._replace(last_offset=4, record_count=3)
    made.batches[0][1] = bytes(assemble(meta, data[61:]))
    found = made.verified().problems
    assert any("a record of offset 5, where 5 to 4 are due" in each for each in found)


@pytest.mark.parametrize(("epoch", "text"), [(0, "after 1"), (3, "says that 1 was in force")])
def test_a_leader_epoch_that_was_changed_is_told(made: Made, epoch: int, text: str) -> None:
    data = bytearray(made.batches[0][1])
    assign(data, 0, 3, epoch)
    made.batches[0][1] = bytes(data)
    assert any(text in each for each in made.verified().problems)


# -- descriptions ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "values", "text"),
    [
        (1, (4, 241, NOW + 2), "has offset 4 for byte"),
        (1, (3, 100, NOW + 2), "a row for byte 100, where no batch starts"),
        (1, (3, 241, NOW), f"says that {NOW} is the newest"),
        (0, (1, 0, -1), "has offset 1 for byte 0"),
        (3, (9, 9999, NOW + 62), "a row for byte 9999, where no batch starts"),
    ],
)
def test_an_index_that_does_not_fit_is_told(
    made: Made, row: int, values: tuple[int, int, int], text: str
) -> None:
    size = len(made.batches[0][0])
    offset, position, newest = values
    made.rows[row] = (offset, size if position == 241 else position, newest)
    assert any(text in each for each in made.verified().problems), made.verified().problems


def test_a_segment_that_is_described_wrongly_is_told(made: Made) -> None:
    made.ends[0] = 11
    assert any(
        "has offsets 9 to 11, and 9 to 10 are due" in each for each in made.verified().problems
    )
    snapshot = Made().snapshot
    first = evolve(snapshot.segments[0], max_timestamp=5)
    verifier = LogVerifier(evolve(snapshot, segments=(first,)))
    verifier.begin(first, None)
    position = 0
    for data in Made().batches[0]:
        verifier.batch(position, parse_header(data))
        position += len(data)
    verifier.end()
    assert "its description says 5" in verifier.problems[0]


def test_blobs_that_cannot_be_read_are_told(made: Made) -> None:
    made.blobs |= {PRODUCERS_BLOB: b"x", CLEANER_BLOB: b"x", SCRUB_BLOB: b"x", "other": b"x"}
    verifier = made.verified()
    assert verifier.problems == [], "they are made again"
    assert len(verifier.notes) == 4
    made.blobs[GAPS_BLOB] = b"x"
    assert "what a repair left out is not known" in made.problem


def test_blobs_that_can_be_read_are_not_mentioned(made: Made) -> None:
    made.blobs |= {PRODUCERS_BLOB: Producers().snapshot(36), SCRUB_BLOB: ScrubState().dump()}
    assert made.verified().notes == []
    made.blobs[PRODUCERS_BLOB] = Producers().snapshot(37)
    assert len(made.verified().notes) == 1


def test_without_the_cleaners_state_no_gap_is_judged(made: Made) -> None:
    del made.batches[0][1]
    made.blobs[CLEANER_BLOB] = json.dumps({"version": 99}).encode()
    verifier = made.verified()
    assert verifier.problems == []
    assert "not judged" in verifier.notes[0]


def test_problems_are_kept_up_to_a_bound() -> None:
    verifier = LogVerifier(Made().snapshot)
    verifier.begin(Made().snapshot.segments[0], None)
    for number in range(SHOWN + 5):
        verifier.damage(number, number + 1, "bad")
    verifier.finish()
    assert len(verifier.problems) == SHOWN + 1
    assert verifier.problems[-1] == "and 5 more"


# -- gaps as a blob --------------------------------------------------------------------------

RANGES = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 9)).map(lambda p: (p[0], sum(p))))


@given(RANGES)
def test_gaps_come_back_joined(ranges: list[tuple[int, int]]) -> None:
    found = decode_gaps(encode_gaps(ranges))
    assert found == join_gaps(ranges)
    offsets = {offset for low, high in ranges for offset in range(low, high)}
    assert {offset for low, high in found for offset in range(low, high)} == offsets
    assert all(found[i][1] < found[i + 1][0] for i in range(len(found) - 1))


def test_many_gaps_are_one_from_the_first_to_the_last() -> None:
    many = [(3 * i, 3 * i + 1) for i in range(MAX_GAPS + 1)]
    assert decode_gaps(encode_gaps(many)) == ((0, 3 * MAX_GAPS + 1),)
    assert len(decode_gaps(encode_gaps(many[1:]))) == MAX_GAPS


@pytest.mark.parametrize(
    "data", [b"", b"x", b"{}", b'{"version": 9}', b'{"version": 1}', b'{"version": 1, "gaps": [3]}']
)
def test_damaged_gaps_are_told_from_none(data: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        decode_gaps(data)
