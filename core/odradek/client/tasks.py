"""A nursery for what runs behind a context manager's body."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

__all__ = ["background_tasks"]


@asynccontextmanager
async def background_tasks() -> AsyncIterator[trio.Nursery]:
    """Give a nursery whose tasks end with the body.

    What the body raises comes out as it is, not inside of an ExceptionGroup: that there are
    tasks is no affair of whoever writes `except KafkaError` around a producer. The tasks
    themselves are not expected to raise; if one does, it cancels the body and comes out in the
    group that trio makes.
    """
    failure: Exception | None = None
    async with trio.open_nursery() as nursery:
        try:
            yield nursery
        except Exception as error:
            failure = error
        finally:
            nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure
