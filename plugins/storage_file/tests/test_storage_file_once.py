"""Reading once: the page cache is left as it was, and the disk is waited for in `views`."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from odradek.contracts.storage import Claim, Corrupt, Hint, OutOfRange
from odradek.testing.storage import KEY, Log
from odradek_storage_file import FileStorageSettings, layout
from odradek_storage_file.once import STEP
from odradek_storage_file.ops import Ops
from odradek_storage_file.store import open_store

SETTINGS = FileStorageSettings(min_free_bytes=0, ballast_bytes=0)


class Cache(Ops):
    """A page cache that holds `prefix` bytes, and the blocks that `cached` names."""

    def __init__(self) -> None:
        self.prefix: int | None = 0
        self.cached: set[int] = set()
        self.dropped: list[tuple[int, int]] = []
        self.readers: list[int] = []
        self.can_open_again = True

    def read_cached(self, fd: int, buffer: memoryview, position: int) -> int | None:
        if not self.prefix:
            return self.prefix
        return os.preadv(fd, [buffer[: self.prefix]], position)

    def is_cached(self, fd: int, position: int) -> bool:
        return position in self.cached

    def read_into(self, fd: int, buffer: memoryview, position: int) -> int:
        self.readers.append(threading.get_ident())
        return super().read_into(fd, buffer[:100_000], position)

    def open_again(self, fd: int) -> int:
        if not self.can_open_again:
            raise OSError(errno.EMFILE, "Too many open files")
        return super().open_again(fd)

    def advise(self, fd: int, position: int, count: int, advice: int) -> None:
        if advice == os.POSIX_FADV_DONTNEED:
            self.dropped.append((position, count))


@asynccontextmanager
async def opened(root: Path, ops: Ops) -> AsyncIterator[Log]:
    """A sealed segment of some 300,000 bytes, and an active one."""
    async with open_store(root.as_uri(), SETTINGS, ops) as store:
        log = Log(await store.open_writer(KEY, Claim(1, 1)))
        log.append(3, value_bytes=100_000)
        log.writer.roll()
        log.append(3, value_bytes=100_000)
        await log.writer.flush()
        yield log


async def test_what_was_not_cached_is_given_back(tmp_path: Path) -> None:
    ops = Cache()
    async with opened(tmp_path, ops) as log:
        sealed = log.writer.snapshot.segments[0]
        ops.prefix = 1000
        ops.cached = {1010 + STEP}
        with await log.writer.read(sealed.id, 10, 250_000, Hint.ONCE) as ref:
            assert ops.readers == [], "reading begins with `views`"
            data = await trio.to_thread.run_sync(ref.views)
        assert b"".join(data) == log.bytes()[10:250_010]
        assert ops.readers
        assert threading.get_ident() not in ops.readers
        last = 1010 + 3 * STEP
        assert ops.dropped == [
            (1010, STEP),
            (1010 + 2 * STEP, STEP),
            (last, 250_010 - last),
        ]


async def test_what_was_cached_stays(tmp_path: Path) -> None:
    ops = Cache()
    async with opened(tmp_path, ops) as log:
        sealed = log.writer.snapshot.segments[0]
        for prefix in (1 << 20, None):  # all of it is cached; the file system cannot tell
            ops.prefix = prefix
            with await log.writer.read(sealed.id, 0, 1 << 20, Hint.ONCE) as ref:
                assert b"".join(ref.views()) == log.bytes()[: sealed.size]
        assert ops.dropped == []


async def test_the_active_segment_stays_cached(tmp_path: Path) -> None:
    ops = Cache()
    async with opened(tmp_path, ops) as log:
        sealed, active = log.writer.snapshot.segments
        with await log.writer.read(active.id, 0, 1 << 20, Hint.ONCE) as ref:
            assert b"".join(ref.views()) == log.bytes()[sealed.size :]
        assert ops.dropped == []


async def test_reading_once_needs_no_second_descriptor(tmp_path: Path) -> None:
    ops = Cache()
    ops.can_open_again = False
    async with opened(tmp_path, ops) as log:
        sealed = log.writer.snapshot.segments[0]
        with await log.writer.read(sealed.id, 5, 1 << 20, Hint.ONCE) as ref:
            assert b"".join(ref.views()) == log.bytes()[5 : sealed.size]
        assert ops.dropped == []


async def test_bytes_that_vanished_are_reported(tmp_path: Path) -> None:
    async with opened(tmp_path, Ops()) as log:
        sealed = log.writer.snapshot.segments[0]
        os.truncate(tmp_path / layout.directory_name(KEY) / f"{layout.stem(0)}.log", 1000)
        ref = await log.writer.read(sealed.id, 0, 1 << 20, Hint.ONCE)
        with pytest.raises(Corrupt, match="have vanished"):
            ref.views()
        ref.close()
        with pytest.raises(OutOfRange, match="was closed"):
            ref.views()


async def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    async with opened(tmp_path, Ops()) as log:
        sealed = log.writer.snapshot.segments[0]
        with await log.writer.read(sealed.id, 0, 1 << 20, Hint.ONCE) as ref:
            before = set(os.listdir("/proc/self/fd"))
            for _ in range(3):
                ref.views()
            assert set(os.listdir("/proc/self/fd")) == before


async def test_the_kernels_cache_is_left_as_it_was(tmp_path: Path) -> None:
    ops = Ops()
    async with opened(tmp_path, ops) as log:
        sealed = log.writer.snapshot.segments[0]
        path = tmp_path / layout.directory_name(KEY) / f"{layout.stem(0)}.log"
        fd = os.open(path, os.O_RDONLY)

        def cached() -> list[bool]:
            return [ops.is_cached(again, at) for at in range(8192, sealed.size - 8192, 4096)]

        async def read(hint: Hint) -> None:
            with await log.writer.read(sealed.id, 0, 1 << 20, hint) as ref:
                assert b"".join(ref.views()) == log.bytes()[: sealed.size]

        again = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(again, 0, 0, os.POSIX_FADV_RANDOM)  # a look caches no more than a page
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            if ops.is_cached(again, 0):
                pytest.skip("this file system cannot tell what is cached, or keeps it")
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            await read(Hint.ONCE)
            assert sum(cached()) * 4 < len(cached()), "what was read once is in the cache"
            await read(Hint.SCAN)
            assert all(cached())
            await read(Hint.ONCE)
            assert all(cached()), "what was cached before was put out"
        finally:
            os.close(fd)
            os.close(again)
