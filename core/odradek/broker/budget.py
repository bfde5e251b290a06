"""The bytes that requests and responses may hold in memory, over all connections."""

from __future__ import annotations

from collections import deque

import trio

__all__ = ["Budget"]


class Budget:
    """A count of bytes with a limit; who wants more than is left waits, first come, first served.

    A connection takes what one frame or one response needs, all at once and holding nothing
    else, so that those who wait never wait for one another.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._waiting: deque[tuple[int, trio.Event]] = deque()

    @property
    def contended(self) -> bool:
        """Whether somebody waits, or soon will: connections then keep no spare buffers."""
        return bool(self._waiting) or 2 * self.used > self.limit

    async def take(self, count: int) -> None:
        """Take `count` bytes, waiting for them if need be. More than the limit counts as all.

        Cancelled: nothing was taken.
        """
        count = min(count, self.limit)
        if not self._waiting and self.used + count <= self.limit:
            self.used += count
            return
        granted = trio.Event()
        slot = (count, granted)
        self._waiting.append(slot)
        try:
            await granted.wait()
        except BaseException:
            if granted.is_set():
                self.give(count)
            else:
                self._waiting.remove(slot)
                self._grant()
            raise

    def give(self, count: int) -> None:
        """Give back what `take` was called with."""
        self.used -= min(count, self.limit)
        self._grant()

    def _grant(self) -> None:
        while self._waiting and self.used + self._waiting[0][0] <= self.limit:
            count, granted = self._waiting.popleft()
            self.used += count
            granted.set()
