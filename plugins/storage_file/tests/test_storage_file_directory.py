"""The directory as a whole: lock, space, descriptors, failures, many partitions, format."""

from __future__ import annotations

import errno
import logging
import os
import resource
import sys
import threading
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from struct import iter_unpack
from typing import Any, ClassVar

import attrs
import pytest
import trio
import trio.testing
from storage_file_disk import LossyOps

from odradek.contracts.storage import (
    Claim,
    Full,
    Hint,
    LogEdit,
    Offline,
    OutOfRange,
    Unavailable,
    Unsafe,
)
from odradek.testing.storage import KEY, Log, chunks_of, read_log
from odradek.types import PartitionKey
from odradek_storage_file import FileStorageSettings, layout, odradek_storage, open_file_store
from odradek_storage_file.ops import Ops
from odradek_storage_file.space import SCARCE, STEP, Space
from odradek_storage_file.store import open_store

SETTINGS = FileStorageSettings(min_free_bytes=0, ballast_bytes=0)


def tree(root: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in root.rglob("*")}


def exists(path: Path) -> bool:
    return path.exists()


async def removed(path: Path, only: str = "") -> None:
    with trio.fail_after(10):
        while exists(path) and path.name.endswith(only):
            await trio.lowlevel.checkpoint()


def fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


def many(count: int) -> list[PartitionKey]:
    return [PartitionKey(KEY.topic_id, number) for number in range(count)]


def test_plugin_supplies_the_scheme() -> None:
    (factory,) = odradek_storage()
    assert factory.scheme == "file"
    assert factory.settings is FileStorageSettings
    assert factory.open is open_file_store


@pytest.mark.parametrize("url", ["file:relative", "file://host/x", "s3://x/y", "/tmp", "file://"])
async def test_url_has_to_name_an_absolute_path(url: str) -> None:
    with pytest.raises(Unsafe, match="file:///absolute/path"):
        async with open_file_store(url):
            pass


async def test_url_may_be_quoted(tmp_path: Path) -> None:
    root = tmp_path / "a b%"
    async with open_file_store(root.as_uri(), SETTINGS) as store:
        assert (await store.usage()).location == str(root)


async def test_second_process_is_kept_out(tmp_path: Path) -> None:
    code = (
        "import sys, trio\n"
        "from odradek_storage_file import open_file_store\n"
        "async def main():\n"
        "    async with open_file_store(sys.argv[1]):\n"
        "        pass\n"
        "trio.run(main)\n"
    )
    command = [sys.executable, "-c", code, tmp_path.as_uri()]
    async with open_file_store(tmp_path.as_uri(), SETTINGS):
        run = await trio.run_process(command, capture_stderr=True, check=False)
        assert run.returncode != 0
        assert f"in use by process {os.getpid()};" in run.stderr.decode()
        with pytest.raises(Unavailable, match="in use by process"):
            async with open_file_store(tmp_path.as_uri(), SETTINGS):
                pass
    await trio.run_process(command)


async def test_reading_needs_no_lock(tmp_path: Path) -> None:
    async with open_file_store(tmp_path.as_uri(), SETTINGS) as store:
        log = Log(await store.open_writer(KEY, Claim(1, 1)))
        log.append(5)
        log.writer.roll()
        log.append(5)
        await log.writer.commit(LogEdit(blobs={"a": b"1"}))
        before = tree(tmp_path)
        settings = attrs.evolve(SETTINGS, read_only=True)
        async with open_file_store(tmp_path.as_uri(), settings) as second:
            reader = await second.open_reader(KEY)
            assert await read_log(reader) == log.bytes()
            assert reader.snapshot.segments[-1].end_offset == log.end
            index = await reader.index(reader.snapshot.segments[0].id)
            assert index.positions[0] == 0
            await reader.aclose()
            with pytest.raises(Unavailable):
                await second.open_writer(KEY, Claim(2, 1))
            with pytest.raises(Unavailable):
                await second.drop(KEY)
        assert tree(tmp_path) == before


async def test_clean_shutdown_is_marked_and_the_mark_goes_before_the_first_write(
    tmp_path: Path,
) -> None:
    marker = tmp_path / layout.CLEAN_MARKER
    async with open_file_store(tmp_path.as_uri(), SETTINGS) as store:
        assert not marker.exists()
        await store.open_writer(KEY, Claim(1, 1))
    layout.unwrap("clean-shutdown", marker.read_bytes(), str(marker))
    async with open_file_store(tmp_path.as_uri(), SETTINGS) as store:
        assert marker.exists()
        await store.open_writer(KEY, Claim(1, 1))
        assert not marker.exists()
    assert marker.exists()


async def test_what_is_raised_in_the_block_comes_out_as_it_is(tmp_path: Path) -> None:
    async def fail() -> None:
        async with open_file_store(tmp_path.as_uri(), SETTINGS) as store:
            await store.open_writer(KEY, Claim(1, 1))
            raise KeyError("mine") from ValueError("why")

    with pytest.raises(KeyError, match="mine") as caught:
        await fail()
    assert isinstance(caught.value.__cause__, ValueError)
    assert (tmp_path / layout.CLEAN_MARKER).exists()


async def test_cancelled_broker_closes_in_order(tmp_path: Path) -> None:
    with trio.CancelScope() as scope:
        async with open_file_store(tmp_path.as_uri(), SETTINGS) as store:
            log = Log(await store.open_writer(KEY, Claim(1, 1)))
            log.append(3)
            scope.cancel()
            await trio.sleep_forever()
    async with open_file_store(tmp_path.as_uri(), SETTINGS) as store:
        writer = await store.open_writer(KEY, Claim(1, 1))
        assert writer.recovery.clean
        assert await read_log(writer) == log.bytes()


async def test_nothing_is_left_behind(tmp_path: Path) -> None:
    threads = threading.active_count()
    descriptors = set(os.listdir("/proc/self/fd"))
    for _ in range(3):
        async with open_file_store(tmp_path.as_uri(), SETTINGS) as store:
            log = Log(await store.open_writer(KEY, Claim(1, 1)))
            for _ in range(4):
                await log.append(2).wait()
                log.writer.roll()
            segments = log.writer.snapshot.segments
            ref = await log.writer.read(segments[0].id, 0, 10, Hint.SCAN)
            await log.writer.commit(
                LogEdit(tuple(s.id for s in segments[:2]), (), segments[2].base_offset)
            )
            ref.close()
            await store.drop(KEY)
            for path in tree(tmp_path):
                await removed(path, only=layout.DELETED_SUFFIX)
    left = [t for t in threading.enumerate() if "storage-file" in t.name]
    assert left == []
    assert threading.active_count() <= threads + 8  # trio keeps idle workers for a while
    assert set(os.listdir("/proc/self/fd")) - descriptors == set()
    assert [path for path in tree(tmp_path) if path.is_dir()] == []


async def test_dropped_directories_of_a_crash_are_removed(tmp_path: Path) -> None:
    left = tmp_path / f"{layout.directory_name(KEY)}.0badcafe{layout.DELETED_SUFFIX}"
    left.mkdir()
    (left / "x.log").write_bytes(b"x")
    async with open_file_store(tmp_path.as_uri(), SETTINGS) as store:
        assert list(await store.partitions()) == []
        await removed(left)


@pytest.mark.parametrize("kind", ["sync", "write"])
async def test_a_failure_takes_the_whole_directory_offline(tmp_path: Path, kind: str) -> None:
    ops = LossyOps(tmp_path)
    async with open_store(tmp_path.as_uri(), SETTINGS, ops) as store:
        logs = [Log(await store.open_writer(key, Claim(1, 1))) for key in many(3)]
        for log in logs:
            await log.append().wait()
        tickets = []
        if kind == "sync":
            ops.fail_sync = errno.EIO
            tickets = [log.append() for log in logs]
        else:
            ops.fail_write = errno.EIO
            with pytest.raises(Offline, match="Input/output error"):
                logs[0].append()
        for ticket in tickets:
            with trio.fail_after(5), pytest.raises(Offline, match="Input/output error"):
                await ticket.wait()
        ops.fail_sync = ops.fail_write = None
        syncs = ops.syncs
        for log in logs:
            with pytest.raises(Offline):
                log.append()
            with pytest.raises(Offline):
                await log.writer.flush()
            assert len(await read_log(log.writer)) >= log.batches[0][0].size
        assert ops.syncs == syncs, "a failed sync is never tried again"
    assert not (tmp_path / layout.CLEAN_MARKER).exists()
    async with open_store(tmp_path.as_uri(), SETTINGS) as store:
        for key in many(3):
            await Log(await store.open_writer(key, Claim(1, 1))).append().wait()


@pytest.mark.parametrize("limit", ["interval_ms", "interval_bytes"])
async def test_interval_syncs_by_itself(tmp_path: Path, limit: str) -> None:
    far = attrs.evolve(SETTINGS, durability="interval", interval_ms=10**7, interval_bytes=10**7)
    changed: Any = {limit: 200}
    settings = attrs.evolve(far, **changed)
    synced = trio.Event()
    token = trio.lowlevel.current_trio_token()
    ops = LossyOps(tmp_path)
    async with open_store(tmp_path.as_uri(), settings, ops) as store:
        log = Log(await store.open_writer(KEY, Claim(1, 1)))
        ops.on_operation = lambda what: token.run_sync_soon(synced.set) if what == "sync" else None
        assert log.append(value_bytes=100).durable
        if limit == "interval_bytes":
            assert not synced.is_set()
            log.append(value_bytes=100)
        with trio.fail_after(10):
            await synced.wait()
        ops.on_operation = lambda _: None


async def test_reading_old_data_waits_for_the_disk_in_a_worker(tmp_path: Path) -> None:
    class Cold(LossyOps):
        readers: ClassVar[set[int]] = set()

        def is_cached(self, fd: int, position: int) -> bool:
            return False

        def pread(self, fd: int, count: int, position: int) -> bytes:
            self.readers.add(threading.get_ident())
            return os.pread(fd, count, position)

    ops = Cold(tmp_path)
    async with open_store(tmp_path.as_uri(), SETTINGS, ops) as store:
        log = Log(await store.open_writer(KEY, Claim(1, 1)))
        log.append(3, value_bytes=700_000)
        await log.writer.flush()
        ops.readers.clear()
        (await log.writer.read(0, 0, 1 << 30, Hint.TAIL)).close()
        assert ops.readers == set()
        with await log.writer.read(0, 10, 1 << 30, Hint.SCAN) as ref:
            assert ops.readers
            assert threading.get_ident() not in ops.readers
            assert b"".join(ref.views()) == log.bytes()[10:]
        with trio.move_on_after(0):
            await log.writer.read(0, 10, 100, Hint.SCAN)
        assert store.files._open[0].holds == 0


async def test_partial_writes_are_completed(tmp_path: Path) -> None:
    class Stingy(LossyOps):
        def pwritev(self, fd: int, buffers, offset: int) -> int:  # type: ignore[no-untyped-def, override]
            return os.pwrite(fd, bytes(buffers[0][:13]), offset)

    ops = Stingy(tmp_path)
    async with open_store(tmp_path.as_uri(), SETTINGS, ops) as store:
        log = Log(await store.open_writer(KEY, Claim(1, 1)))
        log.append(3, pieces=5)
        log.append(200, value_bytes=1, pieces=1100)
        await log.check()


@pytest.mark.parametrize("limit", [0, 1_000_000], ids=["hard", "soft"])
async def test_full_disk_refuses_and_resumes(small_disk: Path, limit: int) -> None:
    settings = FileStorageSettings(min_free_bytes=limit, ballast_bytes=256 * 1024)
    other = small_disk / "somebody-elses"
    async with open_file_store(small_disk.as_uri(), settings) as store:
        log = Log(await store.open_writer(KEY, Claim(1, 1)))
        await log.append(2).wait()
        other.write_bytes(bytes(1_500_000))

        def append_many() -> None:
            for _ in range(100):
                log.append(value_bytes=50_000)

        with pytest.raises(Full):
            append_many()
        await log.check()
        await log.writer.flush()
        with pytest.raises(Full):
            log.append(value_bytes=50_000)
        await log.check()
        with trio.fail_after(10):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(log.writer.room)
                await trio.testing.wait_all_tasks_blocked(0.01)
                other.unlink()
        await log.append(value_bytes=50_000).wait()
        await log.check()
    async with open_file_store(small_disk.as_uri(), settings) as store:
        writer = await store.open_writer(KEY, Claim(1, 1))
        assert writer.recovery.clean
        assert await read_log(writer) == log.bytes()


class Disk(Space):
    """Room on a file system that has as many free bytes as the test says."""

    bytes_free = 5_000

    def free(self) -> int:
        return self.bytes_free


def test_full_disk_is_logged_once_and_so_is_its_end(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    space = Disk(Ops(), "/data", 4_000, 0)
    space.more(1_000)
    for size in (1_001, 2_000):
        with pytest.raises(Full):
            space.more(size)
    space.more(500)  # what was refused still has no room
    assert [(r.levelname, r.getMessage()) for r in caplog.records] == [
        (
            "WARNING",
            "/data has no room for records, which are refused: 5000 bytes are free on the file "
            "system, and min_free_bytes is 4000",
        )
    ]
    caplog.clear()
    space.bytes_free = 6_000
    space.more(500)
    space.more(500)
    assert [(r.levelname, r.getMessage()) for r in caplog.records] == [
        ("INFO", "/data has room for records again: 6000 bytes are free on the file system")
    ]


def test_upkeep_leaves_room_for_records(caplog: pytest.LogCaptureFixture) -> None:
    space = Disk(Ops(), "/data", 2_000, 0)
    space.spare(1_000)
    with pytest.raises(Full, match="4000 are kept for records"):
        space.spare(1_001)
    space.more(3_000)
    assert not caplog.records, "records are not refused"
    space.reclaim = lambda size: space.bytes_free < 6_000 and bool(_grow(space, size))
    space.spare(1_500)
    assert space.bytes_free == 5_500
    space = Disk(Ops(), "/data", 1 << 40, 0)
    space.bytes_free = (1 << 40) + SCARCE + 10
    space.spare(10)
    with pytest.raises(Full):
        space.spare(11)


def _grow(space: Disk, size: int) -> int:
    space.bytes_free += size
    return size


async def test_segment_is_not_built_of_the_last_room(tmp_path: Path) -> None:
    settings = FileStorageSettings(min_free_bytes=1_000_000, ballast_bytes=0)
    async with open_store(tmp_path.as_uri(), settings) as store:
        writer = await store.open_writer(KEY, Claim(1, 1))
        log = Log(writer)
        log.append(5)
        await writer.flush()
        writer.roll()
        store.space.free = lambda: 2_000_000  # type: ignore[method-assign]
        chunks = chunks_of(log.batches)
        assert isinstance(chunks, AsyncGenerator)
        async with aclosing(chunks):
            with pytest.raises(Full, match="to rewrite segments"):
                await writer.build(chunks)
        log.append(5)
        store.space.free = lambda: 3_000_000  # type: ignore[method-assign]
        await writer.build(chunks_of(log.batches[:1]))


def test_disk_that_is_full_against_its_own_figures_does_not_flood_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    space = Disk(Ops(), "/data", 0, 0)
    space.bytes_free = 2 * STEP
    for _ in range(3):
        space.more(1_000)
        assert isinstance(space.exhausted(), Full)
    assert [r.levelname for r in caplog.records] == ["WARNING"]
    space.more(1_000)
    assert space.left == 0
    assert len(caplog.records) == 1
    space.more(1_000)
    assert [r.levelname for r in caplog.records] == ["WARNING", "INFO"]


async def test_start_below_the_limit_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_file_store(tmp_path.as_uri(), FileStorageSettings(min_free_bytes=1 << 60)):
        pass
    (said,) = [r for r in caplog.records if r.levelname == "WARNING"]
    assert f"{tmp_path} has no room for records" in said.getMessage()


async def test_ballast_lets_a_full_disk_be_closed_in_order(small_disk: Path) -> None:
    settings = FileStorageSettings(min_free_bytes=0, ballast_bytes=256 * 1024)
    filler = small_disk / "filler"
    async with open_file_store(small_disk.as_uri(), settings) as store:
        log = Log(await store.open_writer(KEY, Claim(1, 1)))
        log.append(20)
        with pytest.raises(OSError, match="No space"):
            fill(filler)
        await log.writer.commit(LogEdit(log_start=3, blobs={"state": bytes(50_000)}))
    assert (small_disk / layout.CLEAN_MARKER).exists()
    filler.unlink()
    async with open_file_store(small_disk.as_uri(), settings) as store:
        writer = await store.open_writer(KEY, Claim(1, 1))
        assert writer.recovery.clean
        assert writer.snapshot.log_start == 3
        assert await read_log(writer) == log.bytes()
        assert (small_disk / layout.BALLAST).stat().st_size == 256 * 1024


async def test_a_thousand_partitions_open_quickly_and_idle_quietly(tmp_path: Path) -> None:
    keys = many(1000)
    async with (
        open_file_store(tmp_path.as_uri(), SETTINGS) as store,
        trio.open_nursery() as nursery,
    ):
        for key in keys:
            nursery.start_soon(store.open_writer, key, Claim(1, 1))
    async with open_file_store(tmp_path.as_uri(), SETTINGS) as store:
        start = time.perf_counter()
        writers = [await store.open_writer(key, Claim(1, 1)) for key in keys]
        took = time.perf_counter() - start
        print(f"opening 1,000 partitions took {took:.2f} s")
        assert took < 2
        cpu = time.process_time()
        await trio.sleep(0.5)
        assert time.process_time() - cpu < 0.05
        logs = [Log(writer) for writer in writers]
        start = time.perf_counter()
        tickets = [log.append() for log in logs]
        for ticket in tickets:
            await ticket.wait()
        print(f"one durable append to each took {time.perf_counter() - start:.2f} s")


async def test_descriptors_are_bounded(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = len(os.listdir("/proc/self/fd"))
    settings = attrs.evolve(SETTINGS, max_open_files=40)
    async with open_store(tmp_path.as_uri(), settings) as store:
        logs = [Log(await store.open_writer(key, Claim(1, 1))) for key in many(200)]
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + 80, hard))
        try:
            for round_ in range(3):
                for log in logs:
                    log.append()
                    if round_ == 1:
                        log.writer.roll()
                for log in logs[::7]:
                    await log.writer.flush()
            for log in logs:
                await log.check()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert len(store.files) <= 40


async def test_a_process_without_descriptors_says_so_and_goes_on(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    settings = attrs.evolve(SETTINGS, max_open_files=1000, durability="none")
    async with open_store(tmp_path.as_uri(), settings) as store:
        logs = [Log(await store.open_writer(key, Claim(1, 1))) for key in many(30)]
        for log in logs:
            log.append()
        refs = [await log.writer.read(0, 0, 10, Hint.SCAN) for log in logs[:10]]
        used = len(os.listdir("/proc/self/fd"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (used - 5, hard))
        try:
            with pytest.raises(Unavailable, match="Too many open files"):
                await store.open_writer(many(31)[30], Claim(1, 1))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for ref in refs:
            assert len(b"".join(ref.views())) == 10
            ref.close()
        for log in logs:
            log.append()
            await log.check()


async def test_files_have_kafkas_names_and_formats(tmp_path: Path) -> None:
    async with open_file_store(tmp_path.as_uri(), SETTINGS) as store:
        log = Log(await store.open_writer(KEY, Claim(4, 1)), epoch=4)
        for i in range(40):
            log.append(records=3, value_bytes=500, timestamp=10_000 + (i * 37) % 11 * 1_000)
        log.writer.roll()
        log.append()
        await log.writer.flush()
    path = tmp_path / f"{KEY.topic_id}-{KEY.partition}"
    stem = path / "00000000000000000000"
    assert (path / "leader-epoch-checkpoint").read_text() == "0\n1\n4 0\n"
    assert (path / "00000000000000000120.log").exists()
    assert stem.with_suffix(".log").read_bytes() == b"".join(d for _, d in log.batches[:-1])
    position, since, largest, largest_offset = 0, 0, -1, -1
    entries: list[tuple[int, int]] = []
    times: list[tuple[int, int]] = []
    for meta, _ in log.batches[:-1]:
        if meta.max_timestamp > largest:
            largest, largest_offset = meta.max_timestamp, meta.last_offset
        if since > 4096:
            entries.append((meta.last_offset, position))
            if not times or largest > times[-1][0]:
                times.append((largest, largest_offset))
            since = 0
        position += meta.size
        since += meta.size
    if largest > times[-1][0]:
        times.append((largest, largest_offset))
    assert len(entries) > 5
    assert list(iter_unpack(">ii", stem.with_suffix(".index").read_bytes())) == entries
    assert list(iter_unpack(">qi", stem.with_suffix(".timeindex").read_bytes())) == times


async def test_large_indexes_are_written_in_parts_and_cut_by_truncation(tmp_path: Path) -> None:
    async with open_file_store(tmp_path.as_uri(), SETTINGS) as store:
        log = Log(await store.open_writer(KEY, Claim(1, 1)))
        for i in range(1200):
            log.append(value_bytes=5000, timestamp=1000 + i % 700)
        active = log.writer.snapshot.segments[0]
        assert len(await log.writer.index(active.id)) == 1200
        await log.writer.truncate(1100)
        log.keep_below(1100)
        await log.check()
        assert len(await log.writer.index(active.id)) == 1100
        for i in range(100):
            log.append(value_bytes=5000, timestamp=1000 + i)
        log.writer.roll()
        index = await log.writer.index(active.id)
        assert list(index.offsets) == list(range(1200))
    async with open_file_store(tmp_path.as_uri(), SETTINGS) as store:
        log.writer = await store.open_writer(KEY, Claim(1, 1))
        await log.check()
        again = await log.writer.index(active.id)
        assert again.timestamps == index.timestamps
    from odradek_storage_file.verify import verify

    (report,) = verify(str(tmp_path))
    assert report.findings == []


async def test_probe_says_what_does_not_work(tmp_path: Path) -> None:
    ops = LossyOps(tmp_path)
    async with open_store(tmp_path.as_uri(), SETTINGS, ops) as store:
        await store.probe()
        ops.fail_sync = errno.EINVAL
        with pytest.raises(Unsafe, match="cannot sync a file: Invalid argument"):
            await store.probe()
        assert not [path for path in tree(tmp_path) if ".probe" in path.name]


async def test_a_missing_log_is_out_of_range_for_a_read_only_store(tmp_path: Path) -> None:
    settings = attrs.evolve(SETTINGS, read_only=True)
    async with open_file_store(tmp_path.as_uri(), settings) as store:
        with pytest.raises(OutOfRange):
            await store.open_reader(KEY)
