"""The time that retention and compaction go by: a wall clock that is not believed at once.

A wall clock that jumps a year ahead makes every record look old, and what is deleted then is gone
for good. So the wall clock is held against what has really passed, by a clock that cannot jump:

    proven   what the time should be: it goes on by the real time that passed, and approaches a
             wall clock that is seen to be ahead by at most as much again, so at twice real time
    now      min(wall clock, proven)

A step back is followed at once, because it deletes nothing; a jump forward takes as long as it is
wide. What is written while the clock is back gets times that are too early, and would be deleted
once the clock is right again: such spells are remembered, and the records of a spell are taken to
be as young as its end. A clock that stays back for a day is believed, and proven follows it.

A wall clock that shows a time before this program existed proves nothing and is never believed. If
there was no other yet (a first start without a battery), the first time that can be right is; what
was written before counts as written then. What was stamped by proven gets no older by that, nor
where somebody vouches for the wall clock (`trusted`): see `odradek.log.deadlines`.

See docs/decisions/0009-retention-clock.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, NamedTuple

from attrs import evolve, frozen

from odradek.log.deadlines import Step, set_ahead, set_back

__all__ = ["BELIEVED_MS", "PLAUSIBLE_MS", "RetentionClock", "Spell", "written_ms"]

FORMAT = 1

TOLERANCE_MS = 60_000
"""How far back a wall clock may be before it counts as wrong: stepping and slewing are less."""

BELIEVED_MS = 24 * 60 * 60 * 1000
"""For how long a wall clock is back, in real time, before it counts as right after all."""

GAIN_MAX_MS = 10 * 60 * 1000
"""The most that is caught up with between two looks: a jump that nobody has seen, because the
broker was not running, cannot have been told to anybody either."""

PLAUSIBLE_MS = 1_666_569_600_000
"""24 October 2022, when Python 3.11 was released, which this needs: no earlier time is right."""

SPELLS_KEPT = 16


class Spell(NamedTuple):
    """The wall clock was back, and showed the times from `from_ms` to `to_ms`, until `until_ms`.

    `until_ms` is in proven time. All in ms since 1970, both ends included.
    """

    from_ms: int
    to_ms: int
    until_ms: int


def written_ms(timestamp: int, spells: Iterable[Spell]) -> int:
    """Return the latest time at which a record with that timestamp may have been written."""
    latest = timestamp
    for spell in spells:
        if spell.from_ms <= timestamp <= spell.to_ms and spell.until_ms > latest:
            latest = spell.until_ms
    return latest


@frozen(slots=True)
class RetentionClock:
    """What is known of the time at one moment of an uptime. Times are in milliseconds.

    `proven_ms`: the time since 1970 that is believed. `boot_id` and `boot_ms`: when that was, as
    how long the machine had been up; two uptimes are compared only under the same id. `back_ms`:
    for how long the wall clock has been back, -1 while it is not; else the last of `spells` is
    not over. `lead_ms`: how much of a jump ahead that is being caught up with is believed so far.
    `steps`: when proven was set ahead; `highest_ms`: the latest time it showed before it was set
    back, 0 if it never was.
    """

    proven_ms: int
    boot_id: str
    boot_ms: int
    back_ms: int = -1
    lead_ms: int = 0
    spells: tuple[Spell, ...] = ()
    steps: tuple[Step, ...] = ()
    highest_ms: int = 0

    @property
    def unset(self) -> bool:
        """Whether the wall clock has never yet shown a time that can be right."""
        return self.proven_ms < PLAUSIBLE_MS

    def advanced(self, wall_ms: int, boot_id: str, boot_ms: int) -> RetentionClock:
        """Return the clock at a later moment, at which the wall clock shows `wall_ms`.

        Time in which the machine was off counts for nothing: nobody can tell how long it was.
        """
        moved, elapsed = self._moved(boot_id, boot_ms)
        if moved.unset and wall_ms >= PLAUSIBLE_MS:
            return moved._set(wall_ms)
        gap = wall_ms - moved.proven_ms
        if gap < -TOLERANCE_MS:
            if gap < -TOLERANCE_MS - self.lead_ms:
                return moved._back(wall_ms, elapsed)
            # The jump ahead was put right before it was believed as a whole.
            return evolve(
                moved,
                proven_ms=wall_ms,
                lead_ms=0,
                back_ms=-1,
                spells=moved._spells_after(elapsed),
                highest_ms=max(moved.highest_ms, moved.proven_ms),
            )
        gained = min(max(gap, -elapsed), elapsed, GAIN_MAX_MS)
        return evolve(
            moved,
            proven_ms=moved.proven_ms + gained,
            lead_ms=self.lead_ms + gained if gained < gap else 0,
            back_ms=-1,
            spells=moved._spells_after(elapsed),
        )

    def trusted(self, wall_ms: int, boot_id: str, boot_ms: int) -> RetentionClock:
        """Return the clock at a later moment, at which somebody vouches for the wall clock.

        They cannot vouch for a time that cannot be right: then it is as `advanced`.
        """
        if wall_ms < PLAUSIBLE_MS:
            return self.advanced(wall_ms, boot_id, boot_ms)
        moved, elapsed = self._moved(boot_id, boot_ms)
        if moved.unset:
            return moved._set(wall_ms)
        return evolve(moved, spells=moved._spells_after(elapsed))._believing(wall_ms)

    def _moved(self, boot_id: str, boot_ms: int) -> tuple[RetentionClock, int]:
        """The clock after the time that really passed, and how much that is."""
        elapsed = boot_ms - self.boot_ms if boot_id and boot_id == self.boot_id else 0
        # A machine that was set back to a saved image has an uptime that goes back.
        elapsed = max(elapsed, 0)
        proven_ms = self.proven_ms + elapsed
        return evolve(self, proven_ms=proven_ms, boot_id=boot_id, boot_ms=boot_ms), elapsed

    def _set(self, wall_ms: int) -> RetentionClock:
        """Go by the first time that can be right.

        Should it be wrong after all, that deletes nothing: whatever is there counts as written now.
        """
        return evolve(self, spells=(Spell(0, wall_ms, wall_ms),))._believing(wall_ms)

    def _believing(self, wall_ms: int) -> RetentionClock:
        """Set proven to the wall clock, without a change to how old anything stamped by it is."""
        steps, gap = self.steps, wall_ms - self.proven_ms
        # Less is slewing, of which there would be a step at each look.
        if gap > TOLERANCE_MS:
            steps = set_ahead(steps, max(self.proven_ms, self.highest_ms), gap)
        elif gap < -TOLERANCE_MS:
            steps = set_back(steps, -gap)
        return evolve(
            self,
            proven_ms=wall_ms,
            lead_ms=0,
            back_ms=-1,
            spells=tuple(spell for spell in self.spells if spell.until_ms <= wall_ms),
            steps=steps,
            highest_ms=max(self.highest_ms, self.proven_ms) if gap < 0 else self.highest_ms,
        )

    def _back(self, wall_ms: int, elapsed: int) -> RetentionClock:
        """Go on while the wall clock is back; the times of this clock have moved already."""
        back_ms = self.back_ms + elapsed if self.back_ms >= 0 else 0
        if back_ms > BELIEVED_MS and wall_ms >= PLAUSIBLE_MS:
            return self._believing(wall_ms)
        spells = self._spells_after(elapsed)
        if self.back_ms >= 0:
            last = spells[-1]
            if last.from_ms <= wall_ms <= last.to_ms + TOLERANCE_MS:
                last = last._replace(to_ms=max(last.to_ms, wall_ms))
                return evolve(self, back_ms=back_ms, spells=(*spells[:-1], last))
        # It went back at some moment since it was last looked at.
        begun = Spell(wall_ms - elapsed - TOLERANCE_MS, wall_ms, self.proven_ms)
        spells = (*spells, begun)
        if len(spells) > SPELLS_KEPT:
            first, second = spells[:2]
            both = Spell(
                min(first.from_ms, second.from_ms),
                max(first.to_ms, second.to_ms),
                max(first.until_ms, second.until_ms),
            )
            spells = (both, *spells[2:])
        return evolve(self, back_ms=back_ms, spells=spells)

    def _spells_after(self, elapsed: int) -> tuple[Spell, ...]:
        """The spells, the last one lasting until now if it was not over before."""
        if self.back_ms < 0:
            return self.spells
        last = self.spells[-1]
        lasting = last._replace(to_ms=last.to_ms + elapsed, until_ms=self.proven_ms)
        return (*self.spells[:-1], lasting)

    def now(self, wall_ms: int) -> int:
        """Return the time to go by, now that the wall clock shows `wall_ms`."""
        return min(wall_ms, self.proven_ms)

    def dump(self) -> bytes:
        """Encode for `load`."""
        value = {
            "format": FORMAT,
            "proven_ms": self.proven_ms,
            "boot_id": self.boot_id,
            "boot_ms": self.boot_ms,
            "back_ms": self.back_ms,
            "lead_ms": self.lead_ms,
            "spells": self.spells,
            "steps": self.steps,
            "highest_ms": self.highest_ms,
        }
        return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()

    @classmethod
    def load(cls, data: bytes) -> RetentionClock:
        """Decode what `dump` returned. Raises ValueError for anything else."""
        value = json.loads(data)
        if not isinstance(value, dict) or value.get("format") != FORMAT:
            raise ValueError(f"it is not a clock of format {FORMAT}")
        boot_id, spells, steps = value.get("boot_id"), value.get("spells"), value.get("steps", [])
        if not (isinstance(boot_id, str) and isinstance(spells, list) and isinstance(steps, list)):
            raise ValueError("the id of an uptime, the spells or the steps are missing")
        names = ("proven_ms", "boot_ms", "back_ms", "lead_ms")
        numbers = [*(value.get(name) for name in names), value.get("highest_ms", 0)]
        proven_ms, boot_ms, back_ms, lead_ms, highest_ms = _numbers(numbers, 5)
        if back_ms >= 0 and not spells:
            raise ValueError("the spell that is not over is missing")
        return cls(
            proven_ms=proven_ms,
            boot_id=boot_id,
            boot_ms=boot_ms,
            back_ms=back_ms,
            lead_ms=lead_ms,
            spells=tuple(Spell(*_numbers(each, 3)) for each in spells),
            steps=tuple(Step(*_numbers(each, 2)) for each in steps),
            highest_ms=highest_ms,
        )


def _numbers(values: Any, count: int) -> list[int]:
    """So many whole numbers. Raises ValueError for anything else."""
    if (
        isinstance(values, list)
        and len(values) == count
        and all(type(value) is int for value in values)
    ):
        return values
    raise ValueError(f"{values!r} are not {count} whole numbers")
