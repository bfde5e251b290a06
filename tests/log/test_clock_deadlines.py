"""Deadlines over steps of the clock: none passes before its time, and each passes at last."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from odradek.log.deadlines import STEPS_KEPT, Step, counts_from, passed, set_ahead, set_back

HOUR = 3_600_000
DELAY = 24 * HOUR


def test_without_steps_a_clock_is_a_clock() -> None:
    assert counts_from(5, ()) == 5
    assert passed(5, 3, ()) == 5


@given(
    st.lists(st.tuples(st.integers(1, 50 * HOUR), st.integers(1, 1000 * HOUR)), max_size=200),
    st.integers(1, 60 * HOUR),
)
def test_deadlines_pass_neither_too_early_nor_never(
    history: list[tuple[int, int]], delay: int
) -> None:
    """`history`: real time that passes, and then by how much the clock is set ahead."""
    real = now = 0
    steps: tuple[Step, ...] = ()
    stamped = [(0, 0)]
    for waited, by in history:
        # The moments at which something may pass too early: before a step, and after it.
        for real_ms, now_ms in ((real + waited, now + waited), (real + waited, now + waited + by)):
            if now_ms > now + waited:
                steps = set_ahead(steps, now + waited, by)
            assert len(steps) <= STEPS_KEPT
            by_horizon = passed(now_ms, delay, steps)
            assert by_horizon <= now_ms
            for since, stamp in stamped:
                assert now_ms - counts_from(stamp, steps) <= real_ms - since
                if by_horizon >= stamp + delay:
                    assert real_ms - since >= delay
        real, now = real + waited, now + waited + by
        stamped.append((real, now))
    jumped = sum(by for _, by in history)
    for since, stamp in stamped:
        late = now + delay + jumped - counts_from(stamp, steps)
        assert late >= delay + real - since, "it passes in time that is known"
    assert passed(now + delay + jumped, delay, steps) == now + delay + jumped


def test_machine_that_is_off_every_night_forgets_what_is_old() -> None:
    now = real = 0
    steps: tuple[Step, ...] = ()
    stamps = []
    for _ in range(1000):
        stamps.append((real, now))
        now, real = now + 12 * HOUR, real + 12 * HOUR
        steps = set_ahead(steps, now, 12 * HOUR)
        now += 12 * HOUR
    ages = [now - counts_from(stamp, steps) for _, stamp in stamps]
    assert ages[-10:] == [real - since for since, _ in stamps[-10:]], "what is new is right"
    for (since, _), age in zip(stamps, ages, strict=True):
        assert 0.8 * (real - since) <= age <= real - since
    assert passed(now + 12 * HOUR, 24 * HOUR, steps) == now + 12 * HOUR - 12 * HOUR


def test_what_was_set_back_is_no_step_any_more() -> None:
    steps = (Step(10, 100), Step(200, 50))
    assert set_back(steps, 20) == (Step(10, 100), Step(200, 30))
    assert set_back(steps, 50) == (Step(10, 100),)
    assert set_back(steps, 60) == (Step(10, 90),)
    assert set_back(steps, 1000) == ()
