"""Failing system calls in a running process, by strace."""

from __future__ import annotations

import select
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["failing"]

PATIENCE = 15.0


class Injection:
    """What was injected so far."""

    def __init__(self, log: Path) -> None:
        self._log = log

    @property
    def count(self) -> int:
        """How many calls were made to fail."""
        return self._log.read_bytes().count(b"(INJECTED)")


@contextmanager
def failing(
    pid: int, calls: str, directory: Path, when: str, error: str = "EIO"
) -> Iterator[Injection]:
    """Let system calls of a process fail while the context is open.

    `calls`: names of system calls, separated by commas. `when` as in strace(1), counted per
    thread: `1+` is always, `3` the third only.
    """
    log = directory / f"strace-{time.monotonic_ns()}"
    command = (
        "strace", "-f", "-p", str(pid), "-o", str(log), "-e", f"trace={calls}",
        "-e", f"inject={calls}:error={error}:when={when}",
    )  # fmt: skip
    process = subprocess.Popen(command, stderr=subprocess.PIPE)
    try:
        assert process.stderr is not None
        said = b""
        while b"attached" not in said:
            assert select.select([process.stderr], [], [], PATIENCE)[0], "strace does not attach"
            more = process.stderr.read1(4096)  # type: ignore[attr-defined]  # it is buffered
            assert more, said.decode()
            said += more
        yield Injection(log)
    finally:
        process.terminate()
        process.wait(PATIENCE)
        assert process.stderr is not None
        process.stderr.close()
