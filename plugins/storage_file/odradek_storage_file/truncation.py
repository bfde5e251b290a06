"""Cutting a log's files at an offset, so that it can be done again after a crash at any point."""

from __future__ import annotations

import os
import time

from odradek.contracts.storage import EpochStart
from odradek_storage_file import layout
from odradek_storage_file.indexes import IndexBuilder, restart_index, walk
from odradek_storage_file.layout import ActiveEntry, Manifest, SealedEntry
from odradek_storage_file.ops import Ops, write_all

__all__ = ["truncate_files"]

CREATE = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC


def truncate_files(
    ops: Ops, path: str, manifest: Manifest, reach: dict[str, int]
) -> tuple[IndexBuilder, set[str]]:
    """Do on disk what `manifest.truncate_to` says, and change the manifest to what is left.

    Can be repeated after a crash at any point. `reach`: file -> the end of what is still being
    read of it. Returns the active segment's index, and the files that were copied instead of cut.
    Raises OSError, CorruptBatch.
    """
    copied: set[str] = set()
    end_offset = manifest.truncate_to
    assert end_offset is not None
    builder = IndexBuilder(end_offset)
    lowest = end_offset
    active: ActiveEntry | None = manifest.active
    while active is not None or manifest.sealed:
        entry = active or manifest.sealed[-1]
        file = f"{path}/{layout.stem(entry.base)}.log"
        cut, end = 0, entry.base
        if not manifest.restart and entry.base <= end_offset and os.path.exists(file):
            cut, end, builder = _cut_file(ops, path, entry, end_offset, reach.get(file, 0))
            if cut < reach.get(file, 0):
                copied.add(file)
        if cut or (active is not None and not manifest.restart and entry.base <= end_offset):
            entry.size, entry.end = cut, end
            break
        for suffix in layout.SUFFIXES:
            ops.remove(f"{path}/{layout.stem(entry.base)}{suffix}")
        lowest = min(lowest, entry.base)
        if active is not None:
            active = None
        else:
            manifest.sealed.pop()
    if active is not None:
        if not active.size:
            builder = IndexBuilder(active.base)
        active.index = builder.state()
    else:
        if manifest.sealed:
            last = manifest.sealed[-1]
            builder.seal()
            builder.flush(ops, f"{path}/{layout.stem(last.base)}")
            last.rows, last.crc = builder.rows, builder.crc
            last.max_timestamp = builder.max_timestamp
            last.max_timestamp_offset = builder.max_timestamp_offset
            end_offset = last.end
        elif not manifest.restart:
            end_offset = min(end_offset, max(lowest, manifest.log_start))
        builder = IndexBuilder(end_offset)
        now = time.time_ns() // 1_000_000
        manifest.active = ActiveEntry(
            2 * manifest.next_id, end_offset, end_offset, 0, now, builder.state()
        )
        manifest.next_id += 1
        ops.close(ops.open(f"{path}/{layout.stem(end_offset)}.log", CREATE, 0o644))
    end = manifest.active.end
    manifest.epochs = [
        EpochStart(*e) for e in manifest.epochs if e.start_offset < end and not manifest.restart
    ]
    manifest.truncate_to = None
    manifest.restart = False
    ops.sync_directory(path)
    return builder, copied


def _cut_file(
    ops: Ops, path: str, entry: SealedEntry | ActiveEntry, end_offset: int, reach: int
) -> tuple[int, int, IndexBuilder]:
    """Cut one file; return its new size, the offset it ends at, and its index up to there."""
    stem = f"{path}/{layout.stem(entry.base)}"
    fd = ops.open(stem + ".log", os.O_RDWR | os.O_CLOEXEC)
    try:
        size = min(os.fstat(fd).st_size, entry.size)
        rows, crc = (
            (entry.index.get("rows", 0), entry.index.get("crc", 0))
            if isinstance(entry, ActiveEntry)
            else (entry.rows, entry.crc)
        )
        builder, position = restart_index(ops, stem, entry.base, rows, crc, end_offset)
        cut, end = 0, entry.base
        for meta, at in walk(ops, fd, position, size):
            if meta.last_offset >= end_offset:
                break
            builder.note(meta, at)
            cut, end = at + meta.size, meta.last_offset + 1
        builder.flush(ops, stem, cut=True)
        if cut and cut < os.fstat(fd).st_size:
            if reach > cut:
                _copy(ops, fd, stem + ".log", cut)
            else:
                ops.ftruncate(fd, cut)
                ops.fdatasync(fd)
        elif not cut and reach:
            _copy(ops, fd, stem + ".log", 0)
        elif not cut:
            ops.ftruncate(fd, 0)
            ops.fdatasync(fd)
        return cut, end, builder
    finally:
        ops.close(fd)


def _copy(ops: Ops, fd: int, path: str, size: int) -> None:
    """Put a copy of the first `size` bytes in a file's place; the old one lives on while open."""
    other = ops.open(path + ".tmp", CREATE, 0o644)
    try:
        done = 0
        while done < size:
            done += write_all(ops, other, [ops.pread(fd, min(1 << 20, size - done), done)], done)
        ops.fsync(other)
    finally:
        ops.close(other)
    ops.rename(path + ".tmp", path)
