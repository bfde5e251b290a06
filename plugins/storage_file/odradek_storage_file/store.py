"""A storage directory: which partitions are open in it, who may write, and when it has failed."""

from __future__ import annotations

import os
import resource
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from urllib.parse import unquote, urlsplit

import trio

from odradek.contracts.storage import (
    Claim,
    Corrupt,
    Fenced,
    Offline,
    OutOfRange,
    PartitionKey,
    PartitionReader,
    PartitionWriter,
    SegmentStore,
    StoreTraits,
    StoreUsage,
    Unavailable,
    Unsafe,
)
from odradek_storage_file import layout
from odradek_storage_file.bridge import GroupCommit, in_thread
from odradek_storage_file.files import OpenFiles
from odradek_storage_file.indexes import INDEX_INTERVAL
from odradek_storage_file.lock import DirectoryLock
from odradek_storage_file.ops import NO_SPACE, Ops, write_atomically
from odradek_storage_file.partition import SEGMENT_BYTES, Partition
from odradek_storage_file.probe import probe
from odradek_storage_file.recovery import create, load, look
from odradek_storage_file.settings import FileStorageSettings
from odradek_storage_file.space import Space
from odradek_storage_file.upkeep import Upkeep
from odradek_storage_file.writer import FileReader, FileWriter

__all__ = ["FileStore", "open_store", "root_of"]

ALL_PARTITIONS = 8
"""How many times `recovery_bytes` all partitions together may have unchecked after a crash."""


class FileStore(SegmentStore):
    """See `odradek_storage_file.open_file_store`.

    `syncs`: whether appends are synced without being asked to; `waits_for_sync`: whether they
    count as durable only then. `failure`: what made the directory go offline (S14).
    """

    def __init__(self, root: str, settings: FileStorageSettings, ops: Ops) -> None:
        self.root = root
        self.settings = settings
        self.ops = ops
        self.pwritev = ops.pwritev
        self.failure: str | None = None
        self.syncs = settings.durability != "none"
        self.interval_bytes = settings.interval_bytes if settings.durability == "interval" else 0
        self.waits_for_sync = settings.durability == "ack"
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        limit = settings.max_open_files or max(soft // 2, 16)
        self.files = OpenFiles(ops, limit)
        self.space = Space(ops, root, settings.min_free_bytes, settings.ballast_bytes)
        self.commits = GroupCommit(
            ops,
            lambda error: self.fail(error, f"cannot sync {root}"),
            limit,
            settings.interval_ms / 1000 if self.interval_bytes else None,
            self.interval_bytes,
        )
        self._live: dict[PartitionKey, Partition] = {}
        self._opening: dict[PartitionKey, trio.Lock] = {}
        self._unsaved: dict[Partition, int] = {}
        self._unsaved_bytes = 0
        self.upkeep = Upkeep(self)
        self.space.reclaim = self.upkeep.lingering.reclaim
        self.space.scarce = self.upkeep.clear_soon
        self._closing = False
        self.was_clean = False

    # -- the contract ------------------------------------------------------------------------

    @property
    def traits(self) -> StoreTraits:
        """Local files: other brokers need replicas of their own."""
        settings = self.settings
        return StoreTraits(
            name="file",
            shared=False,
            truncatable=True,
            durability=settings.durability,
            segment_bytes=SEGMENT_BYTES,
            flush_bytes=settings.interval_bytes if settings.durability == "interval" else 0,
            flush_interval=(
                settings.interval_ms / 1000 if settings.durability == "interval" else 0.0
            ),
            index_bytes=INDEX_INTERVAL,
        )

    async def probe(self) -> None:
        """Try what the contract rests on, with a file of its own."""
        await in_thread(probe, self.ops, self.space, self.root)

    async def open_writer(self, key: PartitionKey, claim: Claim) -> PartitionWriter:
        """Open a directory, or create it."""
        if self.settings.read_only:
            raise Unavailable(f"{self.root} was opened with read_only")
        async with self._lock(key):
            self._check()
            partition = self._live.get(key)
            if partition is None:
                await self._forget_clean_shutdown()
                partition = await self._load(key, create_it=True)
                assert partition is not None
            old = partition.writer
            known = max(old.epoch if old else -1, partition.last_epoch)
            if claim.epoch < known:
                self.let_go(partition)
                raise Fenced(f"{key}: leader epoch {claim.epoch} is older than {known}")
            if old is not None:
                old.end(Fenced(f"{key}: leader epoch {old.epoch} is over, {claim.epoch} took over"))
            partition.readers += 1  # stays open while the old writer's last edit ends
            try:
                async with partition.edits:
                    self._check()
                    return FileWriter(self, partition, claim.epoch)
            finally:
                partition.readers -= 1
                self.let_go(partition)

    async def open_reader(self, key: PartitionKey) -> PartitionReader:
        """Open a directory for reading; it is recovered first, unless the store is read-only."""
        async with self._lock(key):
            partition = self._live.get(key)
            if partition is None:
                self._check()
                partition = await self._load(key, create_it=False)
            if partition is None:
                raise OutOfRange(f"there is no log of {key} in {self.root}")
            return FileReader(self, partition)

    async def partitions(self) -> Sequence[PartitionKey]:
        """List the directories."""
        try:
            names = await in_thread(os.listdir, self.root)
        except OSError as error:
            raise Unavailable(f"cannot read {self.root}: {error.strerror}") from error
        found = (layout.directory_key(name) for name in names)
        return [key for key in found if key is not None]

    async def drop(self, key: PartitionKey) -> None:
        """Rename the directory, then delete it in the background."""
        if self.settings.read_only:
            raise Unavailable(f"{self.root} was opened with read_only")
        async with self._lock(key):
            self._check()
            partition = self._live.get(key)
            if partition is not None:
                if partition.writer is not None:
                    partition.writer.end(Fenced(f"{key} was removed"))
                async with partition.edits:
                    await self._rename_away(key)
                    partition.dropped = True
                    self._unload(partition)
            else:
                await self._rename_away(key)

    async def usage(self) -> StoreUsage:
        """Ask the file system."""
        found = await in_thread(self.ops.statvfs, self.root)
        return StoreUsage(
            self.root, found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize
        )

    # -- failure -----------------------------------------------------------------------------

    def fail(self, error: Exception, what: str) -> Offline:
        """Take the directory offline for good; return what to raise. Reads go on."""
        if self.failure is None:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            self.failure = (
                f"{what}: {reason}. What the disk holds is not known any more, so nothing is "
                "retried; check the disk, then open the directory again"
            )
            for partition in self._live.values():
                partition.waiting.unpark_all()
        return self.offline()

    def offline(self) -> Offline:
        """What every call that writes raises after a failure."""
        return Offline(self.failure or f"{self.root} is closed")

    def _check(self) -> None:
        if self.failure is not None or self._closing:
            raise self.offline()

    # -- opening and closing partitions --------------------------------------------------------

    @asynccontextmanager
    async def _lock(self, key: PartitionKey) -> AsyncIterator[None]:
        """One opening or dropping of a partition at a time."""
        lock = self._opening.setdefault(key, trio.Lock())
        try:
            async with lock:
                yield
        finally:
            if not lock.locked() and not lock.statistics().tasks_waiting:
                self._opening.pop(key, None)

    async def _load(self, key: PartitionKey, *, create_it: bool) -> Partition | None:
        path = f"{self.root}/{layout.directory_name(key)}"
        repair = not self.settings.read_only
        try:
            loaded = await in_thread(load if repair else look, self.ops, path, key)
            if loaded is None and create_it:
                self.space.more(0)
                loaded = await in_thread(create, self.ops, self.root, path, key)
        except OSError as error:
            if error.errno in NO_SPACE:
                raise self.space.exhausted() from error
            raise Unavailable(f"cannot open {path}: {error}") from error
        except layout.NewerFormat:
            raise
        except Corrupt as error:
            raise Corrupt(
                f"{error} (with the broker stopped: `odradek log repair {key} "
                f"--storage {Path(self.root).as_uri()} --how cut|skip`)"
            ) from error
        if loaded is None:
            return None
        partition = self._live[key] = Partition(self, key, loaded)
        return partition

    def let_go(self, partition: Partition) -> None:
        """Close a partition that nobody uses any more."""
        if partition.writer is None and not partition.readers and not partition.closed:
            self._unload(partition)

    def _unload(self, partition: Partition) -> None:
        if self._live.get(partition.key) is partition:
            del self._live[partition.key]
        self.upkeep.to_save.pop(partition, None)
        self._forget(partition)
        partition.close()

    async def _rename_away(self, key: PartitionKey) -> None:
        name = layout.directory_name(key)
        away = f"{name}.{secrets.token_hex(4)}{layout.DELETED_SUFFIX}"
        try:
            await in_thread(_rename_directory, self.ops, self.root, name, away)
        except FileNotFoundError:
            return
        except OSError as error:
            raise self.fail(error, f"cannot remove {self.root}/{name}") from error
        self.upkeep.delete([away])

    async def _forget_clean_shutdown(self) -> None:
        """Remove the marker, durably, before anything is written."""
        if self.was_clean:
            self.was_clean = False
            try:
                await in_thread(_remove_marker, self.ops, self.root)
            except OSError as error:
                raise self.fail(error, f"cannot write {self.root}") from error

    # -- recovery points -----------------------------------------------------------------------

    def synced(self, partition: Partition, size: int) -> None:
        """Take note of synced bytes; move recovery points that have fallen far behind."""
        bound = self.settings.recovery_bytes
        unsaved = self._unsaved.get(partition, 0) + size
        self._unsaved[partition] = unsaved
        self._unsaved_bytes += size
        if unsaved >= bound:
            self.upkeep.save_soon(partition)
        elif self._unsaved_bytes >= ALL_PARTITIONS * bound:
            self.upkeep.save_soon(max(self._unsaved, key=self._unsaved.__getitem__))

    def saved(self, partition: Partition) -> None:
        """Take note that a partition's recovery point was moved."""
        self._forget(partition)
        if partition.synced > partition.saved:  # while the manifest was written
            self.synced(partition, partition.synced - partition.saved)

    def _forget(self, partition: Partition) -> None:
        self._unsaved_bytes -= self._unsaved.pop(partition, 0)

    async def close(self) -> None:
        """Close every partition in order."""
        async with trio.open_nursery() as nursery:
            for partition in list(self._live.values()):
                if partition.writer is not None:
                    nursery.start_soon(partition.writer.aclose)
        self._closing = True

    def abandon(self) -> None:
        """Let go of what is still open."""
        self._closing = True
        for partition in list(self._live.values()):
            self._unload(partition)
        self.upkeep.abandon()


def _rename_directory(ops: Ops, root: str, name: str, away: str) -> None:
    ops.rename(f"{root}/{name}", f"{root}/{away}")
    ops.sync_directory(root)


def _remove_marker(ops: Ops, root: str) -> None:
    ops.remove(f"{root}/{layout.CLEAN_MARKER}")
    ops.sync_directory(root)


def root_of(url: str) -> str:
    """Return the directory that a `file:` URL names. Raises Unsafe for anything else."""
    parts = urlsplit(url)
    path = unquote(parts.path)
    if parts.scheme != "file" or parts.netloc not in ("", "localhost") or path[:1] != "/":
        raise Unsafe(f"{url} does not name a directory: write file:///absolute/path")
    return path.rstrip("/") or "/"


@asynccontextmanager
async def open_store(
    url: str, settings: FileStorageSettings, ops: Ops | None = None
) -> AsyncIterator[FileStore]:
    """See `odradek_storage_file.open_file_store`; `ops` is for tests."""
    root = root_of(url)
    ops = ops or Ops()
    store = FileStore(root, settings, ops)
    if settings.read_only:
        try:
            yield store
        finally:
            store.abandon()
        return
    try:
        os.makedirs(root, exist_ok=True)
        lock = DirectoryLock(root)
    except OSError as error:
        raise Unavailable(f"cannot use {root}: {error.strerror}") from error
    raised: BaseException | None = None
    try:
        _prepare(store)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(store.commits.run)
            nursery.start_soon(store.upkeep.run)
            try:
                yield store
            except BaseException as error:
                raised = error
                raise
            finally:
                # Whatever ends the broker: what was acknowledged is durable already, but a clean
                # close spares the next start the recovery. Disks answer or fail; no time limit.
                with trio.CancelScope(shield=True):
                    await store.close()
                    if store.failure is None:
                        await in_thread(_mark_clean, store)
                store.commits.stop()
                nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        # The nursery is our own affair: who opened the store sees what was raised in its block.
        if raised is None or group.exceptions != (raised,):
            raise
        raise raised from raised.__cause__
    finally:
        store.abandon()
        lock.release()


def _prepare(store: FileStore) -> None:
    """What opening does in the directory itself; quick, so in the trio thread."""
    try:
        names = os.listdir(store.root)
        store.upkeep.delete([name for name in names if name.endswith(layout.DELETED_SUFFIX)])
        store.was_clean = layout.CLEAN_MARKER in names
        store.space.load_ballast()
    except OSError as error:
        raise Unavailable(f"cannot use {store.root}: {error.strerror}") from error


def _mark_clean(store: FileStore) -> None:
    """Leave the mark of a clean shutdown, with the ballast's room if need be."""
    mark = layout.wrap("clean-shutdown", b"")
    with suppress(OSError):  # the next start then checks more than it needs to
        store.space.with_ballast(
            lambda: write_atomically(store.ops, store.root, layout.CLEAN_MARKER, mark)
        )
