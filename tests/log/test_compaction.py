"""What of a log is compacted, and when: plans from snapshots, no log needed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.config import TopicSettings
from odradek.contracts.storage import LogSnapshot, SegmentInfo
from odradek.log.compaction import CleanerState, Plan, dirty_segments, groups, plan

NOW = 1_700_000_000_000
DAY = 24 * 3600 * 1000


def segment(number: int, size: int = 100, timestamp: int = NOW - DAY, **more: int) -> SegmentInfo:
    """Ten offsets; `number` is also the id."""
    return SegmentInfo(
        id=number,
        base_offset=more.get("base", 10 * number),
        end_offset=more.get("end", 10 * number + 10),
        size=size,
        max_timestamp=timestamp,
        max_timestamp_offset=10 * number + 9,
        created_ms=more.get("created_ms", NOW - DAY),
        sealed=True,
    )


def snapshot(*sealed: SegmentInfo, log_start: int = 0) -> LogSnapshot:
    end = sealed[-1].end_offset if sealed else 0
    active = SegmentInfo(99, end, end + 5, 50, NOW, end + 4, NOW, False)
    return LogSnapshot((*sealed, active), log_start, end + 5, ())


def settings(**values: Any) -> TopicSettings:
    config = {"cleanup_policy": "compact", **values}
    return TopicSettings.parse({k.replace("_", "."): str(v) for k, v in config.items()})


def due(
    log: LogSnapshot,
    state: CleanerState | None = None,
    watermark: int = 10_000,
    now_ms: int = NOW,
    first: dict[int, int] | None = None,
    **values: Any,
) -> Plan | None:
    return plan(log, watermark, settings(**values), state or CleanerState(), now_ms, first or {})


FOUR = snapshot(*map(segment, range(4)))


def test_log_without_the_policy_is_never_due() -> None:
    assert due(FOUR, cleanup_policy="delete") is None
    assert due(FOUR, cleanup_policy="compact,delete") is not None


def test_everything_but_the_active_segment_is_dirty_at_first() -> None:
    found = due(FOUR)
    assert found is not None
    assert [s.id for s in found.segments] == [0, 1, 2, 3]
    assert (found.dirty_from, found.dirty_to, found.ratio) == (0, 40, 1.0)
    assert due(snapshot()) is None


@pytest.mark.parametrize(
    ("cleaned_to", "ratio", "expected"),
    [
        (20, 0.5, True),
        (20, 0.51, False),
        (30, 0.25, True),
        (30, 0.26, False),
        (40, 0.0, False),
        (25, 0.5, True),  # half of segment 2 is clean: it counts as dirty
        (0, 1.0, True),
    ],
)
def test_share_of_dirty_bytes_decides(cleaned_to: int, ratio: float, expected: bool) -> None:
    found = due(FOUR, CleanerState(cleaned_to), min_cleanable_dirty_ratio=ratio)
    assert (found is not None) == expected
    if found is not None:
        assert (found.dirty_from, found.dirty_to) == (cleaned_to, 40)
        assert len(found.segments) == 4


def test_nothing_above_the_high_watermark_is_touched() -> None:
    found = due(FOUR, watermark=29)
    assert found is not None
    assert found.dirty_to == 20
    assert due(FOUR, watermark=9) is None


def test_first_young_segment_ends_what_may_be_compacted() -> None:
    lag: dict[str, Any] = {"min_compaction_lag_ms": 1000}
    log = snapshot(segment(0), segment(1, timestamp=NOW - 999), segment(2))
    found = due(log, **lag)
    assert found is not None
    assert found.dirty_to == 10
    found = due(log, now_ms=NOW + 1, **lag)
    assert found is not None
    assert found.dirty_to == 30
    unstamped = snapshot(segment(0, timestamp=-1, created_ms=NOW - 10))
    assert due(unstamped, **lag) is None


def test_log_is_due_when_the_longest_lag_has_passed() -> None:
    state = CleanerState(30)
    config: dict[str, Any] = {"max_compaction_lag_ms": 5000, "min_cleanable_dirty_ratio": 0.9}
    assert due(FOUR, state, **config) is None
    assert due(FOUR, state, first={3: NOW - 5000}, **config) is None
    found = due(FOUR, state, first={3: NOW - 5001}, **config)
    assert found is not None
    assert "max.compaction.lag.ms" in found.why
    assert due(FOUR, state, first={3: -1}, **config) is None


def test_tombstones_make_a_clean_log_due_once_their_horizon_has_passed() -> None:
    state = CleanerState(40, next_horizon_ms=NOW, at_ms=NOW - DAY)
    found = due(FOUR, state)
    assert found is not None
    assert (found.dirty_from, found.dirty_to, len(found.segments)) == (40, 40, 4)
    assert due(FOUR, CleanerState(40, NOW + 1, NOW - DAY)) is None
    assert due(FOUR, CleanerState(40, None, NOW - DAY)) is None
    assert due(FOUR, CleanerState(40, NOW, NOW - DAY + 1)) is None, "a pass was made since"
    quick = CleanerState(40, NOW, NOW)
    assert due(FOUR, quick, delete_retention_ms=0) is None, "no time has passed"
    assert due(FOUR, quick, now_ms=NOW + 1, delete_retention_ms=0) is not None


def test_segment_that_is_clean_in_part_has_its_tombstones_expired_too() -> None:
    state = CleanerState(25, NOW, NOW - DAY)
    found = due(FOUR, state, min_cleanable_dirty_ratio=0.9)
    assert found is not None
    assert [s.id for s in found.segments] == [0, 1, 2]
    assert (found.dirty_from, found.dirty_to) == (25, 25)


def test_segments_below_the_log_start_are_left_to_retention() -> None:
    found = due(snapshot(*map(segment, range(4)), log_start=15))
    assert found is not None
    assert [s.id for s in found.segments] == [1, 2, 3]
    assert found.dirty_from == 15


def test_state_of_a_log_that_was_cut_counts_up_to_its_end() -> None:
    log = snapshot(segment(0))
    assert dirty_segments(log, 10_000, settings(), CleanerState(500), NOW) == ()
    assert due(log, CleanerState(500)) is None
    grown = snapshot(*map(segment, range(3)))
    assert due(grown, CleanerState(12)) is not None


@given(st.integers(0, 2**62), st.none() | st.integers(0, 2**62), st.integers(-1, 2**62))
def test_state_is_read_back(cleaned_to: int, horizon: int | None, at_ms: int) -> None:
    state = CleanerState(cleaned_to, horizon, at_ms, cleaned_to // 2, cleaned_to // 3)
    assert CleanerState.load(state.dump()) == state


@pytest.mark.parametrize(
    "blob",
    [
        None,
        b"",
        b"\xff\xfe",
        b"[]",
        b"7",
        b'{"version": 2, "cleaned_to": 5, "at_ms": 1, "next_horizon_ms": null}',
        b'{"version": 1, "cleaned_to": -5, "at_ms": 1}',
        b'{"version": 1, "cleaned_to": "5", "at_ms": 1}',
        b'{"version": 1, "cleaned_to": 5}',
        b'{"version": 1, "cleaned_to": 5, "at_ms": 1, "next_horizon_ms": "x"}',
        b'{"version": 1, "cleaned_to": 5, "at_ms": 1, "touched_to": true}',
    ],
)
def test_damaged_state_means_that_nothing_is_compacted(blob: bytes | None) -> None:
    assert CleanerState.load(blob) == CleanerState()


def test_state_of_an_older_version_is_read() -> None:
    old = b'{"version": 1, "cleaned_to": 5, "at_ms": 1, "next_horizon_ms": null}'
    assert CleanerState.load(old) == CleanerState(5, None, 1, 0)


def test_segments_are_grouped_up_to_a_segments_size() -> None:
    found = groups([segment(n, size) for n, size in enumerate((40, 60, 1, 99, 150, 50))], 60, 100)
    assert [[s.id for s in group] for group in found] == [[0, 1], [2, 3], [4], [5]]


def test_group_spans_no_more_offsets_than_an_index_can_tell() -> None:
    wide = [segment(0, base=0, end=2**31), segment(1, base=2**31, end=2**31 + 10)]
    assert [len(group) for group in groups(wide, 2**40, 1000)] == [1, 1]
    fits = [segment(0, base=0, end=2**31 - 10), segment(1, base=2**31 - 10, end=2**31)]
    assert [len(group) for group in groups(fits, 2**40, 1000)] == [2]


@given(st.lists(st.integers(1, 120), max_size=30), st.integers(0, 300))
def test_groups_have_every_segment_below_the_end_once_and_in_order(
    sizes: list[int], end: int
) -> None:
    segments = [segment(n, size) for n, size in enumerate(sizes)]
    found = groups(segments, end, 100)
    assert [s for group in found for s in group] == [s for s in segments if s.base_offset < end]
    for group in found:
        assert len(group) == 1 or sum(s.size for s in group) <= 100
