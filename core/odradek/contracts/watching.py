"""The level-triggered watch (C13, C14), written once for every coordinator plugin.

A plugin feeds `ChangeBuffer` with what it learns; the reader iterates. What is not read yet is
kept as one newest state per key, so the memory of a watch is bounded by the directory and not by
how long its reader sleeps.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

import trio

from odradek.contracts.coordinator import Change, CoordinatorError, Entry, Watch

__all__ = ["ChangeBuffer"]


class ChangeBuffer(Watch):
    """A watch that somebody else fills.

    `snapshot` is the directory when the watch begins; each `tell` updates one key, `resync` all
    of them after a gap, `fail` ends the watch. States that are not newer than the last one told
    for their key are dropped, so a plugin may tell the same thing twice or out of order.

    All methods but iteration are synchronous and for the trio thread.
    """

    def __init__(self, snapshot: Mapping[str, Entry]) -> None:
        self.snapshot = dict(snapshot)
        self._newest = dict(snapshot)
        self._seen = set(snapshot)  # the keys that exist as far as the reader knows
        self._pending: OrderedDict[str, None] = OrderedDict()
        self._wakeup = trio.Event()
        self._failure: CoordinatorError | None = None
        self._reading = False

    def tell(self, change: Change) -> None:
        """Take the newest state of a key."""
        key, entry = change.key, change.entry
        last = self._newest.get(key)
        if entry is None:
            if last is None:
                return
            del self._newest[key]
            if key not in self._seen:  # it came and went unread: nothing to tell
                self._pending.pop(key, None)
                return
        elif last is not None and entry.revision <= last.revision:
            return
        else:
            self._newest[key] = entry
        self._pending[key] = None
        self._wakeup.set()

    def resync(self, entries: Mapping[str, Entry]) -> None:
        """Take the whole directory as it is now, and tell what differs from what was known."""
        for key in self._newest.keys() - entries.keys():
            self.tell(Change(key, None))
        for key, entry in entries.items():
            self.tell(Change(key, entry))

    def fail(self, error: CoordinatorError) -> None:
        """End the watch: `error` is raised to the reader from now on, at once."""
        self._failure = error
        self._wakeup.set()

    async def __anext__(self) -> Change:
        """Wait for the next change; see `Watch`."""
        if self._reading:
            raise trio.BusyResourceError("another task is reading this watch")
        self._reading = True
        try:
            await trio.lowlevel.checkpoint()
            while not self._pending and self._failure is None:
                # Only this reader waits on the event, so it may be replaced once it has fired.
                await self._wakeup.wait()
                self._wakeup = trio.Event()
        finally:
            self._reading = False
        if self._failure is not None:
            raise self._failure
        key, _ = self._pending.popitem(last=False)
        entry = self._newest.get(key)
        if entry is None:
            self._seen.discard(key)
        else:
            self._seen.add(key)
        return Change(key, entry)
