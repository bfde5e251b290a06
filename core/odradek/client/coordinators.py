"""Which broker coordinates which group: asked of the cluster, remembered until it proves wrong."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any

from odradek.client.connection import BrokerConnection
from odradek.client.errors import error_of
from odradek.client.metadata import Broker
from odradek.errors import ErrorCode, KafkaError
from odradek.wire.api.a10_find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse

__all__ = ["Coordinators"]

_GROUP = 0
_SEVERAL_FROM = 4
_REMEMBERED = 10_000
_WRONG = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})


class Coordinators:
    """The coordinators that were found, by group. `connect` gives a connection to any broker."""

    def __init__(self, connect: Callable[[], Awaitable[BrokerConnection]]) -> None:
        self._connect = connect
        self._known: dict[str, Broker] = {}

    async def find(self, groups: Collection[str]) -> Mapping[str, Broker | KafkaError]:
        """Return each group's coordinator, or why the cluster would not name one; one attempt.

        Raises what `connect` and `BrokerConnection.call` raise.
        """
        found: dict[str, Broker | KafkaError] = {}
        missing: list[str] = []
        for group in groups:
            known = self._known.get(group)
            if known is None:
                missing.append(group)
            else:
                found[group] = known
        if not missing:
            return found
        connection = await self._connect()
        answers: dict[str, Any] = {}
        if connection.version_of(FindCoordinatorRequest) >= _SEVERAL_FROM:
            request = FindCoordinatorRequest(key_type=_GROUP, coordinator_keys=missing)
            answer = await connection.call(request, FindCoordinatorResponse)
            answers = {each.key: each for each in answer.coordinators}
        else:
            for group in missing:
                request = FindCoordinatorRequest(key=group, key_type=_GROUP)
                answers[group] = await connection.call(request, FindCoordinatorResponse)
        for group in missing:
            named = answers.get(group)
            if named is None:
                found[group] = KafkaError(
                    ErrorCode.COORDINATOR_NOT_AVAILABLE, f"no answer for group {group!r}"
                )
            elif named.error_code:
                detail = f"group {group!r}"
                if named.error_message:
                    detail += f": {named.error_message}"
                found[group] = error_of(named.error_code, detail)
            else:
                if len(self._known) >= _REMEMBERED:
                    self._known.clear()  # asking again costs one round trip each
                broker = Broker(named.node_id, named.host, named.port)
                found[group] = self._known[group] = broker
        return found

    def forget(self, group: str) -> None:
        """Ask again the next time: this coordinator denied that it is one."""
        self._known.pop(group, None)

    def forget_broker(self, node_id: int) -> None:
        """Ask again for every group of a broker that cannot be reached."""
        for group in [name for name, broker in self._known.items() if broker.node_id == node_id]:
            del self._known[group]

    def heed(self, group: str, error_code: int) -> None:
        """Forget the group's coordinator if `error_code` says that it is another."""
        if error_code and ErrorCode.of(error_code) in _WRONG:
            self.forget(group)
