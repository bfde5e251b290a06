"""What a crash leaves: kill -9, loss of power at every step, torn writes at every byte."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import pytest
import trio
from attrs import define
from storage_file_disk import LossyOps
from storage_file_writer import TOPIC

from odradek.contracts.storage import Claim, Corrupt, LogEdit
from odradek.testing.storage import KEY, Log, chunks_of, metas_of, read_log
from odradek.types import PartitionKey
from odradek_storage_file import FileStorageSettings, layout
from odradek_storage_file.store import FileStore, open_store
from odradek_storage_file.verify import verify
from odradek_storage_file.writer import FileWriter

SETTINGS = FileStorageSettings(min_free_bytes=0, ballast_bytes=0, recovery_bytes=8192)


@asynccontextmanager
async def opened(root: Path, epoch: int = 9) -> AsyncIterator[tuple[FileStore, Log]]:
    async with open_store(root.as_uri(), SETTINGS) as store:
        writer = await store.open_writer(KEY, Claim(epoch, 1))
        yield store, Log(writer, epoch=epoch)
        await writer.aclose()


def test_kill_9_loses_nothing_acknowledged(tmp_path: Path) -> None:
    root = tmp_path / "log"
    acknowledged = dict.fromkeys(range(3), 0)
    starts = dict.fromkeys(range(3), 0)
    random = Random(5)
    script = Path(__file__).with_name("storage_file_writer.py")
    for life in range(20):
        with subprocess.Popen(
            [sys.executable, str(script), root.as_uri(), str(life + 1)],
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout is not None
            lines = random.randrange(5, 250)
            for line in process.stdout:
                if not line.endswith("\n"):
                    break  # it was killed while it wrote this
                word, number, offset, *_ = line.split()
                if word == "open":
                    assert int(offset) >= acknowledged[int(number)], f"life {life}: lost records"
                elif word == "ack":
                    acknowledged[int(number)] = int(offset)
                else:
                    starts[int(number)] = int(offset)
                lines -= 1
                if lines == 0:
                    os.kill(process.pid, signal.SIGKILL)
    for report in verify(str(root)):
        assert report.ok, report.findings
        assert report.end_offset >= acknowledged[report.key.partition]
        assert report.log_start >= starts[report.key.partition]

    async def read_all() -> None:
        async with open_store(root.as_uri(), SETTINGS) as store:
            for number, end in acknowledged.items():
                writer = await store.open_writer(PartitionKey(TOPIC, number), Claim(99, 1))
                metas = metas_of(await read_log(writer))
                for left, right in itertools.pairwise(metas):
                    assert left.last_offset + 1 == right.base_offset
                assert metas[-1].last_offset + 1 >= end

    trio.run(read_all)


@define
class Stage:
    """A state that a crash may leave: at least `certain`, at most `possible`, batches."""

    certain: bytes
    possible: bytes
    blobs: dict[str, bytes]
    log_start: int


async def scenario(log: Log, allowed: list[Stage]) -> None:
    """Everything that changes files; `allowed` says at every moment what a crash may leave."""

    def now(certain: bytes) -> Stage:
        snapshot = log.writer.snapshot
        return Stage(certain, log.bytes(), dict(snapshot.blobs), snapshot.log_start)

    async def append(count: int) -> None:
        for _ in range(count):
            before = log.bytes()
            ticket = log.append(records=2, value_bytes=700)
            allowed[:] = [now(before)]
            await ticket.wait()
            allowed[:] = [now(log.bytes())]

    async def edit(change: LogEdit, batches: list[int] | None = None) -> None:
        old = allowed[0]
        if batches is not None:
            log.batches = [log.batches[i] for i in batches]
        data = log.bytes()
        blobs = {**old.blobs, **{k: v for k, v in change.blobs.items() if v is not None}}
        start = old.log_start if change.log_start is None else change.log_start
        if change.restart_at is not None:
            data, start, log.batches, log.end = b"", change.restart_at, [], change.restart_at
        allowed.append(Stage(data, data, blobs, start))
        await log.writer.commit(change)
        del allowed[0]

    async def truncate(end: int) -> None:
        log.keep_below(end)
        allowed.append(Stage(log.bytes(), log.bytes(), allowed[0].blobs, allowed[0].log_start))
        await log.writer.truncate(end)
        del allowed[0]

    allowed[:] = [now(b"")]
    await append(5)
    log.writer.roll()
    certain = log.bytes()
    for _ in range(4):  # a roll with nothing acknowledged, whose manifest is due at once
        log.append(value_bytes=700)
        allowed[:] = [now(certain)]
    log.writer.roll()
    ticket = log.append(value_bytes=700)
    allowed[:] = [now(certain)]
    await ticket.wait()
    allowed[:] = [now(log.bytes())]
    before = [each.id for each in log.writer.snapshot.segments]
    await edit(LogEdit(restart_at=0), [])
    assert not {each.id for each in log.writer.snapshot.segments} & set(before)
    await append(5)
    log.writer.roll()
    await append(6)
    log.writer.roll()
    await append(3)
    await edit(LogEdit(blobs={"a": b"1", "b": b"2"}))
    first, second, active = log.writer.snapshot.segments
    built = await log.writer.build(chunks_of(log.batches[1:11:3]))
    await edit(
        LogEdit((first.id, second.id), (built,), linger_ms=3_600_000), [1, 4, 7, 10, 11, 12, 13]
    )
    again = await log.writer.build(chunks_of(log.batches[0:4:2]))  # takes the name of `built`
    await edit(LogEdit((built.id,), (again,), linger_ms=1), [0, 2, 4, 5, 6])
    built = again
    await truncate(active.base_offset + 3)
    await append(4)
    log.writer.roll()
    await append(2)
    await edit(
        LogEdit((built.id,), (), active.base_offset, {"a": b"3"}, linger_ms=3_600_000),
        list(range(2, len(log.batches))),
    )
    await truncate(active.base_offset + 2)
    await append(2)
    await edit(LogEdit(restart_at=1_000_000))
    await append(2)


@pytest.mark.parametrize("tear", [False, True], ids=["exactly", "torn"])
async def test_power_loss_at_every_step_leaves_what_was_promised(
    tmp_path: Path, tear: bool
) -> None:
    root = tmp_path / "disk"
    root.mkdir()
    ops = LossyOps(root)
    copies: list[tuple[Path, list[Stage], str]] = []
    allowed: list[Stage] = []
    random = Random(11) if tear else None
    numbers = itertools.count()

    def crash(what: str) -> None:
        if allowed:  # called in several threads
            copy = tmp_path / f"copy-{next(numbers)}"
            before = list(allowed)
            ops.power_loss(copy, random)
            # While the copy was made, another thread may have gone on.
            stages = [
                Stage(old.certain, new.possible, each.blobs, each.log_start)
                for old in before
                for new in allowed
                for each in (old, new)
            ]
            copies.append((copy, stages, what))

    async with open_store(root.as_uri(), SETTINGS, ops) as store:
        log = Log(await store.open_writer(KEY, Claim(1, 1)))
        ops.on_operation = crash
        await scenario(log, allowed)
        ops.on_operation = lambda _: None
    assert len(copies) > 250
    for number, (copy, stages, what) in enumerate(copies):
        place = f"power lost at step {number}, before: {what}"
        async with opened(copy) as (_, found):
            data = await read_log(found.writer)
            snapshot = found.writer.snapshot
            assert any(
                stage.possible.startswith(data)
                and data.startswith(stage.certain)
                and dict(snapshot.blobs) == stage.blobs
                and snapshot.log_start == stage.log_start
                for stage in stages
            ), place
            found.batches = []
            found.append(2)
            await found.writer.flush()
            assert (await read_log(found.writer)) == data + found.bytes(), place
            path = copy / layout.directory_name(KEY)
            assert not list(path.glob(f"*{layout.DELETED_SUFFIX}")), place
            assert not list(path.glob("*.built.*")), place
        shutil.rmtree(copy)


async def abandoned(root: Path, batches: int = 6) -> tuple[Path, Log]:
    """Leave a directory as kill -9 does; return the partition's path and what is in it."""
    live = root.with_name("live")
    live.mkdir()
    ops = LossyOps(live)
    async with open_store(live.as_uri(), SETTINGS, ops) as store:
        log = Log(await store.open_writer(KEY, Claim(1, 1)))
        for _ in range(batches):
            await log.append(records=2, value_bytes=40).wait()
        ops.killed(root)
    shutil.rmtree(live)
    return root / layout.directory_name(KEY), log


async def test_recovery_cuts_a_batch_torn_at_any_byte(tmp_path: Path) -> None:
    path, log = await abandoned(tmp_path / "log", 4)
    segment = path / f"{layout.stem(0)}.log"
    data = segment.read_bytes()
    whole = len(data) - log.batches[-1][0].size
    log.keep_below(log.batches[-1][0].base_offset)
    manifest = (path / layout.MANIFEST).read_bytes()
    for cut in range(whole + 1, len(data)):
        for tail in (b"", bytes(len(data) - cut)):  # the end is missing, or was never written
            segment.write_bytes(data[:cut] + tail)
            (path / layout.MANIFEST).write_bytes(manifest)
            async with open_store((tmp_path / "log").as_uri(), SETTINGS) as store:
                writer = await store.open_writer(KEY, Claim(2, 1))
                if writer.recovery.cut_bytes == 0:  # the last bytes were zeros anyway
                    assert data[cut:] == tail
                    continue
                assert not writer.recovery.clean
                assert writer.recovery.cut_bytes == cut + len(tail) - whole
                assert f"at byte {whole}" in writer.recovery.detail
                assert await read_log(writer) == log.bytes()


@pytest.mark.parametrize("content", [b"", bytes(500), b"x" * 500])
async def test_recovery_cuts_segments_that_became_durable_before_the_end_of_the_one_before(
    tmp_path: Path, content: bytes
) -> None:
    """The names of files are made durable by any fsync of a file system with one journal."""
    path, log = await abandoned(tmp_path / "log", 4)
    segment = path / f"{layout.stem(0)}.log"
    end = log.end
    log.keep_below(log.batches[-1][0].base_offset)
    segment.write_bytes(log.bytes())
    for base in (end, end + 7):
        (path / f"{layout.stem(base)}.log").write_bytes(content)
    async with opened(tmp_path / "log") as (_, again):
        assert again.writer.recovery.cut_bytes == 2 * len(content)
        assert f"follows offset {log.end - 1}" in again.writer.recovery.detail
        assert await read_log(again.writer) == log.bytes()
        again.batches, again.end = log.batches, log.end
        await again.append().wait()
        await again.check()
    assert sorted(path.glob("*.log")) == [segment]


async def test_a_gap_with_a_valid_batch_behind_it_is_damage(tmp_path: Path) -> None:
    path, log = await abandoned(tmp_path / "log", 4)
    segment = path / f"{layout.stem(0)}.log"
    data = segment.read_bytes()
    last = log.batches[-1][0]
    third = len(data) - last.size - log.batches[-2][0].size
    (path / f"{layout.stem(last.base_offset)}.log").write_bytes(data[-last.size :])
    segment.write_bytes(data[:third])
    async with open_store((tmp_path / "log").as_uri(), SETTINGS) as store:
        with pytest.raises(Corrupt, match="the bytes between are gone"):
            await store.open_writer(KEY, Claim(2, 1))
    assert segment.read_bytes() == data[:third], "nothing was removed"


async def test_recovery_checks_no_more_than_what_followed_the_recovery_point(
    tmp_path: Path,
) -> None:
    root = tmp_path / "log"
    root.mkdir()
    ops = LossyOps(root)
    allowed = SETTINGS.recovery_bytes + 2000
    async with open_store(root.as_uri(), SETTINGS, ops) as store:
        writer = await store.open_writer(KEY, Claim(1, 1))
        assert isinstance(writer, FileWriter)
        log = Log(writer)
        for _ in range(100):
            await log.append(value_bytes=1000).wait()
            with trio.fail_after(30):  # a manifest is written beside appends, however long it takes
                while writer.partition.appended > writer.partition.saved + allowed:
                    await trio.lowlevel.checkpoint()
        log.append(value_bytes=1000)
        ops.killed(tmp_path / "killed")
    async with opened(tmp_path / "killed") as (_, again):
        assert not again.writer.recovery.clean
        assert again.writer.recovery.scanned_bytes <= allowed + 1100
        again.batches, again.end = log.batches, log.end
        await again.check()
