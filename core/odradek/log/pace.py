"""How fast work in the background may go: a token bucket. Sans-IO."""

from __future__ import annotations

__all__ = ["Pace"]


class Pace:
    """At most `bytes_per_s` in the long run, and `burst` bytes at once after a pause.

    0 for `bytes_per_s` means no limit. More than `burst` may be taken at a time: what is taken
    is paid for by waiting afterwards.
    """

    __slots__ = ("_burst_s", "_paid_until", "_rate")

    def __init__(self, bytes_per_s: float, burst: int = 0) -> None:
        self._rate = bytes_per_s
        self._burst_s = burst / bytes_per_s if bytes_per_s else 0.0
        self._paid_until: float | None = None

    def take(self, size: int, now: float) -> float:
        """Note that `size` bytes are used at `now`; return how many seconds to wait after it.

        `now` is in seconds of a clock that never goes back.
        """
        if not self._rate:
            return 0.0
        start = now - self._burst_s
        if self._paid_until is not None and self._paid_until > start:
            start = self._paid_until
        self._paid_until = start + size / self._rate
        return max(self._paid_until - now, 0.0)
