"""Appending, reading back, durability, indexes, back-pressure: S1, S2, S3, S5, S10, S11."""

from __future__ import annotations

import pytest
import trio

from odradek.contracts.storage import (
    Chunk,
    Claim,
    Full,
    Hint,
    OutOfRange,
    PartitionKey,
    SegmentIndex,
    SegmentInfo,
    parse_header,
)
from odradek.testing._storage_harness import (
    KEY,
    Log,
    StorageHarness,
    Trait,
    make_batch,
    metas_of,
    opened,
    read_log,
    refused,
)

__all__ = ["AppendPromises", "check_index"]


class AppendPromises:
    """What appending and reading promise."""

    async def test_a_new_log_is_empty_and_starts_at_0(self, harness: StorageHarness) -> None:
        """S1: a partition that never was has one empty segment."""
        async with opened(harness) as (store, log):
            snapshot = log.writer.snapshot
            assert [(s.base_offset, s.end_offset, s.size) for s in snapshot.segments] == [(0, 0, 0)]
            assert (snapshot.log_start, snapshot.durable_end) == (0, 0)
            assert snapshot.epochs == ()
            assert dict(snapshot.blobs) == {}
            assert log.writer.recovery.clean
            assert list(await store.partitions()) == [KEY]
            await store.probe()
            usage = await store.usage()
            assert usage.location

    async def test_batches_read_back_in_order(self, harness: StorageHarness) -> None:
        """S1: byte for byte, whatever pieces the chunks came in, and whatever is read at a time."""
        async with opened(harness) as (_, log):
            log.append()
            log.append(3, records=5)
            log.append(2, records=2, pieces=7)
            log.append(1, value_bytes=300_000, pieces=3)
            log.append(40, value_bytes=10, pieces=1_500)
            await log.check()
            assert await read_log(log.writer, 1_000) == log.bytes()

    async def test_batches_read_back_after_reopening(self, harness: StorageHarness) -> None:
        """S1: and a clean close leaves nothing to recover."""
        harness.need(Trait.REOPEN)
        async with opened(harness) as (_, log):
            for i in range(20):
                log.append(2, timestamp=5_000 - i)
            log.writer.roll()
            log.append(timestamp=7_000)
            before = log.writer.snapshot
        async with opened(harness) as (_, again):
            again.batches, again.end = log.batches, log.end
            await again.check()
            assert again.writer.recovery.clean
            assert again.writer.recovery.cut_bytes == 0
            assert again.writer.snapshot.segments == before.segments
            again.append(3)
            await again.check()

    async def test_reading_is_bounded_by_the_segment(self, harness: StorageHarness) -> None:
        """S1: any position up to the size may be read, none beyond."""
        async with opened(harness) as (_, log):
            log.append(2)
            (segment,) = log.writer.snapshot.segments
            for hint in Hint:
                with await log.writer.read(segment.id, segment.size, 10, hint) as data:
                    assert len(data) == 0
                    assert b"".join(data.views()) == b""
                with await log.writer.read(segment.id, 7, 1, hint) as data:
                    assert b"".join(data.views()) == log.bytes()[7:8]
                with await log.writer.read(segment.id, 7, 10**9, hint) as data:
                    assert b"".join(data.views()) == log.bytes()[7:]
            for position in (-1, segment.size + 1):
                with pytest.raises(OutOfRange):
                    await log.writer.read(segment.id, position, 1, Hint.TAIL)
            with pytest.raises(OutOfRange):
                await log.writer.read(segment.id + 10_000, 0, 1, Hint.TAIL)
            with pytest.raises(OutOfRange):
                await log.writer.index(segment.id + 10_000)

    async def test_file_ranges_hold_the_same_bytes(self, harness: StorageHarness) -> None:
        """S1: where there is a file range, it is what `views` returns."""
        import os

        async with opened(harness) as (_, log):
            log.append(5)
            (segment,) = log.writer.snapshot.segments
            with await log.writer.read(segment.id, 11, 100, Hint.TAIL) as data:
                found = data.file_range()
                if found is None:
                    pytest.skip("the store has no file ranges")
                fd, offset, count = found
                assert os.pread(fd, count, offset) == b"".join(data.views()) == log.bytes()[11:111]

    async def test_a_snapshot_never_changes(self, harness: StorageHarness) -> None:
        """S1: what was handed out stays as it was; a new one has the appends."""
        async with opened(harness) as (_, log):
            log.append()
            before = log.writer.snapshot
            copy = (before.segments, before.epochs, before.log_start)
            log.append(5)
            log.writer.roll()
            assert log.writer.snapshot.segments[-1].end_offset == 6
            assert (before.segments, before.epochs, before.log_start) == copy

    async def test_leader_epochs_are_remembered(self, harness: StorageHarness) -> None:
        """S1: each with the first offset that was written under it."""
        async with opened(harness, epoch=3) as (store, log):
            log.append(2)
            first = log.end
            log.writer = await store.open_writer(KEY, Claim(7, 1))
            log.epoch = 7
            log.append(2)
            assert list(log.writer.snapshot.epochs) == [(3, 0), (7, first)]
            await log.writer.aclose()
        if Trait.REOPEN in harness.traits:
            async with opened(harness, epoch=7) as (_, log):
                assert list(log.writer.snapshot.epochs) == [(3, 0), (7, first)]

    async def test_offsets_may_have_gaps(self, harness: StorageHarness) -> None:
        """S1: on the replica of a compacted log, within a chunk and between chunks."""
        async with opened(harness) as (_, log):
            for bases in ((5, 9), (20,), (22, 1_000)):
                made = [make_batch(base, 2) for base in bases]
                log.writer.append(Chunk([m for m, _ in made], [d for _, d in made]))
                log.batches += [(meta, bytes(data)) for meta, data in made]
            log.end = 1_002
            await log.check()
        if Trait.REOPEN in harness.traits:
            async with opened(harness) as (_, again):
                again.batches, again.end = log.batches, log.end
                await again.check()

    async def test_mistakes_of_the_caller_are_refused(self, harness: StorageHarness) -> None:
        """S1: with ValueError, and nothing is taken."""
        async with opened(harness) as (_, log):
            log.append(3)
            meta, data = make_batch(log.end)
            old, old_data = make_batch(log.end - 1)
            far, far_data = make_batch(log.end + 2**31)
            for chunk in (
                Chunk([], []),
                Chunk([meta], [data[:-1]]),
                Chunk([meta], [data, b"x"]),
                Chunk([old], [old_data]),
                Chunk([meta, meta], [data, data]),
                Chunk([far], [far_data]),
            ):
                with refused():
                    log.writer.append(chunk)
            await log.check()
            log.append()
            await log.check()

    async def test_buffers_can_be_reused_at_once(self, harness: StorageHarness) -> None:
        """S3: the bytes were taken when `append` returned."""
        async with opened(harness) as (_, log):
            buffer = bytearray(4096)
            for _ in range(10):
                meta, data = make_batch(log.end, 2)
                view = memoryview(buffer)[: len(data)]
                view[:] = data
                log.writer.append(Chunk([meta], [view[:30], view[30:]]))
                log.batches.append((meta, bytes(data)))
                log.end = meta.last_offset + 1
                buffer[:] = b"\xff" * len(buffer)
            await log.writer.flush()
            await log.check()

    async def test_tickets_say_what_they_cover(self, harness: StorageHarness) -> None:
        """S2: a durable ticket is told by `durable` and by the snapshot's `durable_end`."""
        async with opened(harness) as (_, log):
            tickets = [log.append() for _ in range(10)]
            assert [ticket.end_offset for ticket in tickets] == list(range(1, 11))
            with trio.fail_after(harness.patience):
                await tickets[-1].wait()
            assert all(ticket.durable for ticket in tickets), "an earlier append is not covered"
            assert log.writer.snapshot.durable_end == 10
            await tickets[0].wait()

    async def test_any_number_of_tasks_wait(self, harness: StorageHarness) -> None:
        """S2: waiting can be cancelled, without harm to others."""
        async with opened(harness) as (store, log):
            logs = [log]
            for number in (7, 8):
                key = PartitionKey(KEY.topic_id, number)
                logs.append(Log(await store.open_writer(key, Claim(1, 1))))
            with trio.fail_after(harness.patience):
                for _ in range(5):
                    async with trio.open_nursery() as nursery:
                        for each in logs:
                            for _ in range(5):
                                ticket = each.append()
                                with trio.move_on_after(0):
                                    await ticket.wait()
                                for _ in range(3):
                                    nursery.start_soon(ticket.wait)
            for each in logs:
                assert each.writer.snapshot.durable_end == each.end
                await each.check()

    async def test_what_was_acknowledged_survives(self, harness: StorageHarness) -> None:
        """S2: whatever the store's durability says that it survives."""
        harness.need(Trait.CRASH)
        async with opened(harness) as (store, log):
            durability = store.traits.durability
            if durability == "none":
                pytest.skip("durability none survives a clean close only")
            power = durability == "ack" and Trait.POWER in harness.traits
            for i in range(12):
                await log.append(2).wait()
                if i % 5 == 4:
                    log.writer.roll()
            await harness.crash(power=power)
        async with opened(harness, epoch=2) as (_, again):
            again.batches, again.end = log.batches, log.end
            await again.check()

    async def test_flush_makes_everything_durable(self, harness: StorageHarness) -> None:
        """S2: now, whatever durability is in force."""
        harness.need(Trait.CRASH)
        async with opened(harness) as (_, log):
            log.append(3)
            log.writer.roll()
            log.append(3)
            await log.writer.flush()
            await harness.crash(power=Trait.POWER in harness.traits)
        async with opened(harness, epoch=2) as (_, again):
            again.batches, again.end = log.batches, log.end
            await again.check()

    async def test_a_crash_leaves_a_prefix(self, harness: StorageHarness) -> None:
        """S5: of whole batches, at least as long as what was acknowledged; S2."""
        harness.need(Trait.CRASH)
        for power in (False, True):
            if power and Trait.POWER not in harness.traits:
                continue
            key = PartitionKey(KEY.topic_id, 50 + power)
            async with opened(harness, key=key) as (store, log):
                acknowledged = 0
                for i in range(30):
                    ticket = log.append(2)
                    if i % 7 == 6:
                        await ticket.wait()
                        acknowledged = ticket.end_offset
                    if i % 11 == 10:
                        log.writer.roll()
                if store.traits.durability == "none" or (
                    power and store.traits.durability != "ack"
                ):
                    acknowledged = 0
                await harness.crash(power=power)
            async with opened(harness, epoch=2, key=key) as (_, again):
                found = await read_log(again.writer)
                assert log.bytes().startswith(found), "what is found is no prefix"
                metas = metas_of(found)
                end = metas[-1].last_offset + 1 if metas else 0
                assert end >= acknowledged, f"{acknowledged} were acknowledged, {end} found"
                again.batches = log.batches[: len(metas)]
                again.end = end
                await again.check()
                again.append(4)
                await again.check()

    async def test_an_index_leads_near_every_offset(self, harness: StorageHarness) -> None:
        """S10: for the active segment and for sealed ones."""
        async with opened(harness) as (store, log):
            interval = store.traits.index_bytes
            for i in range(60):
                log.append(1 + i % 3, records=1 + i % 4, value_bytes=900, timestamp=10_000 - 7 * i)
                if i == 40:
                    log.writer.roll()
            for segment in log.writer.snapshot.segments:
                index = await log.writer.index(segment.id)
                await check_index(log, segment, index, interval)
        if Trait.REOPEN in harness.traits:
            async with opened(harness) as (_, again):
                log.writer = again.writer
                for segment in log.writer.snapshot.segments:
                    index = await log.writer.index(segment.id)
                    await check_index(log, segment, index, interval)

    async def test_an_index_belongs_to_the_caller(self, harness: StorageHarness) -> None:
        """S10: who may add to it, as the core does for the active segment."""
        async with opened(harness) as (_, log):
            log.append(30, value_bytes=900)
            (segment,) = log.writer.snapshot.segments
            first = await log.writer.index(segment.id)
            rows = len(first)
            first.add(10**6, 10**6, 5)
            assert len(await log.writer.index(segment.id)) == rows

    async def test_a_full_store_says_so_and_loses_nothing(self, harness: StorageHarness) -> None:
        """S11: `Full` until there is room, then it goes on by itself, and `room` returns."""
        harness.need(Trait.FILL)
        async with opened(harness) as (store, log):
            await log.append(2).wait()
            with harness.full(store):
                with pytest.raises(Full):
                    log.append(value_bytes=65_536)
                await log.check()
                with trio.move_on_after(0.05) as scope:
                    await log.writer.room()
                assert scope.cancelled_caught, "there is no room, but `room` returned"
            with trio.fail_after(harness.patience):
                await log.writer.room()
                await log.append(value_bytes=65_536).wait()
            await log.check()
        if Trait.REOPEN in harness.traits:
            async with opened(harness) as (_, again):
                again.batches, again.end = log.batches, log.end
                await again.check()


async def check_index(log: Log, segment: SegmentInfo, index: SegmentIndex, interval: int) -> None:
    """Assert what the contract says of an index and its rows (S10)."""
    batches = [
        meta
        for meta, _ in log.batches
        if segment.base_offset <= meta.base_offset < segment.end_offset
    ]
    starts: dict[int, tuple[int, int]] = {}
    position, largest = 0, -1
    for meta in batches:
        starts[position] = (meta.base_offset, largest)
        position += meta.size
        largest = max(largest, meta.max_timestamp)
    assert index.positions[0] == 0
    assert index.timestamps[0] == -1
    biggest = max((meta.size for meta in batches), default=0)
    for row in range(1, len(index)):
        at = index.positions[row]
        assert at in starts, f"row {row} is no batch boundary"
        assert (index.offsets[row], index.timestamps[row]) == starts[at]
        with await log.writer.read(segment.id, at, 61, Hint.RANDOM) as data:
            assert parse_header(b"".join(data.views())).base_offset == index.offsets[row]
    for at, (base_offset, _) in starts.items():
        row = index.floor(base_offset)
        assert index.offsets[row] <= base_offset
        assert at - index.positions[row] <= interval + biggest, "rows are too far apart"
