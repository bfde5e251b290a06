"""Timers: each fires once, at its last deadline, and the heap stays small."""

from math import inf

from hypothesis import given
from hypothesis import strategies as st

from odradek.group.timers import Timer, TimerQueue


def drain(queue: TimerQueue, now: float) -> list[Timer]:
    found = []
    while (timer := queue.due(now)) is not None:
        found.append(timer)
    return found


@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.integers(0, 60) | st.none() | st.just("advance")),
        max_size=200,
    )
)
def test_a_timer_fires_at_its_last_deadline_and_the_next_deadline_is_not_late(steps):
    queue = TimerQueue()
    timers = [Timer(lambda: None) for _ in range(10)]
    expected = dict.fromkeys(timers, inf)
    now = 0.0
    for number, step in steps:
        timer = timers[number]
        if step == "advance":
            now += number
            due = {each for each, deadline in expected.items() if deadline <= now}
            assert set(drain(queue, now)) == due
            for each in due:
                expected[each] = inf
        elif step is None:
            queue.cancel(timer)
            expected[timer] = inf
        else:
            queue.set(timer, now + step)
            expected[timer] = now + step
        assert all(timer.deadline == deadline for timer, deadline in expected.items())
        assert queue.next_deadline <= min(expected.values())


def test_timers_come_up_in_order():
    queue = TimerQueue()
    late, early = Timer(lambda: None), Timer(lambda: None)
    queue.set(late, 2.0)
    queue.set(early, 1.0)
    assert drain(queue, 2.0) == [early, late]


def test_moving_a_timer_ahead_adds_nothing_to_the_heap():
    queue = TimerQueue()
    timer = Timer(lambda: None)
    for second in range(1000):
        queue.set(timer, second + 10.0)
    assert len(queue) == 1


def test_timers_that_were_turned_off_do_not_pile_up():
    queue = TimerQueue()
    kept = Timer(lambda: None)
    queue.set(kept, 500.0)
    for number in range(10_000):
        timer = Timer(lambda: None)
        queue.set(timer, 1000.0 + number)
        queue.cancel(timer)
    assert len(queue) <= 512
    assert drain(queue, 10_000.0) == [kept]
