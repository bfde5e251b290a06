"""The faults of a broker in another thread, called from this one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import trio

from odradek.broker.faults import Faults as _Faults
from odradek.broker.faults import When
from odradek.portal import Portal

if TYPE_CHECKING:
    from odradek.errors import ErrorCode

__all__ = ["Faults"]

T = TypeVar("T")


class Faults:
    """Faults on purpose, in force when the call that asks for them returns.

    Safe from any thread. An API is named as in Kafka's protocol ("Produce", "OffsetCommit") or
    given by its key. Rules outlive `stop` and `restart` of the broker.
    """

    def __init__(self, portal: Portal, rules: _Faults) -> None:
        self._portal = portal
        self._rules = rules

    def fail(
        self,
        api: str | int,
        error: ErrorCode | str | int,
        times: int | None = 1,
        when: When | None = None,
    ) -> None:
        """Answer the next `times` requests (None: all) with an error, without handling them.

        `error`: such as "NOT_LEADER_OR_FOLLOWER". It stands wherever the response has room for
        one. `when` is told the decoded request and says whether it is meant; it runs in the
        broker's thread and must not block. Raises ValueError for an API or an error that does not
        exist, with the nearest name that does.
        """
        self._do(lambda: self._rules.fail(api, error, times, when))

    def delay(
        self, api: str | int, seconds: float, times: int | None = 1, when: When | None = None
    ) -> None:
        """Let the next `times` requests wait before they are handled, and what is behind them on
        their connection with them. Otherwise as `fail`.
        """
        self._do(lambda: self._rules.delay(api, seconds, times, when))

    def disconnect(
        self,
        api: str | int,
        times: int | None = 1,
        when: When | None = None,
        *,
        after: bool = False,
    ) -> None:
        """End the connection by which such a request comes. Otherwise as `fail`.

        `after`: the request is handled first, and only its answer is lost.
        """
        self._do(lambda: self._rules.disconnect(api, times, when, after=after))

    def clear(self) -> None:
        """Withdraw every rule, and let go on what waits for a delay to end."""
        self._do(self._rules.clear)

    @property
    def pending(self) -> int:
        """How many rules still wait for requests that they meet."""
        return self._do(lambda: self._rules.pending)

    def seen(self, api: str | int) -> int:
        """Return how many requests of `api` the broker has read, whatever became of them."""
        return self._do(lambda: self._rules.seen(api))

    @property
    def requests(self) -> dict[str, int]:
        """Requests read so far, by API: such as `{"ApiVersions": 1, "Metadata": 2}`."""
        return self._do(self._rules.requests)

    def wait_seen(self, api: str | int, count: int = 1, timeout: float = 10.0) -> None:
        """Return once `count` requests of `api` were read. Raises TimeoutError."""

        async def wait() -> bool:
            with trio.move_on_after(timeout) as scope:
                await self._rules.wait_seen(api, count)
            return not scope.cancelled_caught

        if not self._portal.call(wait):
            raise TimeoutError(
                f"{self.seen(api)} requests of {api} within {timeout:g} s, not {count}"
            )

    def _do(self, function: Callable[[], T]) -> T:
        return self._portal.call_sync(function)
