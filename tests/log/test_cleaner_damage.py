"""What compaction takes for damage: bytes and offsets that contradict themselves, nothing else."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar, TypeVarTuple

import pytest
import trio
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.log.logs import NOW, OpenLog, add, committed, everything, opened
from tests.log.test_cleaner import MAP_BYTES, SEED, at_once, cleaned, keyed

from odradek.config import TopicSettings
from odradek.contracts.storage import Corrupt, DataRef, LogEdit, LogSnapshot
from odradek.log import cleaner, cleaning_windows
from odradek.log.cleaner import Compacted, Tools, compact, state_of, survey
from odradek.log.cleaning_windows import Windows
from odradek.log.compaction import CleanerState
from odradek.log.partition import PartitionLog
from odradek.log.worker import InlineWorker
from odradek.memory.storage import open_memory_store
from odradek.record import BatchBuilder, CompressionType, scan

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

OFFSET_SIZE = 8


class _Held:
    def __init__(self, data: bytes) -> None:
        self._data = data

    def views(self) -> list[memoryview]:
        return [memoryview(self._data)]


class FlippedOffset(InlineWorker):
    """A worker that is given one batch, at offset `base`, with another base offset."""

    def __init__(self, base: int, flip: int) -> None:
        self._base = base
        self._flip = flip

    async def run(self, function: Callable[[*Ts], T], *args: *Ts) -> T:
        given: Any = args
        data: DataRef = given[0]
        held = bytearray(b"".join(data.views()))
        found = scan(memoryview(bytes(held)), verify=False)
        for meta, at in zip(found.metas, found.positions, strict=True):
            if meta.base_offset == self._base:
                other = self._base ^ self._flip
                held[at : at + OFFSET_SIZE] = other.to_bytes(OFFSET_SIZE, "big", signed=False)
        given = (_Held(bytes(held)), *given[1:])
        return function(*given)


async def flipped(log: PartitionLog, base: int, flip: int) -> Compacted | None:
    due = await survey(log, NOW, {})
    assert due is not None
    tools = Tools(FlippedOffset(base, flip), at_once, SEED, MAP_BYTES)
    return await compact(log, due, tools, now_ms=NOW, proven_ms=NOW)


async def test_tombstones_go_from_a_log_that_is_compacted_up_to_the_middle_of_a_segment(
    with_log: OpenLog,
) -> None:
    async with with_log(
        cleanup_policy="compact", delete_retention_ms="1000", min_cleanable_dirty_ratio="1"
    ) as log:
        add(log, keyed(("t", "1")))
        add(log, keyed(("t", None)))
        log.roll()
        for number in range(10):
            add(log, keyed((f"k{number}", "v")))
        await committed(log)
        log.roll()
        await log.edit(lambda _: LogEdit(blobs={"cleaner": _state(4)}))
        done = await cleaned(log, NOW + 2000)
        assert done is not None
        assert log.damage is None
        assert done.cleaned_to == 4


def _state(cleaned_to: int) -> bytes:
    return evolve(CleanerState(), cleaned_to=cleaned_to, next_horizon_ms=NOW).dump()


async def test_tombstones_go_after_records_of_a_young_segment_were_deleted(
    with_log: OpenLog,
) -> None:
    async with with_log(
        cleanup_policy="compact", delete_retention_ms="1000", min_compaction_lag_ms="100000000"
    ) as log:
        old = NOW - 10**9
        add(log, keyed(("t", "1"), timestamp=old))
        add(log, keyed(("t", None), ("z", None), timestamp=old))
        await committed(log)
        log.roll()
        assert await cleaned(log) is not None
        for number in range(10):
            add(log, keyed((f"k{number}", "v")))
        await committed(log)
        log.roll()
        await log.trim(7)
        assert await cleaned(log, NOW + 5000) is not None
        assert log.damage is None
        assert [r.offset for r in await everything(log)] == list(range(7, 13))


def lowered(log: PartitionLog) -> int:
    """Lower max.message.bytes; return how large the batches are that this makes unusual."""
    log.settings = TopicSettings.parse({"cleanup.policy": "compact"})
    return Windows(log, InlineWorker(), at_once).limit


@pytest.mark.parametrize("codec", [CompressionType.NONE, CompressionType.ZSTD])
async def test_batch_from_before_max_message_bytes_was_lowered_is_no_damage(
    codec: CompressionType,
) -> None:
    async with (
        open_memory_store("") as store,
        opened(store, cleanup_policy="compact", max_message_bytes=str(2**27)) as log,
    ):
        limit = lowered(log)
        builder = BatchBuilder(3 * limit, compression=codec)
        for number in range(10):
            assert builder.append(NOW, b"k%d" % number, os.urandom(limit // 8) + bytes(limit // 8))
        add(log, builder.build())
        add(log, keyed(("k0", "new"), ("a", None)))
        await committed(log)
        log.roll()
        done = await cleaned(log)
        assert done is not None
        assert log.damage is None
        assert state_of(log).cleaned_to == 12
        first = [r.offset for r in await everything(log)][:2]
        # Too large to be opened where it is compressed: all of it stays.
        assert first == ([1, 2] if codec is CompressionType.NONE else [0, 1])
        assert done.opaque_from == (None if codec is CompressionType.NONE else 0)


async def test_length_that_is_damaged_is_not_believed() -> None:
    async with (
        open_memory_store("") as store,
        opened(store, cleanup_policy="compact", max_message_bytes=str(2**27)) as log,
    ):
        limit = lowered(log)
        builder = BatchBuilder(2 * limit)
        assert builder.append(NOW, b"a", os.urandom(limit + 1000))
        data = builder.build()
        add(log, data)
        await committed(log)
        log.roll()
        largest = 0

        class Flips(InlineWorker):
            """Hands over bytes of which the last of all is another than was stored."""

            async def run(self, function: Callable[[*Ts], T], *args: *Ts) -> T:
                nonlocal largest
                given: Any = args
                largest = max(largest, len(given[0]))
                held = bytearray(b"".join(given[0].views()))
                if bytes(held[-10:]) == bytes(data[-10:]):
                    held[-1] ^= 1
                return function(*(_Held(bytes(held)), *given[1:]))

        due = await survey(log, NOW, {})
        assert due is not None
        tools = Tools(Flips(), at_once, SEED, MAP_BYTES)
        with pytest.raises(Corrupt, match="CRC"):
            await compact(log, due, tools, now_ms=NOW, proven_ms=NOW)
        assert largest <= cleaning_windows.WINDOW


@pytest.mark.parametrize(
    ("base", "flip"), [(300, 256), (300, 4), (300, 1 << 62), (0, 512), (599, 64), (299, 1), (7, 8)]
)
async def test_base_offset_that_contradicts_its_place_is_damage(
    with_log: OpenLog, base: int, flip: int
) -> None:
    async with with_log(cleanup_policy="compact", segment_bytes="300000") as log:
        for number in range(600):
            if number == 300:
                log.roll()
            add(log, keyed((f"k{number % 50}", f"{number}")))
        await committed(log)
        log.roll()
        before = log.segments
        with pytest.raises(Corrupt, match=f"segment {before[base >= 300].id} "):
            await flipped(log, base, flip)
        assert log.damage is not None
        assert log.segments == before
        assert len(await everything(log)) == 600


async def test_base_offset_that_is_damaged_in_a_clean_segment_is_found(with_log: OpenLog) -> None:
    async with with_log(
        cleanup_policy="compact", segment_bytes="300000", min_cleanable_dirty_ratio="0"
    ) as log:
        for number in range(300):
            add(log, keyed((f"k{number}", f"{number}")))
        await committed(log)
        log.roll()
        assert await cleaned(log) is not None
        add(log, keyed(("k5", "new")))
        await committed(log)
        log.roll()
        before = log.segments
        with pytest.raises(Corrupt, match="is damaged"):
            await flipped(log, 0, 1024)
        assert log.segments == before


async def test_edit_that_the_store_refuses_in_an_unchanged_log_is_told(with_log: OpenLog) -> None:
    """Whatever the reason may be: it would be refused again and again."""
    async with with_log(cleanup_policy="compact") as log:
        for number in range(3):
            add(log, keyed(("a", f"{number}")))
        await committed(log)
        log.roll()
        due = await survey(log, NOW, {})
        assert due is not None
        commit = log.reader().commit

        async def elsewhere(edit: LogEdit) -> LogSnapshot:
            if edit.add:
                edit = evolve(edit, add=(evolve(edit.add[0], end_offset=10**6),))
            return await commit(edit)

        log.reader().commit = elsewhere  # type: ignore[method-assign]
        tools = Tools(InlineWorker(), at_once, SEED, MAP_BYTES)
        with pytest.raises(Corrupt, match="outside"):
            await compact(log, due, tools, now_ms=NOW, proven_ms=NOW)
        assert log.damage is not None


@given(st.data())
@settings(max_examples=80, deadline=None)
def test_flipped_bit_of_a_base_offset_never_changes_what_is_read(data: st.DataObject) -> None:
    trio.run(_flip_one, data)


async def _flip_one(data: st.DataObject) -> None:
    keys = data.draw(st.lists(st.integers(0, 5), min_size=4, max_size=30))
    rolls = data.draw(st.sets(st.integers(1, len(keys) - 1), max_size=4))
    clean = data.draw(st.integers(0, len(keys) - 2))
    window = data.draw(st.sampled_from([70, 150, 400, 2**20]))
    kept = cleaning_windows.WINDOW
    async with (
        open_memory_store("") as store,
        opened(
            store, cleanup_policy="compact", segment_bytes="2000", min_cleanable_dirty_ratio="0"
        ) as log,
    ):
        newest: dict[bytes | None, int] = {}
        for number, key in enumerate(keys):
            if number in rolls:
                log.roll()
            if number == clean:
                await committed(log)
                log.roll()
                await cleaned(log)
            newest[b"%d" % key] = add(log, keyed((f"{key}", f"{number}"))).base_offset
        await committed(log)
        log.roll()
        bases = [record.offset for record in await everything(log)]
        base = data.draw(st.sampled_from(bases))
        flip = 1 << data.draw(st.one_of(st.integers(0, 6), st.integers(0, 62)))
        if base ^ flip not in range(len(keys)) or base ^ flip in bases:
            outside = True
        else:  # it may lie in a gap, where nothing tells
            below = max((other for other in bases if other < base), default=-1)
            above = min((other for other in bases if other > base), default=len(keys))
            outside = not below < base ^ flip < above
        cleaning_windows.WINDOW = cleaner.WINDOW = window  # type: ignore[attr-defined]
        try:
            done = await flipped(log, base, flip)
        except Corrupt:
            assert log.damage is not None
        else:
            assert done is not None
        finally:
            cleaning_windows.WINDOW = cleaner.WINDOW = kept  # type: ignore[attr-defined]
        if not outside:
            return
        found = await everything(log)
        assert {record.offset for record in found} <= set(bases)
        assert newest == {record.key: record.offset for record in found}
