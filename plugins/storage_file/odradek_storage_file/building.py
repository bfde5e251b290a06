"""Building segments that no manifest names yet."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING

import trio
from attrs import define

from odradek.contracts.storage import BatchMeta, Chunk, SegmentInfo
from odradek.contracts.storage_rules import check_chunk
from odradek_storage_file import layout
from odradek_storage_file.bridge import in_thread
from odradek_storage_file.indexes import IndexBuilder
from odradek_storage_file.ops import NO_SPACE, Ops, write_all

if TYPE_CHECKING:
    from odradek_storage_file.writer import FileWriter

__all__ = ["CREATE", "Built", "build"]

CREATE = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC

SYNC_BYTES = 1024 * 1024
"""How much is written between two syncs. A file system with a journal (ext4) lets everybody else's
sync wait for it: produce requests beside a compaction took 11.9, 14.3 ms (p99) at 1 MiB, and 13.5,
20.2 ms at 8 MiB, measured in turns."""

BATCHES_AT_ONCE = 256
"""Batches noted in the index before others get their turn: about 0.2 ms."""


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


async def build(writer: FileWriter, chunks: AsyncIterator[Chunk]) -> Built:
    """See `PartitionWriter.build`."""
    partition = writer.partition
    store = partition.store
    ops = store.ops
    synced = 0
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
            store.space.spare(length)
            await in_thread(write_all, ops, fd, list(chunk.buffers), size)
            size = await _note(builder, chunk.batches, size)
            end = chunk.batches[-1].last_offset + 1
            del chunk  # its bytes, before the next ones are made
            if builder.full:
                builder.flush(ops, stem)
            if size - synced >= SYNC_BYTES:
                await in_thread(ops.fdatasync, fd)
                synced = size
        if builder is None:
            raise ValueError("a segment cannot be built from nothing")
        writer.check()
        builder.seal()
        builder.flush(ops, stem, cut=True)
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


async def _note(builder: IndexBuilder, batches: Sequence[BatchMeta], position: int) -> int:
    """Take batches into the index; return the position after them."""
    for number, meta in enumerate(batches, 1):
        builder.note(meta, position)
        position += meta.size
        if not number % BATCHES_AT_ONCE:
            await trio.lowlevel.checkpoint()
    return position


def _finish_built(ops: Ops, fd: int, path: str) -> None:
    ops.fdatasync(fd)
    ops.sync_directory(path)
