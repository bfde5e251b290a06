"""The embedded coordinator: group commit, back-pressure, timeouts, closing, locking, opening."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing

from odradek.config import ConfigError, settings_of
from odradek.contracts.coordinator import ABSENT, Entry, Put, Unavailable, Uncertain
from odradek.contracts.local import LocalCoordinator
from odradek.embedded import odradek_coordinator
from odradek.embedded.coordinator import open_embedded_coordinator
from odradek.embedded.database import Database
from odradek.embedded.directory import InUse
from odradek.embedded.settings import EmbeddedCoordinatorSettings


class Disk(Database):
    """A database that counts its writes, and holds them up until it is told to let go."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        super().__init__(path, connection)
        self.writes = 0
        self.begun = trio.Event()
        self.let_go = trio.Event()

    def write(self, changes: Mapping[str, Entry | None]) -> None:
        self.writes += 1
        trio.from_thread.run_sync(self.begun.set)
        trio.from_thread.run(self.let_go.wait)
        super().write(changes)


@asynccontextmanager
async def coordinator_on(
    path: Path, **settings: int
) -> AsyncIterator[tuple[LocalCoordinator, Disk]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("odradek.embedded.coordinator.Database", Disk)
        opening = open_embedded_coordinator(path, EmbeddedCoordinatorSettings(**settings))
    async with opening as coordinator:
        disk = coordinator._store
        assert isinstance(disk, Disk)
        try:
            yield coordinator, disk
        finally:
            disk.let_go.set()


async def test_concurrent_writes_share_a_sync(tmp_path: Path) -> None:
    async with coordinator_on(tmp_path) as (coordinator, disk), trio.open_nursery() as nursery:
        nursery.start_soon(coordinator.put, "a/first", b"v")
        await disk.begun.wait()
        for number in range(100):
            nursery.start_soon(coordinator.put, f"a/{number}", b"v")
        await trio.testing.wait_all_tasks_blocked()
        disk.let_go.set()
    assert disk.writes == 2


async def test_batch_is_bounded_in_number_and_bytes(tmp_path: Path) -> None:
    async with coordinator_on(tmp_path, max_batch_writes=10) as (coordinator, disk):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(coordinator.put, "a/first", b"v")
            await disk.begun.wait()
            for number in range(30):
                nursery.start_soon(coordinator.put, f"a/{number}", b"v")
            await trio.testing.wait_all_tasks_blocked()
            disk.let_go.set()
        assert disk.writes == 1 + 3
        disk.let_go = trio.Event()
        disk.begun = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(coordinator.put, "a/first", b"v")
            await disk.begun.wait()
            for number in range(9):
                value = bytes(250_000)
                nursery.start_soon(
                    coordinator.txn, *(Put(f"b{side}/{number}", value, ABSENT) for side in "lr")
                )
            await trio.testing.wait_all_tasks_blocked()
            disk.let_go.set()
        assert disk.writes == 1 + 3 + 1 + 1, "4.5 MB in one batch and no more"


async def test_nothing_is_seen_before_it_is_durable(tmp_path: Path) -> None:
    async with (
        coordinator_on(tmp_path) as (coordinator, disk),
        coordinator.watch("a") as watch,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(coordinator.put, "a/key", b"v")
        await disk.begun.wait()
        assert await coordinator.get("a/key") is None
        assert await coordinator.list("a") == {}
        with trio.move_on_after(0.01):
            pytest.fail(f"told too early: {await anext(watch)}")
        disk.let_go.set()
        assert (await anext(watch)).key == "a/key"


async def test_full_queue_makes_callers_wait(tmp_path: Path) -> None:
    async with coordinator_on(tmp_path, max_queued_writes=4) as (coordinator, disk):
        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(coordinator.put, f"a/{number}", b"v")
            await trio.testing.wait_all_tasks_blocked()
            assert len(coordinator._queue) + len(coordinator._in_flight) <= 4
            disk.let_go.set()
        assert len(await coordinator.list("a")) == 20


async def test_cancelled_while_queued_is_not_written(tmp_path: Path) -> None:
    async with coordinator_on(tmp_path, max_queued_writes=2) as (coordinator, disk):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(coordinator.put, "a/first", b"v")
            await disk.begun.wait()
            for _ in range(10):
                with trio.move_on_after(0.001):
                    await coordinator.put("a/cancelled", b"v")
            assert not coordinator._queue
            disk.let_go.set()
        assert set(await coordinator.list("a")) == {"a/first"}


async def test_disk_that_does_not_answer_is_a_timeout(tmp_path: Path) -> None:
    async with coordinator_on(tmp_path, request_timeout_ms=20) as (coordinator, disk):
        with pytest.raises(Uncertain, match="did not answer in 20 ms; the write may"):
            await coordinator.put("a/begun", b"v")
        with pytest.raises(Unavailable, match="nothing was written"):
            await coordinator.put("a/waiting", b"v")
        disk.let_go.set()
        coordinator._request_timeout = 30
        await coordinator.put("a/last", b"v")
        assert set(await coordinator.list("a")) == {"a/begun", "a/last"}


async def test_cancelled_by_its_host_it_finishes_the_write_it_began(tmp_path: Path) -> None:
    outcomes: list[str] = []
    async with trio.open_nursery() as nursery:
        disk: Disk

        async def host(task_status: trio.TaskStatus[Disk]) -> None:
            async with (
                coordinator_on(tmp_path) as (coordinator, disk),
                trio.open_nursery() as writers,
            ):

                async def write(key: str) -> None:
                    try:
                        await coordinator.put(key, b"v")
                    except trio.Cancelled:
                        outcomes.append(key)
                        raise

                writers.start_soon(write, "a/begun")
                await disk.begun.wait()
                writers.start_soon(write, "a/queued")
                await trio.testing.wait_all_tasks_blocked()
                task_status.started(disk)

        disk = await nursery.start(host)
        nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True):
            await trio.testing.wait_all_tasks_blocked()
        disk.let_go.set()
    assert set(outcomes) == {"a/begun", "a/queued"}
    async with open_embedded_coordinator(tmp_path) as coordinator:
        assert set(await coordinator.list("a")) == {"a/begun"}


async def test_closing_refuses_what_is_queued(tmp_path: Path) -> None:
    refused: list[str] = []

    async def write(coordinator: LocalCoordinator, key: str) -> None:
        try:
            await coordinator.put(key, b"v")
        except Unavailable as error:
            refused.append(f"{key}: {error}")

    async with trio.open_nursery() as nursery, coordinator_on(tmp_path) as (coordinator, disk):
        nursery.start_soon(write, coordinator, "a/begun")
        await disk.begun.wait()
        nursery.start_soon(write, coordinator, "a/queued")
        await trio.testing.wait_all_tasks_blocked()
        assert refused == []
    (line,) = refused
    assert line.startswith("a/queued: coordinator ")
    assert line.endswith("was closed")


async def test_error_in_the_callers_code_arrives_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(KeyError, match="mine"):
        async with open_embedded_coordinator(tmp_path):
            raise KeyError("mine")


async def test_second_opening_is_refused_with_path_and_process(tmp_path: Path) -> None:
    async with open_embedded_coordinator(tmp_path):
        with pytest.raises(InUse, match=rf"^{tmp_path} is in use by process {os.getpid()}$"):
            async with open_embedded_coordinator(tmp_path):
                pass
        code = f"from pathlib import Path; import odradek.embedded.database as d; d.Database.open(Path({str(tmp_path)!r}))"  # noqa: E501  # one line of code
        other = await trio.run_process(
            [sys.executable, "-c", code], capture_stderr=True, check=False
        )
        assert other.returncode == 1
        assert f"is in use by process {os.getpid()}".encode() in other.stderr
    async with open_embedded_coordinator(tmp_path):
        pass


FORKED = """
import gc, os, sys
from pathlib import Path
from odradek.contracts.coordinator import Entry, Version
from odradek.embedded.database import Database, WriteFailed

directory = Path(sys.argv[1])
database = Database.open(directory)
database.write({"a/before": Entry("a/before", b"v", Version(1), 1, 1)})
ready, go = os.pipe(), os.pipe()
child = os.fork()
if child == 0:
    try:
        database.write({"a/child": Entry("a/child", b"v", Version(2), 2, 2)})
    except WriteFailed as error:
        assert "forked" in str(error)
    else:
        os._exit(1)
    database.close()
    del database
    gc.collect()
    os.write(ready[1], b".")
    os.read(go[0], 1)  # outlives its parent's use of the directory
    sys.exit(0)  # with everything that an interpreter does at its end
os.read(ready[0], 1)
database.write({"a/after": Entry("a/after", b"v", Version(3), 3, 3)})
database.close()
again = Database.open(directory)
assert set(again.entries) == {"a/before", "a/after"}, again.entries
again.write({"a/last": Entry("a/last", b"v", Version(4), 4, 4)})
os.write(go[1], b".")
assert os.waitpid(child, 0)[1] == 0
assert (directory / "coordinator.db-wal").stat().st_size, "the child removed the log"
again.close()
assert set(Database.open(directory).entries) == {"a/before", "a/after", "a/last"}
"""


def test_forked_child_neither_writes_nor_holds_the_directory(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", FORKED, str(tmp_path)], check=True, timeout=30)


async def test_opening_takes_less_than_ten_milliseconds(tmp_path: Path) -> None:
    taken: list[float] = []
    for _ in range(10):
        begin = time.perf_counter()
        async with open_embedded_coordinator(tmp_path) as coordinator:
            taken.append(time.perf_counter() - begin)
            await coordinator.put("a/key", b"v")
    assert min(taken) < 0.010


async def test_closing_leaves_no_thread_file_or_descriptor(tmp_path: Path) -> None:
    async with open_embedded_coordinator(tmp_path) as coordinator:  # trio keeps a thread for reuse
        await coordinator.put("a/key", b"v")
    before = threading.active_count(), set(os.listdir("/proc/self/fd"))
    for _ in range(3):
        async with open_embedded_coordinator(tmp_path) as coordinator:
            await coordinator.put("a/key", b"v")
    assert (threading.active_count(), set(os.listdir("/proc/self/fd"))) == before
    assert sorted(os.listdir(tmp_path)) == [
        "coordinator.ballast",
        "coordinator.db",
        "coordinator.lock",
    ]


def test_sqlite_is_imported_only_when_it_is_used() -> None:
    code = "import sys, odradek.embedded; sys.exit('sqlite3' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)


async def test_factory_opens_the_directory_of_the_url(tmp_path: Path) -> None:
    (factory,) = odradek_coordinator()
    assert factory.scheme == "embedded"
    directory = tmp_path / "my data"
    encoded = directory.as_uri().removeprefix("file:")  # how the default URL is made
    for number, path in enumerate((directory, f"//{directory}", encoded)):
        url = f"embedded:{path}"
        async with factory.open(url, factory.settings()) as coordinator:
            assert len(await coordinator.list("a")) == number
            await coordinator.put(f"a/{number}", b"v")
    assert os.listdir(tmp_path) == ["my data"]
    for url in ("embedded:", "embedded:relative/path"):
        with pytest.raises(ConfigError, match="absolute directory"):
            factory.open(url, factory.settings())


def test_settings_are_documented() -> None:
    page = Path(__file__).parents[2] / "docs/reference/coordinator.md"
    for name, setting in settings_of(EmbeddedCoordinatorSettings).items():
        assert f"| `{name}` | {setting.default} |" in page.read_text()
