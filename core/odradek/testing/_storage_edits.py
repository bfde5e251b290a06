"""Changing what a log is made of: S7, S8, S9, S13, S15."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence

import pytest
import trio

from odradek.contracts.storage import (
    BatchMeta,
    Chunk,
    Claim,
    DataRef,
    Hint,
    LogEdit,
    OutOfRange,
    SegmentInfo,
    Unsafe,
)
from odradek.testing._storage_appends import check_index
from odradek.testing._storage_harness import (
    KEY,
    Log,
    StorageHarness,
    Trait,
    opened,
    read_log,
    refused,
)

__all__ = ["EditPromises", "chunks_of"]


async def chunks_of(batches: Sequence[tuple[BatchMeta, bytes]]) -> AsyncIterator[Chunk]:
    """Yield batches as the core's compaction would, one or two to a chunk."""
    for i in range(0, len(batches), 2):
        part = batches[i : i + 2]
        yield Chunk([meta for meta, _ in part], [data for _, data in part])


def same_bytes(ref: DataRef, expected: bytes) -> None:
    """Assert what a reference holds, by both ways of reading it."""
    assert b"".join(ref.views()) == expected
    found = ref.file_range()
    if found is not None:
        fd, offset, count = found
        assert os.pread(fd, count, offset) == expected


async def three_segments(log: Log) -> tuple[SegmentInfo, ...]:
    """Append to three segments, ten batches each; the last is active."""
    for i in range(30):
        log.append(records=2, value_bytes=300)
        if i in (9, 19):
            log.writer.roll()
    await log.writer.flush()
    return log.writer.snapshot.segments


async def compacted(log: Log, removed: Sequence[SegmentInfo]) -> LogEdit:
    """Build every second batch of some segments anew; `log` is as it will be after the edit."""
    low, high = removed[0].base_offset, removed[-1].end_offset
    inside = [b for b in log.batches if low <= b[0].base_offset < high]
    kept = inside[::2]
    info = await log.writer.build(chunks_of(kept))
    assert (info.base_offset, info.end_offset) == (
        kept[0][0].base_offset,
        kept[-1][0].last_offset + 1,
    )
    assert info.sealed
    log.batches = [b for b in log.batches if b not in inside or b in kept]
    return LogEdit(remove=tuple(s.id for s in removed), add=(info,))


class EditPromises:
    """What rolling, building, committing and truncating promise."""

    async def test_segment_is_as_old_as_the_youngest_it_replaces(
        self, harness: StorageHarness
    ) -> None:
        """S8: retention goes by it where records have no timestamps."""
        async with opened(harness) as (_, log):
            segments = await three_segments(log)
            created_ms = max(segment.created_ms for segment in segments[:2])
            await trio.sleep(0.005)  # the wall clock goes on: what is built now is younger
            await log.writer.commit(await compacted(log, segments[:2]))
            assert log.writer.snapshot.segments[0].created_ms == created_ms

    async def test_rolling_changes_no_byte(self, harness: StorageHarness) -> None:
        """S7: no offset, no position; ids are unique, segments follow one another."""
        async with opened(harness) as (_, log):
            log.append(5)
            before = log.writer.snapshot.segments[-1]
            sealed = log.writer.roll()
            assert sealed.sealed
            assert (sealed.id, sealed.base_offset, sealed.end_offset, sealed.size) == (
                before.id,
                0,
                5,
                before.size,
            )
            first, active = log.writer.snapshot.segments
            assert first == sealed
            assert (active.base_offset, active.end_offset, active.size) == (5, 5, 0)
            assert active.id != sealed.id
            await log.check()
            assert log.writer.roll() == active, "an empty segment is left as it is"
            assert len(log.writer.snapshot.segments) == 2
            log.append(2)
            await log.check()
            with await log.writer.read(sealed.id, 3, 50, Hint.SCAN) as data:
                assert b"".join(data.views()) == log.bytes()[3:53]

    async def test_rolls_survive_a_crash(self, harness: StorageHarness) -> None:
        """S7: a ticket after a roll covers the roll."""
        harness.need(Trait.CRASH)
        async with opened(harness) as (store, log):
            if store.traits.durability == "none":
                pytest.skip("durability none survives a clean close only")
            log.append(2)
            log.writer.roll()
            await log.append(2).wait()
            before = log.writer.snapshot.segments
            power = store.traits.durability == "ack" and Trait.POWER in harness.traits
            await harness.crash(power=power)
        async with opened(harness, epoch=2) as (_, again):
            again.batches, again.end = log.batches, log.end
            await again.check()
            found = again.writer.snapshot.segments
            assert [(s.id, s.base_offset) for s in found] == [(s.id, s.base_offset) for s in before]

    async def test_an_edit_replaces_segments(self, harness: StorageHarness) -> None:
        """S8: built segments take the place of removed ones, and ids are not used again."""
        async with opened(harness) as (store, log):
            first, second, _ = await three_segments(log)
            edit = await compacted(log, [first, second])
            assert edit.add[0].id not in {s.id for s in log.writer.snapshot.segments}
            snapshot = await log.writer.commit(edit)
            assert [s.id for s in snapshot.segments[:-1]] == [edit.add[0].id]
            await log.check()
            for gone in (first, second):
                with pytest.raises(OutOfRange):
                    await log.writer.read(gone.id, 0, 10, Hint.SCAN)
            index = await log.writer.index(edit.add[0].id)
            await check_index(log, edit.add[0], index, store.traits.index_bytes)
            log.append(3)
            log.writer.roll()
            log.append()
            await log.check()
            ids = [s.id for s in log.writer.snapshot.segments]
            assert len({*ids, first.id, second.id}) == len(ids) + 2
        if Trait.REOPEN in harness.traits:
            async with opened(harness) as (_, again):
                again.batches, again.end = log.batches, log.end
                await again.check()
                assert [s.id for s in again.writer.snapshot.segments] == ids

    async def test_edits_survive_a_crash(self, harness: StorageHarness) -> None:
        """S8: once `commit` returned; and what was built without one leaves no trace."""
        harness.need(Trait.CRASH)
        async with opened(harness) as (_, log):
            first, _, _ = await three_segments(log)
            snapshot = await log.writer.commit(await compacted(log, [first]))
            await log.writer.build(chunks_of(log.batches[10:20]))
            await harness.crash(power=Trait.POWER in harness.traits)
        async with opened(harness, epoch=2) as (_, again):
            again.batches, again.end = log.batches, log.end
            await again.check()
            assert again.writer.snapshot.segments[:2] == snapshot.segments[:2]

    async def test_what_is_built_is_invisible(self, harness: StorageHarness) -> None:
        """S8: until it is committed; one that fails or is cancelled leaves nothing."""

        async def failing() -> AsyncIterator[Chunk]:
            async for chunk in chunks_of(log.batches[:4]):
                yield chunk
            raise RuntimeError("the source failed")

        async def endless() -> AsyncIterator[Chunk]:
            async for chunk in chunks_of(log.batches[:4]):
                yield chunk
            await trio.sleep_forever()

        async with opened(harness) as (_, log):
            before = await three_segments(log)
            await log.writer.build(chunks_of(log.batches[:4]))
            with pytest.raises(RuntimeError):
                await log.writer.build(failing())
            with trio.move_on_after(0.05):
                await log.writer.build(endless())
            with refused():
                await log.writer.build(chunks_of([]))
            assert log.writer.snapshot.segments == before
            await log.check()
        if Trait.REOPEN in harness.traits:
            async with opened(harness) as (_, again):
                assert again.writer.snapshot.segments == before

    async def test_retention_removes_the_oldest(self, harness: StorageHarness) -> None:
        """S8: segments and log start in one step; the log start never goes back."""
        async with opened(harness) as (_, log):
            first, second, _ = await three_segments(log)
            snapshot = await log.writer.commit(
                LogEdit(remove=(first.id,), log_start=second.base_offset + 1)
            )
            assert snapshot.log_start == second.base_offset + 1
            log.batches = log.batches[10:]
            await log.check()
            snapshot = await log.writer.commit(LogEdit(log_start=log.end))
            assert snapshot.log_start == log.end
            await log.check()
        if Trait.REOPEN in harness.traits:
            async with opened(harness) as (_, again):
                again.batches, again.end = log.batches, log.end
                await again.check()
                assert again.writer.snapshot.log_start == log.end

    async def test_an_edit_that_cannot_be_changes_nothing(self, harness: StorageHarness) -> None:
        """S8: unknown or active segments, foreign ones, log starts out of range, blobs too big."""
        async with opened(harness) as (_, log):
            first, second, active = await three_segments(log)
            await log.writer.commit(LogEdit(log_start=3))
            built = await log.writer.build(chunks_of(log.batches[:4]))
            before = log.writer.snapshot
            for edit in (
                LogEdit(remove=(987_654,), blobs={"a": b"x"}),
                LogEdit(remove=(active.id,), blobs={"a": b"x"}),
                LogEdit(remove=(first.id,), add=(second,), blobs={"a": b"x"}),
                LogEdit(add=(built,), blobs={"a": b"x"}),
                LogEdit(remove=(second.id,), add=(built,), blobs={"a": b"x"}),
                LogEdit(log_start=2, blobs={"a": b"x"}),
                LogEdit(log_start=log.end + 1, blobs={"a": b"x"}),
            ):
                with pytest.raises(OutOfRange):
                    await log.writer.commit(edit)
            with refused():
                await log.writer.commit(LogEdit(blobs={"big": bytes(16 * 1024 * 1024 + 1)}))
            after = log.writer.snapshot
            assert (after.segments, after.log_start, after.blobs) == (
                before.segments,
                before.log_start,
                before.blobs,
            )
            await log.check()
            await log.writer.commit(LogEdit(remove=(first.id,), add=(built,)))

    async def test_a_cancelled_edit_is_whole_or_nothing(self, harness: StorageHarness) -> None:
        """S8: segments, log start and blobs together, now and after reopening."""
        async with opened(harness) as (_, log):
            first, _, _ = await three_segments(log)
            edit = LogEdit(remove=(first.id,), log_start=first.end_offset, blobs={"a": b"1"})
            with trio.CancelScope() as scope:
                scope.cancel()
                await log.writer.commit(edit)
            snapshot = log.writer.snapshot
            done = first.id not in {s.id for s in snapshot.segments}
            assert snapshot.log_start == (first.end_offset if done else 0)
            assert dict(snapshot.blobs) == ({"a": b"1"} if done else {})
            log.batches = log.batches[10:] if done else log.batches
            await log.check()
            log.append()
        if Trait.REOPEN in harness.traits:
            async with opened(harness) as (_, again):
                again.batches, again.end = log.batches, log.end
                await again.check()
                assert again.writer.snapshot.log_start == snapshot.log_start

    async def test_appending_goes_on_during_an_edit(self, harness: StorageHarness) -> None:
        """S8: appends and rolls that come while an edit is being committed are kept."""
        async with opened(harness) as (_, log):
            first, second, _ = await three_segments(log)
            edit = await compacted(log, [first, second])
            done = trio.Event()

            async def commit() -> None:
                await log.writer.commit(edit)
                done.set()

            async with trio.open_nursery() as nursery:
                nursery.start_soon(commit)
                for i in range(40):
                    log.append()
                    if i % 10 == 9:
                        log.writer.roll()
                    if not done.is_set():
                        await trio.lowlevel.checkpoint()
            await log.check()
        if Trait.REOPEN in harness.traits:
            async with opened(harness) as (_, again):
                again.batches, again.end = log.batches, log.end
                await again.check()

    async def test_references_outlive_every_edit(self, harness: StorageHarness) -> None:
        """S9: commit, truncate, drop, and the end of writer and reader."""
        async with opened(harness) as (store, log):
            first, second, active = await three_segments(log)
            whole = log.bytes()
            expected = {
                first.id: whole[: first.size],
                second.id: whole[first.size : first.size + second.size],
                active.id: whole[first.size + second.size :],
            }

            async def refer() -> list[tuple[DataRef, bytes]]:
                return [
                    (await log.writer.read(s.id, 5, 1 << 30, Hint.SCAN), expected[s.id][5:])
                    for s in log.writer.snapshot.segments
                    if s.id in expected
                ]

            refs = await refer()
            await log.writer.commit(await compacted(log, [first]))
            refs += await refer()
            if store.traits.truncatable:
                await log.writer.truncate(active.base_offset + 3)
                log.keep_below(active.base_offset + 3)
                log.append(5, value_bytes=200)
                await log.check()
                await log.writer.truncate(second.base_offset + 3)
                log.keep_below(second.base_offset + 3)
                log.append(5, value_bytes=200)
                await log.writer.flush()
                await log.check()
            for ref, data in refs:
                same_bytes(ref, data)
            await store.drop(KEY)
            again = await store.open_writer(KEY, Claim(1, 1))
            for ref, data in refs:
                same_bytes(ref, data)
            await again.aclose()
            for ref, data in refs:
                same_bytes(ref, data)
                ref.close()
                ref.close()

    async def test_truncation_leaves_a_prefix(self, harness: StorageHarness) -> None:
        """S13: wherever the cut is, and appending goes on from there."""
        async with opened(harness) as (store, log):
            if not store.traits.truncatable:
                log.append(2)
                with pytest.raises(Unsafe):
                    await log.writer.truncate(1)
                pytest.skip("the store does not truncate")
            await three_segments(log)
            for target in (10**6, 60, 58, 57, 40, 39, 35, 20, 20, 13, 1):
                before = log.writer.snapshot
                await log.writer.truncate(target)
                if target >= log.end:
                    assert log.writer.snapshot.segments == before.segments
                log.keep_below(min(target, log.end))
                await log.check()
                for segment in log.writer.snapshot.segments:
                    index = await log.writer.index(segment.id)
                    await check_index(log, segment, index, store.traits.index_bytes)
                log.append(records=2, value_bytes=300)
                log.append(records=2, value_bytes=300)
                await log.check()
            await log.writer.truncate(0)
            log.keep_below(0)
            await log.check()
            log.append(3)
            await log.check()
        if Trait.REOPEN in harness.traits:
            async with opened(harness) as (_, again):
                again.batches, again.end = log.batches, log.end
                await again.check()
                assert again.writer.recovery.clean

    async def test_truncation_survives_a_crash(self, harness: StorageHarness) -> None:
        """S13: at once, and nothing that was cut comes back."""
        harness.need(Trait.CRASH)
        for number, target in enumerate((55, 40, 31, 12, 0)):
            async with opened(harness, epoch=1 + number) as (store, log):
                if not store.traits.truncatable:
                    pytest.skip("the store does not truncate")
                if number:
                    await store.drop(KEY)
                    log.writer = await store.open_writer(KEY, Claim(1 + number, 1))
                    log.end = 0
                await three_segments(log)
                await log.writer.truncate(target)
                log.keep_below(target)
                await harness.crash(power=Trait.POWER in harness.traits)
            async with opened(harness, epoch=1 + number) as (_, again):
                again.batches, again.end = log.batches, log.end
                assert await read_log(again.writer) == log.bytes(), f"after truncation to {target}"
                await again.check()

    async def test_truncation_forgets_epochs(self, harness: StorageHarness) -> None:
        """S13: those that started at or above the new end; and not below the log start."""
        async with opened(harness) as (store, log):
            if not store.traits.truncatable:
                pytest.skip("the store does not truncate")
            for epoch in (1, 4, 6):
                log.writer = await store.open_writer(KEY, Claim(epoch, 1))
                log.epoch = epoch
                log.append(3)
            assert list(log.writer.snapshot.epochs) == [(1, 0), (4, 3), (6, 6)]
            await log.writer.truncate(6)
            assert list(log.writer.snapshot.epochs) == [(1, 0), (4, 3)]
            await log.writer.truncate(4)
            assert list(log.writer.snapshot.epochs) == [(1, 0), (4, 3)]
            log.keep_below(4)
            await log.writer.commit(LogEdit(log_start=2))
            with pytest.raises(OutOfRange):
                await log.writer.truncate(1)
            log.epoch = 6
            log.append()
            assert list(log.writer.snapshot.epochs) == [(1, 0), (4, 3), (6, 4)]
            await log.check()
            await log.writer.aclose()

    async def test_a_log_can_start_anew(self, harness: StorageHarness) -> None:
        """S13: `restart_at` leaves an empty log at any offset, however far."""
        async with opened(harness) as (store, log):
            if not store.traits.truncatable:
                pytest.skip("the store does not truncate")
            before = await three_segments(log)
            await log.writer.commit(LogEdit(blobs={"kept": b"1", "gone": b"2"}))
            start = 5_000_000_000
            snapshot = await log.writer.commit(LogEdit(restart_at=start, blobs={"gone": None}))
            assert [(s.base_offset, s.end_offset, s.size) for s in snapshot.segments] == [
                (start, start, 0)
            ]
            assert snapshot.segments[0].id not in {s.id for s in before}
            assert (snapshot.log_start, snapshot.epochs) == (start, ())
            assert dict(snapshot.blobs) == {"kept": b"1"}
            log.batches, log.end = [], start
            log.append(4)
            await log.check()
            with pytest.raises(OutOfRange):
                await log.writer.commit(LogEdit(restart_at=7, log_start=start))
        if Trait.REOPEN in harness.traits:
            async with opened(harness) as (_, again):
                again.batches, again.end = log.batches, log.end
                await again.check()
                assert again.writer.snapshot.log_start == start
                await again.writer.commit(LogEdit(restart_at=3))
                again.batches, again.end = [], 3
                again.append()
                await again.check()

    async def test_blobs_come_back(self, harness: StorageHarness) -> None:
        """S15: unchanged, after every reopening; set, replaced and deleted one by one."""
        harness.need(Trait.REOPEN)
        expected = {"a": b"", "producers": bytes(range(256)) * 4_000, "Ünï/../code": b"1"}
        async with opened(harness) as (_, log):
            log.append(2)
            snapshot = await log.writer.commit(LogEdit(blobs=expected))
            assert dict(snapshot.blobs) == expected
            assert dict(log.writer.snapshot.blobs) == expected
        for round_ in range(3):
            async with opened(harness) as (_, log):
                assert dict(log.writer.snapshot.blobs) == expected
                await log.writer.commit(LogEdit(blobs={"a": bytes([round_]), "none": None}))
                expected["a"] = bytes([round_])
                if round_ == 1:
                    await log.writer.commit(LogEdit(blobs={"Ünï/../code": None}))
                    del expected["Ünï/../code"]
                assert dict(log.writer.snapshot.blobs) == expected
        if Trait.CRASH in harness.traits:
            async with opened(harness) as (_, log):
                await log.writer.commit(LogEdit(blobs={"last": b"written"}))
                await harness.crash(power=Trait.POWER in harness.traits)
            async with opened(harness) as (_, log):
                assert dict(log.writer.snapshot.blobs) == {**expected, "last": b"written"}

    async def test_a_damaged_blob_is_lost_alone(self, harness: StorageHarness) -> None:
        """S15: opening goes on without it and says so; it can be set again."""
        harness.need(Trait.REOPEN, Trait.BLOBS)
        async with opened(harness) as (_, log):
            log.append(3)
            await log.writer.commit(LogEdit(blobs={"lost": b"1" * 100, "kept": b"2" * 100}))
        await harness.damage_blob(KEY, "lost")
        async with opened(harness) as (_, again):
            again.batches, again.end = log.batches, log.end
            assert dict(again.writer.snapshot.blobs) == {"kept": b"2" * 100}
            assert "lost" in again.writer.recovery.detail
            assert again.writer.recovery.cut_bytes == 0
            await again.check()
        async with opened(harness) as (_, again):
            assert dict(again.writer.snapshot.blobs) == {"kept": b"2" * 100}
            assert again.writer.recovery.detail == "", "it is told once"
            await again.writer.commit(LogEdit(blobs={"lost": b"3"}))
        async with opened(harness) as (_, again):
            assert dict(again.writer.snapshot.blobs) == {"kept": b"2" * 100, "lost": b"3"}

    async def test_an_edit_makes_earlier_appends_durable(self, harness: StorageHarness) -> None:
        """S8: a log start never lies beyond what a crash leaves."""
        harness.need(Trait.CRASH)
        async with opened(harness) as (_, log):
            log.append(9)
            await log.writer.commit(LogEdit(log_start=log.end))
            await harness.crash(power=Trait.POWER in harness.traits)
        async with opened(harness, epoch=2) as (_, again):
            snapshot = again.writer.snapshot
            assert snapshot.log_start == 9 <= snapshot.segments[-1].end_offset
            assert log.bytes().endswith(await read_log(again.writer))
