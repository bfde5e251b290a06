"""The demo from beginning to end."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio
from rich.console import Console
from rich.text import Text

from odradek.cli.demo.place import Place, claim, free_port, start_broker
from odradek.cli.demo.progress import Progress
from odradek.cli.demo.publish import METRICS, Published, create_topics, publish
from odradek.cli.demo.sources import LogSource, find_logs, from_paths
from odradek.cli.demo.summary import Outcome, show_summary
from odradek.cli.exits import CommandFailed, ExitCode
from odradek.cli.running import run_async
from odradek.cli.text import escape
from odradek.client import Admin, Cluster, open_cluster

__all__ = ["run"]

_PORT = 9092
_PLAIN_WIDTH = 120
_CHECK_PATIENCE = 30.0


def run(
    paths: Sequence[Path],
    directory: Path | None,
    *,
    keep: bool,
    port: int | None,
    seconds: float,
    stay: bool | None,
) -> int:
    """Run the demo; return its exit code."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _PLAIN_WIDTH
    if port is not None and port and not free_port(port):
        raise CommandFailed(f"port {port} is taken", hint="choose another, or leave out --port")
    chosen = port if port is not None else (_PORT if free_port(_PORT) else 0)
    try:
        logs = from_paths(paths) if paths else find_logs()
    except OSError as error:
        raise CommandFailed(f"{error.filename}: {error.strerror}") from None
    staying = console.is_terminal if stay is None else stay
    finished: list[int] = []
    with claim(directory, keep=keep) as place:

        async def body() -> int:
            started = trio.current_time()
            async with start_broker(place, chosen) as ready:
                took = trio.current_time() - started
                address = next(iter(ready["addresses"].values()))
                async with open_cluster(address) as cluster:
                    outcome = await _run(console, cluster, address, place, logs, seconds, took)
                show_summary(console, outcome, staying=staying, kept=keep)
                code = ExitCode.FAILED if outcome.mismatches else ExitCode.OK
                finished.append(code)
                console.print()
                if staying:
                    console.print(
                        Text(f"The broker goes on at {address}. Ctrl-C stops it.", style="bold")
                    )
                    await trio.sleep_forever()
            return code

        code = run_async(body)
        if finished:
            console.print("The broker has stopped.", style="dim")
            return finished[0]
        return code


async def _run(
    console: Console,
    cluster: Cluster,
    address: str,
    place: Place,
    logs: list[LogSource],
    seconds: float,
    start_seconds: float,
) -> Outcome:
    published = Published()
    with Progress(console) as progress:
        progress.status(f"broker started at {address}; publishing this machine's metrics and logs")
        topics = await create_topics(cluster, [METRICS, *(source.topic for source in logs)])
        progress.totals = dict.fromkeys(topics)
        progress.published = published.records
        began = trio.current_time()
        async with _checker(address, topics) as checker:

            def finished(topic: str) -> None:
                progress.totals[topic] = published.records.get(topic, 0)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(checker.follow, progress)
                nursery.start_soon(_tick, progress, began, checker.done)
                await publish(cluster, logs, seconds, published, finished)
                progress.status("everything is acknowledged; reading the rest back")
                await checker.expect({topic: published.records.get(topic, 0) for topic in topics})
            checked = checker.result()
    stored, directories = await _stored(cluster, place)
    return Outcome(
        address=address,
        place=place,
        logs=logs,
        published=published,
        checked=checked,
        mismatches=_compare(published, checked),
        stored=stored,
        directories=directories,
        start_seconds=start_seconds,
    )


async def _tick(progress: Progress, began: float, done: trio.Event) -> None:
    """Keep the clock of the rates going until the check is done."""
    while not done.is_set():
        progress.seconds = trio.current_time() - began
        with trio.move_on_after(0.1):
            await done.wait()


class _Checker:
    """The second process, from here."""

    def __init__(self, process: trio.Process) -> None:
        self.done = trio.Event()
        self._process = process
        self._ready = trio.Event()
        self._result: dict[str, Any] | None = None
        self._deadline = trio.CancelScope()

    async def send(self, document: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        await self._process.stdin.send_all(json.dumps(document).encode() + b"\n")

    async def expect(self, records: dict[str, int]) -> None:
        """Say how many records there are of each topic: from now on it may take so long."""
        await self.send(records)
        self._deadline.deadline = trio.current_time() + _CHECK_PATIENCE

    async def follow(self, progress: Progress) -> None:
        """Show what it reports until it has a result, or ends without one."""
        held = b""
        assert self._process.stdout is not None
        with self._deadline:
            async for chunk in self._process.stdout:
                *lines, held = (held + chunk).split(b"\n")
                for line in lines:
                    said = json.loads(line)
                    if "records" in said:
                        progress.consumed = said["records"]
                    elif "result" in said:
                        self._result = said["result"]
                        progress.consumed = said["result"]["records"]
                        self.done.set()
                        return
        self.done.set()

    def result(self) -> dict[str, Any]:
        """Return what it found. Raises CommandFailed when it found nothing."""
        if self._result is None:
            raise CommandFailed("the process that reads the records back ended without a result")
        return self._result


@asynccontextmanager
async def _checker(address: str, topics: dict[str, int]) -> AsyncIterator[_Checker]:
    process: trio.Process = await trio.lowlevel.open_process(
        [sys.executable, "-m", "odradek.cli.demo.check", address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        checker = _Checker(process)
        await checker.send(topics)
        yield checker
    finally:
        with trio.CancelScope(shield=True):
            if process.poll() is None:
                process.terminate()
            await process.wait()
            await process.stdin.aclose() if process.stdin else None
            await process.stdout.aclose() if process.stdout else None


def _compare(published: Published, checked: dict[str, Any]) -> list[str]:
    """Return what differs between what was sent and what came back."""
    found = list(checked["problems"])
    sent = {str(partition): str(total) for partition, total in published.sums.items()}
    for name in sorted({*sent, *checked["sums"]}):
        ours = sent.get(name, "0:")
        theirs = checked["sums"].get(name, "0:")
        if ours.startswith("0:") and theirs.startswith("0:"):
            continue
        if ours != theirs:
            ours, theirs = ours.partition(":")[0], theirs.partition(":")[0]
            found.append(
                f"{escape(name)}: {ours} records sent, {theirs} came back"
                + (", and their contents differ" if ours == theirs else "")
            )
    return found


async def _stored(
    cluster: Cluster, place: Place
) -> tuple[dict[tuple[str, int], int], dict[tuple[str, int], Path]]:
    """Return the size of each partition as the broker says, and its directory."""
    admin = Admin(cluster)
    topics = await admin.list_topics()
    sizes = {
        (replica.partition.topic, replica.partition.partition): replica.size
        for found in await admin.describe_log_dirs()
        for replica in found.replicas
        if replica.partition.topic in topics
    }
    directories = {
        key: place.logs / f"{topics[key[0]].topic_id}-{key[1]}"
        for key in sizes
        if (place.logs / f"{topics[key[0]].topic_id}-{key[1]}").is_dir()
    }
    return sizes, directories
