"""A partition's log against a list of batches: appends, reads, trims, retention and restarts at
random.
"""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import count
from random import Random

import pytest
import trio
from attrs import define, evolve, field
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.log.logs import NOW, add, batch, committed, opened, read

from odradek.contracts.storage import Offline, SegmentStore
from odradek.errors import ErrorCode, KafkaError
from odradek.log.lookup import first_at_or_after
from odradek.log.partition import PartitionLog
from odradek.log.retaining import retain
from odradek.memory.storage import forget_memory_store, open_memory_store
from odradek.record import parse_header, scan

SETTINGS = ("100", "400", "5000", "1000000")
names = count()


@define
class Model:
    """What the log should be: its batches as stored, and where it starts."""

    batches: list[bytes] = field(factory=list)
    ever: list[bytes] = field(factory=list)
    start: int = 0
    end: int = 0

    def forget(self) -> None:
        """Drop the batches that lie below the start as a whole."""
        self.batches = [b for b in self.batches if parse_header(b).last_offset >= self.start]

    def expected(self, offset: int, max_bytes: int) -> bytes:
        """The most a read may return: whole batches from the one that holds `offset`."""
        found = b""
        for stored in self.batches:
            if parse_header(stored).last_offset < offset:
                continue
            if found and len(found) + len(stored) > max_bytes:
                break
            found += stored
        return found


def retained(log: PartitionLog, model: Model, now: int, max_age: int, max_bytes: int) -> int:
    """Where the log should start after retention: segment by segment, from its own batches."""
    start = model.start
    excess = log.size - max_bytes
    for segment in log.segments:
        inside = [
            meta
            for meta in map(parse_header, model.ever)
            if segment.base_offset <= meta.base_offset < segment.end_offset
        ]
        assert sum(meta.size for meta in inside) == segment.size
        too_old = inside and max(meta.max_timestamp for meta in inside) < now - max_age
        if not inside or not (too_old or excess >= segment.size):
            break
        excess -= segment.size
        start = max(start, segment.end_offset)
    return start


async def check_read(log: PartitionLog, model: Model, offset: int, max_bytes: int) -> None:
    got = await read(log, offset, max_bytes)
    if offset == model.end:
        assert got == b""
        return
    most = model.expected(offset, max_bytes)
    assert got, f"nothing at {offset} of [{model.start}, {model.end})"
    assert most.startswith(got), "other bytes than were appended, or more than max_bytes"
    found = scan(memoryview(got))
    assert found.problem is None
    assert found.metas[0].base_offset <= offset <= found.metas[0].last_offset
    assert log.available(offset) >= len(model.expected(offset, 2**40)) > 0


async def check(log: PartitionLog, model: Model, random: Random) -> None:
    assert (log.log_start_offset, log.high_watermark, log.log_end_offset) == (
        model.start,
        model.end,
        model.end,
    )
    for offset in range(model.start, model.end + 1):
        await check_read(log, model, offset, random.choice((0, 1, 100, 300, 1000, 5000, 10**6)))
    for outside in (model.start - 1, model.end + 1):
        with pytest.raises(KafkaError) as caught:
            await log.read(outside, 100)
        assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    assert log.segments[0].base_offset <= model.start <= log.segments[0].end_offset
    for left, right in zip(log.segments, log.segments[1:], strict=False):
        assert left.sealed
        assert left.end_offset == right.base_offset
    stamp = NOW + random.randrange(60)
    by_time = await first_at_or_after(log, stamp)
    newer = [o for o in range(model.start, model.end) if timestamp_of(model, o) >= stamp]
    assert (by_time.offset if by_time else None) == (newer[0] if newer else None)


def timestamp_of(model: Model, offset: int) -> int:
    for stored in model.batches:
        meta = parse_header(stored)
        if meta.base_offset <= offset <= meta.last_offset:
            return meta.base_timestamp + offset - meta.base_offset
    raise AssertionError("no such offset")


steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 8), st.integers(0, 300)),
        st.tuples(st.just("append"), st.integers(1, 8), st.integers(0, 300)),
        st.tuples(st.just("retry"), st.integers(0, 4), st.just(0)),
        st.tuples(st.just("trim"), st.integers(0, 100), st.just(0)),
        st.tuples(st.just("retain"), st.integers(0, 60), st.integers(0, 3000)),
        st.tuples(st.just("settings"), st.integers(0, len(SETTINGS) - 1), st.just(0)),
        st.tuples(st.just("reopen"), st.booleans(), st.just(0)),
    ),
    max_size=40,
)


async def run(
    open_store: AbstractAsyncContextManager[SegmentStore],
    plan: list[tuple[str, int, int]],
    random: Random,
) -> None:
    model = Model()
    sequence = 0
    recent: list[tuple[int, bytes]] = []  # base offset, batch as the producer sent it
    plan = list(plan)
    async with open_store as store:
        epoch = 0
        segment_bytes = "1000000"
        while True:
            async with opened(store, epoch, segment_bytes=segment_bytes) as log:
                await check(log, model, random)
                while plan:
                    what, first, second = plan.pop(0)
                    if what == "append":
                        data = batch(
                            first,
                            second,
                            timestamp=NOW + random.randrange(50),
                            producer_id=5,
                            producer_epoch=0,
                            base_sequence=sequence,
                        )
                        sent = bytes(data)
                        appended = add(log, data)
                        assert appended[:2] == (model.end, model.end + first)
                        model.batches.append(bytes(data))
                        model.ever.append(bytes(data))
                        recent = [*recent, (model.end, sent)][-5:]
                        model.end += first
                        sequence += first
                        if random.random() < 0.5:
                            await committed(log)
                    elif what == "retry" and first < len(recent):
                        base, sent = recent[first]
                        appended = add(log, bytearray(sent))
                        assert appended.base_offset == base
                        assert appended.duplicate
                    elif what == "trim":
                        await committed(log)
                        target = model.end * first // 100
                        model.start = max(model.start, target)
                        assert await log.trim(target) == model.start
                        model.forget()
                        if all(base < model.start for base, _ in recent):
                            recent = []
                    elif what == "retain":
                        await committed(log)
                        before = await log.read(model.start, 2**20)
                        model.start = retained(log, model, NOW + 58, first, second)
                        log.settings = evolve(
                            log.settings, retention_ms=first, retention_bytes=second
                        )
                        await retain(log, NOW + 58)
                        assert log.log_start_offset == model.start
                        if before.data is not None:
                            with before.data as held:
                                assert b"".join(held.views()) in b"".join(model.ever)
                        model.forget()
                        if all(base < model.start for base, _ in recent):
                            recent = []
                    elif what == "settings":
                        segment_bytes = SETTINGS[first]
                        break
                    elif what == "reopen":
                        await committed(log)
                        if first:  # as if the process had been killed
                            log.failure = Offline("killed")
                            recent = [r for r in recent if r[0] >= model.start]
                        break
                await committed(log) if log.failure is None else None
                if log.failure is None:
                    await check(log, model, random)
                if not plan:
                    return
            epoch += 1


@asynccontextmanager
async def file_store() -> AsyncIterator[SegmentStore]:
    from odradek_storage_file import FileStorageSettings, open_file_store

    with tempfile.TemporaryDirectory() as directory:
        more = FileStorageSettings(min_free_bytes=0, ballast_bytes=0)
        async with open_file_store(f"file://{directory}", more) as store:
            yield store


@given(steps, st.randoms(use_true_random=False))
@settings(max_examples=150, deadline=None)
def test_log_in_memory_is_the_list_of_its_batches(
    plan: list[tuple[str, int, int]], random: Random
) -> None:
    name = f"model-{next(names)}"
    trio.run(run, open_memory_store(name), plan, random)
    forget_memory_store(name)


@given(steps, st.randoms(use_true_random=False))
@settings(max_examples=40, deadline=None)
def test_log_in_files_is_the_list_of_its_batches(
    plan: list[tuple[str, int, int]], random: Random
) -> None:
    pytest.importorskip("odradek_storage_file")
    trio.run(run, file_store(), plan, random)
