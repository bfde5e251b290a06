"""Running a command on trio, ended by signals in good order."""

from __future__ import annotations

import os
import signal
from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio

from odradek.cli.exits import ExitCode
from odradek.contracts.background import background

__all__ = ["run_async"]

T = TypeVar("T")

_STOPPING = (signal.SIGINT, signal.SIGTERM)


def run_async(body: Callable[[], Awaitable[int | None]], *, stopped: int | None = None) -> int:
    """Run `body` and return its exit code (None: 0), or the code for the signal that ended it.

    SIGINT or SIGTERM cancels `body`, which closes in good order what it opened; the code is then
    `stopped`, or 130 and 143. A second signal ends the process at once.
    """
    code = [int(ExitCode.OK)]

    async def main() -> None:
        scope = trio.CancelScope()

        async def watch() -> None:
            async for number in signals:
                if scope.cancel_called:
                    os._exit(128 + number)
                code[0] = 128 + number if stopped is None else stopped
                scope.cancel()

        with trio.open_signal_receiver(*_STOPPING) as signals:
            async with background(watch):
                with scope:
                    code[0] = await body() or ExitCode.OK

    trio.run(main)
    return code[0]
