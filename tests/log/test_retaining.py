"""Retention of one log, over every store: what is due goes, what is being read stays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio
from tests.log.logs import NOW, OpenLog, OpenStore, add, batch, committed, everything, opened, read

from odradek.config import TopicSettings
from odradek.contracts.storage import Full, LogEdit, LogSnapshot, Offline
from odradek.errors import ErrorCode, KafkaError
from odradek.log.partition import PartitionLog
from odradek.log.retaining import retain

HOUR = 3600 * 1000


async def fill(log: PartitionLog, count: int, step: int = HOUR) -> None:
    """Append single records of a segment each, `step` ms apart, the last one at NOW."""
    for number in range(count):
        timestamp = NOW - (count - 1 - number) * step
        add(log, batch(1, 100, timestamp), now=timestamp)
    await committed(log)


def offsets(log: PartitionLog) -> list[int]:
    return [segment.base_offset for segment in log.segments]


async def test_old_segments_go_and_the_log_start_is_found_again(with_log: OpenLog) -> None:
    settings = {"segment_bytes": "100", "retention_ms": str(2 * HOUR)}
    async with with_log(**settings) as log:
        await fill(log, 6)
        done = await retain(log, NOW)
        assert done is not None
        assert done.reason == "3 by retention.ms"
        assert log.log_start_offset == 3
        assert offsets(log) == [3, 4, 5]
        assert await retain(log, NOW) is None
    async with with_log(epoch=1, **settings) as log:
        assert log.log_start_offset == 3
        assert offsets(log) == [3, 4, 5]
        assert [record.offset for record in await everything(log)] == [3, 4, 5]


async def test_large_logs_shrink_to_their_limit(with_log: OpenLog) -> None:
    async with with_log(segment_bytes="100", retention_ms="-1", retention_bytes="400") as log:
        await fill(log, 10)
        size = log.segments[0].size
        await retain(log, NOW)
        assert 400 <= log.size < 400 + size
        assert log.log_start_offset == log.log_end_offset - len(log.segments)


async def test_log_whose_every_record_is_due_is_left_empty(with_log: OpenLog) -> None:
    settings = {"segment_bytes": "1000", "retention_ms": str(HOUR)}
    async with with_log(**settings) as log:
        await fill(log, 5)
        await retain(log, NOW + HOUR)
        assert log.log_start_offset == 0, "a record as old as the limit stays"
        await retain(log, NOW + HOUR + 1)
        assert log.log_start_offset == log.log_end_offset == 5
        assert (len(log.segments), log.size) == (1, 0)
        assert add(log, batch()).base_offset == 5
        await committed(log)
        assert [record.offset for record in await everything(log)] == [5]
    async with with_log(epoch=1, **settings) as log:
        assert (log.log_start_offset, log.log_end_offset) == (5, 6)


async def test_data_held_by_a_reader_stay_readable(with_log: OpenLog) -> None:
    async with with_log(
        segment_bytes="100", retention_ms=str(HOUR), file_delete_delay_ms="0"
    ) as log:
        await fill(log, 4)
        expected = await read(log, 0)
        held = (await log.read(0, 2**20)).data
        assert held is not None
        await retain(log, NOW + 2 * HOUR)
        assert log.log_start_offset == 4
        with held:
            assert b"".join(held.views()) == expected
        with pytest.raises(KafkaError) as caught:
            await log.read(0, 2**20)
        assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE


async def test_record_that_is_not_committed_stays(
    with_log: OpenLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with with_log(segment_bytes="100", retention_ms=str(HOUR)) as log:
        await fill(log, 3)
        with monkeypatch.context() as patched:
            patched.setattr(log, "_spawn", lambda *task: None)  # nobody waits for the disk
            add(log, batch(1, 100, NOW))
            add(log, batch(1, 100, NOW))
        assert (log.high_watermark, log.log_end_offset) == (3, 5)
        await retain(log, NOW + 2 * HOUR)
        assert log.log_start_offset == 3
        assert offsets(log) == [3, 4]


async def test_compacted_log_only_loses_what_was_deleted(with_log: OpenLog) -> None:
    async with with_log(
        segment_bytes="100", retention_ms="0", retention_bytes="0", cleanup_policy="compact"
    ) as log:
        await fill(log, 4)
        assert await retain(log, NOW + HOUR) is None

        def only_move(snapshot: LogSnapshot) -> LogEdit:
            return LogEdit(log_start=2)

        await log.edit(only_move)  # a store may be told of the start before segments go
        assert offsets(log) == [0, 1, 2, 3]
        await retain(log, NOW + HOUR)
        assert offsets(log) == [2, 3]


async def test_full_store_loses_all_but_the_active_segment(
    with_log: OpenLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with with_log(segment_bytes="100", retention_ms=str(HOUR)) as log:
        await fill(log, 4)

        def full() -> None:
            raise Full("no room for another segment")

        with monkeypatch.context() as patched:
            patched.setattr(log.reader(), "roll", full)
            done = await retain(log, NOW + 2 * HOUR)
        assert done is not None
        assert not done.roll
        assert offsets(log) == [3]
        assert log.log_start_offset == 3
        await retain(log, NOW + 2 * HOUR)
        assert log.log_start_offset == 4


async def test_log_start_goes_back_when_the_store_refuses(
    with_log: OpenLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with with_log(segment_bytes="100", retention_ms=str(HOUR)) as log:
        await fill(log, 3)

        async def refuse(edit: LogEdit) -> LogSnapshot:
            raise Full("no room for the manifest")

        with monkeypatch.context() as patched:
            patched.setattr(log.reader(), "commit", refuse)
            with pytest.raises(Full):
                await retain(log, NOW + HOUR)
        assert log.log_start_offset == 0
        assert len(await everything(log)) == 3


async def test_closed_log_is_left_alone(open_store: OpenStore) -> None:
    async with open_store() as store:
        async with opened(store, segment_bytes="100", retention_ms=str(HOUR)) as log:
            await fill(log, 3)
        with pytest.raises(Offline):
            await retain(log, NOW + 2 * HOUR)


async def test_deleting_the_same_segments_at_the_same_time(with_log: OpenLog) -> None:
    async with with_log(segment_bytes="100", retention_ms=str(HOUR)) as log:
        await fill(log, 8)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(retain, log, NOW)
            nursery.start_soon(log.trim, 3)
            nursery.start_soon(retain, log, NOW + 10)
            nursery.start_soon(log.trim, 5)
        assert log.log_start_offset == 7
        assert offsets(log) == [7]


def lingering(
    log: PartitionLog, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], list[tuple[int, ...]]]:
    """What the store was told of removed segments: how many, and for how long they linger."""
    told: list[tuple[int, ...]] = []
    commit = log.reader().commit

    async def note(edit: LogEdit) -> LogSnapshot:
        if edit.remove:
            told.append((len(edit.remove), edit.linger_ms))
        return await commit(edit)

    monkeypatch.setattr(log.reader(), "commit", note)
    return lambda: told


async def test_bytes_linger_as_long_as_the_topic_says(
    with_log: OpenLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: dict[str, Any] = {"segment_bytes": "100", "retention_ms": str(HOUR)}
    async with with_log(**settings, file_delete_delay_ms="1234") as log:
        await fill(log, 6)
        told = lingering(log, monkeypatch)
        await log.trim(2)
        await retain(log, NOW)
        assert told() == [(2, 1234), (2, 1234)]


# -- rolling by age ----------------------------------------------------------------------------


async def test_jitter_rolls_segments_at_different_ages(with_log: OpenLog) -> None:
    async with with_log(segment_ms=str(HOUR), segment_jitter_ms=str(HOUR)) as log:
        for number in range(24 * 60):
            timestamp = NOW + number * 60_000
            add(log, batch(timestamp=timestamp), now=timestamp)
        ages = [s.end_offset - s.base_offset for s in log.segments[:-1]]
    assert max(ages) <= 61, "a segment lives for segment.ms at most"
    assert min(ages) < 30
    assert len(set(ages)) > len(ages) // 2, "the ages are no accident of one number"


async def test_changed_age_counts_for_the_active_segment(with_log: OpenLog) -> None:
    async with with_log(segment_ms=str(HOUR)) as log:
        add(log, batch(timestamp=NOW), now=NOW)
        add(log, batch(timestamp=NOW + 5000), now=NOW + 5000)
        assert len(log.segments) == 1
        log.settings = TopicSettings.parse({"segment.ms": "5000"})
        add(log, batch(timestamp=NOW + 5001), now=NOW + 5001)
        assert offsets(log) == [0, 2]


async def test_segment_made_under_a_clock_that_was_ahead_still_ages(open_store: OpenStore) -> None:
    """After a restart its creation stands in for its first record: a year ahead, it would not."""
    async with open_store() as store:
        async with opened(store, segment_ms=str(HOUR)) as log:
            add(log, batch(timestamp=NOW), now=NOW)
        async with opened(store, 1, segment_ms=str(HOUR)) as log:
            created = log.segments[-1].created_ms
            now = created - 1000 * HOUR
            add(log, batch(timestamp=now), now=now)
            add(log, batch(timestamp=now + HOUR), now=now + HOUR)
            assert len(log.segments) == 1
            add(log, batch(timestamp=now + HOUR + 1), now=now + HOUR + 1)
            assert len(log.segments) == 2


async def test_idle_segment_is_rolled_when_it_is_asked_for(with_log: OpenLog) -> None:
    async with with_log(
        segment_ms=str(HOUR), max_compaction_lag_ms="5000", cleanup_policy="compact"
    ) as log:
        assert not log.roll_if_due(NOW + HOUR), "there is nothing in it"
        add(log, batch(timestamp=NOW), now=NOW)
        assert not log.roll_if_due(NOW + 5000)
        assert log.roll_if_due(NOW + 5001)
        assert offsets(log) == [0, 1]
        assert not log.roll_if_due(NOW + HOUR)
        log.settings = TopicSettings.parse({"segment.ms": str(HOUR)})
        add(log, batch(timestamp=NOW), now=NOW)
        assert not log.roll_if_due(NOW + HOUR)
        assert log.roll_if_due(NOW + HOUR + 1)
