"""Reading a partition's segments and their indexes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from odradek.contracts.storage import (
    Corrupt,
    DataRef,
    Hint,
    OutOfRange,
    SegmentIndex,
    SegmentInfo,
    Unavailable,
)
from odradek.errors import CorruptBatch
from odradek_storage_file import layout
from odradek_storage_file.bridge import in_thread
from odradek_storage_file.files import FileRef, SegmentFile
from odradek_storage_file.indexes import load_index, rebuild_index
from odradek_storage_file.layout import SealedEntry
from odradek_storage_file.once import OnceRef
from odradek_storage_file.ops import Ops

if TYPE_CHECKING:
    from odradek_storage_file.partition import Partition

__all__ = ["Segment", "index", "read"]


class Segment:
    """A sealed segment: what is told of it, and its file."""

    __slots__ = ("_entry", "crc", "file", "info", "rows")

    def __init__(
        self,
        info: SegmentInfo,
        rows: int,
        crc: int,
        file: SegmentFile,
        entry: SealedEntry | None = None,
    ) -> None:
        self.info = info
        self.rows = rows
        self.crc = crc
        self.file = file
        self._entry = entry

    @classmethod
    def of(cls, entry: SealedEntry, file: SegmentFile) -> Segment:
        """Make it from its line in the manifest."""
        info = SegmentInfo(
            entry.id,
            entry.base,
            entry.end,
            entry.size,
            entry.max_timestamp,
            entry.max_timestamp_offset,
            entry.created_ms,
            True,
        )
        return cls(info, entry.rows, entry.crc, file, entry)

    def entry(self) -> SealedEntry:
        """Its line in the manifest: kept, as every roll writes the lines of all segments."""
        entry = self._entry
        if entry is None:
            info = self.info
            entry = self._entry = SealedEntry(
                info.id,
                info.base_offset,
                info.end_offset,
                info.size,
                info.max_timestamp,
                info.max_timestamp_offset,
                info.created_ms,
                self.rows,
                self.crc,
            )
        return entry

    def reindexed(self, rows: int, crc: int) -> None:
        """Take note of the index that was made anew."""
        self.rows = rows
        self.crc = crc
        self._entry = None


def _find(partition: Partition, segment_id: int) -> Segment | None:
    """Return a sealed segment, or None for the active one. Raises OutOfRange."""
    if partition.dropped:
        raise OutOfRange(f"{partition.key} was removed")
    if segment_id == partition.id:
        return None
    for segment in reversed(partition.sealed):
        if segment.info.id == segment_id:
            return segment
    raise OutOfRange(f"{partition.key} has no segment {segment_id}")


async def read(
    partition: Partition, segment_id: int, position: int, max_bytes: int, hint: Hint
) -> DataRef:
    """See `PartitionReader.read`."""
    while partition.changing is not None:
        await partition.changing.wait()
    segment = _find(partition, segment_id)
    if segment is None:
        file, size = partition.file, partition.size
    else:
        file, size = segment.file, segment.info.size
    assert file is not None
    if not 0 <= position <= size:
        raise OutOfRange(f"position {position} is beyond the {size} bytes of {file.path}")
    count = min(max_bytes, size - position)
    if hint is Hint.ONCE and segment is not None:
        return OnceRef(file, position, count)  # what waits for the disk is `views`
    ref = FileRef(file, position, count)
    if hint is not Hint.TAIL and count:
        try:
            await _warm(partition, file, position, count)
        except BaseException:
            ref.close()
            raise
    return ref


async def _warm(partition: Partition, file: SegmentFile, position: int, count: int) -> None:
    """Have a range read into the page cache by a worker, if it is not there.

    Otherwise sendfile would wait for the disk in the trio thread: one consumer that reads old
    data would hold up everybody.
    """
    ops = partition.store.ops
    fd = file.descriptor()
    if not (ops.is_cached(fd, position) and ops.is_cached(fd, position + count - 1)):
        try:
            await in_thread(_read_through, ops, fd, position, count)
        except OSError as error:
            raise Corrupt(f"cannot read {file.path}: {error.strerror}") from error


def _read_through(ops: Ops, fd: int, position: int, count: int) -> None:
    end = position + count
    while position < end:
        read = len(ops.pread(fd, min(1 << 20, end - position), position))
        if not read:
            return  # the file is shorter than it should be, which `views` reports
        position += read


async def index(partition: Partition, segment_id: int) -> SegmentIndex:
    """See `PartitionReader.index`."""
    while partition.changing is not None:
        await partition.changing.wait()
    segment = _find(partition, segment_id)
    if segment is None:
        file, base, size = partition.file, partition.base, partition.size
        rows, crc, pending = (
            partition.builder.rows,
            partition.builder.crc,
            partition.builder.pending_rows,
        )
    else:
        file, base, size = segment.file, segment.info.base_offset, segment.info.size
        rows, crc, pending = segment.rows, segment.crc, b""
    assert file is not None
    # The files of a segment that an edit has just put in are being renamed. What lies under the
    # final name meanwhile belongs to the segment that it replaced, and has another CRC.
    paths = dict.fromkeys((file.path, file.later_path))  # in the order in which they are true
    ops = partition.store.ops
    for path in paths:
        stem = path.removesuffix(layout.SUFFIXES[0])
        if rows <= 64:  # one small read costs less than a thread
            index = load_index(ops, stem + ".rows", base, rows, crc, pending)
        else:
            index = await in_thread(load_index, ops, stem + ".rows", base, rows, crc, pending)
        if index is not None:
            return index
    return await _rebuilt(partition, file, base, size, segment)


async def _rebuilt(
    partition: Partition,
    file: SegmentFile,
    base: int,
    size: int,
    segment: Segment | None,
) -> SegmentIndex:
    ops = partition.store.ops
    fd = file.hold()
    try:
        builder, index = await in_thread(rebuild_index, ops, fd, base, size)
    except CorruptBatch as error:
        raise Corrupt(f"{file.path}: {error.detail}; repair the partition") from error
    except OSError as error:
        raise Unavailable(f"cannot read {file.path}: {error.strerror}") from error
    finally:
        file.release()
    if segment is not None and not partition.edits.locked():
        # An edit may give the name to another segment: if there is one, the index is made again.
        async with partition.edits:
            if segment in partition.sealed and not partition.closed:
                stem = f"{partition.path}/{layout.stem(base)}"
                with trio.CancelScope(shield=True):
                    await in_thread(builder.flush, ops, stem)
                segment.reindexed(builder.rows, builder.crc)
                partition.saved = -1  # the manifest has the old CRC
    return index
