"""What is good of a segment file: for repairs. Everything here blocks."""

from __future__ import annotations

import os
from collections.abc import Callable

from attrs import define, field

from odradek.contracts.storage import (
    HEADER_SIZE,
    MAX_RELATIVE_OFFSET,
    BatchMeta,
    EpochStart,
    parse_header,
)
from odradek.errors import CorruptBatch
from odradek_storage_file.indexes import IndexBuilder
from odradek_storage_file.ops import Ops
from odradek_storage_file.verify import DumpedBatch, Finding, walk_segment

__all__ = ["Kept", "claimed_end", "sound", "valid"]


@define
class Kept:
    """What is good of one segment file.

    `whole`: nothing in it has to be changed. `ended`: the log is cut within it. `torn`: what
    comes last in it has to be left out. `ranges`: bytes of the file that are kept, and `mended`:
    headers to put right, by position in what is kept.
    """

    base: int
    end: int
    index: IndexBuilder
    size: int = 0
    whole: bool = True
    ended: bool = False
    torn: bool = False
    ranges: list[tuple[int, int]] = field(factory=list)
    mended: list[tuple[int, BatchMeta]] = field(factory=list)
    gaps: list[tuple[int, int]] = field(factory=list)
    epochs: list[EpochStart] = field(factory=list)

    def take(self, meta: BatchMeta) -> None:
        """Take a batch, behind those that were taken."""
        self.index.note(meta, self.size)
        self.size += meta.size
        self.end = meta.last_offset + 1
        if not self.epochs or meta.leader_epoch > self.epochs[-1].epoch:
            self.epochs.append(EpochStart(meta.leader_epoch, meta.base_offset))


def sound(
    ops: Ops,
    file: str,
    base: int,
    end: int,
    due: int | None,
    epoch_at: Callable[[int], int | None],
) -> Kept | None:
    """Return what is good of a file if that is all of it, without holding its headers.

    `base`: the segment's; `end`: of the segment before; `due`: where it ends at the latest, if
    that is known; `epoch_at`: as `mend` takes it. Raises OSError.
    """
    kept = Kept(base, max(base, end), IndexBuilder(base))
    limit = base + MAX_RELATIVE_OFFSET + 1
    if due is not None:
        limit = min(due, limit)
    fd = ops.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        for each in walk_segment(ops, fd, file, os.fstat(fd).st_size):
            if not isinstance(each, DumpedBatch):
                return None
            meta = each.meta
            if not kept.end <= meta.base_offset <= meta.last_offset < limit:
                return None
            if epoch_at(meta.base_offset) not in (None, meta.leader_epoch):
                return None
            kept.take(meta)
    finally:
        ops.close(fd)
    return kept


def valid(ops: Ops, file: str) -> tuple[list[DumpedBatch], dict[int, Finding]]:
    """Return the batches whose CRC is right, and the damage by the number of the batch behind it.

    Raises OSError.
    """
    batches: list[DumpedBatch] = []
    holes: dict[int, Finding] = {}
    fd = ops.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        for each in walk_segment(ops, fd, file, os.fstat(fd).st_size):
            if isinstance(each, DumpedBatch):
                batches.append(each)
            else:
                holes[len(batches)] = each
    finally:
        ops.close(fd)
    return batches, holes


def claimed_end(ops: Ops, file: str, position: int, end: int) -> int:
    """Return the offset to which damaged batches at the end of a file go, by their headers.

    `end`: where the log ends before byte `position`. A header counts if its batch begins there and
    all its bytes are in the file, so what it says was written once. Raises OSError.
    """
    fd = ops.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(fd).st_size
        while position + HEADER_SIZE <= size:
            try:
                meta = parse_header(ops.pread(fd, HEADER_SIZE, position))
            except CorruptBatch:
                break
            position += meta.size
            # The damage may be in one of the two; too large a gap does no harm, reused offsets do.
            count = max(meta.last_offset - end + 1, meta.record_count)
            if meta.base_offset != end or position > size or count < 1:
                break
            end += count
    finally:
        ops.close(fd)
    return end
