"""How groups end: by expiry, by DeleteGroups, or because nothing is left of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from odradek.errors import ErrorCode
from odradek.group.classic import ClassicGroup, Event, State
from odradek.group.records import encode_group_key
from odradek.group.timers import Timer

if TYPE_CHECKING:
    from collections.abc import Callable

    from odradek.group.classic_rebalance import Rebalancing
    from odradek.group.context import Context
    from odradek.group.offset_requests import OffsetRequests
    from odradek.group.offsets import OffsetStore

__all__ = ["Retention"]

_EFFORT = 2_000
"""Groups and offsets that are looked at in one go: about a millisecond."""


class Retention:
    """Removes groups from `groups`, and offsets that have expired."""

    def __init__(
        self,
        context: Context,
        groups: dict[str, ClassicGroup],
        store: OffsetStore,
        rebalancing: Rebalancing,
        requests: OffsetRequests,
        counts_from: Callable[[int], int],
    ) -> None:
        self._context = context
        self._groups = groups
        self._store = store
        self._rebalancing = rebalancing
        self._requests = requests
        self._counts_from = counts_from
        self._check = Timer(self._expire)
        self._unchecked: list[str] = []  # groups of the round under way

    def start(self) -> None:
        """Look for what has expired, from now on at every interval."""
        interval = max(self._context.settings.offsets_retention_check_interval_ms, 1)
        self._context.timers.set(self._check, self._context.after(interval))

    def stop(self) -> None:
        """Look no more."""
        self._context.timers.cancel(self._check)

    def drop_if_idle(self, group_id: str) -> None:
        """Drop a group that has nothing, and of which the log knows nothing.

        Otherwise anybody could fill the memory by asking for one group id after the other.
        """
        group = self._groups.get(group_id)
        if (
            group is not None
            and group.state is State.EMPTY
            and not (group.recorded or group.pending or group.deleting)
            and not self._store.of(group_id)
        ):
            self._end(group, Event.EXPIRED)

    def delete(
        self, group: ClassicGroup, event: Event, outcome: Callable[[ErrorCode], None]
    ) -> None:
        """Write the tombstones of an Empty group and of its offsets; then it is gone."""
        group.deleting = True

        def deleted(error: ErrorCode) -> None:
            group.deleting = False
            if not error:
                self._end(group, event)
            outcome(error)

        doomed = list(self._store.of(group.group_id).partitions())
        tombstone = encode_group_key(group.group_id), None
        self._requests.remove(group.group_id, doomed, deleted, last=[tombstone])

    def _end(self, group: ClassicGroup, event: Event) -> None:
        self._rebalancing.release(group)
        group.step(event, self._context.now_ms)
        del self._groups[group.group_id]

    def _expire(self) -> None:
        """Look through some groups; the others' turn is a moment later, so that nobody waits."""
        if not self._unchecked:
            self._unchecked = list(self._groups)
        effort = 0
        while self._unchecked and effort < _EFFORT:
            group = self._groups.get(self._unchecked.pop())
            if group is not None and not group.deleting:
                self._expire_offsets(group)
                effort += 1 + len(self._store.of(group.group_id))
        if self._unchecked:
            self._context.timers.set(self._check, self._context.after(1))
        else:
            self.start()

    def _expire_offsets(self, group: ClassicGroup) -> None:
        """Remove what has expired of a group, and the group with the last of it.

        Offsets count from the time the group became empty, or from their commit: in a group that
        never had members, and where topics that nobody subscribes to any more are left over in a
        Stable consumer group. While a rebalance goes on nothing expires.
        """
        since_ms = None
        if group.protocol_type is not None:
            if group.state is State.EMPTY:
                since_ms = group.state_timestamp_ms
                if since_ms is not None:
                    since_ms = self._counts_from(since_ms)
            elif group.state is not State.STABLE or group.subscribed is None:
                return
        offsets = self._store.of(group.group_id)
        retention = self._context.settings.offsets_retention_ms
        expired = offsets.expired(
            self._context.now_ms, retention, since_ms, group.is_subscribed, self._counts_from
        )
        if group.state is State.EMPTY and len(expired) == len(offsets) and not group.pending:
            self.delete(group, Event.EXPIRED, lambda error: None)
        elif expired:
            self._requests.remove(group.group_id, expired, lambda error: None)
