"""What `edited` allows is what sorting all segments and comparing each pair would."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.contracts.storage import LogEdit, OutOfRange, SegmentInfo
from odradek.contracts.storage_rules import edited


def segment(number: int, base: int, end: int, *, sealed: bool = True) -> SegmentInfo:
    return SegmentInfo(number, base, end, end - base, -1, -1, 0, sealed)


@st.composite
def logs(draw: st.DrawFn) -> tuple[SegmentInfo, ...]:
    """Segments in order, some with gaps between them, the last one active and maybe empty."""
    found = []
    end = 0
    for number in range(draw(st.integers(0, 8))):
        base = end + draw(st.integers(0, 2))
        end = base + draw(st.integers(1, 5))
        found.append(segment(number, base, end))
    active = segment(100, end, end + draw(st.integers(0, 3)), sealed=False)
    return (*found, active)


@st.composite
def edits(draw: st.DrawFn) -> tuple[tuple[SegmentInfo, ...], LogEdit]:
    log = draw(logs())
    ids = [s.id for s in log]
    remove = draw(st.lists(st.sampled_from(ids), unique=True, max_size=5))
    add = []
    for number in range(draw(st.integers(0, 3))):
        base = draw(st.integers(0, log[-1].end_offset + 2))
        add.append(segment(200 + number, base, base + draw(st.integers(1, 8))))
    start = draw(st.none() | st.integers(0, log[-1].end_offset + 2))
    return log, LogEdit(tuple(remove), tuple(add), start)


def naive(log: tuple[SegmentInfo, ...], edit: LogEdit) -> list[SegmentInfo] | None:
    """The segments that an edit leaves, or None where it is refused."""
    removed = [s for s in log if s.id in edit.remove]
    if not all(s.sealed for s in removed):
        return None
    for new in edit.add:
        if not removed or new.base_offset < min(s.base_offset for s in removed):
            return None
        if new.end_offset > max(s.end_offset for s in removed):
            return None
    result = [*(s for s in log if s not in removed), *edit.add]
    result.sort(key=lambda s: (s.base_offset, not s.sealed))
    if any(left.end_offset > right.base_offset for left, right in pairwise(result)):
        return None
    start = 2 if edit.log_start is None else edit.log_start
    return result if 2 <= start <= result[-1].end_offset else None


@given(edits())
def test_edit_leaves_what_a_naive_one_does(case: tuple[tuple[SegmentInfo, ...], LogEdit]) -> None:
    log, edit = case
    try:
        found, start = edited(log, 2, edit, {s.id: s for s in edit.add})
    except OutOfRange:
        assert naive(log, edit) is None
    else:
        assert list(found) == naive(log, edit)
        assert start == (2 if edit.log_start is None else edit.log_start)


def test_segment_that_was_not_built_here_is_refused() -> None:
    log = (segment(0, 0, 5), segment(1, 5, 5, sealed=False))
    new = segment(7, 0, 5)
    for built in ({}, {8: new}):
        with pytest.raises(OutOfRange, match="was not built"):
            edited(log, 0, LogEdit((0,), (new,)), built)
    found, _ = edited(log, 0, LogEdit((0,), (new,)), {7: new})
    assert found == (new, log[1])
