"""The journal file: torn, damaged, rewritten, in use, failing."""

import os
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
import trio

from odradek.contracts.coordinator import Coordinator, Unavailable, Uncertain
from odradek.plugins import load
from odradek_coord_journal import journal

Open = Callable[[], AbstractAsyncContextManager[Coordinator]]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "my data" / "coordinator"


@pytest.fixture
def open_it(directory: Path) -> Open:
    factory = load().coordinator("journal")
    return lambda: factory.open(directory.as_uri().replace("file", "journal"), factory.settings())


async def value_of(coordinator: Coordinator, key: str) -> bytes | None:
    entry = await coordinator.get(key)
    return None if entry is None else entry.value


@pytest.mark.parametrize("torn", [b'{"a/b": ["x', b"\0\0\0\0", b'{"a/b"\0\0]\n'])
async def test_torn_last_line_is_dropped(open_it: Open, directory: Path, torn: bytes) -> None:
    async with open_it() as coordinator:
        await coordinator.put("a/b", b"1")
    file = trio.Path(directory / "journal.jsonl")
    await file.write_bytes(await file.read_bytes() + torn)
    async with open_it() as coordinator:
        assert await value_of(coordinator, "a/b") == b"1"


async def test_damage_before_the_end_is_not_repaired_in_silence(
    open_it: Open, directory: Path
) -> None:
    async with open_it() as coordinator:
        await coordinator.put("a/b", b"1")
    file = trio.Path(directory / "journal.jsonl")
    await file.write_bytes(b"rubbish\n" + await file.read_bytes())
    with pytest.raises(Unavailable, match="line 1 is damaged"):
        await open_it().__aenter__()


async def test_journal_stays_small_however_much_is_written(
    open_it: Open, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "REWRITE_BYTES", 4096)
    async with open_it() as coordinator:
        for number in range(100):
            await coordinator.put("a/b", bytes(range(256)) + b"%d" % number)
        size = (await trio.Path(directory / "journal.jsonl").stat()).st_size
        assert size < 16 * 1024
    async with open_it() as coordinator:
        assert await value_of(coordinator, "a/b") == bytes(range(256)) + b"99"


async def test_second_opening_is_refused_until_the_first_is_closed(open_it: Open) -> None:
    async with open_it():
        with pytest.raises(Unavailable, match="in use"):
            await open_it().__aenter__()
    async with open_it():
        pass


async def test_failed_sync_is_final(open_it: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(_: int) -> None:
        raise OSError(5, "Input/output error")

    async with open_it() as coordinator:
        with monkeypatch.context() as patch:
            patch.setattr("os.fdatasync", failing)
            with pytest.raises(Uncertain, match="Input/output error"):
                await coordinator.put("a/b", b"1")
        with pytest.raises(Unavailable, match="open it anew"):
            await coordinator.put("a/b", b"2")


async def test_disk_that_fills_up_in_the_middle_loses_nothing_acknowledged(
    open_it: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write
    async with open_it() as coordinator:
        await coordinator.put("a/b", b"1")
        with monkeypatch.context() as patch:
            patch.setattr("os.write", lambda file, data: write(file, data[:5]))
            with pytest.raises(Uncertain, match="No space left"):
                await coordinator.put("a/b", b"2")
    async with open_it() as coordinator:
        assert await value_of(coordinator, "a/b") == b"1"


async def test_directory_that_cannot_be_made_is_reported(directory: Path, open_it: Open) -> None:
    await trio.Path(directory.parent).write_bytes(b"a file")
    with pytest.raises(Unavailable, match="coordinator'"):
        await open_it().__aenter__()
