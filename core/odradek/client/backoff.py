"""How long to wait before the next try."""

from __future__ import annotations

from random import Random

__all__ = ["Backoff"]


class Backoff:
    """Exponential waits with jitter: `first`, doubling up to `largest`, give or take 20 %.

    Jitter keeps the clients of a broker that came back from returning all at once (KIP-580).
    """

    __slots__ = ("_failures", "_first", "_largest", "_random")

    def __init__(self, first: float, largest: float, random: Random | None = None) -> None:
        self._first = first
        self._largest = largest
        self._random = random or Random()
        self._failures = 0

    @property
    def failures(self) -> int:
        """How often `next` was called since the last `reset`."""
        return self._failures

    def next(self) -> float:
        """Count a failure and return the seconds to wait."""
        wait = min(self._first * (1 << min(self._failures, 30)), self._largest)
        self._failures += 1
        return wait * self._random.uniform(0.8, 1.2)

    def reset(self) -> None:
        """Forget the failures: something succeeded."""
        self._failures = 0
