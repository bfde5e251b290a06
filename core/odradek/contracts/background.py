"""Running a plugin's own task beside the caller's code."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import trio

__all__ = ["background"]


@asynccontextmanager
async def background(task: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    """Run `task` while the context is entered, and cancel it when the context is left.

    What the caller's code raises arrives as it is, and not wrapped in an exception group as a
    bare nursery would have it: a caller of ``open_..._coordinator`` cannot know that there is one.
    If `task` itself fails, the caller's code is cancelled and the failure arrives in a group.
    """
    failure: BaseException | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(task)
        try:
            yield
        except trio.Cancelled:
            raise
        except BaseException as error:
            failure = error
        finally:
            nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure
