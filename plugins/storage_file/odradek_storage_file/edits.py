"""Changes of a log's make-up: building segments, committing edits, truncating, starting anew.

An edit takes effect with one rename, that of the manifest. What has to happen to files afterwards
(names to take, files to go, bytes to cut) is written in it, and is finished by the next opening
if a crash comes between.
"""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import trio
from attrs import define

from odradek.contracts.storage import (
    Chunk,
    LogEdit,
    LogSnapshot,
    OutOfRange,
    SegmentInfo,
    crc32c,
)
from odradek.contracts.storage_rules import check_chunk, edited, edited_blobs
from odradek.errors import CorruptBatch
from odradek_storage_file import layout
from odradek_storage_file.bridge import in_thread
from odradek_storage_file.indexes import IndexBuilder
from odradek_storage_file.layout import Manifest, SealedEntry
from odradek_storage_file.ops import NO_SPACE, Ops, write_all
from odradek_storage_file.saving import save_manifest
from odradek_storage_file.space import Space
from odradek_storage_file.truncation import truncate_files

if TYPE_CHECKING:
    from odradek_storage_file.partition import Partition
    from odradek_storage_file.writer import FileWriter

__all__ = ["Built", "build", "commit", "truncate"]

CREATE = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC


@define(eq=False)
class Built:
    """A detached segment: durable files that no manifest names yet."""

    info: SegmentInfo
    rows: int
    crc: int
    stem: str
    ops: Ops

    def discard(self) -> None:
        """Remove the files."""
        for suffix in layout.SUFFIXES:
            try:
                self.ops.remove(self.stem + suffix)
            except OSError:
                return  # the next opening removes them


# -- building --------------------------------------------------------------------------------


async def build(writer: FileWriter, chunks: AsyncIterator[Chunk]) -> Built:
    """See `PartitionWriter.build`."""
    partition = writer.partition
    store = partition.store
    ops = store.ops
    segment_id = 2 * partition.next_file + 1
    partition.next_file += 1
    stem = f"{partition.path}/{segment_id}.built"
    fd = -1
    size = 0
    end = -1
    builder: IndexBuilder | None = None
    done = False
    try:
        async for chunk in chunks:
            writer.check()
            if builder is None:
                end = chunk.batches[0].base_offset if chunk.batches else 0
                builder = IndexBuilder(end)
                fd = await in_thread(ops.open_patiently, stem + ".log", CREATE, 0o644)
            length = check_chunk(chunk, end)
            store.space.more(length)
            await in_thread(write_all, ops, fd, list(chunk.buffers), size)
            for meta in chunk.batches:
                builder.note(meta, size)
                size += meta.size
            end = chunk.batches[-1].last_offset + 1
            if builder.full:
                builder.flush(ops, stem)
        if builder is None:
            raise ValueError("a segment cannot be built from nothing")
        writer.check()
        builder.seal()
        builder.flush(ops, stem)
        await in_thread(_finish_built, ops, fd, partition.path)
        writer.check()
        done = True
    except OSError as error:
        if error.errno in NO_SPACE:
            raise store.space.exhausted() from error
        raise store.fail(error, f"cannot write {stem}.log") from error
    finally:
        if fd >= 0:
            ops.close(fd)
        if not done:
            for suffix in layout.SUFFIXES:
                ops.remove(stem + suffix)
    info = SegmentInfo(
        segment_id,
        builder.base,
        end,
        size,
        builder.max_timestamp,
        builder.max_timestamp_offset,
        time.time_ns() // 1_000_000,
        True,
    )
    return Built(info, builder.rows, builder.crc, stem, ops)


def _finish_built(ops: Ops, fd: int, path: str) -> None:
    ops.fdatasync(fd)
    ops.sync_directory(path)


# -- committing ------------------------------------------------------------------------------


async def commit(writer: FileWriter, edit: LogEdit) -> LogSnapshot:
    """See `PartitionWriter.commit`."""
    partition = writer.partition
    if edit.restart_at is not None:
        return await _restart(writer, edit, edit.restart_at)
    async with partition.edits:
        writer.check()
        infos, log_start = edited(
            partition.snapshot().segments, partition.log_start, edit, writer.built
        )
        blobs = edited_blobs(partition.blobs, edit)
        built = {info.id: writer.built[info.id] for info in edit.add}
        manifest = partition.capture()
        appended = partition.appended
        await partition.sync()
        writer.check()
        with trio.CancelScope(shield=True):
            await _write_blobs(partition, manifest, edit)
            _change(manifest, infos[:-1], built, edit, log_start)
            await partition.write(manifest)
            for segment_id in built:
                del writer.built[segment_id]
            partition.log_start = log_start
            partition.blobs = blobs
            old_blobs = partition.blob_files
            partition.blob_files = dict(manifest.blobs)
            partition.replace(edit.remove, list(built.values()))
            partition.saved = appended
            store = partition.store
            store.saved(partition)
            if manifest.swaps or manifest.removed or old_blobs != manifest.blobs:
                try:
                    await in_thread(_finish_commit, store.ops, partition.path, manifest, old_blobs)
                except OSError as error:
                    raise store.fail(error, f"cannot finish an edit of {partition.path}") from error
            partition.renamed()
        return partition.snapshot()


async def _write_blobs(partition: Partition, manifest: Manifest, edit: LogEdit) -> None:
    """Write the blobs that an edit sets, each under a new number, and name them in `manifest`."""
    written: list[tuple[str, bytes]] = []
    for name, value in edit.blobs.items():
        if value is None:
            manifest.blobs.pop(name, None)
            continue
        data = bytes(value)
        number = partition.next_file
        partition.next_file += 1
        manifest.blobs[name] = (number, len(data), crc32c(data))
        written.append((f"{partition.path}/{layout.blob_name(number)}", data))
    manifest.next_file = partition.next_file
    if not written:
        return
    store = partition.store
    try:
        await in_thread(_save_blobs, store.ops, store.space, written)
    except OSError as error:
        if error.errno in NO_SPACE:
            raise store.space.exhausted() from error
        raise store.fail(error, f"cannot write blobs of {partition.path}") from error


def _save_blobs(ops: Ops, space: Space, written: list[tuple[str, bytes]]) -> None:
    """Write and sync the files; the manifest's own sync of the directory covers their names."""
    for attempt in range(2):
        try:
            for path, data in written:
                fd = ops.open_patiently(path, CREATE, 0o644)
                try:
                    write_all(ops, fd, [data], 0)
                    ops.fdatasync(fd)
                finally:
                    ops.close(fd)
        except OSError as error:
            for path, _ in written:
                ops.remove(path)
            if attempt or error.errno not in NO_SPACE or not space.drop_ballast():
                raise
        else:
            return


def _change(
    manifest: Manifest,
    infos: tuple[SegmentInfo, ...],
    built: dict[int, Built],
    edit: LogEdit,
    log_start: int,
) -> None:
    """Apply an edit to a manifest: `infos` are the sealed segments that it leaves."""
    entries = {entry.id: entry for entry in manifest.sealed}
    for segment_id, each in built.items():
        info = each.info
        entries[segment_id] = SealedEntry(
            info.id,
            info.base_offset,
            info.end_offset,
            info.size,
            info.max_timestamp,
            info.max_timestamp_offset,
            info.created_ms,
            each.rows,
            each.crc,
        )
        manifest.swaps[segment_id] = info.base_offset
    kept = {info.base_offset for info in infos} | {manifest.active.base}
    manifest.removed = [entries[i].base for i in edit.remove if entries[i].base not in kept]
    manifest.sealed = [entries[info.id] for info in infos]
    manifest.log_start = log_start


def _finish_commit(
    ops: Ops, path: str, manifest: Manifest, old_blobs: dict[str, tuple[int, int, int]]
) -> None:
    for segment_id, base in manifest.swaps.items():
        for suffix in layout.SUFFIXES:
            try:
                ops.rename(
                    f"{path}/{segment_id}.built{suffix}", f"{path}/{layout.stem(base)}{suffix}"
                )
            except FileNotFoundError:
                if suffix == layout.SUFFIXES[0]:
                    raise
                ops.remove(f"{path}/{layout.stem(base)}{suffix}")
    for base in manifest.removed:
        for suffix in layout.SUFFIXES:
            ops.remove(f"{path}/{layout.stem(base)}{suffix}")
    kept = {number for number, _, _ in manifest.blobs.values()}
    for number, _, _ in old_blobs.values():
        if number not in kept:
            ops.remove(f"{path}/{layout.blob_name(number)}")
    if manifest.swaps or manifest.removed:
        ops.sync_directory(path)


# -- truncating ------------------------------------------------------------------------------


async def truncate(writer: FileWriter, end_offset: int) -> None:
    """See `PartitionWriter.truncate`."""
    partition = writer.partition
    async with partition.edits:
        writer.check()
        if end_offset < partition.log_start:
            raise OutOfRange(f"{end_offset} is below the log start {partition.log_start}")
        if end_offset < partition.end:
            await _cut(writer, end_offset, None)


async def _restart(writer: FileWriter, edit: LogEdit, offset: int) -> LogSnapshot:
    partition = writer.partition
    if edit.remove or edit.add or edit.log_start is not None or offset < 0:
        raise OutOfRange("a restart stands alone, at an offset of 0 or more")
    async with partition.edits:
        writer.check()
        blobs = edited_blobs(partition.blobs, edit)
        await _cut(writer, offset, edit)
        partition.blobs = blobs
        partition.changed()
        return partition.snapshot()


async def _cut(writer: FileWriter, end_offset: int, restart: LogEdit | None) -> None:
    partition = writer.partition
    store = partition.store
    partition.changing = trio.Event()
    try:
        await partition.sync()
        writer.check()
        manifest = partition.capture()
        # A reference that reaches behind the cut keeps its bytes: the file is then copied.
        reach = {
            file.path: file.reach
            for file in [*(s.file for s in partition.sealed), partition.file]
            if file is not None and file.holds
        }
        with trio.CancelScope(shield=True):
            if restart is not None:
                await _write_blobs(partition, manifest, restart)
                manifest.log_start = end_offset
                manifest.restart = True
            manifest.truncate_to = end_offset
            await partition.write(manifest)
            try:
                builder, copied = await in_thread(
                    truncate_files, store.ops, partition.path, manifest, reach
                )
                await in_thread(save_manifest, store.ops, store.space, partition.path, manifest)
            except (OSError, CorruptBatch) as error:
                # What the manifest orders is half done; a later append must not follow that.
                raise store.fail(error, f"cannot truncate {partition.path}") from error
            partition.adopt(manifest, builder, copied)
    finally:
        event, partition.changing = partition.changing, None
        event.set()
