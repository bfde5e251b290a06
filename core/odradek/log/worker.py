"""Work on many bytes beside the event loop: the one place where the log uses a thread.

The functions that run here take bytes and give values, and touch nothing that the event loop
changes meanwhile.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, Protocol, TypeVar, TypeVarTuple

import trio

__all__ = ["InlineWorker", "ThreadWorker", "Worker"]

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

NICENESS = 5
"""Of the thread, where it can be set for a thread alone (Linux)."""

BREATH_S = 0.0001
"""How long a breath is. A thread that waits for the GIL needs some 0.05 ms to wake when it comes
free, and gets nothing if it was taken again by then; it insists after 5 ms only."""


class Worker(Protocol):
    """Somewhere to run functions that take milliseconds."""

    async def run(self, function: Callable[[*Ts], T], *args: *Ts) -> T:
        """Call a function and return what it returns, or raise what it raises.

        Cancelled before it starts, or not at all: what it works on is released by the caller as
        soon as this returns.
        """

    def breathe(self) -> None:
        """Let others have the GIL for a moment; for functions that `run` calls."""

    def close(self) -> None:
        """Give back what it takes. Not while `run` is under way. Idempotent."""


class InlineWorker:
    """Runs functions where they are called: for simulations, whose order must not vary."""

    async def run(self, function: Callable[[*Ts], T], *args: *Ts) -> T:
        """See `Worker.run`."""
        await trio.lowlevel.checkpoint()
        return function(*args)

    def breathe(self) -> None:
        """Go on at once: nobody else is at work."""

    def close(self) -> None:
        """There is nothing to give back."""


class _Job:
    """A call, and what became of it."""

    __slots__ = ("_call", "_task", "_token", "error", "result")

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self._task = trio.lowlevel.current_task()
        self._token = trio.lowlevel.current_trio_token()
        self.result: Any = None
        self.error: BaseException | None = None

    def carry_out(self) -> None:
        """Make the call, in the thread, and wake the task that waits for it."""
        try:
            self.result = self._call()
        except BaseException as error:
            self.error = error
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(trio.lowlevel.reschedule, self._task)


class ThreadWorker:
    """One thread of its own, begun with the first call.

    Not one of trio's: those are lent to everybody, and this one is made less important than the
    thread that answers requests.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    async def run(self, function: Callable[[*Ts], T], *args: *Ts) -> T:
        """See `Worker.run`."""
        await trio.lowlevel.checkpoint_if_cancelled()
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._thread.start()
        job = _Job(lambda: function(*args))
        self._jobs.put(job)
        await trio.lowlevel.wait_task_rescheduled(lambda _: trio.lowlevel.Abort.FAILED)
        if job.error is not None:
            try:
                raise job.error
            finally:
                del job  # its error refers to this frame, and that to the error
        result: T = job.result
        return result

    def breathe(self) -> None:
        """See `Worker.breathe`."""
        time.sleep(BREATH_S)

    def close(self) -> None:
        """End the thread; it is idle."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._jobs.put(None)
            thread.join()

    def _work(self) -> None:
        if sys.platform == "linux":
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
        while (job := self._jobs.get()) is not None:
            job.carry_out()
            del job  # or its bytes would be kept until the next one
