"""The ballast: room on a full disk for what frees room, and for closing in order."""

from __future__ import annotations

import errno
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from attrs import evolve

from odradek.contracts.storage import Claim, Full, LogEdit
from odradek.testing.storage import KEY, Log
from odradek.types import PartitionKey
from odradek_storage_file import FileStorageSettings, layout
from odradek_storage_file.store import FileStore, open_store

BALLAST = 256 * 1024
SETTINGS = FileStorageSettings(min_free_bytes=0, ballast_bytes=BALLAST)


def fill(disk: Path) -> None:
    """Take all the room there is, and what comes free later when called again."""
    with (disk / "filler").open("ab", buffering=0) as file:
        while True:
            try:
                file.write(bytes(4096))
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                return


def ballast(disk: Path) -> int:
    """Bytes that are set aside."""
    return (disk / layout.BALLAST).stat().st_blocks * 512


@asynccontextmanager
async def opened(disk: Path) -> AsyncIterator[tuple[FileStore, Log]]:
    """A log of three segments, whose manifest knows of the first alone."""
    async with open_store(disk.as_uri(), SETTINGS) as store:
        log = Log(await store.open_writer(KEY, Claim(1, 1)))
        store.upkeep.save_soon = lambda partition: None  # type: ignore[method-assign]
        for _ in range(2):
            for _ in range(10):
                log.append(value_bytes=1000)
            log.writer.roll()
        log.append()
        await log.writer.flush()
        yield store, log


async def test_a_checkpoint_that_can_wait_leaves_the_ballast_alone(small_disk: Path) -> None:
    """Whoever fills the disk would take it, and removing segments would have none."""
    async with opened(small_disk) as (store, log):
        fill(small_disk)
        (partition,) = store._live.values()
        with pytest.raises(Full):
            await partition.save(ballast=False)
        assert ballast(small_disk) == BALLAST
        assert store.failure is None
        first, second, _ = log.writer.snapshot.segments
        await log.writer.commit(LogEdit(remove=(first.id,), log_start=second.base_offset))
    assert (small_disk / layout.CLEAN_MARKER).exists()


async def test_what_the_ballast_gave_is_set_aside_again_at_once(small_disk: Path) -> None:
    """Edits go on working though something takes every byte that comes free between them."""
    async with opened(small_disk) as (_, log):
        for offset in range(1, 15):
            fill(small_disk)
            await log.writer.commit(LogEdit(log_start=offset))
            assert ballast(small_disk) > 0
        fill(small_disk)
    assert (small_disk / layout.CLEAN_MARKER).exists()
    async with open_store(small_disk.as_uri(), SETTINGS) as store:
        fill(small_disk)
        await store.probe()
        writer = await store.open_writer(KEY, Claim(1, 1))
        assert writer.recovery.clean
        assert writer.snapshot.log_start == 14
        fill(small_disk)
        await writer.commit(LogEdit(log_start=15))


async def test_partitions_that_need_the_ballast_together_all_get_it(small_disk: Path) -> None:
    keys = [PartitionKey(KEY.topic_id, number) for number in range(24)]
    async with open_store(small_disk.as_uri(), SETTINGS) as store:
        writers = [await store.open_writer(key, Claim(1, 1)) for key in keys]
        for writer in writers:
            Log(writer).append(20)
            await writer.flush()
        fill(small_disk)
        async with trio.open_nursery() as nursery:
            for writer in writers:
                nursery.start_soon(writer.commit, LogEdit(log_start=1))
        fill(small_disk)
    assert (small_disk / layout.CLEAN_MARKER).exists()
    async with open_store(small_disk.as_uri(), SETTINGS) as store:
        for key in keys:
            writer = await store.open_writer(key, Claim(1, 1))
            assert writer.recovery.clean
            assert writer.snapshot.log_start == 1


async def test_ballast_that_found_no_room_at_the_start_is_set_aside_later(
    small_disk: Path,
) -> None:
    async with open_store(small_disk.as_uri(), evolve(SETTINGS, ballast_bytes=0)):
        pass
    fill(small_disk)
    async with open_store(small_disk.as_uri(), SETTINGS) as store:
        assert not (small_disk / layout.BALLAST).exists()
        os.unlink(small_disk / "filler")
        log = Log(await store.open_writer(KEY, Claim(1, 1)))
        log.append()
        assert ballast(small_disk) == BALLAST


async def test_a_ballast_that_was_copied_without_its_blocks_is_set_aside_again(
    small_disk: Path,
) -> None:
    with (small_disk / layout.BALLAST).open("wb") as file:
        file.truncate(BALLAST)
    assert ballast(small_disk) == 0
    async with open_store(small_disk.as_uri(), SETTINGS):
        assert ballast(small_disk) == BALLAST
