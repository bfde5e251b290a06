"""The sparse index of a segment: how it grows, lies on disk, and is made again from the data.

Three files beside each segment. `.index` and `.timeindex` are Kafka's (`OffsetIndex.java`,
`TimeIndex.java`) and serve its tools; their entries name a batch by its last offset, while the
contract wants base offsets, so the store itself reads `.rows`:

    .index      int32 last offset of a batch less the segment's base, int32 byte position
    .timeindex  int64 largest timestamp so far, int32 last offset of its batch less the base
    .rows       int32 base offset of a batch less the segment's base, int32 byte position,
                int64 largest timestamp of all batches before it

All big-endian. They are caches: the manifest holds how many rows there are and their CRC-32C, and
what does not fit is made again. A row is due once more than 4096 bytes came since the last.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from struct import Struct
from typing import Any

from odradek.contracts.storage import (
    HEADER_SIZE,
    BatchMeta,
    SegmentIndex,
    crc32c,
    parse_header,
)
from odradek_storage_file.ops import Ops, write_all

__all__ = ["INDEX_INTERVAL", "IndexBuilder", "load_index", "rebuild_index", "restart_index", "walk"]

INDEX_INTERVAL = 4096
"""Kafka's index.interval.bytes."""

KEPT_ROWS = 512
"""Rows kept in memory before they are written: 18 KiB for at least 2 MiB of log."""

_INDEX = Struct(">ii")
_TIME = Struct(">qi")
_ROW = Struct(">iiq")

WINDOW = 256 * 1024


class IndexBuilder:
    """The index of a segment that grows: rows not yet written, and what the next row needs.

    `rows` and `times` count what the files hold, `crc` covers the rows written, `max_timestamp`
    and `max_timestamp_offset` are those of the segment.
    """

    __slots__ = (
        "_index",
        "_row",
        "_time",
        "base",
        "crc",
        "last_time",
        "max_timestamp",
        "max_timestamp_offset",
        "rows",
        "since",
        "times",
    )

    def __init__(self, base: int) -> None:
        self.base = base
        self.rows = 0
        self.times = 0
        self.crc = 0
        self.since = 0
        self.last_time = -1
        self.max_timestamp = -1
        self.max_timestamp_offset = -1
        self._index = bytearray()
        self._time = bytearray()
        self._row = bytearray()

    def note(self, meta: BatchMeta, position: int) -> None:
        """Take a batch that starts at byte `position`; batches come in order."""
        before = self.max_timestamp
        if meta[6] > before:
            self.max_timestamp = meta[6]
            self.max_timestamp_offset = meta[1]
        if self.since > INDEX_INTERVAL:
            self.since = 0
            self._add_row(meta, position, before)
        self.since += meta[2]

    def _add_row(self, meta: BatchMeta, position: int, before: int) -> None:
        base = self.base
        self._index += _INDEX.pack(meta[1] - base, position)
        self._row += _ROW.pack(meta[0] - base, position, before)
        if self.max_timestamp > self.last_time:
            self._add_time()

    def _add_time(self) -> None:
        self.last_time = self.max_timestamp
        self._time += _TIME.pack(self.max_timestamp, self.max_timestamp_offset - self.base)

    @property
    def full(self) -> bool:
        """Whether rows should be written."""
        return len(self._row) >= KEPT_ROWS * _ROW.size

    @property
    def pending_rows(self) -> bytes:
        """The rows that are not written yet."""
        return bytes(self._row)

    def files(self) -> dict[str, bytes]:
        """What the files would hold, by suffix, of an index of which nothing was written yet."""
        return {
            ".index": bytes(self._index),
            ".timeindex": bytes(self._time),
            ".rows": bytes(self._row),
        }

    def seal(self) -> None:
        """Let the time index end with the segment's largest timestamp, as Kafka does."""
        if self.max_timestamp > self.last_time:
            self._add_time()

    def flush(self, ops: Ops, stem: str, *, cut: bool = False) -> None:
        """Write the rows to the files `stem` names. An index is a cache, so nothing is raised.

        A file that could not be written will not have the CRC in the manifest. `cut`: let the
        files end there even if there is nothing to write.
        """
        if self._row or self._time or cut:
            for suffix, data, position in (
                (".index", self._index, self.rows * _INDEX.size),
                (".rows", self._row, self.rows * _ROW.size),
                (".timeindex", self._time, self.times * _TIME.size),
            ):
                _write_part(ops, stem + suffix, data, position)
            self.crc = crc32c(self._row, self.crc)
            self.rows += len(self._row) // _ROW.size
            self.times += len(self._time) // _TIME.size
            self._index.clear()
            self._row.clear()
            self._time.clear()

    def state(self) -> dict[str, int]:
        """What the manifest keeps so that the index can grow on after a restart."""
        return {
            "rows": self.rows,
            "times": self.times,
            "crc": self.crc,
            "since": self.since,
            "last_time": self.last_time,
            "max_timestamp": self.max_timestamp,
            "max_timestamp_offset": self.max_timestamp_offset,
        }

    @classmethod
    def restored(cls, base: int, state: dict[str, Any]) -> IndexBuilder:
        """Go on from what `state` returned."""
        builder = cls(base)
        for name in ("rows", "times", "crc", "since", "last_time"):
            setattr(builder, name, int(state[name]))
        builder.max_timestamp = int(state["max_timestamp"])
        builder.max_timestamp_offset = int(state["max_timestamp_offset"])
        return builder


def _write_part(ops: Ops, path: str, data: bytearray, position: int) -> None:
    try:
        fd = ops.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            ops.ftruncate(fd, position)
            write_all(ops, fd, [bytes(data)], position)
        finally:
            ops.close(fd)
    except OSError:
        return


def load_index(
    ops: Ops, path: str, base: int, rows: int, crc: int, pending: bytes = b""
) -> SegmentIndex | None:
    """Read `rows` rows of a `.rows` file and those `pending`; None unless they have this CRC."""
    data = b""
    if rows:
        try:
            fd = ops.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            data = ops.pread(fd, rows * _ROW.size, 0)
        except OSError:
            return None
        finally:
            ops.close(fd)
        if len(data) != rows * _ROW.size or crc32c(data) != crc:
            return None
    index = SegmentIndex()
    index.add(base, 0, -1)
    for offset, position, timestamp in _ROW.iter_unpack(data + pending):
        index.add(base + offset, position, timestamp)
    return index


def walk(ops: Ops, fd: int, position: int, end: int) -> Iterator[tuple[BatchMeta, int]]:
    """Yield the headers of the batches in bytes [position, end), which must be whole batches.

    CRCs are not checked. Raises CorruptBatch where no header is, OSError.
    """
    held = b""
    start = position
    while position < end:
        at = position - start
        if at + HEADER_SIZE > len(held):
            start, at = position, 0
            held = ops.pread(fd, min(WINDOW, end - position), position)
        meta = parse_header(held, at)
        yield meta, position
        position += meta.size


def rebuild_index(ops: Ops, fd: int, base: int, size: int) -> tuple[IndexBuilder, SegmentIndex]:
    """Make the index of a segment's first `size` bytes from its batches; nothing is written.

    Raises CorruptBatch, OSError.
    """
    builder = IndexBuilder(base)
    for meta, position in walk(ops, fd, 0, size):
        builder.note(meta, position)
    index = SegmentIndex()
    index.add(base, 0, -1)
    for offset, position, timestamp in _ROW.iter_unpack(builder.pending_rows):
        index.add(base + offset, position, timestamp)
    builder.seal()
    return builder, index


def restart_index(
    ops: Ops, stem: str, base: int, rows: int, crc: int, offset: int
) -> tuple[IndexBuilder, int]:
    """Return an index up to some byte, before the batch that holds `offset`, and that byte.

    At least one batch lies between, unless the byte is 0: from there on the batches have to be
    noted again. For truncation, so that it need not read the whole segment. Raises CorruptBatch,
    OSError.
    """
    index = load_index(ops, stem + ".rows", base, rows, crc)
    start = index.floor(offset - 1) - 1 if index is not None else 0
    if index is None or start < 1:
        return IndexBuilder(base), 0
    builder = IndexBuilder(base)
    builder.rows = start - 1
    builder.since = INDEX_INTERVAL + 1
    largest = builder.max_timestamp = index.timestamps[start]
    fd = ops.open(stem + ".rows", os.O_RDONLY | os.O_CLOEXEC)
    try:
        builder.crc = crc32c(ops.pread(fd, builder.rows * _ROW.size, 0))
    finally:
        ops.close(fd)
    if largest >= 0:
        row = index.timestamps.index(largest)  # it is in a batch between this row and the last
        fd = ops.open(stem + ".log", os.O_RDONLY | os.O_CLOEXEC)
        try:
            for meta, _ in walk(ops, fd, index.positions[row - 1], index.positions[row]):
                if meta.max_timestamp == largest:
                    builder.max_timestamp_offset = meta.last_offset
                    break
        finally:
            ops.close(fd)
    fd = ops.open(stem + ".timeindex", os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        times = ops.pread(fd, os.fstat(fd).st_size // _TIME.size * _TIME.size, 0)
    finally:
        ops.close(fd)
    for timestamp, _ in _TIME.iter_unpack(times):
        if timestamp > largest:
            break
        builder.times += 1
        builder.last_time = timestamp
    return builder, index.positions[start]
