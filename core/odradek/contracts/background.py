"""Running tasks beside the code of whoever entered a context manager."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import trio

__all__ = ["background", "open_lasting_tasks", "open_tasks"]


@asynccontextmanager
async def open_tasks() -> AsyncIterator[trio.Nursery]:
    """Open a nursery for background tasks; they are cancelled when the context is left.

    What the body raises arrives unwrapped: whoever writes `async with open_broker()` cannot
    know of the nurseries inside. A background task that fails cancels the body, and arrives by
    itself too, or in a group when there are several.
    """
    failure: BaseException | None = None
    try:
        async with trio.open_nursery() as nursery:
            try:
                yield nursery
            except trio.Cancelled:
                raise
            except BaseException as error:
                failure = error
            finally:
                nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        if failure is not None:
            raise BaseExceptionGroup(group.message, [failure, *group.exceptions]) from None
        if len(group.exceptions) == 1:
            raise group.exceptions[0] from None
        raise
    if failure is not None:
        raise failure


@asynccontextmanager
async def open_lasting_tasks() -> AsyncIterator[trio.Nursery]:
    """As `open_tasks`, but the tasks outlive a cancellation from outside until the body is left.

    For what the body uses to take its leave: a consumer that is cancelled commits and leaves its
    group, shielded, over connections whose tasks must not be gone by then.
    """
    shelter = trio.CancelScope(shield=True)
    opened: list[trio.Nursery] = []
    ready = trio.Event()

    async def host() -> None:
        with shelter:
            async with open_tasks() as nursery:
                opened.append(nursery)
                ready.set()
                await trio.sleep_forever()

    async with open_tasks() as tasks:
        try:
            tasks.start_soon(host)
            # Not Nursery.start: cancelled, it would wait for a host that cannot be.
            with trio.CancelScope(shield=True):
                await ready.wait()
            yield opened[0]
        finally:
            shelter.cancel()


@asynccontextmanager
async def background(task: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    """Run one `task` while the context is entered, and cancel it when the context is left."""
    async with open_tasks() as tasks:
        tasks.start_soon(task)
        yield
