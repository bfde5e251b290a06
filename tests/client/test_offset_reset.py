"""What a reset of a group's offsets comes to, partition by partition."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.client import (
    EARLIEST,
    LATEST,
    LogRange,
    OffsetReset,
    ResetImpossible,
    ShiftBy,
    ToOffset,
    ToOffsets,
    TopicPartition,
    ToTime,
)
from odradek.client.offset_reset import parse_offsets, plan_reset

A, B = TopicPartition("a", 0), TopicPartition("b", 1)
LOGS = {A: LogRange(5, 100), B: LogRange(0, 10)}


def new(reset: OffsetReset, **known: dict[TopicPartition, int]) -> list[int]:
    changes = plan_reset(
        reset,
        [B, A],
        committed=known.get("committed", {A: 50, B: 3}),
        logs=LOGS,
        at_time=known.get("at_time", {}),
    )
    assert [each.partition for each in changes] == [A, B]
    return [each.new for each in changes]


@pytest.mark.parametrize(
    ("reset", "expected"),
    [
        (ToTime(EARLIEST), [5, 0]),
        (ToTime(LATEST), [100, 10]),
        (ToOffset(7), [7, 7]),
        (ToOffset(50), [50, 10]),
        (ToOffset(0), [5, 0]),
        (ShiftBy(2), [52, 5]),
        (ShiftBy(-4), [46, 0]),
        (ShiftBy(10**12), [100, 10]),
        (ToOffsets({A: 6, B: 99}), [6, 10]),
    ],
)
def test_reset_goes_where_it_was_told_within_the_log(
    reset: OffsetReset, expected: list[int]
) -> None:
    assert new(reset) == expected


def test_reset_to_a_time_after_every_record_goes_to_the_end() -> None:
    assert new(ToTime(1000), at_time={A: 70, B: -1}) == [70, 10]
    assert new(ToTime(1000), at_time={A: 70}) == [70, 10]


def test_change_says_when_the_log_does_not_hold_what_was_asked_for() -> None:
    low, high = plan_reset(
        ToOffsets({A: 2, B: 11}), [A, B], committed={A: 50}, logs=LOGS, at_time={}
    )
    assert (low.old, low.wanted, low.new, low.clamped, low.lag) == (50, 2, 5, True, 95)
    assert (high.old, high.wanted, high.new, high.clamped, high.lag) == (None, 11, 10, True, 0)
    (there,) = plan_reset(ToOffset(10), [B], committed={}, logs=LOGS, at_time={})
    assert not there.clamped  # the end of the log is where the next record will be


def test_reset_is_impossible_without_what_it_starts_from() -> None:
    with pytest.raises(ResetImpossible, match="b-1"):
        new(ShiftBy(1), committed={A: 50})
    with pytest.raises(ResetImpossible, match="b-1"):
        new(ToOffsets({A: 50}))


@given(
    st.integers(0, 2**62),
    st.integers(0, 2**62),
    st.one_of(
        st.builds(ToOffset, st.integers(0, 2**63 - 1)),
        st.builds(ShiftBy, st.integers(-(2**63), 2**63)),
        st.builds(ToTime, st.integers(-2, 2**62)),
    ),
    st.integers(0, 2**63 - 1),
    st.integers(-1, 2**63 - 1),
)
def test_reset_never_leaves_the_log(
    start: int, length: int, reset: OffsetReset, old: int, at: int
) -> None:
    log = LogRange(start, start + length)
    (change,) = plan_reset(reset, [A], committed={A: old}, logs={A: log}, at_time={A: at})
    assert log.start <= change.new <= log.end
    assert change.clamped == (not log.start <= change.wanted <= log.end)


def test_offsets_are_read_from_json_and_from_the_csv_of_kafkas_tool() -> None:
    expected = {A: 5, B: 2**63 - 1}
    document = [
        {"topic": "a", "partition": 0, "offset": 5, "lag": 1},
        {"topic": "b", "partition": 1, "offset": 2**63 - 1},
    ]
    assert parse_offsets(json.dumps(document)) == expected
    assert parse_offsets(f'"a",0,5\n\nb, 1, {2**63 - 1}\n') == expected


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no offsets"),
        ("[]", "no offsets"),
        ("[", "not JSON"),
        ("{}", "not a JSON array"),
        ("[1]", "item 1 is not an object"),
        ('[{"topic": "a", "partition": 0}]', "item 1 is not an object"),
        ('[{"topic": "a", "partition": 0, "offset": null}]', "item 1: offset None"),
        ('[{"topic": "a", "partition": true, "offset": 1}]', "item 1: partition True"),
        ('[{"topic": 7, "partition": 0, "offset": 1}]', "item 1: 7 is not a topic"),
        ("a,0,1\na,1", "line 2 is not topic,partition,offset"),
        ("a,0,1\na,0,2", "line 2: partition a-0 is listed twice"),
        ("a,x,1", "line 1: partition 'x'"),
        ("a,0,-1", "line 1: offset '-1'"),
        (f"a,0,{2**63}", "line 1: offset"),
        ("a,0," + "9" * 5000, "line 1: offset"),
        ('a,0,"1', "line 1:"),
    ],
)
def test_offsets_that_cannot_be_read_say_where(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_offsets(text)
