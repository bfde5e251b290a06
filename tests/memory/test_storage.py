"""Storage in memory keeps the storage contract."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from itertools import count

import pytest

from odradek.contracts.storage import Claim, Full, SegmentStore, Unavailable
from odradek.memory.storage import (
    MemoryStorageSettings,
    MemoryStore,
    forget_memory_store,
    open_memory_store,
)
from odradek.testing.storage import KEY, Log, StorageConformance, StorageHarness, Trait

names = count()


class MemoryHarness(StorageHarness):
    traits = frozenset({Trait.REOPEN, Trait.FILL})

    def __init__(self) -> None:
        self.name = f"kit-{next(names)}"

    def open(self) -> AbstractAsyncContextManager[SegmentStore]:
        return open_memory_store(self.name, MemoryStorageSettings())

    @contextmanager
    def full(self, store: SegmentStore) -> Iterator[None]:
        assert isinstance(store, MemoryStore)
        taken = store.free - 65_536
        store.take(taken)
        yield
        store.take(-taken)


class TestMemoryStorage(StorageConformance):
    @pytest.fixture
    def harness(self) -> Iterator[StorageHarness]:
        harness = MemoryHarness()
        yield harness
        forget_memory_store(harness.name)


async def test_memory_store_without_a_name_is_its_own() -> None:
    async with open_memory_store("") as one, open_memory_store("") as other:
        await one.open_writer(KEY, Claim(1, 1))
        assert list(await other.partitions()) == []


async def test_memory_store_is_open_once_at_a_time() -> None:
    async with open_memory_store("once") as store:
        writer = await store.open_writer(KEY, Claim(1, 1))
        with pytest.raises(Unavailable, match="open already"):
            async with open_memory_store("once"):
                pass
        with pytest.raises(Unavailable):
            forget_memory_store("once")
    forget_memory_store("once")
    forget_memory_store("once")
    async with open_memory_store("once") as store:
        assert list(await store.partitions()) == []
    forget_memory_store("once")
    await writer.aclose()


async def test_memory_store_gives_back_what_is_dropped_truncated_and_replaced() -> None:
    async with open_memory_store("", MemoryStorageSettings(max_bytes=10_000)) as store:
        log = Log(await store.open_writer(KEY, Claim(1, 1)))
        before = (await store.usage()).usable_bytes
        while True:
            try:
                log.append(value_bytes=500)
            except Full:
                break
        assert 0 <= (await store.usage()).usable_bytes < 700
        await log.writer.truncate(3)
        log.keep_below(3)
        await log.check()
        log.append(value_bytes=500)
        await store.drop(KEY)
        assert (await store.usage()).usable_bytes == before == 10_000
