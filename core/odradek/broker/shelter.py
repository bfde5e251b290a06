"""A context manager that is left in good order also when its owner is cancelled."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TypeVar

import trio

from odradek.contracts.background import open_tasks

__all__ = ["open_sheltered"]

T = TypeVar("T")


@asynccontextmanager
async def open_sheltered(
    inner: Callable[[trio.CancelScope], AbstractAsyncContextManager[T]],
) -> AsyncIterator[T]:
    """Enter `inner(shelter)` in a task of its own, which no cancellation from outside reaches.

    While it is being entered it can be cancelled as if this were not here. From then on its tasks
    go on until it is left, which is when the body ends, for whatever reason. `inner` bounds the
    time that it takes to end: it may say `shelter.shield = False` once a cancellation may
    interrupt what is left to do.

    Raises what `inner` raises, unwrapped. When a task of `inner` fails, the body is cancelled once
    `inner` has been left.
    """
    shelter = trio.CancelScope()
    opened: list[T] = []
    ready, leave, ended = trio.Event(), trio.Event(), trio.Event()

    async def host() -> None:
        try:
            with shelter:
                async with inner(shelter) as value:
                    shelter.shield = True
                    opened.append(value)
                    ready.set()
                    await leave.wait()
        finally:
            ended.set()

    async with open_tasks() as tasks:
        tasks.start_soon(host)
        try:
            await ready.wait()
            yield opened[0]
        finally:
            leave.set()
            # `open_tasks` would cancel what is left to do after the shelter, on every exit.
            with trio.CancelScope(shield=True):
                await ended.wait()
