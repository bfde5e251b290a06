"""What every part of the group machine works with: the time, the timers, the way out."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from odradek.errors import ErrorCode
from odradek.group.effects import NOTHING, Effects, LogRecord, Reply, Write
from odradek.group.member_budget import MemberBudget, Weights
from odradek.group.timers import TimerQueue

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from odradek.group.settings import GroupSettings
    from odradek.wire.schema import Struct

__all__ = ["Context"]

_RECORDS_PER_WRITE = 500
"""Tombstones per batch where there may be any number of them, so that one is soon decoded."""

_RECORD_BYTES = 32
"""What a record takes in a batch besides its key and value, at most."""

_ERROR_OF_APPEND = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.INVALID_FETCH_SIZE: ErrorCode.UNKNOWN_SERVER_ERROR,
}
"""What a client of the group is told when an append fails (Kafka's GroupMetadataManager and
CoordinatorOperationExceptionHelper): it knows nothing of the log behind the coordinator."""


class Context:
    """One shard's time, timers, ids and effects.

    `now` and `now_ms` are those of the call under way; `begin` and `end` frame it.
    """

    def __init__(
        self, settings: GroupSettings, new_id: Callable[[], str], budget: MemberBudget
    ) -> None:
        self.settings = settings
        self.weights = Weights(budget)
        self.new_id = new_id
        self.timers = TimerQueue()
        self.now = 0.0
        self.now_ms = 0
        self._replies: list[Reply] = []
        self._writes: list[Write] = []
        self._last_write = 0
        self._outcomes: dict[int, Callable[[ErrorCode], None]] = {}  # of writes, oldest first
        self._fates: dict[int, ErrorCode] = {}  # told before that of an older write

    def begin(self, now: float, now_ms: int) -> None:
        """Begin a call at this time."""
        self.now = now
        self.now_ms = now_ms

    def end(self) -> Effects:
        """End the call: return what it asks of the host."""
        if not self._replies and not self._writes:
            return NOTHING
        effects = Effects(self._replies, self._writes)
        self._replies = []
        self._writes = []
        return effects

    def after(self, milliseconds: int) -> float:
        """Return the deadline that lies so far ahead."""
        return self.now + milliseconds / 1000

    def reply(self, ticket: int, message: Struct) -> None:
        """Answer the request with this ticket."""
        self._replies.append(Reply(ticket, message))

    def write(self, records: Sequence[LogRecord], outcome: Callable[[ErrorCode], None]) -> None:
        """Ask for one batch; `outcome` is called when its fate is known."""
        self._last_write += 1
        self._outcomes[self._last_write] = outcome
        self._writes.append(Write(self._last_write, tuple(records), self.now_ms))

    def write_many(
        self,
        records: Sequence[LogRecord],
        each: Callable[[Sequence[LogRecord]], None],
        outcome: Callable[[ErrorCode], None],
    ) -> None:
        """Ask for any number of records, in several batches where one might be too large.

        `each` is called with the records of a batch that is stored, `outcome` in the end, with
        the first error there was.
        """
        first_error = ErrorCode.NONE
        left = 0

        def one(batch: Sequence[LogRecord], error: ErrorCode) -> None:
            nonlocal first_error, left
            left -= 1
            if error:
                first_error = first_error or error
            else:
                each(batch)
            if not left:
                outcome(first_error)

        batches = list(self._portions(records))
        left = len(batches)
        for batch in batches:
            self.write(batch, partial(one, batch))

    def _portions(self, records: Sequence[LogRecord]) -> Iterator[Sequence[LogRecord]]:
        start = size = 0
        for at, (key, value) in enumerate(records):
            weight = _RECORD_BYTES + len(key) + len(value or b"")
            if at - start == _RECORDS_PER_WRITE or size + weight > self.settings.batch_max_bytes:
                if at > start:
                    yield records[start:at]
                start, size = at, 0
            size += weight
        yield records[start:]

    def settle(self, write_id: int, error: ErrorCode) -> None:
        """Take note of a write's fate, and act on it once those of all before it are known.

        Raises ValueError for a write that is not under way: never asked for, or settled before.
        """
        if write_id not in self._outcomes or write_id in self._fates:
            raise ValueError(f"write {write_id} is not under way")
        self._fates[write_id] = _ERROR_OF_APPEND.get(error, error)
        while self._outcomes:
            oldest = next(iter(self._outcomes))
            if oldest not in self._fates:
                return
            self._outcomes.pop(oldest)(self._fates.pop(oldest))

    def abandon(self, error: ErrorCode) -> None:
        """Settle every write under way with `error`, and ask for no more."""
        self._fates.clear()
        while self._outcomes:
            self._outcomes.pop(next(iter(self._outcomes)))(error)
        self._writes.clear()

    @property
    def writes_under_way(self) -> int:
        """How many writes were asked for and not settled."""
        return len(self._outcomes)
