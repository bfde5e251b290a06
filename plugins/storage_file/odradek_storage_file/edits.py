"""Changes of a log's make-up: committing edits, truncating, starting anew.

An edit takes effect with one rename, that of the manifest. What has to happen to files afterwards
(names to take, files to go, bytes to cut) is written in it, and is finished by the next opening
if a crash comes between.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import trio
from attrs import evolve

from odradek.contracts.storage import (
    LogEdit,
    LogSnapshot,
    OutOfRange,
    SegmentInfo,
    crc32c,
)
from odradek.contracts.storage_rules import edited, edited_blobs
from odradek.errors import CorruptBatch
from odradek_storage_file import layout
from odradek_storage_file.bridge import in_thread
from odradek_storage_file.building import CREATE, Built
from odradek_storage_file.layout import Manifest, SealedEntry
from odradek_storage_file.ops import NO_SPACE, Ops, write_all
from odradek_storage_file.saving import save_manifest
from odradek_storage_file.space import Space
from odradek_storage_file.truncation import truncate_files

if TYPE_CHECKING:
    from odradek_storage_file.partition import Partition
    from odradek_storage_file.writer import FileWriter

__all__ = ["commit", "truncate"]

FILES_AT_ONCE = 256
"""Files closed before others get their turn: about 1 ms."""


# -- committing ------------------------------------------------------------------------------


async def commit(writer: FileWriter, edit: LogEdit) -> LogSnapshot:
    """See `PartitionWriter.commit`."""
    partition = writer.partition
    if edit.restart_at is not None:
        return await _restart(writer, edit, edit.restart_at)
    async with partition.edits:
        writer.check()
        store = partition.store
        if store.space.is_scarce:
            await store.upkeep.clear()
        infos, log_start = edited(
            partition.snapshot().segments, partition.log_start, edit, writer.built
        )
        blobs = edited_blobs(partition.blobs, edit)
        added = {info.id for info in edit.add}
        built = {
            info.id: evolve(writer.built[info.id], info=info) for info in infos if info.id in added
        }
        manifest = partition.capture()
        appended = partition.appended
        await partition.sync()
        writer.check()
        with trio.CancelScope(shield=True):
            await _write_blobs(partition, manifest, edit)
            gone = _change(manifest, infos[:-1], built, edit, log_start)
            await partition.write(manifest)
            for segment_id in built:
                del writer.built[segment_id]
            partition.log_start = log_start
            partition.blobs = blobs
            old_blobs = partition.blob_files
            partition.blob_files = dict(manifest.blobs)
            retired = partition.replace(edit.remove, list(built.values()))
            partition.saved = appended
            store.saved(partition)
            for number, file in enumerate(retired, 1):
                file.retire(removed=True)
                if not number % FILES_AT_ONCE:
                    await trio.lowlevel.checkpoint()
            lingers = edit.linger_ms > 0 and not store.space.is_scarce
            if gone or built or old_blobs != manifest.blobs:
                try:
                    left = await in_thread(
                        _finish_commit,
                        store.ops,
                        partition.path,
                        manifest,
                        gone if lingers else [],
                        old_blobs,
                    )
                except OSError as error:
                    raise store.fail(error, f"cannot finish an edit of {partition.path}") from error
                if left:
                    store.upkeep.linger(edit.linger_ms / 1000, left)
            if built:
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

    def save() -> None:
        try:
            for path, data in written:
                fd = ops.open_patiently(path, CREATE, 0o644)
                try:
                    write_all(ops, fd, [data], 0)
                    ops.fdatasync(fd)
                finally:
                    ops.close(fd)
        except OSError:
            for path, _ in written:
                ops.remove(path)
            raise

    space.with_ballast(save)


def _change(
    manifest: Manifest,
    infos: tuple[SegmentInfo, ...],
    built: dict[int, Built],
    edit: LogEdit,
    log_start: int,
) -> list[SealedEntry]:
    """Apply an edit to a manifest: `infos` are the sealed segments that it leaves.

    Returns the entries of those that it removes.
    """
    manifest.log_start = log_start
    if not edit.remove and not built:
        return []
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
    gone = [entries[i] for i in edit.remove]
    manifest.removed = [entry.base for entry in gone if entry.base not in kept]
    manifest.sealed = [entries[info.id] for info in infos]
    return gone


def _finish_commit(
    ops: Ops,
    path: str,
    manifest: Manifest,
    lingers: list[SealedEntry],
    old_blobs: dict[str, tuple[int, int, int]],
) -> list[tuple[str, int]]:
    """Do what the manifest says; return the files (path, size) that stay under another name.

    Data that lingers leaves its name before a built segment takes it. After a crash the next
    opening does all the rest, and removes what lingers.
    """
    left = []
    for entry in lingers:
        name = f"{path}/{layout.deleted_name(entry.base, entry.id)}"
        try:
            ops.rename(f"{path}/{layout.stem(entry.base)}{layout.SUFFIXES[0]}", name)
        except OSError as error:
            # A longer name may need a block of the directory. Lingering is a convenience.
            if error.errno not in (errno.ENOENT, *NO_SPACE):
                raise
        else:
            left.append((name, entry.size))
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
    return left


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
