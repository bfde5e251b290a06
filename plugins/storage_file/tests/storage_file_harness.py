"""The conformance kit's harness over files."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import attrs
from storage_file_disk import EIO, LossyOps

from odradek.contracts.storage import PartitionKey, SegmentStore
from odradek.testing.storage import StorageHarness, Trait
from odradek_storage_file import FileStorageSettings, layout
from odradek_storage_file.store import FileStore, open_store


class FileHarness(StorageHarness):
    """A directory per life of the disk: a crash copies it."""

    traits = frozenset(Trait)

    def __init__(self, base: Path, settings: FileStorageSettings) -> None:
        self._base = base
        self._lives = itertools.count()
        self.settings = attrs.evolve(settings, min_free_bytes=0, ballast_bytes=65_536)
        self.root = base / f"life-{next(self._lives)}"
        self.ops: LossyOps | None = None

    @asynccontextmanager
    async def open(self) -> AsyncIterator[SegmentStore]:
        self.root.mkdir(exist_ok=True)
        shutil.rmtree(f"{self.root}.graves", ignore_errors=True)
        self.ops = LossyOps(self.root)
        async with open_store(self.root.as_uri(), self.settings, self.ops) as store:
            yield store

    async def crash(self, *, power: bool = False) -> None:
        assert self.ops is not None
        self.root = self._base / f"life-{next(self._lives)}"
        if power:
            self.ops.power_loss(self.root)
        else:
            self.ops.killed(self.root)

    def _files(self, key: PartitionKey) -> list[Path]:
        return sorted((self.root / layout.directory_name(key)).glob("*.log"))

    async def damage(self, key: PartitionKey, position: int) -> None:
        for path in self._files(key):
            data = bytearray(path.read_bytes())
            if position < len(data):
                data[position] ^= 0x10
                path.write_bytes(data)
                return
            position -= len(data)
        raise AssertionError("the log is shorter than that")

    async def stored(self, key: PartitionKey) -> bytes:
        return b"".join(path.read_bytes() for path in self._files(key))

    async def damage_blob(self, key: PartitionKey, name: str) -> None:
        path = self.root / layout.directory_name(key)
        manifest = layout.Manifest.decode((path / layout.MANIFEST).read_bytes(), str(path))
        blob = path / layout.blob_name(manifest.blobs[name][0])
        blob.write_bytes(blob.read_bytes()[:-1] + b"?")

    @contextmanager
    def failing(self, store: SegmentStore) -> Iterator[None]:
        assert self.ops is not None
        self.ops.fail_sync = EIO
        yield
        self.ops.fail_sync = None

    @contextmanager
    def full(self, store: SegmentStore) -> Iterator[None]:
        assert isinstance(store, FileStore)
        space = store.space
        normal = space.free
        space.free = lambda: 1_000  # type: ignore[method-assign]
        space.left = 0
        yield
        space.free = normal  # type: ignore[method-assign]
