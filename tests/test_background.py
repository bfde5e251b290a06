"""Tasks beside the code of whoever entered a context manager."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import pytest
import trio

from odradek.contracts.background import open_lasting_tasks, open_tasks


class Served:
    """A task that does what it is asked to."""

    def __init__(self) -> None:
        self.ended = False
        self.send, self._receive = trio.open_memory_channel[trio.Event](0)

    async def run(self) -> None:
        try:
            async for asked in self._receive:
                asked.set()
        finally:
            self.ended = True

    async def ask(self) -> bool:
        answered = trio.Event()
        with trio.move_on_after(5, shield=True):
            try:
                await self.send.send(answered)
            except trio.BrokenResourceError:
                return False
            await answered.wait()
        return answered.is_set()


async def test_lasting_tasks_serve_a_body_that_is_cancelled() -> None:
    served = Served()
    with trio.fail_after(10), trio.CancelScope() as scope:
        async with open_lasting_tasks() as tasks:
            tasks.start_soon(served.run)
            try:
                scope.cancel()
                await trio.sleep_forever()
            finally:
                assert await served.ask()
    assert scope.cancelled_caught
    assert served.ended


async def test_lasting_tasks_start_others_for_a_body_that_is_cancelled() -> None:
    served = Served()
    with trio.fail_after(10), trio.CancelScope() as scope:
        async with open_lasting_tasks() as tasks:
            try:
                scope.cancel()
                await trio.sleep_forever()
            finally:
                tasks.start_soon(served.run)
                assert await served.ask()
    assert served.ended


async def test_lasting_tasks_can_be_opened_by_who_is_cancelled_already() -> None:
    with trio.fail_after(10), trio.CancelScope() as scope:
        scope.cancel()
        async with open_lasting_tasks() as tasks:
            tasks.start_soon(trio.sleep_forever)
            await trio.sleep_forever()
    assert scope.cancelled_caught


Opening = Callable[[], AbstractAsyncContextManager[trio.Nursery]]


async def fail(error: Exception) -> None:
    raise error


@pytest.mark.parametrize("opening", [open_tasks, open_lasting_tasks])
async def test_what_the_body_raises_arrives_unwrapped(opening: Opening) -> None:
    async def body() -> None:
        async with opening() as tasks:
            tasks.start_soon(trio.sleep_forever)
            raise KeyError

    with trio.fail_after(10), pytest.raises(KeyError):
        await body()


@pytest.mark.parametrize("opening", [open_tasks, open_lasting_tasks])
async def test_what_a_task_raises_ends_the_body_and_arrives_unwrapped(opening: Opening) -> None:
    async def body() -> None:
        async with opening() as tasks:
            tasks.start_soon(fail, LookupError())
            await trio.sleep_forever()

    with trio.fail_after(10), pytest.raises(LookupError):
        await body()
