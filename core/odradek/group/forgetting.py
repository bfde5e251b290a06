"""Offsets must not outlive their topic: a later topic of that name would be read from them.

A deleted topic's offsets are out of force at once. They are still in the log, and tombstones have
to get there: for a few groups at a time, so that nobody waits, and again until each is stored,
because the log may be full when the topic goes. A commit to a later topic of that name takes the
place of the tombstone, which must not come after it: while one is under way, the tombstone waits.
"""

from __future__ import annotations

from functools import partial
from math import inf
from typing import TYPE_CHECKING

from odradek.group.timers import Timer

if TYPE_CHECKING:
    from collections.abc import Collection

    from odradek.errors import ErrorCode
    from odradek.group.context import Context
    from odradek.group.offset_requests import OffsetRequests
    from odradek.group.offsets import OffsetStore

__all__ = ["Forgetting"]

_EFFORT = 1_000
"""Groups and offsets that are looked at in one go: about a millisecond."""

_RETRY_MS = 1_000
_RETRY_MAX_MS = 60_000


class Forgetting:
    """Writes the tombstones of offsets whose topic is gone."""

    def __init__(self, context: Context, store: OffsetStore, requests: OffsetRequests) -> None:
        self._context = context
        self._store = store
        self._requests = requests
        self._timer = Timer(self._go_on)
        self._unchecked: list[str] = []  # groups of the round under way
        self._rest: dict[str, list[tuple[str, int]]] = {}  # of a group that has many
        self._all = False  # whether the next round is over all groups
        self._owing: dict[str, None] = {}  # groups that the next round is over otherwise
        self._delay_ms = _RETRY_MS

    @property
    def unfinished(self) -> int:
        """How many groups have offsets left over that could not be removed yet."""
        return len(self._owing)

    def forget(self, names: Collection[str]) -> None:
        """Put the offsets of these topics out of force, and begin to remove them."""
        self._store.forget(names)
        self._all = True
        if not self._unchecked:
            self._go_on()

    def stop(self) -> None:
        """Go on no more."""
        self._context.timers.cancel(self._timer)

    def _go_on(self) -> None:
        if not self._unchecked:
            if self._all:
                self._unchecked = list(self._store.group_ids())
                self._store.begin_round()
            else:
                self._unchecked = list(self._owing)
            self._all = False
            self._owing.clear()
        effort = 0
        while self._unchecked and effort < _EFFORT:
            effort += 1 + self._bury(self._unchecked.pop(), _EFFORT - effort)
        if not self._unchecked:
            self._store.end_round()
        if self._unchecked or self._all:
            self._context.timers.set(self._timer, self._context.after(1))
        else:
            self._wait()

    def _bury(self, group_id: str, most: int) -> int:
        """Ask for the tombstones of one group, the rest of them at its next turn; return how many.

        The group is looked at again when their fate is known, or else because a commit is under
        way where a tombstone is wanted.
        """
        offsets = self._store.of(group_id)
        left = self._rest.pop(group_id, None) or list(offsets.doomed)
        if len(left) > most:
            self._rest[group_id] = left[most:]
            self._unchecked.append(group_id)
        doomed = [
            key for key in left[:most] if key in offsets.doomed and key not in offsets.pending
        ]
        if doomed:
            self._requests.remove(group_id, doomed, partial(self._buried, group_id))
        elif offsets.doomed:
            self._owing[group_id] = None
        return len(left[:most])

    def _buried(self, group_id: str, error: ErrorCode) -> None:
        if not error:
            self._delay_ms = _RETRY_MS
        if self._store.of(group_id).doomed:
            self._owing[group_id] = None
            self._wait()

    def _wait(self) -> None:
        """Try again what failed, later each time."""
        if self._owing and self._timer.deadline == inf:
            self._context.timers.set(self._timer, self._context.after(self._delay_ms))
            self._delay_ms = min(2 * self._delay_ms, _RETRY_MAX_MS)
