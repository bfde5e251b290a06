"""The time that retention and compaction go by: a wall clock that is not believed at once.

A wall clock that jumps a year ahead makes every record look old, and what is deleted then is gone
for good. So the wall clock is held against what has really passed, by a clock that cannot jump:

    proven   what the wall clock may show by now: it goes on by the real time that passed, and
             approaches the wall clock by at most as much again, so at twice real time
    now      min(wall clock, proven)

A step back is followed at once, because it deletes nothing; a jump forward takes as long as it is
wide. See docs/decisions/0009-retention-clock.md.
"""

from __future__ import annotations

import json

from attrs import frozen

__all__ = ["RetentionClock"]

FORMAT = 1


@frozen(slots=True)
class RetentionClock:
    """What is known of the time at one moment of an uptime. Times are in milliseconds.

    `proven_ms`: the latest time since 1970 that is believed. `boot_id` and `boot_ms`: when that
    was, as how long the machine had been up; two uptimes are compared only under the same id.
    """

    proven_ms: int
    boot_id: str
    boot_ms: int

    def advanced(self, wall_ms: int, boot_id: str, boot_ms: int) -> RetentionClock:
        """Return the clock at a later moment. It never goes back.

        Time in which the machine was off counts for nothing: nobody can tell how long it was.
        """
        elapsed = boot_ms - self.boot_ms if boot_id and boot_id == self.boot_id else 0
        # A machine that was set back to a saved image has an uptime that goes back.
        elapsed = max(elapsed, 0)
        proven = self.proven_ms + elapsed
        proven += min(max(wall_ms - proven, -elapsed), elapsed)
        return RetentionClock(proven, boot_id, boot_ms)

    def now(self, wall_ms: int) -> int:
        """Return the time to go by, now that the wall clock shows `wall_ms`."""
        return min(wall_ms, self.proven_ms)

    def behind(self, wall_ms: int) -> int:
        """Return how much of what the wall clock shows is not believed yet, 0 for nothing.

        That is also how long it takes to be believed, if it is shown all the while.
        """
        return max(wall_ms - self.proven_ms, 0)

    def dump(self) -> bytes:
        """Encode for `load`."""
        value = {
            "format": FORMAT,
            "proven_ms": self.proven_ms,
            "boot_id": self.boot_id,
            "boot_ms": self.boot_ms,
        }
        return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()

    @classmethod
    def load(cls, data: bytes) -> RetentionClock:
        """Decode what `dump` returned. Raises ValueError for anything else."""
        value = json.loads(data)
        if not isinstance(value, dict) or value.get("format") != FORMAT:
            raise ValueError(f"not a clock of format {FORMAT}")
        proven_ms, boot_id, boot_ms = (value.get(k) for k in ("proven_ms", "boot_id", "boot_ms"))
        if not (isinstance(proven_ms, int) and isinstance(boot_ms, int)):
            raise ValueError("a clock whose times are not whole numbers")
        if not isinstance(boot_id, str):
            raise ValueError("a clock without the id of an uptime")
        return cls(proven_ms, boot_id, boot_ms)
