"""What the tests of partition logs share: batches, stores to try them over, and an open log."""

from __future__ import annotations

import importlib.util
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import trio

from odradek.broker.tasks import open_tasks
from odradek.config import TopicSettings
from odradek.contracts.storage import Claim, SegmentStore
from odradek.log.index_cache import IndexCache
from odradek.log.partition import Append, PartitionLog, open_log
from odradek.memory.storage import MemoryStorageSettings, forget_memory_store, open_memory_store
from odradek.record import BatchBuilder, BatchMeta, Record, parse_header, scan
from odradek.record import iter_records as records_of
from odradek.types import PartitionKey

NOW = 1_700_000_000_000
KEY = PartitionKey(UUID(int=7), 0)

OpenStore = Callable[[], AbstractAsyncContextManager[SegmentStore]]
OpenLog = Callable[..., AbstractAsyncContextManager[PartitionLog]]


def batch(count: int = 1, size: int = 10, timestamp: int = NOW, **options: Any) -> bytearray:
    """A batch of `count` records with values of `size` bytes and timestamps one ms apart."""
    builder = BatchBuilder(64 * 1024 * 1024, **options)
    for number in range(count):
        assert builder.append(timestamp + number, None, b"v" * size)
    return builder.build()


def add(log: PartitionLog, data: bytearray, now: int = NOW) -> Append:
    return log.append(parse_header(data), data, now)


async def read(log: PartitionLog, offset: int, max_bytes: int = 2**20, **more: Any) -> bytes:
    result = await log.read(offset, max_bytes, **more)
    if result.data is None:
        return b""
    with result.data as data:
        return b"".join(data.views())


async def metas(log: PartitionLog, offset: int, max_bytes: int = 2**20) -> list[BatchMeta]:
    found = scan(memoryview(await read(log, offset, max_bytes)))
    assert found.problem is None
    return found.metas


async def everything(log: PartitionLog) -> list[Record]:
    """Every committed record, read batch by batch as a consumer would."""
    found: list[Record] = []
    offset = log.log_start_offset
    while offset < log.high_watermark:
        some = list(records_of(await read(log, offset)))
        found += [record for record in some if record.offset >= offset]
        offset = some[-1].offset + 1
    return found


@pytest.fixture(params=["memory", "file"])
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Open the same store, again and again: what it holds outlives it."""
    if request.param == "memory":
        name = f"log-{tmp_path.name}"
        request.addfinalizer(lambda: forget_memory_store(name))
        return lambda: open_memory_store(name, MemoryStorageSettings(max_bytes=2**26))
    if importlib.util.find_spec("odradek_storage_file") is None:
        pytest.skip("odradek-storage-file is not installed")
    from odradek_storage_file import FileStorageSettings, open_file_store

    settings = FileStorageSettings(min_free_bytes=0, ballast_bytes=0)
    return lambda: open_file_store(f"file://{tmp_path}", settings)


@asynccontextmanager
async def opened(
    store: SegmentStore, epoch: int = 0, close: bool = True, **settings: str
) -> AsyncIterator[PartitionLog]:
    """The log of `KEY` in a store that is open, with its tasks."""
    config = TopicSettings.parse({k.replace("_", "."): v for k, v in settings.items()})
    async with open_tasks() as tasks:
        log = await open_log(
            store, KEY, "events", config, Claim(epoch, 1), IndexCache(), tasks.start_soon
        )
        yield log
        if close:
            await log.aclose()


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


async def committed(log: PartitionLog) -> None:
    """Wait until everything that was appended is committed."""
    with trio.fail_after(5):
        await log.wait_committed(log.log_end_offset)
