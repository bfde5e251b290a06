"""Reading records from a file or standard input, line by line, as bytes."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

import trio

from odradek.cli.exits import CommandFailed

__all__ = ["read_lines"]

_CHUNK = 256 * 1024


async def read_lines(fd: int, *, delimiter: bytes, longest: int) -> AsyncIterator[list[bytes]]:
    """Yield the lines of a file descriptor, without delimiters, in lists: what one read gave.

    The last line need not be ended. Reads in a thread, since a pipe or terminal may keep silent;
    when cancelled, the thread is left behind with what it reads. Raises CommandFailed for a line
    longer than `longest` bytes, OSError.
    """
    rest = b""
    while True:
        chunk = await trio.to_thread.run_sync(os.read, fd, _CHUNK, abandon_on_cancel=True)
        if not chunk:
            break
        lines = (rest + chunk).split(delimiter)
        rest = lines.pop()
        if len(rest) > longest:
            raise CommandFailed(
                f"a record of more than {longest} bytes",
                hint="is --delimiter right? Larger records need --max-bytes, and a topic whose "
                "max.message.bytes allows them",
            )
        if lines:
            yield lines
    if rest:
        yield [rest]
