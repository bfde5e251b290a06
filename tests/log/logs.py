"""What the tests of partition logs share: batches, an open log, and reading it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any
from uuid import UUID

import trio

from odradek.config import TopicSettings
from odradek.contracts.background import open_tasks
from odradek.contracts.storage import Claim, SegmentStore
from odradek.log.index_cache import IndexCache
from odradek.log.opening import open_log
from odradek.log.partition import Append, PartitionLog
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
        some = await read(log, offset)
        found += [record for record in records_of(some) if record.offset >= offset]
        offset = scan(memoryview(some)).metas[-1].next_offset  # compaction may have emptied it
    return found


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


async def committed(log: PartitionLog) -> None:
    """Wait until everything that was appended is committed."""
    with trio.fail_after(5):
        await log.wait_committed(log.log_end_offset)
