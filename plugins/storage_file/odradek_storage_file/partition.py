"""One partition's log while it is open: appends, rolls, what is durable, and the manifest."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import trio
from attrs import evolve

from odradek.contracts.storage import (
    MAX_RELATIVE_OFFSET,
    Chunk,
    EpochStart,
    Full,
    LogSnapshot,
    Offline,
    PartitionKey,
    Recovery,
    SegmentInfo,
    Unavailable,
)
from odradek.types import Buffer
from odradek_storage_file import layout
from odradek_storage_file.bridge import Work, in_thread
from odradek_storage_file.files import SegmentFile
from odradek_storage_file.indexes import IndexBuilder
from odradek_storage_file.layout import ActiveEntry, Manifest, SealedEntry
from odradek_storage_file.ops import NO_DESCRIPTOR, NO_SPACE, rest_of, write_all
from odradek_storage_file.reading import Segment
from odradek_storage_file.recovery import Loaded
from odradek_storage_file.saving import save_manifest

if TYPE_CHECKING:
    from odradek_storage_file.building import Built
    from odradek_storage_file.store import FileStore
    from odradek_storage_file.writer import FileWriter

__all__ = ["SEGMENT_BYTES", "Partition"]

SEGMENT_BYTES = 2**31 - 1
"""Positions in Kafka's indexes are 32-bit."""

CREATE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


class Partition:
    """The state that a partition's writer and readers share. Used in the trio thread alone.

    `sealed` segments in offset order; the active one is spread over `id`, `base`, `size`, `end`,
    `file` and `builder`, because `append` touches them all. `appended` and `synced` count bytes
    since opening: what is below `synced` is durable.
    """

    __slots__ = (
        "_changed_directory",
        "_dirty_file",
        "_infos",
        "_queued",
        "_snapshot",
        "_syncing",
        "_unsynced",
        "appended",
        "base",
        "blob_files",
        "blobs",
        "builder",
        "changing",
        "closed",
        "created_ms",
        "dropped",
        "durable_end",
        "edits",
        "end",
        "epochs",
        "file",
        "id",
        "key",
        "last_epoch",
        "log_start",
        "next_file",
        "next_id",
        "path",
        "readers",
        "recovery",
        "saved",
        "sealed",
        "size",
        "store",
        "synced",
        "waiting",
        "writer",
    )

    def __init__(self, store: FileStore, key: PartitionKey, loaded: Loaded) -> None:
        self.store = store
        self.key = key
        self.path = loaded.path
        self.recovery: Recovery = loaded.recovery
        self.blobs: Mapping[str, bytes] = loaded.blobs
        self.writer: FileWriter | None = None
        self.readers = 0
        self.dropped = False
        self.closed = False
        self.changing: trio.Event | None = None
        self.edits = trio.Lock()
        self.waiting = trio.lowlevel.ParkingLot()
        self.appended = 0
        self.synced = 0
        self._queued = False
        self._syncing: tuple[int, int, list[SegmentFile]] | None = None
        self._unsynced: list[SegmentFile] = []
        self._dirty_file: SegmentFile | None = None
        self._changed_directory = False
        self.sealed: list[Segment] = []
        self.id = -1
        self.file: SegmentFile | None = None
        self.adopt(loaded.manifest, loaded.builder)

    def adopt(
        self, manifest: Manifest, builder: IndexBuilder, copied: Collection[str] = ()
    ) -> None:
        """Take over what the disk holds, all of it durable: after opening or a truncation.

        `copied`: paths under which there is another file now.
        """
        files = {segment.info.id: segment.file for segment in self.sealed}
        if self.file is not None:
            files[self.id] = self.file

        def file_of(entry: SealedEntry | ActiveEntry) -> SegmentFile:
            held = files.get(entry.id)
            if held is not None and held.path not in copied:
                return files.pop(entry.id)
            path = f"{self.path}/{layout.stem(entry.base)}.log"
            return SegmentFile(self.store.files, path)

        self.sealed = [Segment.of(entry, file_of(entry)) for entry in manifest.sealed]
        active = manifest.active
        self.id = active.id
        self.base = active.base
        self.size = active.size
        self.end = active.end
        self.created_ms = active.created_ms
        self.file = file_of(active)
        for file in files.values():
            file.retire()
        self.builder = builder
        self._dirty_file = None
        self.log_start = manifest.log_start
        self.next_id = manifest.next_id
        self.next_file = manifest.next_file
        self.epochs: list[EpochStart] = list(manifest.epochs)
        self.last_epoch = self.epochs[-1].epoch if self.epochs else -1
        self.blob_files = dict(manifest.blobs)
        self.durable_end = self.end
        self.synced = self.appended
        self.saved = self.appended
        self._infos: tuple[SegmentInfo, ...] | None = None
        self._snapshot: LogSnapshot | None = None
        self.store.saved(self)

    # -- what there is -----------------------------------------------------------------------

    def snapshot(self) -> LogSnapshot:
        """The log as it is now; built when asked for, and kept until something changes."""
        snapshot = self._snapshot
        if snapshot is None:
            infos = self._infos
            if infos is None:  # for thousands of segments a millisecond, too much for each append
                infos = self._infos = tuple([segment.info for segment in self.sealed])
            snapshot = self._snapshot = LogSnapshot(
                (*infos, self.active_info()),
                self.log_start,
                self.durable_end if self.store.waits_for_sync else self.end,
                tuple(self.epochs),
                self.blobs,
            )
        return snapshot

    def changed(self) -> None:
        """Let the next snapshot be built anew."""
        self._snapshot = None

    def active_info(self) -> SegmentInfo:
        """The active segment as it is now."""
        builder = self.builder
        return SegmentInfo(
            self.id,
            self.base,
            self.end,
            self.size,
            builder.max_timestamp,
            builder.max_timestamp_offset,
            self.created_ms,
            False,
        )

    # -- appending ---------------------------------------------------------------------------

    def append(self, chunk: Chunk) -> int:  # noqa: PLR0915  # the hot path: calls cost
        """Write a chunk behind the last; return `appended` after it. See `PartitionWriter`."""
        batches, buffers = chunk
        size = 0
        end = self.end
        for meta in batches:
            if meta[0] < end or meta[1] < meta[0]:
                raise ValueError(
                    f"a batch of offsets {meta[0]} to {meta[1]} cannot follow offset {end - 1}"
                )
            end = meta[1] + 1
            size += meta[2]
        if sum(map(len, buffers)) != size or not size:
            raise ValueError(f"the buffers hold {sum(map(len, buffers))} bytes, the metas {size}")
        position = self.size
        if position + size > SEGMENT_BYTES or end - 1 - self.base > MAX_RELATIVE_OFFSET:
            raise ValueError(f"segment {self.id} of {self.key} cannot take the chunk: roll first")
        if self.changing is not None:
            raise ValueError(f"{self.key} is being truncated")
        store = self.store
        left = store.space.left - size
        if left < 0:
            store.space.more(size)
        else:
            store.space.left = left
        file = self.file
        assert file is not None
        fd = file.fd
        if fd < 0:
            fd = file.descriptor()
        file.used = True
        try:
            written = store.pwritev(fd, buffers, position) if len(buffers) < 1024 else 0
            if written != size:
                write_all(store.ops, fd, rest_of(buffers, written), position + written)
        except OSError as error:
            self._write_again(fd, buffers, position, size, error)
        builder = self.builder
        for meta in batches:
            builder.note(meta, position)
            position += meta[2]
            if meta[3] > self.last_epoch:
                self.last_epoch = meta[3]
                self.epochs.append(EpochStart(meta[3], meta[0]))
        if builder.full:
            builder.flush(store.ops, f"{self.path}/{layout.stem(self.base)}")
        self.size = position
        self.end = end
        self._snapshot = None
        self.appended = appended = self.appended + size
        if self._dirty_file is not file:
            self._dirty_file = file
            self._unsynced.append(file)
        if store.syncs:
            store.commits.appends += 1
            if not self._queued:
                self._queued = True
                store.commits.mark(self)
        if store.interval_bytes:
            store.commits.count(size)
        return appended

    def _write_again(
        self, fd: int, buffers: Sequence[Buffer], position: int, size: int, error: OSError
    ) -> None:
        """After a write that failed: take back what it left, and try again if room can be made.

        Raises Full, Offline.
        """
        store = self.store
        while error.errno in NO_SPACE:
            try:
                store.ops.ftruncate(fd, position)
                if not store.space.reclaim(size):
                    raise store.space.exhausted() from error
                write_all(store.ops, fd, buffers, position)
            except OSError as second:
                error = second
            else:
                return
        raise store.fail(error, f"cannot write {self.path}") from error

    def roll(self) -> SegmentInfo:
        """Seal the active segment. See `PartitionWriter.roll`."""
        if not self.size:
            return self.active_info()
        if self.changing is not None:
            raise ValueError(f"{self.key} is being truncated")
        store = self.store
        path = f"{self.path}/{layout.stem(self.end)}.log"
        fd = self._create(path)
        builder = self.builder
        builder.seal()
        builder.flush(store.ops, f"{self.path}/{layout.stem(self.base)}")
        sealed = self._sealed_active()
        self.sealed.append(sealed)
        self.id = 2 * self.next_id
        self.next_id += 1
        self.base = self.end
        self.size = 0
        self.created_ms = time.time_ns() // 1_000_000
        self.file = SegmentFile(store.files, path, fd)
        self.builder = IndexBuilder(self.base)
        self._changed_directory = True
        self._infos = None
        self._snapshot = None
        self.saved = -1
        store.upkeep.save_soon(self)
        return sealed.info

    def _create(self, path: str) -> int:
        """Create a segment's file, in the room of removed ones if there is no other."""
        store = self.store
        while True:
            try:
                return store.files.open(path, CREATE, 0o644)
            except OSError as error:
                if error.errno in NO_SPACE:
                    if store.space.reclaim(1):
                        continue
                    raise store.space.exhausted() from error
                if error.errno in NO_DESCRIPTOR:
                    raise Full(f"cannot create {path}: {error.strerror}") from error
                raise store.fail(error, f"cannot create {path}") from error

    def _sealed_active(self) -> Segment:
        builder = self.builder
        assert self.file is not None
        info = evolve(self.active_info(), sealed=True)
        return Segment(info, builder.rows, builder.crc, self.file)

    # -- durability --------------------------------------------------------------------------

    def begin_sync(self) -> Work:
        """See `bridge.Syncable`."""
        self._queued = False
        files, self._unsynced = self._unsynced, []
        self._dirty_file = None
        held: list[SegmentFile] = []
        self._syncing = (self.appended, self.end, held)
        fds = []
        for file in files:
            try:
                fds.append(file.hold())
            except Unavailable:  # no descriptor is free: all of it has to wait
                for each in held:
                    each.release()
                self._syncing = None
                self._queued = True
                self._unsynced = files
                self._dirty_file = files[-1]
                raise
            held.append(file)
        directory = self.path if self._changed_directory else None
        self._changed_directory = False
        return Work(fds, directory)

    def end_sync(self, error: OSError | None) -> None:
        """See `bridge.Syncable`."""
        assert self._syncing is not None
        appended, end, files = self._syncing
        self._syncing = None
        for file in files:
            file.release()
        if error is None and appended > self.synced:
            self.store.synced(self, appended - self.synced)
            self.synced = appended
            self.durable_end = end
            self._snapshot = None
        if self.waiting:
            self.waiting.unpark_all()

    async def sync(self) -> None:
        """Make all that was appended so far durable, whatever the settings. Raises Offline."""
        goal = self.appended
        while self.synced < goal or self._changed_directory or self._unsynced:
            if self.store.failure is not None:
                raise self.store.offline()
            if self.closed:
                raise Offline(f"{self.key} was closed")
            if not self._queued:
                self._queued = True
                self.store.commits.mark(self)
            self.store.commits.hurry()
            await self.waiting.park()

    # -- the manifest ------------------------------------------------------------------------

    def capture(self) -> Manifest:
        """What a manifest would say now. Everything in it must be durable before it is written."""
        self.builder.flush(self.store.ops, f"{self.path}/{layout.stem(self.base)}")
        return Manifest(
            key=str(self.key),
            log_start=self.log_start,
            next_id=self.next_id,
            next_file=self.next_file,
            sealed=[segment.entry() for segment in self.sealed],
            active=ActiveEntry(
                self.id, self.base, self.end, self.size, self.created_ms, self.builder.state()
            ),
            epochs=list(self.epochs),
            blobs=dict(self.blob_files),
        )

    async def save(self, *, ballast: bool) -> None:
        """Move the recovery point up to the end. Raises Offline, Full.

        `ballast`: on a full disk, with the ballast's room.
        """
        async with self.edits:
            if self.closed or self.saved == self.appended:
                return
            manifest = self.capture()
            appended = self.appended
            await self.sync()
            await self.write(manifest, ballast=ballast)
            self.saved = appended
            self.store.saved(self)

    async def write(self, manifest: Manifest, *, ballast: bool = True) -> None:
        """Replace the manifest; the caller has `edits`. Raises Offline, Full.

        `ballast`: see `save`.
        """
        store = self.store
        if store.failure is not None:
            raise store.offline()
        try:
            space = store.space if ballast else None
            await in_thread(save_manifest, store.ops, space, self.path, manifest)
        except OSError as error:
            if error.errno in NO_SPACE:
                raise store.space.exhausted() from error
            raise store.fail(error, f"cannot write {self.path}/{layout.MANIFEST}") from error

    def replace(self, removed: Sequence[int], built: Sequence[Built]) -> list[SegmentFile]:
        """Take segments out and put built ones in, once the manifest says so.

        Returns the files that were taken out; the caller retires them.
        """
        self._snapshot = None
        if not removed and not built:
            return []
        gone = set(removed)
        retired = [s.file for s in self.sealed if s.info.id in gone]
        self.sealed = [s for s in self.sealed if s.info.id not in gone]
        for each in built:
            file = SegmentFile(self.store.files, each.stem + ".log")
            file.later_path = f"{self.path}/{layout.stem(each.info.base_offset)}.log"
            self.sealed.append(Segment(each.info, each.rows, each.crc, file))
        if built:
            self.sealed.sort(key=lambda s: s.info.base_offset)
        self._infos = None
        return retired

    def renamed(self) -> None:
        """Built files have their names now."""
        for segment in self.sealed:
            segment.file.path = segment.file.later_path

    def close(self) -> None:
        """Let go of every file."""
        self.closed = True
        for segment in self.sealed:
            segment.file.retire(removed=self.dropped)
        self._unsynced = []
        self._changed_directory = False
        if self.file is not None:
            self.file.retire(removed=self.dropped)
        self.waiting.unpark_all()
