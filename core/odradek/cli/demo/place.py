"""Where the demo keeps its data, and the broker it starts there."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import trio

from odradek.cli.exits import CommandFailed

__all__ = ["Place", "claim", "free_port", "start_broker"]

_MARK = ".odradek-demo"
_START_TIMEOUT = 30.0
_STOP_TIMEOUT = 15.0


class Place:
    """The demo's directory: `logs` is the storage, `broker.log` what the broker said."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.logs = directory / "logs"
        self.broker_log = directory / "broker.log"

    def size(self) -> int:
        """Bytes of all segment files."""
        return sum(path.stat().st_size for path in self.logs.rglob("*.log"))


@contextmanager
def claim(given: Path | None, *, keep: bool) -> Iterator[Place]:
    """Give a fresh directory to one demo at a time; remove it afterwards unless `keep`.

    What an earlier demo left in it goes. Only a directory that a demo made, or an empty one, is
    ever emptied: a mark in it says so. Raises CommandFailed.
    """
    if given is not None:
        candidates = [given]
    else:
        import platformdirs

        base = platformdirs.user_cache_path("odradek", appauthor=False)
        candidates = [base / f"demo{'' if n == 1 else f'-{n}'}" for n in range(1, 10)]
    for directory in candidates:
        mark = _prepare(directory)
        if mark is None:
            continue
        try:
            for path in directory.iterdir():
                if path.name != _MARK:
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
            yield Place(directory)
        finally:
            if not keep:
                shutil.rmtree(directory, ignore_errors=True)
            os.close(mark)
        return
    raise CommandFailed(
        f"another demo runs in {candidates[0]}", hint="choose another directory with --dir"
    )


def _prepare(directory: Path) -> int | None:
    """Return the locked mark of a directory that is ours to empty; None if another demo has it."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        mark = directory / _MARK
        if not mark.exists() and any(directory.iterdir()):
            raise CommandFailed(
                f"{directory} is not empty, and not a demo's",
                hint="choose an empty or a new directory with --dir",
            )
        fd = os.open(mark, os.O_CREAT | os.O_RDWR, 0o600)
    except OSError as error:
        raise CommandFailed(f"{directory}: {error.strerror}", hint="choose another --dir") from None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd


def free_port(wanted: int) -> bool:
    """Whether `wanted` can be listened on, on the loopback address."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", wanted))
        except OSError:
            return False
        return True


@asynccontextmanager
async def start_broker(place: Place, port: int) -> AsyncIterator[dict[str, Any]]:
    """Run `odradek serve` as a child with its defaults; give what it said when it was ready.

    Leaving stops it as SIGTERM does, and waits. Raises CommandFailed, with the broker's own
    words, when it does not start.
    """
    receiving, sending = os.pipe()
    command = [
        *(sys.executable, "-m", "odradek.cli", "serve"),
        *("--listen", f"tcp://127.0.0.1:{port}"),
        *("--storage", place.logs.absolute().as_uri()),
        *("--coordinator", f"embedded:{quote(str(place.directory.absolute() / 'coordinator'))}"),
        *("--ready-fd", str(sending)),
    ]
    with place.broker_log.open("wb") as output:
        process = await trio.lowlevel.open_process(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=(sending,),
            start_new_session=True,  # Ctrl-C is for the demo, which stops the broker last
        )
    os.close(sending)
    try:
        yield await _ready(process, receiving, place)
    finally:
        with trio.CancelScope(shield=True):
            await _stop(process)


async def _ready(process: trio.Process, receiving: int, place: Place) -> dict[str, Any]:
    said = b""
    with trio.move_on_after(_START_TIMEOUT):
        async with trio.lowlevel.FdStream(receiving) as stream:
            async for chunk in stream:
                said += chunk
    if not said.endswith(b"\n"):
        words = place.broker_log.read_text(errors="replace").strip().splitlines()
        raise CommandFailed(
            f"the broker did not start: {words[-1] if words else 'it said nothing'}",
            hint=f"all it said is in {place.broker_log}",
        )
    document = json.loads(said)
    assert isinstance(document, dict)
    return document


async def _stop(process: trio.Process) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    with trio.move_on_after(_STOP_TIMEOUT):
        await process.wait()
        return
    process.kill()
    await process.wait()
