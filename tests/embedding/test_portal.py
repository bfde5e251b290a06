"""The bridge between threads and trio (B1 to B7 of `odradek.portal`)."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import asynccontextmanager, contextmanager

import pytest
import trio

from odradek.contracts.background import open_tasks
from odradek.portal import Portal, PortalClosed, open_portal


@pytest.fixture
def portal() -> Iterator[Portal]:
    with open_portal() as portal:
        yield portal


class Recorder:
    """An async context manager that notes what happens to it."""

    def __init__(self, swallow: type[BaseException] | None = None) -> None:
        self.tasks: list[trio.lowlevel.Task] = []
        self.ways_left: list[BaseException | None] = []
        self._swallow = swallow

    async def __aenter__(self) -> Recorder:
        self.tasks.append(trio.lowlevel.current_task())
        return self

    async def __aexit__(self, kind, error: BaseException | None, traceback) -> bool:
        self.tasks.append(trio.lowlevel.current_task())
        self.ways_left.append(error)
        return self._swallow is not None and isinstance(error, self._swallow)

    async def nothing(self) -> str:
        return "nothing"


async def echo(value: object) -> object:
    await trio.lowlevel.checkpoint()
    return value


async def fail(error: BaseException) -> None:
    raise error


def give_up(error: BaseException) -> None:
    raise error


@contextmanager
def interrupting(when: threading.Event) -> Iterator[None]:
    """Press Ctrl-C, to the main thread, once `when` is set."""

    def press() -> None:
        when.wait(10)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    thread = threading.Thread(target=press)
    thread.start()
    try:
        yield
    finally:
        thread.join()


# B1


def test_call_returns_what_the_function_returns(portal: Portal) -> None:
    assert portal.call(echo, "x") == "x"
    assert portal.call_sync(lambda: 7) == 7


@pytest.mark.parametrize(
    "error",
    [ValueError("no"), KeyboardInterrupt(), SystemExit(3), ExceptionGroup("g", [OSError()])],
)
def test_call_raises_what_the_function_raises_and_goes_on(
    portal: Portal, error: BaseException
) -> None:
    with pytest.raises(type(error)) as caught:
        portal.call(fail, error)
    assert caught.value is error
    assert portal.call(echo, 1) == 1


def test_calls_come_from_many_threads(portal: Portal) -> None:
    results: list[object] = []

    def work(number: int) -> None:
        for _ in range(50):
            results.append(portal.call(echo, number))  # noqa: PERF401  # the loop is the test

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == sorted(list(range(8)) * 50)  # type: ignore[type-var]


def test_asyncio_awaits_calls_without_blocking(portal: Portal) -> None:
    async def main() -> object:
        released = portal.call_sync(trio.Event)
        waiting = asyncio.wrap_future(portal.submit(released.wait))
        for _ in range(3):  # the loop goes on
            await asyncio.sleep(0)
        assert not waiting.done()
        portal.call_sync(released.set)
        await waiting
        return await asyncio.wrap_future(portal.submit(echo, "asyncio"))

    assert asyncio.run(main()) == "asyncio"


def test_cancelled_asyncio_task_cancels_the_function(portal: Portal) -> None:
    ended = threading.Event()

    async def wait() -> None:
        try:
            await trio.sleep_forever()
        finally:
            ended.set()

    async def main() -> None:
        started = threading.Event()
        task = asyncio.ensure_future(asyncio.wrap_future(portal.submit(_started, started, wait)))
        await asyncio.to_thread(started.wait)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert ended.wait(10)


async def _started(started: threading.Event, then: Callable[[], Awaitable[None]]) -> None:
    started.set()
    await then()


# B2


def test_interrupted_call_ends_before_it_raises(portal: Portal) -> None:
    started = threading.Event()
    cleaned_up = False

    async def wait() -> None:
        nonlocal cleaned_up
        started.set()
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(0.05)
            cleaned_up = True

    with interrupting(started), pytest.raises(KeyboardInterrupt):
        portal.call(wait)
    assert cleaned_up
    assert portal.call(echo, 1) == 1


def test_cancelled_future_ends_the_function(portal: Portal) -> None:
    started = threading.Event()
    ended = threading.Event()

    async def wait() -> None:
        started.set()
        try:
            await trio.sleep_forever()
        finally:
            ended.set()

    future = portal.submit(wait)
    started.wait(10)
    assert future.cancel()
    assert ended.wait(10)
    with pytest.raises(CancelledError):
        future.result()


# B3


def test_context_is_entered_and_left_in_one_task(portal: Portal) -> None:
    recorder = Recorder()
    with portal.enter(recorder) as (value, inside):
        assert value is recorder
        assert inside.call(recorder.nothing) == "nothing"
        assert recorder.ways_left == []
    assert recorder.ways_left == [None]
    assert recorder.tasks[0] is recorder.tasks[1]


@pytest.mark.parametrize("error", [ValueError("body"), KeyboardInterrupt(), SystemExit(1)])
def test_context_sees_the_exception_of_the_block(portal: Portal, error: BaseException) -> None:
    recorder = Recorder()
    with pytest.raises(type(error)) as caught, portal.enter(recorder):
        give_up(error)
    assert caught.value is error
    assert recorder.ways_left == [error]


def test_context_may_swallow_the_exception_of_the_block(portal: Portal) -> None:
    recorder = Recorder(swallow=ValueError)
    with portal.enter(recorder):
        give_up(ValueError("body"))
    assert isinstance(recorder.ways_left[0], ValueError)


def test_context_may_raise_another_exception(portal: Portal) -> None:
    @asynccontextmanager
    async def translating() -> AsyncIterator[None]:
        try:
            yield
        except ValueError as error:
            raise KeyError("translated") from error

    with pytest.raises(KeyError, match="translated") as caught, portal.enter(translating()):
        give_up(ValueError("body"))
    assert isinstance(caught.value.__cause__, ValueError)


def test_context_that_cannot_be_entered_says_why(portal: Portal) -> None:
    @asynccontextmanager
    async def broken() -> AsyncIterator[None]:
        give_up(OSError("no such thing"))
        yield

    with pytest.raises(OSError, match="no such thing"), portal.enter(broken()):
        give_up(AssertionError("it was entered"))


def test_contexts_are_left_in_reverse_order(portal: Portal) -> None:
    order: list[str] = []

    @asynccontextmanager
    async def named(name: str) -> AsyncIterator[None]:
        order.append(f"+{name}")
        yield
        order.append(f"-{name}")

    with portal.enter(named("a")), portal.enter(named("b")):
        pass
    assert order == ["+a", "+b", "-b", "-a"]


def test_interrupted_entering_is_undone(portal: Portal) -> None:
    entering = threading.Event()
    undone = threading.Event()

    @asynccontextmanager
    async def slow() -> AsyncIterator[None]:
        entering.set()
        try:
            await trio.Event().wait()
            yield
        finally:
            undone.set()

    with interrupting(entering), pytest.raises(KeyboardInterrupt), portal.enter(slow()):
        give_up(AssertionError("it was entered"))
    assert undone.is_set()


# B4


def test_call_in_a_context_ends_with_it(portal: Portal) -> None:
    started = threading.Event()
    failures: list[BaseException | None] = []

    async def wait() -> None:
        started.set()
        await trio.sleep_forever()

    with portal.enter(Recorder()) as (_, inside):
        future = inside.submit(wait)
        future.add_done_callback(lambda done: failures.append(done.exception()))
        started.wait(10)
    assert isinstance(failures[0], PortalClosed)
    with pytest.raises(PortalClosed):
        inside.call(echo, 1)
    assert portal.call(echo, 1) == 1


def test_context_that_fails_in_the_background_fails_its_calls_and_its_block(
    portal: Portal,
) -> None:
    @asynccontextmanager
    async def failing() -> AsyncIterator[trio.Event]:
        fate = trio.Event()

        async def fail_later() -> None:
            await fate.wait()
            raise RuntimeError("the background is broken")

        async with open_tasks() as tasks:
            tasks.start_soon(fail_later)
            yield fate

    def use() -> None:
        with portal.enter(failing()) as (fate, inside):
            waiting = inside.submit(trio.sleep_forever)
            portal.call_sync(fate.set)
            with pytest.raises(PortalClosed):
                waiting.result(10)
            with pytest.raises(PortalClosed):
                inside.call(echo, 1)

    with pytest.raises(RuntimeError, match="the background is broken"):
        use()


# B5


def test_leaving_the_portal_cancels_what_runs_and_ends_the_thread() -> None:
    before = set(threading.enumerate())
    recorder = Recorder()
    with open_portal("odradek-test") as portal:
        waiting: Future[None] = portal.submit(trio.sleep_forever)
        holding = portal.enter(recorder)
        holding.__enter__()
        assert {each.name for each in set(threading.enumerate()) - before} == {"odradek-test"}
    assert set(threading.enumerate()) == before
    with pytest.raises(PortalClosed):
        waiting.result(0)
    assert recorder.ways_left
    with pytest.raises(PortalClosed):
        portal.call(echo, 1)
    with pytest.raises(PortalClosed):
        holding.__exit__(None, None, None)


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-W", "ignore:.*fork:DeprecationWarning", "-c",
         textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )  # fmt: skip


def test_program_that_never_leaves_the_portal_ends_and_leaves_its_contexts() -> None:
    done = run_python(
        """
        from contextlib import asynccontextmanager
        from odradek.portal import open_portal

        @asynccontextmanager
        async def thing():
            try:
                yield
            finally:
                print("left")

        opened = open_portal()
        portal = opened.__enter__()
        held = portal.enter(thing())
        held.__enter__()
        """
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "left\n", "")


# B6


def test_forked_child_is_told_and_disturbs_nothing() -> None:
    done = run_python(
        """
        import os, sys
        from odradek.portal import PortalClosed, open_portal

        async def answer():
            return 42

        with open_portal() as portal:
            assert portal.call(answer) == 42
            child = os.fork()
            if not child:
                try:
                    portal.call(answer)
                except PortalClosed as error:
                    assert "forked" in str(error)
                    sys.exit(7)  # through the end of the block, and what runs at exit
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
            assert portal.call(answer) == 42
        """
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_forked_child_leaves_a_context_by_what_left_the_block() -> None:
    done = run_python(
        """
        import os, sys
        from contextlib import asynccontextmanager
        from odradek.portal import open_portal

        @asynccontextmanager
        async def thing():
            yield 1

        with open_portal() as portal, portal.enter(thing()) as (_, inside):
            child = os.fork()
            if not child:
                sys.exit(7)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7

            async def answer():
                return 42

            assert inside.call(answer) == 42
        """
    )
    assert (done.returncode, done.stderr) == (0, "")


# B7


def test_blocking_call_from_its_own_thread_is_refused(portal: Portal) -> None:
    async def inside() -> None:
        portal.call(echo, 1)

    with pytest.raises(RuntimeError, match="own thread"):
        portal.call(inside)


def test_no_descriptor_is_left_behind() -> None:
    with open_portal():
        pass
    before = os.listdir("/proc/self/fd")
    for _ in range(5):
        with open_portal() as portal:
            portal.call(echo, 1)
    assert len(os.listdir("/proc/self/fd")) == len(before)
