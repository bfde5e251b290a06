"""Reading a partition's segments and their indexes."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
from odradek_storage_file.ops import Ops

if TYPE_CHECKING:
    from odradek_storage_file.partition import Partition

__all__ = ["Segment", "index", "read"]


class Segment:
    """A sealed segment: what is told of it, and its file."""

    __slots__ = ("crc", "file", "info", "rows")

    def __init__(self, info: SegmentInfo, rows: int, crc: int, file: SegmentFile) -> None:
        self.info = info
        self.rows = rows
        self.crc = crc
        self.file = file

    def entry(self) -> SealedEntry:
        """Its line in the manifest."""
        info = self.info
        return SealedEntry(
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
    stem = f"{partition.path}/{layout.stem(base)}"
    ops = partition.store.ops
    if rows <= 64:  # one small read costs less than a thread
        index = load_index(ops, stem + ".rows", base, rows, crc, pending)
    else:
        index = await in_thread(load_index, ops, stem + ".rows", base, rows, crc, pending)
    if index is not None:
        return index
    return await _rebuilt(partition, file, stem, base, size, segment)


async def _rebuilt(
    partition: Partition,
    file: SegmentFile,
    stem: str,
    base: int,
    size: int,
    segment: Segment | None,
) -> SegmentIndex:
    fd = file.hold()
    try:
        builder, index = await in_thread(
            rebuild_index, partition.store.ops, fd, stem, base, size, segment is not None
        )
    except CorruptBatch as error:
        raise Corrupt(f"{file.path}: {error.detail}; repair the partition") from error
    except OSError as error:
        raise Unavailable(f"cannot read {file.path}: {error.strerror}") from error
    finally:
        file.release()
    if segment is not None and segment in partition.sealed:
        segment.rows, segment.crc = builder.rows, builder.crc
        partition.saved = -1  # the manifest has the old CRC
    return index
