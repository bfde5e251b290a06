"""Blocking methods made of async ones, one line each, with their types and documentation."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from functools import partial, wraps
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

import trio

from odradek.portal import Portal

__all__ = ["Closable", "Facade", "blocking", "in_its_thread", "within"]

P = ParamSpec("P")
T = TypeVar("T")


class Facade:
    """Stands for an object that lives in a portal's trio run."""

    def __init__(self, portal: Portal, behind: Any) -> None:
        self._portal = portal
        self._behind = behind


class Closable(Facade):
    """One that ends with its own `with` block, by `close`, or at the latest with its client."""

    _context: AbstractContextManager[object] | None = None
    _closed: Callable[[Closable], None] | None = None

    def belongs_to(
        self, context: AbstractContextManager[object], closed: Callable[[Closable], None]
    ) -> Self:
        """Say what there is to be left at the end, and who wants to know."""
        self._context, self._closed = context, closed
        return self

    def close(self) -> None:
        """End it in good order, as leaving its `with` block does. Idempotent."""
        self.__exit__(None, None, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        context, closed = self._context, self._closed
        self._context = self._closed = None
        if context is not None:
            try:
                self._before_closing()
            finally:
                context.__exit__(kind, error, traceback)
            if closed is not None:
                closed(self)

    def _before_closing(self) -> None:
        """Do what can only be done while it is open."""


def blocking(
    function: Callable[Concatenate[Any, P], Awaitable[T]],
) -> Callable[Concatenate[Facade, P], T]:
    """Return the method that runs an async method of the object behind to its end."""

    @wraps(function)
    def method(self: Facade, /, *args: P.args, **options: P.kwargs) -> T:
        return self._portal.call(partial(function, self._behind, *args, **options))

    return method


def in_its_thread(
    function: Callable[Concatenate[Any, P], T],
) -> Callable[Concatenate[Facade, P], T]:
    """Return the method that runs a plain method of the object behind where that lives."""

    @wraps(function)
    def method(self: Facade, /, *args: P.args, **options: P.kwargs) -> T:
        return self._portal.call_sync(partial(function, self._behind, *args, **options))

    return method


def within(portal: Portal, timeout: float | None, function: Callable[[], Awaitable[T]]) -> T:
    """Run a function for at most `timeout` seconds, None without end. Raises TimeoutError."""

    async def run() -> T:
        with trio.fail_after(float("inf") if timeout is None else timeout):
            return await function()

    try:
        return portal.call(run)
    except trio.TooSlowError:
        raise TimeoutError(f"it took longer than {timeout:g} s") from None
