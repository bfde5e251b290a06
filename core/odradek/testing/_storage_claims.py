"""Who may write, for how long, and what closing, dropping and failing leave: S4, S12, S14."""

from __future__ import annotations

import pytest
import trio

from odradek.contracts.storage import (
    Chunk,
    Claim,
    Corrupt,
    Fenced,
    Hint,
    LogEdit,
    Offline,
    OutOfRange,
    PartitionKey,
    PartitionWriter,
    SegmentStore,
    StorageError,
)
from odradek.testing._storage_edits import chunks_of
from odradek.testing._storage_harness import (
    KEY,
    Log,
    StorageHarness,
    Trait,
    make_batch,
    opened,
    read_log,
)

__all__ = ["ClaimPromises"]


async def _every_call(writer: PartitionWriter, expected: type[StorageError]) -> None:
    """Assert that everything which writes is refused, and nothing changes."""
    before = writer.snapshot
    meta, data = make_batch(before.segments[-1].end_offset, epoch=1)
    with pytest.raises(expected):
        writer.append(Chunk([meta], [data]))
    with pytest.raises(expected):
        writer.roll()
    with pytest.raises(expected):
        await writer.commit(LogEdit(blobs={"late": b"x"}))
    with pytest.raises(expected):
        await writer.build(chunks_of([(meta, bytes(data))]))
    with pytest.raises(expected):
        await writer.truncate(before.log_start)
    with pytest.raises(expected):
        await writer.flush()
    assert writer.snapshot.segments == before.segments
    assert writer.snapshot.blobs == before.blobs


class ClaimPromises:
    """What claims, closing, dropping and failures promise."""

    async def test_a_newer_claim_fences_the_older_writer(self, harness: StorageHarness) -> None:
        """S4: on every call that writes."""
        async with opened(harness) as (store, log):
            log.append(3)
            await log.writer.flush()
            old = log.writer
            log.writer = await store.open_writer(KEY, Claim(2, 1))
            log.epoch = 2
            await _every_call(old, Fenced)
            log.append(2)
            await log.check()
            await old.aclose()
            log.append(2)
            await log.check()
            await log.writer.aclose()

    async def test_an_older_claim_is_refused(self, harness: StorageHarness) -> None:
        """S4: beside a live writer, and when the log has a newer epoch."""
        async with opened(harness, epoch=5) as (store, log):
            with pytest.raises(Fenced):
                await store.open_writer(KEY, Claim(4, 1))
            await log.append().wait()
            await log.writer.aclose()
            with pytest.raises(Fenced):
                await store.open_writer(KEY, Claim(4, 1))
            writer = await store.open_writer(KEY, Claim(5, 1))
            await writer.aclose()
        if Trait.REOPEN in harness.traits:
            async with harness.open() as store:
                with pytest.raises(Fenced):
                    await store.open_writer(KEY, Claim(4, 1))
                log.writer = await store.open_writer(KEY, Claim(5, 1))
                await log.check()

    async def test_an_equal_claim_takes_over(self, harness: StorageHarness) -> None:
        """S4: only one writer is alive at a time."""
        async with opened(harness) as (store, log):
            log.append()
            old = log.writer
            log.writer = await store.open_writer(KEY, Claim(1, 1))
            await _every_call(old, Fenced)
            log.append()
            await log.check()
            await log.writer.aclose()

    async def test_nothing_of_a_fenced_writer_appears_later(self, harness: StorageHarness) -> None:
        """S4: what it had in flight is there when the new writer opens, or never."""
        async with opened(harness) as (store, log):
            tickets = [log.append(2) for _ in range(5)]
            writer = await store.open_writer(KEY, Claim(2, 1))
            found = await read_log(writer)
            assert log.bytes().startswith(found)
            for ticket in tickets:
                with trio.fail_after(harness.patience):
                    try:
                        await ticket.wait()
                    except Fenced:
                        continue
                assert writer.snapshot.segments[-1].end_offset >= ticket.end_offset
            await writer.flush()
            assert await read_log(writer) == found
            await writer.aclose()
        if Trait.REOPEN in harness.traits:
            async with opened(harness, epoch=2) as (_, again):
                assert await read_log(again.writer) == found

    async def test_partitions_do_not_fence_one_another(self, harness: StorageHarness) -> None:
        """S4: a claim is for one partition."""
        async with opened(harness) as (store, log):
            other = Log(await store.open_writer(PartitionKey(KEY.topic_id, 4), Claim(9, 1)))
            log.append()
            other.append(2)
            await log.check()
            await other.check()
            assert set(await store.partitions()) == {KEY, PartitionKey(KEY.topic_id, 4)}

    async def test_a_closed_writer_is_offline(self, harness: StorageHarness) -> None:
        """S4: closing twice is harmless, and what it wrote stays."""
        async with opened(harness) as (store, log):
            log.append(3)
            old = log.writer
            await old.aclose()
            await old.aclose()
            meta, data = make_batch(log.end)
            with pytest.raises(Offline):
                old.append(Chunk([meta], [data]))
            log.writer = await store.open_writer(KEY, Claim(1, 1))
            await log.check()
            await log.writer.aclose()

    async def test_a_reader_follows_the_writer(self, harness: StorageHarness) -> None:
        """S1: one that was opened before, and one that was opened after."""
        async with opened(harness) as (store, log):
            log.append()
            first = await store.open_reader(KEY)
            log.append(2)
            await log.check(first)
            await log.writer.aclose()
            log.writer = await store.open_writer(KEY, Claim(2, 1))
            log.epoch = 2
            log.append(2)
            log.writer.roll()
            await log.check(first)
            second = await store.open_reader(KEY)
            await log.check(second)
            segment = log.writer.snapshot.segments[0]
            kept = await first.read(segment.id, 0, 100, Hint.SCAN)
            await first.aclose()
            await first.aclose()
            assert b"".join(kept.views()) == log.bytes()[:100]
            kept.close()
            kept.close()
            log.append()
            await log.check(second)
            await second.aclose()
            await log.writer.aclose()

    async def test_a_log_that_never_was_cannot_be_read(self, harness: StorageHarness) -> None:
        """S12: `open_reader` creates nothing."""
        async with harness.open() as store:
            with pytest.raises(OutOfRange):
                await store.open_reader(KEY)
            assert list(await store.partitions()) == []

    async def test_drop_removes_a_log_for_good(self, harness: StorageHarness) -> None:
        """S12: fences its writer, is idempotent, and the key starts again at 0."""
        async with opened(harness) as (store, log):
            other = Log(await store.open_writer(PartitionKey(KEY.topic_id, 4), Claim(1, 1)))
            other.append(2)
            log.append(3)
            await log.writer.commit(LogEdit(blobs={"state": b"of the old log"}))
            reader = await store.open_reader(KEY)
            segment = reader.snapshot.segments[0].id
            await store.drop(KEY)
            assert list(await store.partitions()) == [PartitionKey(KEY.topic_id, 4)]
            with pytest.raises(Fenced):
                log.append()
            with pytest.raises(OutOfRange):
                await reader.read(segment, 0, 10, Hint.SCAN)
            with pytest.raises(OutOfRange):
                await store.open_reader(KEY)
            await store.drop(KEY)
            again = Log(await store.open_writer(KEY, Claim(1, 1)))
            await again.check()
            assert again.writer.snapshot.epochs == ()
            assert dict(again.writer.snapshot.blobs) == {}
            again.append()
            await again.check()
            await other.check()
            await log.writer.aclose()
            await store.drop(KEY)
        if Trait.REOPEN in harness.traits:
            async with harness.open() as store:
                assert list(await store.partitions()) == [PartitionKey(KEY.topic_id, 4)]

    async def test_a_dropped_log_stays_dropped(self, harness: StorageHarness) -> None:
        """S12: after a crash too."""
        harness.need(Trait.CRASH)
        async with opened(harness) as (store, log):
            await log.append(3).wait()
            await store.drop(KEY)
            await harness.crash(power=Trait.POWER in harness.traits)
        async with harness.open() as store:
            assert list(await store.partitions()) == []

    async def test_a_failure_is_final(self, harness: StorageHarness) -> None:
        """S14: nothing more is acknowledged, however often it is asked for; reads go on."""
        harness.need(Trait.FAIL)
        async with opened(harness) as (store, log):
            await log.append(2).wait()
            safe = log.bytes()

            async def acknowledged() -> None:
                await log.append().wait()
                await log.writer.flush()

            with harness.failing(store), trio.fail_after(harness.patience), pytest.raises(Offline):
                await acknowledged()
            after = make_batch(log.writer.snapshot.segments[-1].end_offset)
            with pytest.raises(Offline):
                log.writer.append(Chunk([after[0]], [after[1]]))
            with pytest.raises(Offline):
                await log.writer.flush()
            with pytest.raises(Offline):
                await log.writer.room()
            assert (await read_log(log.writer)).startswith(safe)
            with pytest.raises(Offline):
                await store.open_writer(KEY, Claim(2, 1))
        if Trait.REOPEN in harness.traits:
            async with opened(harness, epoch=2) as (_, again):
                assert (await read_log(again.writer)).startswith(safe)

    async def test_damage_in_the_middle_is_reported_and_left(self, harness: StorageHarness) -> None:
        """S6: and again the next time: nothing is repaired in silence."""
        harness.need(Trait.CRASH, Trait.DAMAGE)
        async with opened(harness) as (_, log):
            for _ in range(10):
                await log.append(value_bytes=200).wait()
            await harness.crash()
        third = sum(meta.size for meta, _ in log.batches[:2])
        await harness.damage(KEY, third + 100)
        stored = await harness.stored(KEY)

        async def use(store: SegmentStore) -> None:
            writer = await store.open_writer(KEY, Claim(2, 1))
            for segment in writer.snapshot.segments:
                await writer.index(segment.id)
                (await writer.read(segment.id, 0, 1 << 30, Hint.SCAN)).close()

        for _ in range(2):
            async with harness.open() as store:
                with pytest.raises(Corrupt) as caught:
                    await use(store)
                assert str(caught.value), "the message says where, and what to do"
            assert await harness.stored(KEY) == stored, "bytes in the middle were changed"
