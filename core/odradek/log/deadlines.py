"""What a step of the clock does to deadlines that were counted from before it: nothing. Sans-IO.

The clock that deadlines count from (`odradek.log.clock`) is set ahead where somebody vouches for
the wall clock, and where a machine without a battery learns the time. Commits and tombstones carry
the time of before then; without more they would be as old as the step is wide, and go at once.

A stamp is moved by the steps that came after it; a deadline that carries no stamp of its own (the
delete horizon of a batch) is held against a time that goes on from where it was before the step,
until every deadline of before the step has passed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["STEPS_KEPT", "Step", "counts_from", "passed", "set_ahead", "set_back"]

STEPS_KEPT = 64


class Step(NamedTuple):
    """The clock was set ahead by `by_ms`, and no stamp of before is later than `at_ms`."""

    at_ms: int
    by_ms: int


def counts_from(stamp_ms: int, steps: Sequence[Step]) -> int:
    """Return the time, on the clock of now, that was shown as `stamp_ms` when it was stamped."""
    return stamp_ms + sum(step.by_ms for step in steps if stamp_ms <= step.at_ms)


def passed(now_ms: int, delay_ms: int, steps: Sequence[Step]) -> int:
    """Return the time by which deadlines have passed that were set `delay_ms` ahead.

    Right for what was set before a step and after it, in that no deadline passes too early: one
    that was set after it lies behind `at_ms + by_ms + delay_ms`.
    """
    for step in reversed(steps):
        if now_ms >= step.at_ms + step.by_ms + delay_ms:
            break
        now_ms -= step.by_ms
    return now_ms


def set_ahead(steps: Sequence[Step], at_ms: int, by_ms: int) -> tuple[Step, ...]:
    """Return the steps with one more; two become one beyond `STEPS_KEPT`.

    Of two that became one, stamps between them are moved by both, so they get old later. Those two
    are chosen for which that is the least for their age, so that a machine that is off every night
    for years is right about the last weeks, and about what is older by a part of its age.
    """
    kept = [*steps, Step(at_ms, by_ms)]
    if len(kept) > STEPS_KEPT:
        first = min(
            range(len(kept) - 1),
            key=lambda index: kept[index].by_ms / max(at_ms - kept[index].at_ms, 1),
        )
        earlier, later = kept[first : first + 2]
        kept[first : first + 2] = [Step(later.at_ms, earlier.by_ms + later.by_ms)]
    return tuple(kept)


def set_back(steps: Sequence[Step], by_ms: int) -> tuple[Step, ...]:
    """Return the steps after the clock was set back, which takes the last ones back."""
    kept = list(steps)
    while kept and by_ms > 0:
        last = kept.pop()
        if last.by_ms > by_ms:
            kept.append(last._replace(by_ms=last.by_ms - by_ms))
        by_ms -= last.by_ms
    return tuple(kept)
