"""Stores to try partition logs over."""

from __future__ import annotations

import importlib.util
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.log.logs import OpenLog, OpenStore, opened

from odradek.log.partition import PartitionLog
from odradek.memory.storage import MemoryStorageSettings, forget_memory_store, open_memory_store


@pytest.fixture(params=["memory", "file"])
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OpenStore]:
    """Open the same store, again and again: what it holds outlives it."""
    if request.param == "memory":
        name = f"log-{tmp_path.name}"
        yield lambda: open_memory_store(name, MemoryStorageSettings(max_bytes=2**26))
        forget_memory_store(name)
        return
    if importlib.util.find_spec("odradek_storage_file") is None:
        pytest.skip("odradek-storage-file is not installed")
    from odradek_storage_file import FileStorageSettings, open_file_store

    settings = FileStorageSettings(min_free_bytes=0, ballast_bytes=0)
    yield lambda: open_file_store(f"file://{tmp_path}", settings)


@pytest.fixture
def with_log(open_store: OpenStore) -> OpenLog:
    """Open the store and the log in it: `async with with_log(epoch=1, segment_bytes="2000")`."""

    @asynccontextmanager
    async def open_both(
        epoch: int = 0, close: bool = True, **settings: str
    ) -> AsyncIterator[PartitionLog]:
        async with open_store() as store, opened(store, epoch, close, **settings) as log:
            yield log

    return open_both
