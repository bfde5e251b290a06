"""The embedded coordinator when the disk is full, or fails."""

from __future__ import annotations

import errno
import itertools
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from odradek.contracts.coordinator import ABSENT, Conflict, Entry, Put, Unavailable, Uncertain
from odradek.contracts.election import elect
from odradek.contracts.local import LocalCoordinator
from odradek.embedded.coordinator import open_embedded_coordinator
from odradek.embedded.database import Database

ReadEntries = Callable[[Path], dict[str, Entry]]


def fill(filler: Path) -> None:
    with filler.open("wb", buffering=0) as file:
        while True:
            try:
                file.write(bytes(4096))
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                return


async def write_until_refused(coordinator: LocalCoordinator) -> int:
    for number in itertools.count():
        try:
            await coordinator.put(f"a/{number}", bytes(3000))
        except Unavailable as error:
            if "no room" not in str(error):
                raise
            return number
    raise AssertionError


@pytest.mark.faults
async def test_full_disk_refuses_writes_until_there_is_room(
    small_disk: Path, read_entries: ReadEntries
) -> None:
    filler = small_disk / "filler"
    async with (
        open_embedded_coordinator(small_disk / "data") as coordinator,
        coordinator.session(1) as session,
        coordinator.watch("a") as watch,
    ):
        leader = await elect(coordinator, "x", session, "me")
        assert leader is not None
        fill(filler)
        written = await write_until_refused(coordinator)
        assert await coordinator.get(f"a/{written}") is None
        assert len(await coordinator.list("a")) == written
        assert session.alive
        filler.unlink()
        await coordinator.txn(leader.fence, Put(f"a/{written}", b"room", ABSENT))
        told = dict(watch.snapshot)
        with trio.fail_after(5):
            while f"a/{written}" not in told:
                change = await anext(watch)
                assert change.entry is not None
                told[change.key] = change.entry
        before = await coordinator.list("a")
        assert told == before
    entries = read_entries(small_disk / "data")
    assert {key: entry for key, entry in entries.items() if key.startswith("a/")} == before


@pytest.mark.faults
@pytest.mark.parametrize("call", ["fdatasync", "pwrite64"])
def test_failing_disk_ends_service_and_loses_nothing_acknowledged(
    call: str, tmp_path: Path, start_writer: Any, read_entries: ReadEntries
) -> None:
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("failures are injected with strace")
    # The first calls open the database; later ones are commits.
    options = ["-f", "-qq", "-o", "/dev/null", "-e", f"trace={call}"]
    injection = f"inject={call}:error=EIO:when=200"
    writer = start_writer(tmp_path, prefix=[strace, *options, "-e", injection])
    writer.finish()
    assert writer.acknowledged
    assert set(writer.errors) <= {"Uncertain", "Unavailable"}
    assert "Uncertain" in writer.errors
    assert len(writer.errors) == 8, "a task went on although the disk had failed"
    writer.check(read_entries(tmp_path))


async def execute(coordinator: LocalCoordinator, sql: str) -> None:
    assert isinstance(coordinator._store, Database)
    await trio.to_thread.run_sync(coordinator._store._connection.execute, sql)


async def full(coordinator: LocalCoordinator, pages: int) -> None:
    """Let SQLite believe that the disk has room for so many pages (it never shrinks a file)."""
    await execute(coordinator, f"PRAGMA max_page_count = {pages}")


async def test_batch_that_finds_no_room_is_refused_whole(tmp_path: Path) -> None:
    outcomes: list[str] = []

    async def attempt(coordinator: LocalCoordinator, *ops: Put) -> None:
        try:
            await coordinator.txn(*ops)
        except (Unavailable, Conflict) as error:
            outcomes.append(type(error).__name__)

    async with open_embedded_coordinator(tmp_path) as coordinator:
        await coordinator.put("a/key", b"v")
        await full(coordinator, 1)
        async with coordinator.session(1) as session, trio.open_nursery() as nursery:
            nursery.start_soon(attempt, coordinator, Put("a/large", bytes(100_000), ABSENT))
            # This one is a conflict only if the first is applied, so it must not be called one.
            nursery.start_soon(attempt, coordinator, Put("a/large", bytes(100_000), ABSENT))
            nursery.start_soon(attempt, coordinator, Put("a/mine", b"v", ABSENT, session))
        assert outcomes == ["Unavailable"] * 3
        assert set(await coordinator.list("a")) == {"a/key"}
        await full(coordinator, 1000)
        await coordinator.txn(Put("a/large", bytes(100_000), ABSENT))


async def test_session_ends_although_there_is_no_room(tmp_path: Path) -> None:
    async with open_embedded_coordinator(tmp_path) as coordinator:
        async with coordinator.session(1) as session:
            await coordinator.txn(Put("a/mine", b"v", ABSENT, session))
            await full(coordinator, 1)
            with pytest.raises(Unavailable):
                await coordinator.put("a/large", bytes(100_000))
        assert await coordinator.list("a") == {}


async def test_failed_write_is_never_pretended_to_be_done(tmp_path: Path) -> None:
    async with open_embedded_coordinator(tmp_path) as coordinator:
        await coordinator.put("a/key", b"1")
        async with coordinator.session(1) as session, coordinator.watch("a") as watch:
            # Read-only from here on: the next write fails with SQLITE_READONLY.
            await execute(coordinator, "PRAGMA query_only = 1")
            with pytest.raises(
                Uncertain, match=r"writing .*coordinator\.db failed: SQLITE_READONLY"
            ):
                await coordinator.put("a/key", b"2")
            assert session.lost.is_set()
            assert not session.alive
            with pytest.raises(Unavailable, match="open it anew"):
                await anext(watch)
            for call in (coordinator.get("a/key"), coordinator.list("a")):
                with pytest.raises(Unavailable, match="open it anew"):
                    await call
            with pytest.raises(Unavailable, match="open it anew"):
                await coordinator.put("a/key", b"3")
            with pytest.raises(Unavailable, match="open it anew"):
                async with coordinator.session(1):
                    pass
    async with open_embedded_coordinator(tmp_path) as coordinator:
        entry = await coordinator.get("a/key")
        assert entry is not None
        assert entry.value == b"1"


@pytest.mark.skipif(sys.platform != "linux", reason="/dev/full")
async def test_directory_that_cannot_be_made_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(Unavailable, match="file/data"):
        async with open_embedded_coordinator(tmp_path / "file" / "data"):
            pass
