"""Requests about many things, taken a portion at a time, so that others get their turns.

One task runs at a time: a handler that looks at 50,000 groups without a checkpoint keeps every
heartbeat waiting for as long.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import trio

from odradek.broker.shard import PendingReply
from odradek.broker.waiting import Pending
from odradek.wire import Message, Struct

__all__ = ["PORTION", "Several", "Turns"]

PORTION = 1000
"""Partitions or members that a group is asked about at once: committing as many takes 8 ms."""

TURN_COST = 500
"""Things done before other tasks get a turn. At some 10 us each that is 5 ms."""

CHARACTERS_PER_THING = 1000
"""Characters of names that cost as much as a thing: they are copied, and a group's id is hashed."""


class Turns:
    """Gives other tasks a turn whenever a handler has done so much."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = TURN_COST

    async def spend(self, things: int = 1, characters: int = 0) -> None:
        """Count what was just done; a checkpoint once that is a turn's worth."""
        self._left -= things + characters // CHARACTERS_PER_THING
        if self._left <= 0:
            self._left = TURN_COST
            await trio.lowlevel.checkpoint()


class Several(Pending):
    """Replies to the portions of one request: each is there, or waits for its group.

    `finish` makes the response of them, in the order of the portions.
    """

    __slots__ = ("_finish", "_portions", "_waiting", "weight")

    def __init__(
        self,
        portions: Sequence[PendingReply | Struct],
        finish: Callable[[list[Struct]], Awaitable[Message]],
    ) -> None:
        self._portions = portions
        self._finish = finish
        self._waiting = [each for each in portions if isinstance(each, PendingReply)]
        self.weight = sum([each.weight for each in self._waiting])

    def ready(self) -> bool:
        """Whether every reply is there."""
        return all(each.ready() for each in self._waiting)

    async def wait(self) -> None:
        """Wait for those that are not."""
        for each in self._waiting:
            await each.wait()

    async def finish(self) -> Message:
        """Collect the replies."""
        replies: list[Struct] = []
        for each in self._portions:
            reply = each.reply if isinstance(each, PendingReply) else each
            assert reply is not None
            replies.append(reply)
        return await self._finish(replies)

    async def response(self) -> Message | Pending:
        """Return the response if it is there, and otherwise this, for a handler to return."""
        return await self.finish() if self.ready() else self
