"""Compaction of a log over a store: what stays, what goes, and what it never disturbs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, TypeVarTuple

import pytest
import trio
from tests.log.logs import NOW, OpenLog, add, committed, everything, metas, opened, read

from odradek.contracts.storage import Corrupt, DataRef, Full, LogEdit, Offline
from odradek.errors import KafkaError
from odradek.log.cleaner import Compacted, Tools, compact, state_of, survey
from odradek.log.cleaning_windows import WINDOW
from odradek.log.lookup import first_at_or_after, newest
from odradek.log.partition import PartitionLog
from odradek.log.producer_snapshots import PRODUCERS_BLOB
from odradek.log.retaining import retain
from odradek.log.worker import InlineWorker, ThreadWorker
from odradek.memory.storage import MemoryStorageSettings, open_memory_store
from odradek.record import BatchBuilder, CompressionType, iter_records, parse_header

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

SEED = bytes(range(16))
MAP_BYTES = 1 << 20


async def at_once(size: int) -> None:
    """No pace is to be kept."""


def keyed(*records: tuple[str, str | None], timestamp: int = NOW, **options: Any) -> bytearray:
    builder = BatchBuilder(1 << 20, **options)
    for key, value in records:
        builder.append(timestamp, key.encode(), None if value is None else value.encode())
    return builder.build()


async def cleaned(
    log: PartitionLog, now_ms: int = NOW, map_bytes: int = MAP_BYTES
) -> Compacted | None:
    """Make the pass that is due, or return None."""
    due = await survey(log, now_ms, {})
    if due is None:
        return None
    worker = ThreadWorker("test")
    try:
        tools = Tools(worker, at_once, SEED, map_bytes)
        with trio.fail_after(30):
            return await compact(log, due, tools, now_ms=now_ms, proven_ms=now_ms)
    finally:
        worker.close()


async def test_only_the_newest_record_of_each_key_stays(with_log: OpenLog) -> None:
    async with with_log(cleanup_policy="compact") as log:
        for number in range(10):
            add(log, keyed(("a", f"a{number}"), (f"k{number}", "once")))
        await committed(log)
        log.roll()
        done = await cleaned(log)
        assert done is not None
        assert done.cleaned_to == 20
        assert done.size_after < done.size_before
        found = {r.key: (r.offset, r.value) for r in await everything(log)}
        assert found.pop(b"a") == (18, b"a9")
        assert found == {f"k{n}".encode(): (2 * n + 1, b"once") for n in range(10)}
        assert len(await everything(log)) == 11
        assert state_of(log).cleaned_to == 20
        assert await cleaned(log) is None


async def test_log_append_time_and_codec_stay(with_log: OpenLog) -> None:
    async with with_log(cleanup_policy="compact") as log:
        for codec in CompressionType:
            add(log, keyed(("a", "x"), (codec.name, "y"), compression=codec))
        await committed(log)
        log.roll()
        before = {m.base_offset: m for m in await metas(log, 0)}
        assert await cleaned(log) is not None
        for meta in await metas(log, 0):
            old = before[meta.base_offset]
            assert (meta.last_offset, meta.attributes) == (old.last_offset, old.attributes)


async def test_last_batch_stays_empty_so_that_consumers_get_to_the_end(with_log: OpenLog) -> None:
    async with with_log(cleanup_policy="compact", delete_retention_ms="0") as log:
        add(log, keyed(("a", "1")))
        add(log, keyed(("a", None)))
        await committed(log)
        log.roll()
        assert await cleaned(log) is not None
        assert await cleaned(log, NOW + 1) is not None
        assert await everything(log) == []
        (left,) = await metas(log, 0)
        assert (left.base_offset, left.last_offset, left.record_count) == (1, 1, 0)
        assert await metas(log, 1) == [left]
        add(log, keyed(("b", "2")))
        await committed(log)
        log.roll()
        assert await cleaned(log, NOW + 2) is not None
        assert [m.base_offset for m in await metas(log, 0)] == [2], "it is not needed any more"


async def test_tombstone_stays_for_its_time_in_a_log_that_nobody_writes_to(
    with_log: OpenLog,
) -> None:
    async with with_log(cleanup_policy="compact", delete_retention_ms="1000") as log:
        add(log, keyed(("a", "1"), ("b", "1")))
        add(log, keyed(("a", None), ("b", "2")))
        await committed(log)
        log.roll()
        assert await cleaned(log) is not None
        assert [(r.key, r.value) for r in await everything(log)] == [(b"a", None), (b"b", b"2")]
        assert state_of(log).next_horizon_ms == NOW + 1000
        assert await cleaned(log, NOW + 999) is None
        assert await cleaned(log, NOW + 1000) is not None
        assert [r.key for r in await everything(log)] == [b"b"]
        assert state_of(log).next_horizon_ms is None
        assert await cleaned(log, NOW + 10**9) is None


async def test_delete_retention_of_for_ever_is_possible(with_log: OpenLog) -> None:
    async with with_log(cleanup_policy="compact", delete_retention_ms=str(2**63 - 1)) as log:
        add(log, keyed(("a", None)))
        await committed(log)
        log.roll()
        assert await cleaned(log) is not None
        assert state_of(log).next_horizon_ms == 2**63 - 1
        assert await cleaned(log, NOW + 10**12) is None
        assert len(await everything(log)) == 1


async def test_more_keys_than_fit_take_several_passes(with_log: OpenLog) -> None:
    async with with_log(
        cleanup_policy="compact", segment_bytes="2000", min_cleanable_dirty_ratio="0"
    ) as log:
        for number in range(40):
            add(log, keyed(*((f"k{(number * 7 + i) % 50}", f"{number}") for i in range(5))))
        await committed(log)
        log.roll()
        passes = 0
        while (done := await cleaned(log, map_bytes=20 * 16)) is not None:
            passes += 1
            assert done.whole == (done.cleaned_to == 200)
        assert passes > 5
        found = await everything(log)
        assert len({r.key for r in found}) == len(found) == 50


async def test_pass_without_room_for_all_keys_is_gone_on_with_below_the_dirty_ratio(
    with_log: OpenLog,
) -> None:
    async with with_log(
        cleanup_policy="compact", segment_bytes="2000", min_cleanable_dirty_ratio="0.9"
    ) as log:
        for number in range(100):
            add(log, keyed((f"k{number}", "v" * 40)))
        await committed(log)
        log.roll()
        passes = 0
        while (done := await cleaned(log, map_bytes=30 * 16)) is not None:
            passes += 1
            assert done.whole == (done.cleaned_to == 100)
        assert passes == 4
        assert state_of(log).cleaned_to == 100
        add(log, keyed(("k1", "new")))
        await committed(log)
        log.roll()
        assert await cleaned(log) is None


async def test_pass_that_is_gone_on_with_ends_where_it_was_to_end(with_log: OpenLog) -> None:
    """What is written meanwhile waits for the dirty ratio, or there would be no end of it."""
    async with with_log(
        cleanup_policy="compact", segment_bytes="2000", min_cleanable_dirty_ratio="0.9"
    ) as log:
        written = 0

        async def write(count: int) -> None:
            nonlocal written
            for _ in range(count):
                add(log, keyed((f"k{written}", "v" * 40)))
                written += 1
            await committed(log)
            log.roll()

        await write(100)
        passes = 0
        while await cleaned(log, map_bytes=30 * 16) is not None:
            passes += 1
            await write(20)
        assert passes == 4
        assert 100 <= state_of(log).cleaned_to < 130


async def test_batch_larger_than_a_window_is_compacted(with_log: OpenLog) -> None:
    big = "x" * (WINDOW + 1000)
    async with with_log(cleanup_policy="compact", max_message_bytes="4000000") as log:
        for value in (big, big + "y", "small"):
            builder = BatchBuilder(1 << 23)
            assert builder.append(NOW, b"a", value.encode())
            add(log, builder.build())
        add(log, keyed(("b", "1")))
        await committed(log)
        log.roll()
        assert await cleaned(log) is not None
        assert [(r.offset, r.value) for r in await everything(log)] == [(2, b"small"), (3, b"1")]


async def test_group_in_which_nothing_goes_is_not_rewritten(with_log: OpenLog) -> None:
    async with with_log(
        cleanup_policy="compact", segment_bytes="1000", min_cleanable_dirty_ratio="0"
    ) as log:
        for number in range(100):
            add(log, keyed((f"k{number}", "v" * 50)))
        await committed(log)
        log.roll()
        before = [s.id for s in log.segments]
        done = await cleaned(log)
        assert done is not None
        assert (done.rewritten, done.size_before) == (0, done.size_after)
        assert [s.id for s in log.segments] == before
        add(log, keyed(("k99", "new")))
        await committed(log)
        log.roll()
        done = await cleaned(log)
        assert done is not None
        assert 0 < done.rewritten <= 3
        assert [s.id for s in log.segments][:8] == before[:8]


async def test_small_segments_become_one(with_log: OpenLog) -> None:
    async with with_log(cleanup_policy="compact", segment_bytes="100000") as log:
        for number in range(10):
            add(log, keyed((f"k{number}", "v")))
            log.roll()
        await committed(log)
        assert len(log.segments) == 11
        assert await cleaned(log) is not None
        assert len(log.segments) == 2
        assert len(await everything(log)) == 10


async def test_idempotent_producer_goes_on_after_compaction_and_a_crash(
    with_log: OpenLog,
) -> None:
    def sent(sequence: int) -> bytearray:
        return keyed(("a", "1"), producer_id=7, producer_epoch=0, base_sequence=sequence)

    async with with_log(cleanup_policy="compact") as log:
        for sequence in range(3):
            add(log, sent(sequence))
        add(log, keyed(("a", "2")))
        await committed(log)
        log.roll()
        assert await cleaned(log) is not None
        assert [m.record_count for m in await metas(log, 0)] == [0, 1]
        # As if the saved state were lost: the empty batch tells it.
        await log.edit(lambda _: LogEdit(blobs={PRODUCERS_BLOB: None}))
        log.failure = Offline("killed")
    async with with_log(epoch=1, cleanup_policy="compact") as log:
        assert add(log, sent(2))[:4] == (2, 3, -1, True)
        with pytest.raises(KafkaError, match="OUT_OF_ORDER"):
            add(log, sent(5))
        assert not add(log, sent(3)).duplicate


async def test_what_is_deleted_meanwhile_stays_deleted(with_log: OpenLog) -> None:
    async with with_log(cleanup_policy="compact", segment_bytes="300") as log:
        for number in range(30):
            add(log, keyed(("a", f"{number}"), (f"k{number}", "1")))
        await committed(log)
        log.roll()
        due = await survey(log, NOW, {})
        assert due is not None

        async def trimming(size: int) -> None:
            if log.log_start_offset < 20 and log.log_start_offset < state_of(log).touched_to:
                await log.trim(20)

        tools = Tools(InlineWorker(), trimming, SEED, MAP_BYTES)
        done = await compact(log, due, tools, now_ms=NOW, proven_ms=NOW)
        assert done is not None
        assert log.log_start_offset == 20
        assert [r.offset for r in await everything(log)] == [*range(21, 58, 2), 58, 59]


async def test_segments_that_are_being_compacted_go_with_the_next_edit(
    with_log: OpenLog,
) -> None:
    async with with_log(segment_bytes="100") as log:
        for number in range(4):
            add(log, keyed(("a", f"{number}")))
            log.roll()
        await committed(log)
        first = log.segments[0].id
        with log.holding([first]):
            assert await log.trim(2) == 2
            assert [s.base_offset for s in log.segments] == [0, 2, 3, 4]
            assert [r.offset for r in await everything(log)] == [2, 3]
        await retain(log, NOW)
        assert first not in {s.id for s in log.segments}


async def test_damage_stops_compaction_and_removes_nothing(with_log: OpenLog) -> None:
    async with with_log(cleanup_policy="compact", segment_bytes="300") as log:
        for number in range(20):
            add(log, keyed(("a", f"{number}")))
        await committed(log)
        log.roll()
        before = log.segments
        due = await survey(log, NOW, {})
        assert due is not None

        class Damaged:
            def __init__(self, data: DataRef) -> None:
                self.held = bytearray(b"".join(data.views()))
                self.held[-1] ^= 1

            def views(self) -> list[memoryview]:
                return [memoryview(self.held)]

        class Flips:
            """Hands over bytes of which the last is another than was stored."""

            async def run(self, function: Callable[[*Ts], T], *args: *Ts) -> T:
                given: Any = args
                given = (Damaged(given[0]), *given[1:])
                return function(*given)

            def breathe(self) -> None:
                pass

            def close(self) -> None:
                pass

        tools = Tools(Flips(), at_once, SEED, MAP_BYTES)
        with pytest.raises(Corrupt, match=r"segment 0 .* is damaged at byte \d+: the CRC"):
            await compact(log, due, tools, now_ms=NOW, proven_ms=NOW)
        assert log.damage is not None
        assert log.segments == before
        assert len(await everything(log)) == 20


async def test_cancelled_compaction_leaves_a_whole_log(with_log: OpenLog) -> None:
    async with with_log(cleanup_policy="compact", segment_bytes="300") as log:
        for number in range(60):
            add(log, keyed((f"k{number % 3}", f"{number}")))
        await committed(log)
        log.roll()
        for steps in range(1, 40, 3):
            due = await survey(log, NOW, {})
            if due is None:
                break
            left = steps

            with trio.CancelScope() as scope:

                async def cancelling(size: int) -> None:
                    nonlocal left
                    left -= 1
                    if not left:
                        scope.cancel()
                    await trio.lowlevel.checkpoint()

                tools = Tools(InlineWorker(), cancelling, SEED, MAP_BYTES)
                await compact(log, due, tools, now_ms=NOW, proven_ms=NOW)
            newest = {r.key: r.value for r in await everything(log)}
            assert newest == {f"k{n % 3}".encode(): b"%d" % n for n in (57, 58, 59)}
        assert state_of(log).cleaned_to == 60
        assert len(await everything(log)) == 3


async def test_survey_reads_first_timestamps_where_a_longest_lag_is_set(
    with_log: OpenLog,
) -> None:
    async with with_log(
        cleanup_policy="compact", max_compaction_lag_ms="5000", min_cleanable_dirty_ratio="1"
    ) as log:
        add(log, keyed(("a", "1"), timestamp=NOW))
        await committed(log)
        log.roll()
        assert await cleaned(log) is not None
        add(log, keyed(("a", "2"), timestamp=NOW + 100))
        await committed(log)
        log.roll()
        known: dict[int, int] = {}
        assert await survey(log, NOW + 5100, known) is None
        assert list(known.values()) == [NOW + 100]
        assert await survey(log, NOW + 5101, known) is not None
        assert await cleaned(log, NOW + 5101) is not None
        assert await survey(log, NOW + 5101, known) is None
        assert known == {}


async def test_readers_and_producers_go_on_beside_compaction(with_log: OpenLog) -> None:
    """Every scan that is made meanwhile finds the newest record of each key."""
    last: dict[bytes, int] = {}
    scans = 0
    done = False

    def produce(log: PartitionLog, number: int) -> None:
        keys = [f"k{(number * 3 + i) % 25}" for i in range(4)]
        base = add(log, keyed(*((key, f"{number}") for key in keys))).base_offset
        for i, key in enumerate(keys):
            last[key.encode()] = base + i

    async def scan(log: PartitionLog) -> None:
        nonlocal scans
        while not done:
            expected = dict(last)
            offset, end = log.log_start_offset, log.high_watermark
            seen: dict[bytes, int] = {}
            while offset < end:
                data = await read(log, offset, 500)
                for record in iter_records(data):
                    assert record.key is not None
                    seen[record.key] = record.offset
                await trio.lowlevel.checkpoint()
                following = parse_header(data).next_offset
                assert following > offset
                offset = following
            for key, at in expected.items():
                if at < end:
                    assert seen.get(key, -1) >= at, f"{key!r} is missing from a scan"
            scans += 1
            await trio.lowlevel.checkpoint()

    async with with_log(
        cleanup_policy="compact", segment_bytes="700", min_cleanable_dirty_ratio="0"
    ) as log:
        for number in range(60):
            produce(log, number)
        await committed(log)

        async def writing(size: int) -> None:
            produce(log, 100 + log.log_end_offset)
            await committed(log)
            await trio.lowlevel.checkpoint()

        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(scan, log)
                passes = 0
                while passes < 5 or scans < 5:
                    due = await survey(log, NOW, {})
                    if due is not None:
                        tools = Tools(InlineWorker(), writing, SEED, MAP_BYTES)
                        passes += (
                            await compact(log, due, tools, now_ms=NOW, proven_ms=NOW) is not None
                        )
                    log.roll()
                    await trio.lowlevel.checkpoint()
                done = True
        while await cleaned(log) is not None:
            pass
        found = {r.key: r.offset for r in await everything(log)}
        assert found == last


async def test_log_that_the_store_has_no_room_to_rewrite_stays_as_it_is() -> None:
    async with (
        open_memory_store("", MemoryStorageSettings(max_bytes=30_000)) as store,
        opened(store, 0, True, cleanup_policy="compact", segment_bytes="12000") as log,
    ):
        for number in range(25):
            add(log, keyed((f"k{number}", "v" * 900), ("a", f"{number}")))
        await committed(log)
        log.roll()
        before = log.segments
        for _ in range(3):
            with pytest.raises(Full):
                await cleaned(log)
            assert log.segments == before
            assert log.failure is None
        await log.trim(40)
        assert await cleaned(log) is not None
        assert [r.offset for r in await everything(log) if r.key == b"a"] == [49]


async def test_look_ups_by_time_pass_over_batches_without_records(with_log: OpenLog) -> None:
    def sent(key: str, sequence: int, timestamp: int) -> bytearray:
        more = {"producer_id": 7, "producer_epoch": 0, "base_sequence": sequence}
        return keyed((key, f"{sequence}"), timestamp=timestamp, **more)

    async with with_log(cleanup_policy="compact") as log:
        add(log, sent("x", 0, NOW + 5))
        add(log, sent("a", 1, NOW + 1000))
        add(log, keyed(("b", "1"), timestamp=NOW + 20))
        add(log, keyed(("a", "2"), timestamp=NOW + 10))
        await committed(log)
        log.roll()
        assert await cleaned(log) is not None
        assert [m.record_count for m in await metas(log, 0)] == [1, 0, 1, 1]
        assert await newest(log) == (2, NOW + 20, 0)
        assert await first_at_or_after(log, NOW + 6) == (2, NOW + 20, 0)
        assert await first_at_or_after(log, NOW + 21) is None
