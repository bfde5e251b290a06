"""Data of removed segments stays for an operator to find, as long as nobody needs its room."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing
from storage_file_disk import LossyOps

from odradek.contracts.storage import Claim, Full, Hint, LogEdit
from odradek.testing.storage import KEY, Log, chunks_of, read_log
from odradek_storage_file import FileStorageSettings, layout
from odradek_storage_file.lingering import Lingering
from odradek_storage_file.ops import Ops
from odradek_storage_file.space import SCARCE
from odradek_storage_file.store import FileStore, open_store

SETTINGS = FileStorageSettings(min_free_bytes=0, ballast_bytes=0)
HOUR = 3_600_000
PLENTY = 1 << 40


def left(root: Path) -> list[Path]:
    return list((root / layout.directory_name(KEY)).glob(f"*{layout.DELETED_SUFFIX}"))


def lingering(root: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in left(root)}


def dropped(root: Path) -> list[Path]:
    return list(root.glob(f"*{layout.DELETED_SUFFIX}"))


async def until_left(root: Path, count: int) -> None:
    deadline = time.monotonic() + 30  # the clock of trio may stand still
    while len(left(root)) != count or dropped(root):
        assert time.monotonic() < deadline
        await trio.lowlevel.checkpoint()


@asynccontextmanager
async def opened(root: Path, ops: Ops | None = None) -> AsyncIterator[tuple[FileStore, Log]]:
    """A log of four segments, ten batches of 400 bytes in each."""
    async with open_store(root.as_uri(), SETTINGS, ops) as store:
        store.space.free = lambda: PLENTY  # type: ignore[method-assign]
        log = Log(await store.open_writer(KEY, Claim(1, 1)))
        for i in range(40):
            log.append(value_bytes=400)
            if i % 10 == 9 and i < 39:
                log.writer.roll()
        await log.writer.flush()
        yield store, log


async def retain(log: Log, count: int, linger_ms: int = HOUR) -> list[bytes]:
    """Remove the first segments; return what they held."""
    segments = log.writer.snapshot.segments
    held = []
    for segment in segments[:count]:
        with await log.writer.read(segment.id, 0, segment.size, Hint.SCAN) as data:
            held.append(b"".join(data.views()))
    edit = LogEdit(
        tuple(s.id for s in segments[:count]),
        log_start=segments[count].base_offset,
        linger_ms=linger_ms,
    )
    await log.writer.commit(edit)
    log.batches = [b for b in log.batches if b[0].base_offset >= segments[count].base_offset]
    return held


def test_removed_data_lingers_for_its_time(tmp_path: Path) -> None:
    clock = trio.testing.MockClock()

    async def main() -> None:
        async with opened(tmp_path) as (_, log):
            held = await retain(log, 1, 60_000)
            name = f"{layout.stem(0)}.log.0.deleted"
            assert lingering(tmp_path) == {name: held[0]}
            clock.jump(30)
            await retain(log, 1, 60_000)
            await trio.testing.wait_all_tasks_blocked()
            assert len(lingering(tmp_path)) == 2
            clock.jump(30)
            await until_left(tmp_path, 1)
            assert name not in lingering(tmp_path)
            clock.jump(30)
            await until_left(tmp_path, 0)
            await log.check()

    trio.run(main, clock=clock)


async def test_without_a_delay_the_data_goes_at_once(tmp_path: Path) -> None:
    async with opened(tmp_path) as (_, log):
        await retain(log, 2, 0)
        path = tmp_path / layout.directory_name(KEY)
        assert sorted(each.name for each in path.glob("*.log*")) == [
            f"{layout.stem(base)}.log" for base in (20, 30)
        ]


async def test_generations_of_one_base_offset_linger_side_by_side(tmp_path: Path) -> None:
    async with opened(tmp_path) as (_, log):
        expected = {}
        for _ in range(3):
            first = log.writer.snapshot.segments[0]
            assert first.base_offset == 0
            with await log.writer.read(first.id, 0, first.size, Hint.SCAN) as data:
                expected[f"{layout.stem(0)}.log.{first.id}.deleted"] = b"".join(data.views())
            inside = [b for b in log.batches if b[0].base_offset < first.end_offset]
            kept = [inside[0], *inside[1::2]]
            info = await log.writer.build(chunks_of(kept))
            await log.writer.commit(LogEdit((first.id,), (info,), linger_ms=HOUR))
            log.batches = [b for b in log.batches if b not in inside or b in kept]
            await log.check()
        assert lingering(tmp_path) == expected
        await log.writer.truncate(15)
        log.keep_below(15)
        await log.check()
        assert lingering(tmp_path) == expected


async def test_opening_removes_what_lingered(tmp_path: Path) -> None:
    async with opened(tmp_path) as (_, log):
        await retain(log, 2)
    assert len(lingering(tmp_path)) == 2
    async with open_store(tmp_path.as_uri(), SETTINGS) as store:
        writer = await store.open_writer(KEY, Claim(2, 1))
        assert lingering(tmp_path) == {}
        assert writer.recovery.clean
        assert await read_log(writer) == log.bytes()


async def test_references_outlive_what_lingered(tmp_path: Path) -> None:
    async with opened(tmp_path) as (store, log):
        first = log.writer.snapshot.segments[0]
        once = await log.writer.read(first.id, 0, first.size, Hint.ONCE)
        scan = await log.writer.read(first.id, 0, first.size, Hint.SCAN)
        held = await retain(log, 1)
        assert [b"".join(ref.views()) for ref in (once, scan)] == held * 2
        await store.upkeep.clear()
        assert lingering(tmp_path) == {}
        assert [b"".join(ref.views()) for ref in (once, scan)] == held * 2
        once.close()
        scan.close()


async def test_a_dropped_partition_takes_along_what_lingers(tmp_path: Path) -> None:
    async with opened(tmp_path) as (store, log):
        await retain(log, 2)
        await store.drop(KEY)
        again = Log(await store.open_writer(KEY, Claim(2, 1)), epoch=2)
        again.append(3)
        await store.upkeep.clear()  # names of files that went with the directory
        await again.check()
        await until_left(tmp_path, 0)


class Disk:
    """A disk of some size that is full of nothing but the log."""

    def __init__(self, root: Path, size: int) -> None:
        self.root = root
        self.size = size

    def free(self) -> int:
        return self.size - sum(
            path.stat().st_size for path in self.root.rglob("*") if path.name.find(".log") > 0
        )


async def test_lingering_data_goes_before_a_producer_is_refused(tmp_path: Path) -> None:
    async with opened(tmp_path) as (store, log):
        await retain(log, 3)
        three = sum(map(len, lingering(tmp_path).values()))
        disk = Disk(tmp_path, 0)
        disk.size = 1_000 - disk.free()  # a thousand bytes are free
        store.space.free = disk.free  # type: ignore[method-assign]
        store.space.scarce = lambda: None
        store.space.left = 0
        log.append(value_bytes=800)
        assert len(lingering(tmp_path)) == 3
        store.space.left = 0
        log.append(value_bytes=800)
        assert len(lingering(tmp_path)) == 2, "no more goes than has to"
        log.append(value_bytes=three - 2_500)
        assert lingering(tmp_path) == {}
        with pytest.raises(Full):
            log.append(value_bytes=10_000)
        await log.writer.flush()
        await log.check()


async def test_a_write_without_room_is_tried_again_with_the_room_of_what_lingers(
    tmp_path: Path,
) -> None:
    class Wall(LossyOps):
        full = False

        def pwritev(self, fd: int, buffers, offset: int) -> int:  # type: ignore[no-untyped-def, override]
            if self.full and left(tmp_path):
                os.pwrite(fd, b"torn", offset)
                raise OSError(errno.ENOSPC, "No space left on device")
            return super().pwritev(fd, buffers, offset)

    ops = Wall(tmp_path)
    async with opened(tmp_path, ops) as (_, log):
        await retain(log, 2)
        ops.full = True
        ticket = log.append(3, pieces=2)
        assert lingering(tmp_path) == {}
        await ticket.wait()
        await log.check()


async def test_a_roll_without_room_takes_that_of_what_lingers(tmp_path: Path) -> None:
    class Wall(LossyOps):
        full = False

        def open(self, path: str, flags: int, mode: int = 0o777) -> int:  # type: ignore[override]
            if self.full and flags & os.O_EXCL and left(tmp_path):
                raise OSError(errno.ENOSPC, "No space left on device")
            return super().open(path, flags, mode)

    ops = Wall(tmp_path)
    async with opened(tmp_path, ops) as (_, log):
        await retain(log, 2)
        ops.full = True
        log.writer.roll()
        assert lingering(tmp_path) == {}
        await log.append().wait()
        await log.check()


async def test_nothing_lingers_while_room_is_scarce(tmp_path: Path) -> None:
    async with opened(tmp_path) as (store, log):
        await retain(log, 1)
        assert len(lingering(tmp_path)) == 1
        store.space.free = lambda: SCARCE - 1  # type: ignore[method-assign]
        await retain(log, 1)
        assert lingering(tmp_path) == {}
        store.space.free = lambda: PLENTY  # type: ignore[method-assign]
        await retain(log, 1)
        assert len(lingering(tmp_path)) == 1
        store.space.free = lambda: SCARCE - 1  # type: ignore[method-assign]
        store.space.left = 0
        log.append()  # looks at the free space, and has the rest removed in the background
        await until_left(tmp_path, 0)
        await log.check()


async def test_a_name_that_finds_no_room_is_given_up(tmp_path: Path) -> None:
    class Crowded(LossyOps):
        def rename(self, source: str, target: str) -> None:  # type: ignore[override]
            if target.endswith(layout.DELETED_SUFFIX):
                raise OSError(errno.ENOSPC, "No space left on device")
            super().rename(source, target)

    async with opened(tmp_path, Crowded(tmp_path)) as (_, log):
        await retain(log, 2)
        await log.check()
        await log.append().wait()
        path = tmp_path / layout.directory_name(KEY)
        assert len(list(path.glob("*.log*"))) == 2


def fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


async def test_retention_makes_room_on_a_full_disk_again_and_again(small_disk: Path) -> None:
    settings = FileStorageSettings(min_free_bytes=0, ballast_bytes=128 * 1024)
    ballast = small_disk / layout.BALLAST
    async with open_store(small_disk.as_uri(), settings) as store:
        log = Log(await store.open_writer(KEY, Claim(1, 1)))

        def append_many() -> None:
            for i in range(1000):
                log.append(value_bytes=50_000)
                if i % 10 == 9:
                    log.writer.roll()

        for _ in range(3):
            with pytest.raises(Full):
                append_many()
            filler = small_disk / "filler"
            with pytest.raises(OSError, match="No space"):
                fill(filler)
            await log.writer.flush()
            sealed = len(log.writer.snapshot.segments) - 1
            await retain(log, sealed // 2)
            await log.check()
            with trio.fail_after(30):
                await log.writer.room()  # the files are closed in a worker
            await log.append(value_bytes=50_000).wait()
            filler.unlink()
            while ballast.stat().st_size < 128 * 1024:  # what was given back is set aside again
                await retain(log, 1)
                store.space.left = 0
                await log.append(value_bytes=1_000).wait()
        await log.check()
    assert lingering(small_disk) == {}
    async with open_store(small_disk.as_uri(), settings) as store:
        writer = await store.open_writer(KEY, Claim(1, 1))
        assert writer.recovery.clean
        assert await read_log(writer) == log.bytes()


def test_what_lingers_goes_in_the_order_of_its_time() -> None:
    unlinked: list[str] = []

    class Recording(Ops):
        def remove(self, path: str) -> None:
            unlinked.append(path)

    pile = Lingering(Recording())
    assert not pile.reclaim(1)
    assert not pile.expire()
    pile.add(20.0, [("c", 10), ("d", 10)])
    pile.add(10.0, [("a", 10), ("b", 10)])
    assert pile.next_due == 10.0
    assert pile.take(9.9) == []
    assert pile.take(10.0) == ["a", "b"]
    assert pile.reclaim(10)
    assert unlinked == ["c"]
    pile.add(5.0, [("e", 10)])
    assert len(pile) == 2
    assert pile.expire()
    assert not pile.expire()
    assert [pile.take(0.0), pile.take(0.0), pile.take(0.0)] == [["d"], ["e"], []]
    assert len(pile) == 0
