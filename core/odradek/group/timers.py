"""Timers by a heap with lazy deletion: moving one costs a comparison, not a search.

A heartbeat moves its member's deadline forward. The heap keeps the entry of the earlier
deadline; when that comes up, the timer is found not to be due and gets an entry for the
deadline it has by then. So a timer has one entry that counts, and a member costs one heap
operation per session timeout, however often it is heard of.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from math import inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Timer", "TimerQueue"]

_COMPACT_FROM = 256


class Timer:
    """Calls `fire` once its deadline, in monotonic seconds, has come; inf while it is off."""

    __slots__ = ("_queued", "deadline", "fire")

    def __init__(self, fire: Callable[[], None]) -> None:
        self.fire = fire
        self.deadline = inf
        self._queued = inf  # the deadline of its earliest entry in the heap


class TimerQueue:
    """The timers of a shard.

    Entries that count for nothing are dropped when they come up, or all at once when they are
    more than half of the heap: its size stays within twice the number of timers that are on.
    """

    __slots__ = ("_heap", "_on", "_serial")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Timer]] = []
        self._on = 0
        self._serial = 0

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def next_deadline(self) -> float:
        """When a timer may be due: not later than the first that is; inf when none is on."""
        return self._heap[0][0] if self._heap else inf

    def set(self, timer: Timer, deadline: float) -> None:
        """Let `timer` fire at `deadline`, and no more at the deadline it had."""
        if timer.deadline == inf:
            self._on += 1
        timer.deadline = deadline
        if deadline < timer._queued:
            self._push(timer, deadline)

    def cancel(self, timer: Timer) -> None:
        """Turn `timer` off; nothing when it is off."""
        if timer.deadline != inf:
            timer.deadline = inf
            self._on -= 1

    def due(self, now: float) -> Timer | None:
        """Turn off and return a timer whose deadline is not after `now`, the earliest first."""
        while self._heap and self._heap[0][0] <= now:
            queued, _, timer = heappop(self._heap)
            if queued != timer._queued:
                continue
            timer._queued = inf
            if timer.deadline <= now:
                self.cancel(timer)
                return timer
            if timer.deadline != inf:
                self._push(timer, timer.deadline)
        return None

    def _push(self, timer: Timer, deadline: float) -> None:
        timer._queued = deadline
        self._serial += 1
        heappush(self._heap, (deadline, self._serial, timer))
        if len(self._heap) > _COMPACT_FROM and len(self._heap) > 2 * self._on:
            self._compact()

    def _compact(self) -> None:
        kept = []
        for entry in self._heap:
            timer = entry[2]
            if entry[0] != timer._queued:
                continue
            if timer.deadline == inf:
                timer._queued = inf
            else:
                kept.append(entry)
        self._heap = kept
        heapify(self._heap)
