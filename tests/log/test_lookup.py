"""Look-ups by time beside the log start and the high watermark, which may lie within a batch."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from tests.log.logs import NOW, add, committed, opened

from odradek.log.lookup import EXPANSION, Found, first_at_or_after, newest
from odradek.log.partition import PartitionLog
from odradek.memory.storage import open_memory_store
from odradek.record import BatchBuilder, set_log_append_time


def stamped(*shifts: int, value: bytes = b"v", **options: Any) -> bytearray:
    """A batch whose records have these timestamps, as ms after NOW."""
    builder = BatchBuilder(64 * 1024 * 1024, **options)
    for shift in shifts:
        assert builder.append(NOW + shift, b"k", value)
    return builder.build()


async def fill(log: PartitionLog, *batches: bytearray) -> None:
    for data in batches:
        add(log, data)
    await committed(log)


@pytest.mark.parametrize(
    ("start", "expected"),
    [(0, (1, 90)), (1, (1, 90)), (2, (4, 50)), (4, (4, 50)), (5, (6, 40)), (7, (7, 10)), (8, None)],
)
async def test_newest_counts_only_records_from_the_log_start_on(
    start: int, expected: tuple[int, int] | None
) -> None:
    async with open_memory_store(f"newest-{start}") as store, opened(store) as log:
        await fill(log, stamped(70, 90, 20), stamped(30, 50, 20))
        log.roll()
        await fill(log, stamped(40, 10))
        await log.trim(start)
        found = await newest(log)
    if expected is None:
        assert found is None
    else:
        assert found == Found(expected[0], NOW + expected[1], 0)


async def test_newest_passes_over_what_is_not_committed() -> None:
    async with open_memory_store("newest-uncommitted") as store, opened(store) as log:
        await fill(log, stamped(10), stamped(50), stamped(20))
        add(log, stamped(90))
        assert log.high_watermark == 3
        assert await newest(log) == Found(1, NOW + 50, 0)
        await committed(log)
        assert await newest(log) == Found(3, NOW + 90, 0)


@pytest.mark.parametrize("kind", ["log append time", "cannot be opened"])
async def test_batch_with_one_time_for_all_counts_from_the_log_start_on(kind: str) -> None:
    async with open_memory_store(f"one-{kind[0]}") as store, opened(store) as log:
        if kind == "log append time":
            data = stamped(5, 5, 5, 5)
            set_log_append_time(memoryview(data), 0, NOW)
            await fill(log, data)
        else:
            bomb = b"0" * (EXPANSION * log.settings.max_message_bytes // 2)
            await fill(log, stamped(0, 0, 0, 0, value=bomb, compression=2))
        await log.trim(2)
        expected = Found(2, NOW, 0)
        with trio.fail_after(5):
            assert await first_at_or_after(log, NOW) == expected
            assert await newest(log) == expected
