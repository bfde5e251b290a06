"""The one bridge between threads and trio: a trio run in a thread of its own, called from others.

    with open_portal() as portal:
        answer = portal.call(ask, "a question")              # blocks until `await ask(...)` is done
        with portal.enter(open_thing()) as (thing, inside):  # an async context manager, entered
            inside.call(thing.use)

Any number of threads may call. From asyncio, where nothing may block: `await
asyncio.wrap_future(portal.submit(ask, "a question"))`, or `await asyncio.to_thread(...)` around
what blocks. What is promised, each with a test:

* **B1** a call returns what the function returned and raises what it raised, whatever that is.
* **B2** a call that is interrupted (Ctrl-C) cancels its function, waits until that has ended, and
  then raises; a second interrupt does not wait.
* **B3** a context is entered and left in one task; the exception that leaves the `with` block is
  what the async context manager sees, and what that makes of it is what leaves the block in turn.
* **B4** calls through a context's own portal (`inside`) end with it: they raise PortalClosed
  when it is left, or has failed in the background, and nobody waits for ever.
* **B5** leaving the portal cancels what still runs in it and ends its thread before it returns.
  A program that never leaves it ends all the same, and its contexts are left first.
* **B6** a forked child has the memory of its parent but not its threads: it is told so by
  PortalClosed instead of waiting for ever, and its exit disturbs nothing of the parent's.
* **B7** blocking the portal's own thread, which would be for ever, is refused with RuntimeError.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future, InvalidStateError
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from typing import Any, Generic, TypeVar, TypeVarTuple

import trio

from odradek.errors import OdradekError

__all__ = ["Portal", "PortalClosed", "in_worker_thread", "open_portal"]

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class PortalClosed(OdradekError):
    """What was called through is not there (any more); the call did nothing, or was cancelled.

    The caller left the context that the call belongs to, or it failed in the background (then the
    failure is this error's cause), or this is a forked child of the process that opened it.
    """


class _Call(Generic[T]):
    """One function running in the portal for a thread that waits for it."""

    def __init__(self, function: Callable[..., Awaitable[T]], args: tuple[Any, ...]) -> None:
        # The future stays pending while the function runs, so that it can be cancelled.
        self.future: Future[T] = Future()
        self.ended = threading.Event()
        self.started = False
        self.scope = trio.CancelScope()
        self._function = function
        self._args = args

    async def run(self) -> None:
        try:
            with self.scope:
                result = await self._function(*self._args)
                self._finish(lambda: self.future.set_result(result))
        except trio.Cancelled:
            self.refuse(PortalClosed("it was closed while a call was running in it"))
            raise
        except BaseException as error:  # the caller's to handle, even a SystemExit
            self.refuse(error)
        finally:
            if self.future.cancelled():
                self.future.set_running_or_notify_cancel()  # as an executor does
            self.ended.set()

    def end_unless_started(self) -> None:
        if not self.started:
            self.ended.set()

    def refuse(self, error: BaseException) -> None:
        self._finish(lambda: self.future.set_exception(error))

    def _finish(self, finish: Callable[[], None]) -> None:
        with suppress(InvalidStateError):  # whoever waited has cancelled it meanwhile
            finish()


class _Thread:
    """The thread with its trio run."""

    def __init__(self, name: str) -> None:
        self.pid = os.getpid()
        self.calls: set[_Call[Any]] = set()
        self._scope = trio.CancelScope()
        self._started: Future[tuple[trio.lowlevel.TrioToken, trio.Nursery]] = Future()
        # A daemon, so that a program that forgets it can end; `close` is then called at exit.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()
        self.token, self.nursery = self._started.result()
        atexit.register(self.close)

    @property
    def is_current(self) -> bool:
        return threading.current_thread() is self._thread

    def _run(self) -> None:
        try:
            trio.run(self._main)
        except BaseException as error:  # no file descriptors left for it, say
            if self._started.done():
                raise
            self._started.set_exception(error)
        finally:
            for call in tuple(self.calls):  # none, unless trio itself has broken
                call.refuse(PortalClosed("the trio run of the portal has ended"))
                call.ended.set()

    async def _main(self) -> None:
        with self._scope:
            async with trio.open_nursery() as nursery:
                self._started.set_result((trio.lowlevel.current_trio_token(), nursery))
                await trio.sleep_forever()

    def soon(self, function: Callable[[*Ts], object], *args: *Ts) -> None:
        """Run a plain function in the trio run. Raises PortalClosed."""
        if os.getpid() != self.pid:
            raise PortalClosed(
                "it belongs to the parent of this forked process: open another one here, or "
                'start processes with multiprocessing\'s method "spawn"'
            )
        try:
            self.token.run_sync_soon(function, *args)
        except trio.RunFinishedError:
            raise PortalClosed("it was closed") from None

    def close(self) -> None:
        """Cancel everything and wait for the end of the thread. Idempotent."""
        atexit.unregister(self.close)
        if os.getpid() != self.pid:
            return
        with suppress(PortalClosed):
            self.soon(self._scope.cancel)
        self._thread.join()


class Portal:
    """A way into a trio run from other threads; made by `open_portal` and `Portal.enter`."""

    def __init__(self, thread: _Thread, nursery: trio.Nursery) -> None:
        self._thread = thread
        self._nursery = nursery
        self._failure: BaseException | None = None

    def submit(self, function: Callable[[*Ts], Awaitable[T]], *args: *Ts) -> Future[T]:
        """Start a function and return its future, at once. Raises PortalClosed.

        Cancelling the future cancels the function, but does not wait for its end. A callback of
        the future runs in the portal's thread.
        """
        call = _Call(function, args)
        self._submit(call)
        return call.future

    def call(self, function: Callable[[*Ts], Awaitable[T]], *args: *Ts) -> T:
        """Run a function to its end and return what it returns (B1, B2, B7).

        Raises PortalClosed as well.
        """
        self._refuse_own_thread()
        call = _Call(function, args)
        try:
            self._submit(call)
            return call.future.result()
        except BaseException:
            self._settle(call)
            raise

    def call_sync(self, function: Callable[[*Ts], T], *args: *Ts) -> T:
        """Run a plain function between two steps of trio's tasks; as `call` otherwise."""

        async def run() -> T:
            return function(*args)

        return self.call(run)

    @contextmanager
    def enter(self, context: AbstractAsyncContextManager[T]) -> Iterator[tuple[T, Portal]]:
        """Enter an async context manager; give its value, and a portal for calls inside (B3, B4).

        Calls made through that portal run in a nursery within the context. Raises PortalClosed,
        and what entering and leaving raise.
        """
        self._refuse_own_thread()
        held = _Held(self._thread, context)
        call = _Call(held.run, ())
        try:
            self._submit(call)
            opened = held.opened.result()
        except BaseException:
            self._settle(call)
            raise
        if opened is None:
            call.future.result()  # raises why not
            raise PortalClosed("it was closed")
        body: BaseException | None = None
        raised: BaseException | None = None
        try:
            try:
                yield opened
            except BaseException as error:
                body = error
            if os.getpid() != self._thread.pid:  # a forked child leaves nothing: B6
                if body is None:
                    return
                raise body
            try:
                held.release(body)
                if not self._thread.is_current:  # as the collector of garbage may have it
                    call.future.result()
            except BaseException as error:
                self._settle(call)
                raised = error
            if raised is None:
                return
            if body is not None and (_only(raised) is body or isinstance(body, GeneratorExit)):
                raise body  # by itself; GeneratorExit: the block was forgotten, nobody listens
            if body is not None and raised.__context__ is None and body.__cause__ is not raised:
                raised.__context__ = body
            raise raised
        finally:
            del body, raised  # a traceback would keep what it is the traceback of

    def _submit(self, call: _Call[Any]) -> None:
        thread = self._thread
        thread.calls.add(call)
        call.future.add_done_callback(lambda _: self._done(call))
        try:
            thread.soon(self._start, call)
        except PortalClosed as closed:
            thread.calls.discard(call)
            call.refuse(closed)
            raise

    def _start(self, call: _Call[Any]) -> None:
        call.started = True
        try:
            self._nursery.start_soon(call.run)
        except RuntimeError:  # the nursery is closed
            error = PortalClosed("it was closed")
            error.__cause__ = self._failure
            call.refuse(error)
            call.ended.set()

    def _done(self, call: _Call[Any]) -> None:
        self._thread.calls.discard(call)
        if call.future.cancelled() and not call.ended.is_set():
            with suppress(PortalClosed):
                self._thread.soon(call.scope.cancel)

    def _refuse_own_thread(self) -> None:
        if self._thread.is_current:
            raise RuntimeError("a blocking call from the portal's own thread would never return")

    def _settle(self, call: _Call[Any]) -> None:
        """Have a call ended, whatever the thread that waited for it was interrupted by."""
        if call.future.done():
            return
        call.future.cancel()
        # An interrupt may have come before the thread was told of the call: it hears of what it is
        # told in order, so if it does not know the call by now it never will.
        try:
            self._thread.soon(call.end_unless_started)
        except PortalClosed:
            return
        call.ended.wait()


def _only(error: BaseException) -> BaseException | None:
    """The one exception of a group, which a nursery makes of it."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


class _Held(Generic[T]):
    """An async context manager in a task that stays in it until it is released."""

    def __init__(self, thread: _Thread, context: AbstractAsyncContextManager[T]) -> None:
        self.opened: Future[tuple[T, Portal] | None] = Future()
        self._thread = thread
        self._context = context
        self._released = trio.Event()
        self._body: BaseException | None = None
        self._portal: Portal | None = None

    def release(self, body: BaseException | None) -> None:
        """Leave the context, by the exception `body` if there is one. Raises PortalClosed."""
        self._body = body
        self._thread.soon(self._released.set)

    async def run(self) -> None:
        """Enter, wait, leave; raise what leaves the context."""
        try:
            async with self._context as value:
                try:
                    async with trio.open_nursery() as nursery:
                        self._portal = Portal(self._thread, nursery)
                        self.opened.set_result((value, self._portal))
                        await self._released.wait()
                        nursery.cancel_scope.cancel()
                except BaseExceptionGroup:
                    # The context was cancelled, and each call with it (a call raises nothing
                    # else): the context shall see a Cancelled as any code in it would raise.
                    await trio.lowlevel.checkpoint()
                    raise
                if self._body is not None:
                    raise self._body
        except BaseException as error:
            if self._portal is not None:
                self._portal._failure = error
            raise
        finally:
            if not self.opened.done():
                self.opened.set_result(None)


async def in_worker_thread(function: Callable[[*Ts], T], *args: *Ts) -> T:
    """Run a function that may block in a thread of trio's pool, out of the portal's own.

    It may call into the portal. It is waited for even when the caller is cancelled.
    """
    return await trio.to_thread.run_sync(function, *args)


@contextmanager
def open_portal(name: str = "odradek") -> Iterator[Portal]:
    """Run trio in a thread called `name` while the context is open (B5).

    What the contexts entered through it still have to do when it is left, they do cancelled:
    leave them first, as nested `with` blocks do by themselves.
    """
    thread = _Thread(name)
    try:
        yield Portal(thread, thread.nursery)
    finally:
        try:
            thread.close()
        except BaseException:  # interrupted: the end was asked for, so wait once more
            thread.close()
            raise
