"""A compacted log against a dictionary: after anything that may happen to it, nothing that counts
is missing, and nothing is there that never was."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import count, pairwise

import pytest
import trio
from attrs import define, field
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.log.logs import NOW, add, committed, opened
from tests.log.test_cleaner import at_once

from odradek.contracts.storage import Offline, SegmentStore
from odradek.log.cleaner import Tools, compact, state_of, survey
from odradek.log.partition import PartitionLog
from odradek.log.retaining import retain
from odradek.log.worker import InlineWorker
from odradek.memory.storage import forget_memory_store, open_memory_store
from odradek.record import BatchBuilder, CompressionType, Record, iter_records, scan

DELETE_RETENTION_MS = 1000
SETTINGS = {
    "cleanup_policy": "compact,delete",
    "delete_retention_ms": str(DELETE_RETENTION_MS),
    "retention_ms": "-1",
}
PRODUCER = 5

names = count()


@define
class Model:
    """Every record that was ever appended, and what may have become of it.

    `noted`: by offset of a tombstone, the time of the first pass that went over it.
    """

    records: list[Record] = field(factory=list)
    end: int = 0
    start: int = 0
    sequence: int = 0
    last_batch: bytes = b""
    last_base: int = -1
    clock: int = NOW
    noted: dict[int, int] = field(factory=dict)

    def newest(self, below: int | None = None) -> dict[bytes, Record]:
        """The last record of each key."""
        return {
            r.key: r
            for r in self.records
            if r.key is not None and (below is None or r.offset < below)
        }


async def stored(log: PartitionLog) -> list[Record]:
    """Everything there is to read; a consumer gets on from every offset."""
    found: list[Record] = []
    offset = log.log_start_offset
    while offset < log.high_watermark:
        result = await log.read(offset, 2**20)
        assert result.data is not None, f"a consumer is stuck at {offset}"
        with result.data as data:
            view = memoryview(b"".join(data.views()))
        batches = scan(view)
        assert batches.problem is None
        assert batches.metas[0].last_offset >= offset
        assert batches.metas[0].base_offset >= offset or offset == log.log_start_offset
        found += [record for record in iter_records(view) if record.offset >= offset]
        offset = batches.metas[-1].next_offset
    return found


async def check(log: PartitionLog, model: Model) -> None:
    assert log.log_start_offset >= model.start, "the log start went back"
    model.start = log.log_start_offset
    assert (log.high_watermark, log.log_end_offset) == (model.end, model.end)
    found = await stored(log)
    at = {record.offset: record for record in found}
    assert [r.offset for r in found] == sorted(at), "out of order, or twice"
    original = {record.offset: record for record in model.records}
    for record in found:
        assert record == original[record.offset]
    for key, newest in model.newest().items():
        if newest.offset < model.start or newest.offset in at:
            continue
        assert newest.value is None, f"{newest} is lost"
        since = model.noted.get(newest.offset)
        assert since is not None, f"a tombstone went that no pass had seen: {newest}"
        assert model.clock - since >= DELETE_RETENTION_MS, f"a tombstone went too early: {newest}"
        assert not [r for r in found if r.key == key], f"the tombstone of {key!r} went too early"
    cleaned_to = state_of(log).cleaned_to
    newest_clean = model.newest(cleaned_to)
    for record in found:
        if record.offset < cleaned_to:
            assert record.key is not None
            assert newest_clean[record.key] == record, "superseded, and still there"
    if model.last_base >= 0:  # also when it was deleted: its producer goes on
        retry = add(log, bytearray(model.last_batch))
        assert (retry.base_offset, retry.duplicate) == (model.last_base, True)
    snapshot = log.reader().snapshot.segments
    for left, right in pairwise(snapshot):
        assert left.end_offset <= right.base_offset
    assert not left_over(log)


def left_over(log: PartitionLog) -> list[int]:
    """Segments that were built and never taken."""
    return list(getattr(log.reader(), "built", ()))


def produce(log: PartitionLog, model: Model, plan: Produce) -> None:
    codec, idempotent, records = plan
    builder = BatchBuilder(2**20, compression=codec)
    if idempotent:
        builder.producer_id, builder.producer_epoch = PRODUCER, 0
        builder.base_sequence = model.sequence
    for i, (key, size) in enumerate(records):
        value = None if size < 0 else b"%d:" % (model.end + i) + b"v" * size
        name = None if key < 0 else b"key %d" % key
        assert builder.append(model.clock + i, name, value)
        model.records.append(Record(model.end + i, model.clock + i, name, value))
    data = builder.build()
    sent = bytes(data)
    appended = add(log, data, model.clock)
    assert appended.base_offset == model.end
    if idempotent:
        model.last_batch, model.last_base = sent, model.end
        model.sequence += len(records)
    model.end += len(records)


async def compacted(log: PartitionLog, model: Model, map_bytes: int) -> None:
    """Make passes until none is due."""
    for _ in range(200):
        due = await survey(log, model.clock, {})
        if due is None:
            return
        tools = Tools(InlineWorker(), at_once, bytes(16), map_bytes)
        done = await compact(log, due, tools, now_ms=model.clock, proven_ms=model.clock)
        assert done is not None
        assert done.cleaned_to > due.dirty_from or due.dirty_from == due.dirty_to
        for record in model.records:
            if record.offset < done.cleaned_to and record.value is None:
                model.noted.setdefault(record.offset, model.clock)
    raise AssertionError("passes without an end")


Produce = tuple[CompressionType, bool, list[tuple[int, int]]]
records = st.lists(
    st.tuples(st.integers(-1, 8), st.sampled_from([-1, -1, 0, 5, 40])), min_size=1, max_size=6
)
produces = st.tuples(
    st.just("produce"), st.tuples(st.sampled_from(CompressionType), st.booleans(), records)
)
steps = st.lists(
    st.one_of(
        produces,
        produces,
        produces,
        st.tuples(st.just("roll"), st.none()),
        st.tuples(st.just("compact"), st.sampled_from([128, 256, 2**16])),
        st.tuples(st.just("compact"), st.just(2**16)),
        st.tuples(st.just("clock"), st.sampled_from([1, 500, 5000, 5000])),
        st.tuples(st.just("trim"), st.integers(0, 100)),
        st.tuples(st.just("retain"), st.integers(0, 1500)),
        st.tuples(st.just("reopen"), st.booleans()),
    ),
    min_size=15,  # or hypothesis tries lists of seven steps on average, in which little happens
    max_size=80,
)


configs = st.fixed_dictionaries(
    {
        "segment_bytes": st.sampled_from(["200", "600", "5000"]),
        "min_cleanable_dirty_ratio": st.sampled_from(["0", "0", "0.5", "0.9"]),
        "min_compaction_lag_ms": st.sampled_from(["0", "0", "300", "3000"]),
        "max_compaction_lag_ms": st.sampled_from([str(2**63 - 1), "4000"]),
    }
)


async def run(
    open_store: AbstractAsyncContextManager[SegmentStore],
    plan: list[tuple[str, object]],
    config: dict[str, str],
) -> None:
    model = Model()
    plan = list(plan)
    epoch = 0
    async with open_store as store:
        while plan:
            async with opened(store, epoch, True, **SETTINGS, **config) as log:
                await check(log, model)
                while plan:
                    what, how = plan.pop(0)
                    if what == "produce":
                        produce(log, model, how)  # type: ignore[arg-type]  # a Produce
                        await committed(log)
                        continue
                    if what == "roll":
                        log.roll()
                    elif what == "clock":
                        model.clock += how  # type: ignore[operator]  # ms
                        continue
                    elif what == "compact":
                        await compacted(log, model, how)  # type: ignore[arg-type]  # bytes
                    elif what == "trim":
                        await log.trim(model.end * how // 100)  # type: ignore[operator]  # percent
                    elif what == "retain":
                        kept = log.settings
                        log.settings = type(kept).parse({"retention.bytes": str(how)}, kept)
                        await retain(log, model.clock)
                        log.settings = kept
                    elif what == "reopen":
                        if how:  # as if the process had been killed
                            log.failure = Offline("killed")
                        break
                    await check(log, model)
            epoch += 1


@asynccontextmanager
async def file_store() -> AsyncIterator[SegmentStore]:
    from odradek_storage_file import FileStorageSettings, open_file_store

    with tempfile.TemporaryDirectory() as directory:
        more = FileStorageSettings(min_free_bytes=0, ballast_bytes=0)
        async with open_file_store(f"file://{directory}", more) as store:
            yield store


@given(steps, configs)
@settings(max_examples=400, deadline=None)
def test_compacted_log_in_memory_agrees_with_a_dictionary(
    plan: list[tuple[str, object]], config: dict[str, str]
) -> None:
    name = f"compaction-{next(names)}"
    trio.run(run, open_memory_store(name), plan, config)
    forget_memory_store(name)


@given(steps, configs)
@settings(max_examples=15, deadline=None)
def test_compacted_log_in_files_agrees_with_a_dictionary(
    plan: list[tuple[str, object]], config: dict[str, str]
) -> None:
    pytest.importorskip("odradek_storage_file")
    trio.run(run, file_store(), plan, config)
