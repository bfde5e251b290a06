"""Faults on purpose: requests answered with an error, late, or by the end of their connection.

    faults = Faults()
    faults.attach(broker)                     # from now on requests go through `faults.answer`
    faults.fail("Produce", ErrorCode.NOT_LEADER_OR_FOLLOWER, times=2)
    faults.disconnect("OffsetCommit", after=True)

For tests of programs that have to live with what a network and a cluster do. A broker that has no
faults attached does nothing for them; one that has counts its requests, too.

A rule meets requests of one API, the first `times` of them that satisfy `when`, in the order in
which they are read. Several rules of one API are looked at in the order they were made: delays add
up, and the first one that decides the request's fate ends the search. Everything here is called in
the broker's trio run; `odradek.blocking` and the pytest plugin call it from other threads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import trio
from attrs import define, field

from odradek.broker.dispatch import OFFERED, answer
from odradek.broker.refusal import refusal
from odradek.broker.waiting import HangUp, Outstanding
from odradek.contracts.background import background
from odradek.contracts.storage import DataRef
from odradek.errors import ErrorCode
from odradek.wire import (
    API,
    Message,
    RequestHeader,
    decode_request,
    decode_request_header,
    encode_response,
)

if TYPE_CHECKING:
    from odradek.broker.broker import Broker
    from odradek.broker.serve import Caller

__all__ = ["Faults", "When"]

API_VERSIONS = 18

When = Callable[[Message], bool]
"""Told a request; whether the rule meets it. Runs in the broker's trio run: it must not block."""

_BY_NAME = {api.name.lower(): api for api in API.values()}


@define(slots=True, eq=False)
class _Rule:
    """`left`: how many requests it meets yet, None without end."""

    key: int
    left: int | None
    when: When | None
    fail: ErrorCode | None = None
    delay: float | None = None
    disconnect: str | None = None

    def meets(self, request: Message) -> bool:
        """Whether `request` is one of its; counts it."""
        if self.left == 0 or (self.when is not None and not self.when(request)):
            return False
        if self.left is not None:
            self.left -= 1
        return True


@define(slots=True, eq=False)
class Faults:
    """The rules in force, and what was asked so far. Outlives brokers: rules are kept by `attach`.

    `exempt`: names of listeners whose requests meet no rule and are not counted.
    """

    exempt: frozenset[str] = frozenset()
    _rules: list[_Rule] = field(factory=list, init=False)
    _seen: Counter[int] = field(factory=Counter, init=False)
    _asked: trio.lowlevel.ParkingLot = field(factory=trio.lowlevel.ParkingLot, init=False)
    _released: trio.Event = field(factory=trio.Event, init=False)

    def attach(self, broker: Broker) -> None:
        """Stand before the handlers of a broker, for as long as it runs."""
        broker.server.answer_by(self.answer)

    def detach(self, broker: Broker) -> None:
        """Undo `attach`; delayed requests go on."""
        broker.server.answer_by(answer)
        self.release()

    def fail(
        self,
        api: str | int,
        error: ErrorCode | str | int,
        times: int | None = 1,
        when: When | None = None,
    ) -> None:
        """Answer requests of `api` with an error, without handling them.

        The error stands wherever the response has room for one: see `refusal`. A Produce that
        wants no acknowledgement is lost. `api` is a name or a key, `error` a code, its name or
        its number; `times` None means always. Raises ValueError for what is none of these.
        """
        self._add(_Rule(_key_of(api), _checked(times), when, fail=_code_of(error)))

    def delay(
        self, api: str | int, seconds: float, times: int | None = 1, when: When | None = None
    ) -> None:
        """Let requests of `api`, and what is behind them on their connection, wait.

        `release`, `clear` and `detach` cut the wait short: the request is handled then. Raises
        ValueError as `fail` does.
        """
        if not 0 <= seconds < float("inf"):
            raise ValueError(f"a delay of {seconds} s")
        self._add(_Rule(_key_of(api), _checked(times), when, delay=seconds))

    def disconnect(
        self,
        api: str | int,
        times: int | None = 1,
        when: When | None = None,
        *,
        after: bool = False,
    ) -> None:
        """End the connection that a request of `api` comes by, once what is before is answered.

        `after`: the request is handled first, to the end, and its answer is lost. Raises
        ValueError as `fail` does.
        """
        how = "after" if after else "before"
        self._add(_Rule(_key_of(api), _checked(times), when, disconnect=how))

    def clear(self) -> None:
        """Withdraw every rule and release what they delay. Counts stay; see `forget`."""
        self._rules.clear()
        self.release()

    def forget(self) -> None:
        """Set the counts of requests back to 0."""
        self._seen.clear()

    def release(self) -> None:
        """End the delays that requests are waiting for now."""
        self._released.set()
        self._released = trio.Event()

    @property
    def pending(self) -> int:
        """How many rules still wait for requests that they meet."""
        return sum(rule.left != 0 for rule in self._rules)

    def seen(self, api: str | int) -> int:
        """Return how many requests of `api` were read, whatever became of them."""
        return self._seen[_key_of(api)]

    def requests(self) -> dict[str, int]:
        """Return the number of requests read, by the name of their API, where there were any."""
        return {API[key].name: self._seen[key] for key in sorted(self._seen)}

    async def wait_seen(self, api: str | int, count: int = 1) -> None:
        """Return once `count` requests of `api` were read since the start or `forget`."""
        key = _key_of(api)
        while self._seen[key] < count:
            await self._asked.park()

    async def answer(self, caller: Caller, frame: memoryview) -> list[Any] | Outstanding | None:
        """Answer a request as `dispatch.answer`, or as the rules want it. Raises HangUp too."""
        header = decode_request_header(frame)
        key, version, correlation_id, caller.client_id, _ = header
        if caller.listener in self.exempt:
            return await answer(caller, frame)
        if key in API:
            self._seen[key] += 1
            self._asked.unpark_all()
        fate = await self._decide(caller, header, frame)
        if fate is None:
            return await answer(caller, frame)
        if fate.fail is not None:
            request = decode_request(header, frame)
            response = await refusal(caller, request, version, fate.fail)
            if response is None:
                return None
            if key == API_VERSIONS and fate.fail == ErrorCode.UNSUPPORTED_VERSION:
                version = 0  # as KIP-511 has it: any client can read that
            return encode_response(key, version, correlation_id, response)
        if fate.disconnect == "after":
            with caller.undisturbed():
                await _lose(await answer(caller, frame), self._released)
        raise HangUp(f"a fault was asked for: {API[key].name} {fate.disconnect} it is handled")

    async def _decide(
        self, caller: Caller, header: RequestHeader, frame: memoryview
    ) -> _Rule | None:
        """Wait as the rules want; return the one that decides what becomes of the request."""
        offer = OFFERED.get(header.api_key)
        rules = [rule for rule in self._rules if rule.key == header.api_key]
        if not rules or offer is None or not offer.served_from <= header.api_version <= offer.max:
            return None
        request = decode_request(header, frame)
        delay = 0.0
        fate = None
        for rule in rules:
            if rule.meets(request):
                if rule.delay is None:
                    fate = rule
                    break
                delay += rule.delay
        self._rules = [rule for rule in self._rules if rule.left != 0]
        if delay:
            released = self._released
            with caller.undisturbed(), trio.move_on_after(delay):
                await released.wait()
        return fate

    def _add(self, rule: _Rule) -> None:
        self._rules.append(rule)


async def _lose(entry: list[Any] | Outstanding | None, released: trio.Event) -> None:
    """Finish a response, in a hurry once `released`, and send it to nobody."""
    if isinstance(entry, Outstanding):
        pending = entry.pending

        async def hurry() -> None:
            await released.wait()
            pending.hurry()

        async with background(hurry):
            await pending.wait()
        message = await pending.finish()
        entry = encode_response(entry.api_key, entry.version, entry.correlation_id, message)
    for part in entry or ():
        if isinstance(part, DataRef):
            part.close()


def _key_of(api: str | int) -> int:
    found = API.get(api) if isinstance(api, int) else _BY_NAME.get(api.lower())
    if found is None or found.key not in OFFERED:
        from odradek.config import nearest

        hint = "" if isinstance(api, int) else nearest(api, [API[key].name for key in OFFERED])
        raise ValueError(f"the broker offers no API {api!r}{hint}")
    return found.key


def _code_of(error: ErrorCode | str | int) -> ErrorCode:
    try:
        return ErrorCode[error.upper()] if isinstance(error, str) else ErrorCode(error)
    except (KeyError, ValueError):
        from odradek.config import nearest

        hint = nearest(str(error), [code.name for code in ErrorCode])
        raise ValueError(f"{error!r} is no error code of Kafka's{hint}") from None


def _checked(times: int | None) -> int | None:
    if times is not None and times < 1:
        raise ValueError(f"a fault that happens {times} times")
    return times
