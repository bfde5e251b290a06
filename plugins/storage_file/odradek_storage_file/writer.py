"""What the core holds of a partition: its writer, its readers, the tickets of its appends."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from typing import TYPE_CHECKING

from odradek.contracts.storage import (
    Chunk,
    DataRef,
    Fenced,
    Full,
    Hint,
    LogEdit,
    LogSnapshot,
    Offline,
    OutOfRange,
    PartitionReader,
    PartitionWriter,
    Recovery,
    SegmentIndex,
    SegmentInfo,
)
from odradek_storage_file import edits, reading
from odradek_storage_file.building import Built, build

if TYPE_CHECKING:
    from odradek_storage_file.partition import Partition
    from odradek_storage_file.store import FileStore

__all__ = ["FileReader", "FileWriter"]


class FileTicket:
    """Durable once the sync that covers it returned."""

    __slots__ = ("_appended", "_writer", "end_offset")

    def __init__(self, writer: FileWriter, end_offset: int, appended: int) -> None:
        self.end_offset = end_offset
        self._writer = writer
        self._appended = appended

    @property
    def durable(self) -> bool:
        """Whether the sync returned."""
        return self._writer.partition.synced >= self._appended

    async def wait(self) -> None:
        """Wait for the sync."""
        writer = self._writer
        partition = writer.partition
        while partition.synced < self._appended:
            writer.check_waiting()
            await partition.waiting.park()


class WrittenTicket:
    """Durable at once, as far as the settings ask for it."""

    __slots__ = ("end_offset",)

    durable = True

    def __init__(self, end_offset: int) -> None:
        self.end_offset = end_offset

    async def wait(self) -> None:
        """Return."""


class FileReader(PartitionReader):
    """A view of a partition, which its writer keeps up to date."""

    def __init__(self, store: FileStore, partition: Partition) -> None:
        self._store = store
        self.partition = partition
        self._closed = False
        partition.readers += 1

    @property
    def snapshot(self) -> LogSnapshot:
        """The newest state."""
        return self.partition.snapshot()

    async def index(self, segment_id: int) -> SegmentIndex:
        """Load or rebuild a segment's index."""
        self._check_open()
        return await reading.index(self.partition, segment_id)

    async def read(self, segment_id: int, position: int, max_bytes: int, hint: Hint) -> DataRef:
        """Refer to a range of a segment's file."""
        self._check_open()
        return await reading.read(self.partition, segment_id, position, max_bytes, hint)

    def _check_open(self) -> None:
        if self._closed:
            raise OutOfRange("the reader is closed")

    async def aclose(self) -> None:
        """Let go of the partition."""
        if not self._closed:
            self._closed = True
            self.partition.readers -= 1
            self._store.let_go(self.partition)


class FileWriter(PartitionWriter):
    """The writer of a partition under one claim."""

    def __init__(self, store: FileStore, partition: Partition, epoch: int) -> None:
        self._store = store
        self.partition = partition
        self.epoch = epoch
        self.ended: Fenced | Offline | None = None
        self.built: dict[int, Built] = {}
        self._waits = store.waits_for_sync
        self._refused = 1
        self._closing = False
        self._released = False
        partition.writer = self

    # -- state -------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise what ended this writer, if anything did."""
        if self.ended is not None:
            raise type(self.ended)(*self.ended.args)
        if self._store.failure is not None:
            raise self._store.offline()

    def check_waiting(self) -> None:
        """The same for one who waits: a writer that is being closed still makes its appends
        durable."""
        if self.ended is not None and not self._closing:
            raise type(self.ended)(*self.ended.args)
        if self._store.failure is not None:
            raise self._store.offline()

    def end(self, why: Fenced | Offline) -> None:
        """Finish this writer for good; those who wait are told."""
        if self.ended is None:
            self.ended = why
        self.partition.waiting.unpark_all()

    @property
    def snapshot(self) -> LogSnapshot:
        """The newest state."""
        return self.partition.snapshot()

    @property
    def recovery(self) -> Recovery:
        """What opening the files found."""
        return self.partition.recovery

    # -- reading -----------------------------------------------------------------------------

    async def index(self, segment_id: int) -> SegmentIndex:
        """Load or rebuild a segment's index."""
        return await reading.index(self.partition, segment_id)

    async def read(self, segment_id: int, position: int, max_bytes: int, hint: Hint) -> DataRef:
        """Refer to a range of a segment's file."""
        return await reading.read(self.partition, segment_id, position, max_bytes, hint)

    # -- writing -----------------------------------------------------------------------------

    def append(self, chunk: Chunk) -> FileTicket | WrittenTicket:
        """Write into the page cache; the sync thread does the rest."""
        if self.ended is not None or self._store.failure is not None:
            self.check()
        partition = self.partition
        try:
            appended = partition.append(chunk)
        except Full:
            self._refused = sum(map(len, chunk.buffers))
            raise
        if self._waits:
            return FileTicket(self, partition.end, appended)
        return WrittenTicket(partition.end)

    async def room(self) -> None:
        """Watch the file system until there is room."""
        self.check()
        await self._store.space.room(self._refused)
        self.check()

    async def flush(self) -> None:
        """Sync now."""
        self.check()
        await self.partition.sync()

    def roll(self) -> SegmentInfo:
        """Start a new file."""
        self.check()
        return self.partition.roll()

    async def build(self, chunks: AsyncIterator[Chunk]) -> SegmentInfo:
        """Write a file that the manifest does not name yet."""
        self.check()
        built = await build(self, chunks)
        self.built[built.info.id] = built
        return built.info

    async def commit(self, edit: LogEdit) -> LogSnapshot:
        """Replace the manifest, then the files."""
        self.check()
        return await edits.commit(self, edit)

    async def truncate(self, end_offset: int) -> None:
        """Cut files at a batch boundary."""
        self.check()
        await edits.truncate(self, end_offset)

    async def aclose(self) -> None:
        """Sync, move the recovery point to the end, let go of the files."""
        if self._released:
            return
        self._released = True
        partition = self.partition
        try:
            for built in self.built.values():
                built.discard()
            self.built.clear()
            if self.ended is None and self._store.failure is None:
                self._closing = True
                self.ended = Offline(f"{partition.key}: the writer is closed")
                # What was acknowledged is durable; the next opening recovers the rest.
                with suppress(Offline, Full):
                    await partition.save(ballast=True)
        finally:
            self._closing = False
            if self.ended is None:
                self.ended = Offline(f"{partition.key}: the writer is closed")
            if partition.writer is self:
                partition.writer = None
                self._store.let_go(partition)
