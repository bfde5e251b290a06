"""What goes on beside appends: manifests of many segments, recovery points, building in steps."""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import trio
from storage_file_disk import LossyOps

from odradek.contracts.storage import Chunk, Claim, LogEdit, SegmentIndex
from odradek.testing.storage import KEY, Log, chunks_of
from odradek_storage_file import FileStorageSettings, layout
from odradek_storage_file.building import SYNC_BYTES
from odradek_storage_file.indexes import IndexBuilder
from odradek_storage_file.layout import ActiveEntry, Manifest, SealedEntry
from odradek_storage_file.store import open_store
from odradek_storage_file.verify import verify
from odradek_storage_file.writer import FileWriter

SETTINGS = FileStorageSettings(min_free_bytes=0, ballast_bytes=0, recovery_bytes=8192)


def test_manifest_of_any_number_of_segments_reads_back() -> None:
    step = layout.ROWS_AT_ONCE
    for count in (0, 1, step - 1, step, step + 1, 3 * step + 7):
        manifest = Manifest("key", log_start=7, blobs={"a": (1, 2, 3)}, swaps={9: 40})
        manifest.active = ActiveEntry(4, 1, 2, 3, 5, IndexBuilder(0).state())
        manifest.sealed = [SealedEntry(*range(i, i + 9)) for i in range(count)]
        assert Manifest.decode(manifest.encode(), "manifest") == manifest


async def test_recovery_point_follows_what_came_while_it_was_written(tmp_path: Path) -> None:
    writing, go_on = threading.Event(), threading.Event()
    ops = LossyOps(tmp_path)
    async with open_store(tmp_path.as_uri(), SETTINGS, ops) as store:
        writer = await store.open_writer(KEY, Claim(1, 1))
        assert isinstance(writer, FileWriter)
        partition = writer.partition
        log = Log(writer)

        def hold(what: str) -> None:
            if what.startswith("open") and what.endswith("manifest.tmp"):
                writing.set()
                assert go_on.wait(60)

        ops.on_operation = hold
        with trio.fail_after(60):
            while not writing.is_set():
                await log.append(value_bytes=2000).wait()
            held = partition.appended
            while partition.appended < held + 2 * SETTINGS.recovery_bytes:
                await log.append(value_bytes=2000).wait()
            go_on.set()
            while partition.saved < held + SETTINGS.recovery_bytes:
                await trio.lowlevel.checkpoint()
        ops.on_operation = lambda _: None


async def test_index_made_again_is_not_written_over_that_of_a_successor(tmp_path: Path) -> None:
    reading, go_on = threading.Event(), threading.Event()
    trio_thread = threading.get_ident()

    class Slow(LossyOps):
        def pread(self, fd: int, count: int, position: int) -> bytes:
            whole = (
                100_000 < count < 256 * 1024
            )  # of a data file, as small files are read by the MiB
            if whole and threading.get_ident() != trio_thread and not go_on.is_set():
                reading.set()
                assert go_on.wait(60)
            return os.pread(fd, count, position)

    async with open_store(tmp_path.as_uri(), SETTINGS, Slow(tmp_path)) as store:
        log = Log(await store.open_writer(KEY, Claim(1, 1)))
        for i in range(80):
            log.append(value_bytes=3000, timestamp=1000 + i)
        log.writer.roll()
        await log.writer.flush()
        (old, _) = log.writer.snapshot.segments
        stem = tmp_path / layout.directory_name(KEY) / layout.stem(0)
        stem.with_suffix(".rows").write_bytes(b"damaged")
        index: list[SegmentIndex] = []

        async def make_again() -> None:
            index.append(await log.writer.index(old.id))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(make_again)
            with trio.fail_after(60):
                while not reading.is_set():
                    await trio.lowlevel.checkpoint()
            kept = log.batches[::4]
            built = await log.writer.build(chunks_of(kept))
            await log.writer.commit(LogEdit((old.id,), (built,)))
            go_on.set()
        assert len(index[0]) > 30, "the reference of the reader was good all the while"
        log.batches = kept
        await log.check()
    (report,) = verify(str(tmp_path))
    assert report.findings == []


async def test_building_syncs_every_few_megabytes(tmp_path: Path) -> None:
    ops = LossyOps(tmp_path)
    unsynced: list[int] = []
    async with open_store(tmp_path.as_uri(), SETTINGS, ops) as store:
        log = Log(await store.open_writer(KEY, Claim(1, 1)))
        for _ in range(20):
            log.append(value_bytes=SYNC_BYTES // 4)
        await log.writer.flush()
        log.writer.roll()
        await log.writer.flush()
        (old, _) = log.writer.snapshot.segments
        written = 0

        async def chunks() -> AsyncIterator[Chunk]:
            nonlocal written
            syncs = ops.syncs
            async for chunk in chunks_of(log.batches):
                yield chunk
                if ops.syncs > syncs:
                    syncs, written = ops.syncs, 0
                else:
                    written += sum(map(len, chunk.buffers))
                unsynced.append(written)

        built = await log.writer.build(chunks())
        await log.writer.commit(LogEdit((old.id,), (built,)))
        await log.check()
    assert sum(size == 0 for size in unsynced) >= 4
    assert max(unsynced) <= SYNC_BYTES
