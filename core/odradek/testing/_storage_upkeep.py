"""What retention, compaction and scrubbing rest on: S1, S8, S9."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import trio

from odradek.contracts.storage import Chunk, DataRef, Hint, LogEdit, OutOfRange, SegmentInfo
from odradek.testing._storage_edits import chunks_of, compacted, same_bytes, three_segments
from odradek.testing._storage_harness import (
    Log,
    StorageHarness,
    Trait,
    metas_of,
    opened,
    read_log,
)

__all__ = ["UpkeepPromises"]

LARGE = 20 * 1024 * 1024
"""More than any store writes at once."""


async def bytes_of(log: Log, segment: SegmentInfo, hint: Hint) -> bytes:
    """Read a whole segment."""
    with await log.writer.read(segment.id, 0, max(segment.size, 1), hint) as data:
        return b"".join(data.views())


class UpkeepPromises:
    """What a broker's upkeep relies on."""

    async def test_every_hint_reads_the_same(self, harness: StorageHarness) -> None:
        """S1: a hint never changes what is read, of sealed segments and of the active one."""
        async with opened(harness) as (_, log):
            segments = await three_segments(log)
            expected = {s.id: await bytes_of(log, s, Hint.SCAN) for s in segments}
            assert b"".join(expected.values()) == log.bytes()
            for hint in [*Hint, *Hint]:
                for segment in segments:
                    assert await bytes_of(log, segment, hint) == expected[segment.id]
                    with await log.writer.read(segment.id, 7, 100, hint) as data:
                        same_bytes(data, expected[segment.id][7:107])
                    with await log.writer.read(segment.id, segment.size, 5, hint) as data:
                        assert (len(data), b"".join(data.views())) == (0, b"")

    async def test_references_are_read_in_any_thread(self, harness: StorageHarness) -> None:
        """S9: `views` may be called in a worker, several at a time, while an edit goes on."""

        def read(ref: DataRef) -> bytes:
            return b"".join(ref.views())

        async with opened(harness) as (_, log):
            first, second, _ = await three_segments(log)
            whole = log.bytes()[: first.size + second.size]
            refs = []
            for hint in Hint:
                refs += [
                    (await log.writer.read(first.id, 0, first.size, hint), whole[: first.size]),
                    (await log.writer.read(second.id, 0, second.size, hint), whole[first.size :]),
                ]
            edit = await compacted(log, [first, second])
            found: list[tuple[bytes, bytes]] = []

            async def check(ref: DataRef, expected: bytes) -> None:
                found.append((await trio.to_thread.run_sync(read, ref), expected))

            async with trio.open_nursery() as nursery:
                for ref, expected in refs:
                    nursery.start_soon(check, ref, expected)
                nursery.start_soon(log.writer.commit, edit)
            assert len(found) == len(refs)
            assert all(data == expected for data, expected in found)
            for ref, _ in refs:
                ref.close()

    async def test_reading_goes_on_during_an_edit(self, harness: StorageHarness) -> None:
        """S8: a segment has its own bytes until it is gone, and a new one from the first moment."""
        async with opened(harness) as (_, log):
            first, second, _ = await three_segments(log)
            expected = {
                s.id: await bytes_of(log, s, Hint.SCAN) for s in log.writer.snapshot.segments
            }
            reads = 0
            done = False

            async def read() -> None:
                nonlocal reads
                while True:
                    finished = done
                    for segment in log.writer.snapshot.segments:
                        for hint in (Hint.SCAN, Hint.ONCE):
                            try:
                                data = await bytes_of(log, segment, hint)
                                index = await log.writer.index(segment.id)
                            except OutOfRange:
                                assert segment.id not in {
                                    s.id for s in log.writer.snapshot.segments
                                }
                                break
                            assert data == expected[segment.id]
                            starts = {0}
                            for meta in metas_of(data):
                                starts.add(max(starts) + meta.size)
                            assert set(index.positions) <= starts
                            reads += 1
                    if finished:
                        return
                    await trio.lowlevel.checkpoint()

            async with trio.open_nursery() as nursery:
                nursery.start_soon(read)
                gone = [first, second]
                for _ in range(3):  # each takes the base offset of the one before
                    low, high = gone[0].base_offset, gone[-1].end_offset
                    inside = [b for b in log.batches if low <= b[0].base_offset < high]
                    kept = [inside[0], *inside[1::2]]
                    info = await log.writer.build(chunks_of(kept))
                    log.batches = [b for b in log.batches if b not in inside or b in kept]
                    expected[info.id] = b"".join(data for _, data in kept)
                    edit = LogEdit(tuple(s.id for s in gone), (info,), linger_ms=3_600_000)
                    await log.writer.commit(edit)
                    gone = [info]
                done = True
            assert reads > 0
            await log.check()

    async def test_what_lingers_is_out_of_the_log(self, harness: StorageHarness) -> None:
        """S8: `linger_ms` changes nothing that a reader or the next opening sees."""
        async with opened(harness) as (_, log):
            first, second, _ = await three_segments(log)
            edit = await compacted(log, [first])
            await log.writer.commit(LogEdit(edit.remove, edit.add, linger_ms=3_600_000))
            await log.check()
            built = edit.add[0]
            snapshot = await log.writer.commit(
                LogEdit((built.id,), log_start=second.base_offset, linger_ms=3_600_000)
            )
            log.batches = [b for b in log.batches if b[0].base_offset >= second.base_offset]
            assert first.id not in {s.id for s in snapshot.segments}
            for gone in (first, built):
                with pytest.raises(OutOfRange):
                    await log.writer.read(gone.id, 0, 10, Hint.SCAN)
            await log.check()
        if Trait.REOPEN in harness.traits:
            async with opened(harness) as (_, again):
                again.batches, again.end = log.batches, log.end
                await again.check()
                assert again.writer.snapshot.log_start == second.base_offset

    async def test_a_large_segment_is_built(self, harness: StorageHarness) -> None:
        """S8: of more bytes and batches than a store writes at once."""
        async with opened(harness) as (_, log):
            for _ in range(4):
                log.append(value_bytes=LARGE // 4)
            log.append(700, value_bytes=5)
            log.writer.roll()
            await log.writer.flush()
            (old, _) = log.writer.snapshot.segments

            async def chunks() -> AsyncIterator[Chunk]:
                for meta, data in log.batches[:4]:
                    yield Chunk([meta], [data])
                rest = log.batches[4:]
                yield Chunk([meta for meta, _ in rest], [data for _, data in rest])

            info = await log.writer.build(chunks())
            assert (info.size, info.base_offset, info.end_offset) == (old.size, 0, 704)
            await log.writer.commit(LogEdit((old.id,), (info,)))
            assert await read_log(log.writer) == log.bytes()
            await log.check()
