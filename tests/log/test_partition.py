"""A partition's log over a store: appends, the high watermark, reads, rolling, trimming."""

from __future__ import annotations

import gc
import sys
from uuid import UUID

import pytest
import trio
from tests.log.logs import (
    KEY,
    NOW,
    OpenLog,
    OpenStore,
    add,
    batch,
    committed,
    everything,
    metas,
    opened,
    read,
)
from trio.testing import wait_all_tasks_blocked

from odradek.contracts.storage import (
    Claim,
    Corrupt,
    DataRef,
    Fenced,
    Full,
    Hint,
    Offline,
    StorageError,
)
from odradek.errors import ErrorCode, KafkaError
from odradek.log.partition import PartitionLog
from odradek.record import iter_records, parse_header, scan


def code(error: pytest.ExceptionInfo[KafkaError]) -> ErrorCode:
    return error.value.code


# -- appending and the high watermark ----------------------------------------------------------


async def test_append_gives_offsets_and_epoch_in_the_stored_bytes(with_log: OpenLog) -> None:
    async with with_log(epoch=4) as log:
        assert add(log, batch(3))[:2] == (0, 3)
        assert add(log, batch(2))[:2] == (3, 5)
        await committed(log)
        found = await metas(log, 0)
        assert [(m.base_offset, m.last_offset, m.leader_epoch) for m in found] == [
            (0, 2, 4),
            (3, 4, 4),
        ]


async def test_appended_bytes_may_be_overwritten_at_once(with_log: OpenLog) -> None:
    async with with_log() as log:
        data = batch(2)
        add(log, data)
        data[:] = bytes(len(data))
        await committed(log)
        assert len(list(iter_records(await read(log, 0)))) == 2


async def test_high_watermark_follows_and_wakes_those_who_wait(with_log: OpenLog) -> None:
    async with with_log() as log:
        assert (log.log_start_offset, log.high_watermark, log.log_end_offset) == (0, 0, 0)
        woken = []

        class Watcher:
            def advanced(self, log: PartitionLog) -> None:
                woken.append(log.high_watermark)

        watcher = Watcher()
        log.watch(watcher)
        log.watch(watcher)
        add(log, batch(3))
        assert log.log_end_offset == 3
        assert log.high_watermark == 0
        with trio.fail_after(5):
            async with trio.open_nursery() as nursery:
                for end in (1, 2, 3):
                    nursery.start_soon(log.wait_committed, end)
        assert log.high_watermark == 3
        assert woken == [3]
        log.unwatch(watcher)
        log.unwatch(watcher)
        add(log, batch())
        await committed(log)
        assert woken == [3]


async def test_nothing_above_the_high_watermark_is_served(with_log: OpenLog) -> None:
    async with with_log() as log:
        add(log, batch(3))
        assert await read(log, 0) == b""
        assert log.available(0) == 0
        await committed(log)
        assert log.available(0) > 0
        add(log, batch(5))
        found = await metas(log, 0)
        assert found[-1].last_offset < 3 or log.high_watermark == 8


async def test_waiting_for_a_commit_may_be_cancelled_and_others_go_on(with_log: OpenLog) -> None:
    async with with_log() as log:
        with trio.move_on_after(0) as scope:
            await log.wait_committed(1)
        assert scope.cancelled_caught
        add(log, batch())
        await committed(log)


async def test_log_append_time_is_told(with_log: OpenLog) -> None:
    from odradek.log.partition import Append
    from odradek.record import Rules, validate

    async with with_log() as log:
        rules = Rules(timestamp_type="LogAppendTime")

        def send(now: int, sequence: int) -> Append:
            data = batch(producer_id=1, producer_epoch=0, base_sequence=sequence)
            checked = validate(memoryview(data), rules, now)
            return log.append(checked.meta, checked.buffer, now)

        assert send(NOW + 5, 0) == (0, 1, NOW + 5, False)
        assert send(NOW + 9, 0) == (0, 1, NOW + 5, True)
        assert add(log, batch()).timestamp == -1


# -- reading -----------------------------------------------------------------------------------


async def test_read_inside_a_batch_returns_the_whole_batch(with_log: OpenLog) -> None:
    async with with_log() as log:
        add(log, batch(10))
        add(log, batch(10))
        await committed(log)
        for offset in range(20):
            found = await metas(log, offset)
            assert found[0].base_offset == offset // 10 * 10


@pytest.mark.parametrize("segment_bytes", ["1000", "1000000"])
async def test_read_returns_whole_batches_within_max_bytes(
    with_log: OpenLog, segment_bytes: str
) -> None:
    async with with_log(segment_bytes=segment_bytes) as log:
        for _ in range(300):
            add(log, batch())
        await committed(log)
        size = len(batch())
        for offset in (0, 1, 57, 150, 298, 299):
            for max_bytes in (size, size + 1, 3 * size, 7000, 10**6):
                found = await metas(log, offset, max_bytes)
                assert found[0].base_offset == offset
                assert sum(m.size for m in found) <= max_bytes
            for max_bytes in (size - 1, 1, 0, -1):
                assert [m.base_offset for m in await metas(log, offset, max_bytes)] == [offset]
                assert await read(log, offset, max_bytes, at_least_one=False) == b""


async def test_read_outside_of_the_log_is_out_of_range(with_log: OpenLog) -> None:
    async with with_log() as log:
        add(log, batch(10))
        await committed(log)
        assert await read(log, 10) == b""
        await log.trim(5)
        for offset in (-1, 0, 4, 11, 2**62):
            with pytest.raises(KafkaError) as caught:
                await read(log, offset)
            assert code(caught) is ErrorCode.OFFSET_OUT_OF_RANGE


async def test_reader_at_the_end_goes_on_in_a_new_segment(with_log: OpenLog) -> None:
    async with with_log(segment_bytes="200") as log:
        for offset in range(20):
            add(log, batch())
            await committed(log)
            found = await metas(log, offset)
            assert [m.base_offset for m in found] == [offset]


async def test_read_beside_a_commit_leads_nobody_past_what_was_committed(
    with_log: OpenLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with with_log() as log:
        add(log, batch())
        add(log, batch())
        await committed(log)
        reader = log.reader()
        original = reader.read

        async def beside_a_commit(
            segment_id: int, position: int, max_bytes: int, hint: Hint
        ) -> DataRef:
            if hint is Hint.RANDOM and log.log_end_offset == 2:
                add(log, batch())
                await committed(log)
            return await original(segment_id, position, max_bytes, hint)

        monkeypatch.setattr(reader, "read", beside_a_commit)
        result = await log.read(0, 2**20)
        assert result.data is not None
        with result.data as data:
            first = scan(memoryview(b"".join(data.views()))).metas
        assert [m.base_offset for m in first] == [0, 1]
        assert result.high_watermark == 2
        assert [m.base_offset for m in await metas(log, 2)] == [2]


async def test_more_readers_than_cursors_all_make_progress(with_log: OpenLog) -> None:
    async with with_log(segment_bytes="3000") as log:
        for _ in range(200):
            add(log, batch())
        await committed(log)
        at = list(range(40))
        while min(at) < 200:
            for reader, offset in enumerate(at):
                if offset < 200:
                    found = await metas(log, offset, 500)
                    assert found[0].base_offset == offset
                    at[reader] = found[-1].next_offset


async def test_available_counts_sealed_segments_from_the_offset_on(with_log: OpenLog) -> None:
    async with with_log(segment_bytes="10000") as log:
        for _ in range(1000):
            add(log, batch())
        await committed(log)
        size = len(batch())
        for offset in (0, 1, 130, 140, 500, 998, 999):
            true = (1000 - offset) * size
            assert true <= log.available(offset) <= true + 10_000, offset
        assert log.available(1000) == 0


async def test_available_does_not_count_what_is_not_committed(open_store: OpenStore) -> None:
    async with open_store() as store, opened(store, segment_bytes="10000") as log:
        for _ in range(10):
            add(log, batch())
        await committed(log)
        before = log.available(0)
        for _ in range(500):
            add(log, batch())
        if log.high_watermark == 10:
            assert log.available(0) == before


async def test_data_stays_readable_while_its_segment_is_trimmed(with_log: OpenLog) -> None:
    async with with_log(segment_bytes="500") as log:
        for _ in range(50):
            add(log, batch())
        await committed(log)
        result = await log.read(0, 400)
        assert result.data is not None
        with result.data as data:
            await log.trim(-1)
            assert [r.offset for r in iter_records(b"".join(data.views()))][:1] == [0]


# -- trimming ----------------------------------------------------------------------------------


async def test_trimming_everything_frees_the_active_segment_too(with_log: OpenLog) -> None:
    async with with_log() as log:
        add(log, batch(10))
        await committed(log)
        assert await log.trim(-1) == 10
        assert sum(s.size for s in log.segments) == 0
        assert add(log, batch(2))[:2] == (10, 12)
        await committed(log)
        assert [r.offset for r in await everything(log)] == [10, 11]


async def test_trimming_within_the_active_segment_keeps_it(with_log: OpenLog) -> None:
    async with with_log() as log:
        add(log, batch(10))
        add(log, batch(10))
        await committed(log)
        before = log.segments
        assert await log.trim(10) == 10
        assert log.segments == before


async def test_trimming_everything_goes_on_where_no_segment_can_be_begun(
    with_log: OpenLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full() -> None:
        raise Full("no room")

    async with with_log() as log:
        add(log, batch(10))
        await committed(log)
        with monkeypatch.context() as patch:
            patch.setattr(log, "_roll", full)
            assert await log.trim(-1) == 10
        assert add(log, batch(2))[:2] == (10, 12)
        await committed(log)
        assert [m.base_offset for m in await metas(log, 10)] == [10]


# -- rolling -----------------------------------------------------------------------------------


async def test_segments_roll_by_size(with_log: OpenLog) -> None:
    async with with_log(segment_bytes="1000") as log:
        for _ in range(100):
            add(log, batch())
        assert len(log.segments) > 5
        assert all(s.size <= 1000 for s in log.segments)
        await committed(log)
        assert [r.offset for r in await everything(log)] == list(range(100))


async def test_batch_larger_than_a_segment_gets_one_of_its_own(with_log: OpenLog) -> None:
    async with with_log(segment_bytes="100") as log:
        for _ in range(3):
            add(log, batch(1, 500))
        assert [s.end_offset - s.base_offset for s in log.segments] == [1, 1, 1]


async def test_segments_roll_by_the_age_of_their_records(with_log: OpenLog) -> None:
    async with with_log(segment_ms="1000") as log:
        add(log, batch(timestamp=NOW))
        add(log, batch(timestamp=NOW + 1000))
        assert len(log.segments) == 1
        add(log, batch(timestamp=NOW + 1001))
        assert [s.base_offset for s in log.segments] == [0, 2]
        add(log, batch(timestamp=NOW + 5000))
        assert [s.base_offset for s in log.segments] == [0, 2, 3]


async def test_segments_without_timestamps_roll_by_their_creation(with_log: OpenLog) -> None:
    async with with_log(segment_ms="1000") as log:
        created = log.segments[-1].created_ms
        add(log, batch(timestamp=-1), now=created)
        add(log, batch(timestamp=-1), now=created + 1000)
        assert len(log.segments) == 1
        add(log, batch(timestamp=-1), now=created + 1001)
        assert len(log.segments) == 2


async def test_changed_settings_count_for_the_next_append(with_log: OpenLog) -> None:
    from odradek.config import TopicSettings

    async with with_log() as log:
        add(log, batch())
        log.settings = TopicSettings.parse({"segment.bytes": "100"})
        add(log, batch())
        assert len(log.segments) == 2


# -- look-ups ----------------------------------------------------------------------------------


async def test_first_record_at_or_after_a_time_is_found(with_log: OpenLog) -> None:
    from odradek.log.lookup import first_at_or_after

    async with with_log(segment_bytes="1000") as log:
        for number in range(100):
            add(log, batch(2, timestamp=NOW + 10 * number))
        await committed(log)
        for number in range(100):
            for past, offset in ((0, 0), (1, 1), (2, 2), (9, 2)):
                found = await first_at_or_after(log, NOW + 10 * number + past)
                if 2 * number + offset == 200:
                    assert found is None
                else:
                    assert found is not None
                    assert found.offset == 2 * number + offset
        await log.trim(151)
        found = await first_at_or_after(log, 0)
        assert found is not None
        assert found.offset == 151


async def test_look_up_by_time_survives_times_that_go_back(with_log: OpenLog) -> None:
    from odradek.log.lookup import first_at_or_after, newest

    async with with_log(segment_bytes="500") as log:
        for shift in (50, 10, 90, 20, 90, 5) * 5:
            add(log, batch(timestamp=NOW + shift))
        await committed(log)
        for wanted, offset in ((0, 0), (50, 0), (51, 2), (90, 2)):
            found = await first_at_or_after(log, NOW + wanted)
            assert found is not None
            assert found.offset == offset
        assert await first_at_or_after(log, NOW + 91) is None
        latest = await newest(log)
        assert latest is not None
        assert (latest.offset, latest.timestamp) == (2, NOW + 90)


async def test_look_up_by_time_does_not_tell_of_uncommitted_records(with_log: OpenLog) -> None:
    from odradek.log.lookup import first_at_or_after, newest

    async with with_log() as log:
        assert await newest(log) is None
        add(log, batch(timestamp=NOW))
        assert log.high_watermark == 0
        found = await first_at_or_after(log, NOW)
        assert found is None or log.high_watermark == 1


async def test_batch_that_cannot_be_opened_does_not_stop_a_look_up_by_time(
    with_log: OpenLog,
) -> None:
    from odradek.log.lookup import first_at_or_after
    from odradek.record import CompressionType, assemble, compress

    async with with_log(max_message_bytes="1000") as log:
        bomb = compress(CompressionType.GZIP, bytes(1_000_000))
        whole = parse_header(batch(5))
        for payload in (bomb, b"no gzip at all"):
            meta = whole._replace(attributes=1, size=61 + len(payload))
            add(log, assemble(meta, payload))
        await committed(log)
        found = await first_at_or_after(log, NOW)
        assert found is not None
        assert found.offset == 0


@pytest.mark.parametrize(
    ("epochs", "asked", "answer"),
    [
        pytest.param([(0, 5)], 0, (0, 5), id="the present epoch ends at the log's end"),
        pytest.param([(0, 5), (3, 2)], 0, (0, 5), id="an old one where the next began"),
        pytest.param([(0, 5), (3, 2)], 2, (0, 5), id="one between: the largest before it"),
        pytest.param([(2, 5), (3, 2)], 1, (1, 0), id="one before all: the first start"),
        pytest.param([(0, 5), (3, 2)], 4, (-1, -1), id="one of the future: unknown"),
        pytest.param([(0, 5), (3, 2)], -1, (-1, -1), id="none"),
        pytest.param([(0, 5), (3, 0)], 0, (0, 5), id="the present one has no record yet"),
        pytest.param([(0, 5), (3, 0)], 2, (0, 5), id="nor has the one asked for"),
        pytest.param([(0, 0), (3, 0)], 1, (1, 0), id="an empty log"),
    ],
)
async def test_epoch_end_is_kafkas(
    with_log: OpenLog,
    epochs: list[tuple[int, int]],
    asked: int,
    answer: tuple[int, int],
) -> None:
    for number, (epoch, count) in enumerate(epochs, 1):
        async with with_log(epoch=epoch) as log:
            for _ in range(count):
                add(log, batch())
            await committed(log)
            if number == len(epochs):
                assert log.epoch_end(asked) == answer


async def test_epoch_of_an_offset_is_the_one_it_was_written_under(with_log: OpenLog) -> None:
    async with with_log(epoch=2) as log:
        add(log, batch(3))
    async with with_log(epoch=5) as log:
        assert log.epoch_of(3) == 2
        add(log, batch(3))
        assert [log.epoch_of(offset) for offset in (0, 2, 3, 5)] == [2, 2, 5, 5]


async def test_requests_are_fenced_by_the_epoch_they_know(with_log: OpenLog) -> None:
    async with with_log(epoch=5) as log:
        log.check_epoch(-1)
        log.check_epoch(5)
        with pytest.raises(KafkaError) as caught:
            log.check_epoch(4)
        assert code(caught) is ErrorCode.FENCED_LEADER_EPOCH
        with pytest.raises(KafkaError) as caught:
            log.check_epoch(6)
        assert code(caught) is ErrorCode.UNKNOWN_LEADER_EPOCH


# -- trimming ----------------------------------------------------------------------------------


async def test_trim_moves_the_start_and_drops_whole_segments(with_log: OpenLog) -> None:
    async with with_log(segment_bytes="500") as log:
        for _ in range(50):
            add(log, batch())
        await committed(log)
        before = len(log.segments)
        assert await log.trim(20) == 20
        assert log.log_start_offset == 20
        assert len(log.segments) < before
        assert [r.offset for r in await everything(log)] == list(range(20, 50))
        assert await log.trim(10) == 20
        assert await log.trim(-1) == 50
        assert await everything(log) == []
        assert add(log, batch()).base_offset == 50
    async with with_log() as log:
        assert (log.log_start_offset, log.log_end_offset) == (50, 51)


async def test_trim_above_the_high_watermark_is_out_of_range(with_log: OpenLog) -> None:
    async with with_log() as log:
        add(log, batch())
        await committed(log)
        for offset in (2, -2):
            with pytest.raises(KafkaError) as caught:
                await log.trim(offset)
            assert code(caught) is ErrorCode.OFFSET_OUT_OF_RANGE


async def test_trims_at_the_same_time_all_succeed(with_log: OpenLog) -> None:
    async with with_log(segment_bytes="200") as log:
        for _ in range(50):
            add(log, batch())
        await committed(log)
        async with trio.open_nursery() as nursery:
            for offset in (40, 10, 30, 45, 20):
                nursery.start_soon(log.trim, offset)
        assert log.log_start_offset == 45


# -- idempotent producers ----------------------------------------------------------------------


def sent(sequence: int, count: int = 1, pid: int = 9, epoch: int = 0) -> bytearray:
    return batch(count, producer_id=pid, producer_epoch=epoch, base_sequence=sequence)


async def test_retry_is_answered_with_the_offset_of_the_original(with_log: OpenLog) -> None:
    async with with_log() as log:
        add(log, batch(7))
        for sequence in range(0, 50, 10):
            add(log, sent(sequence, 10))
        again = add(log, sent(20, 10))
        assert again == (27, 37, -1, True)
        assert log.log_end_offset == 57
        await committed(log)
        assert len(await everything(log)) == 57


async def test_refused_sequence_leaves_the_log_as_it_was(with_log: OpenLog) -> None:
    async with with_log() as log:
        add(log, sent(0))
        for wrong, expected in (
            (sent(2), ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
            (sent(5, epoch=1), ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
        ):
            with pytest.raises(KafkaError) as caught:
                add(log, wrong)
            assert code(caught) is expected
        assert log.log_end_offset == 1
        add(log, sent(1))


@pytest.mark.parametrize("clean", [True, False])
async def test_retry_is_known_after_a_restart(with_log: OpenLog, clean: bool) -> None:
    async with with_log(segment_bytes="1000") as log:
        for sequence in range(40):
            add(log, sent(sequence))
        await committed(log)
        if not clean:
            log.failure = Offline("the test keeps the end from being saved")
    async with with_log(epoch=1) as log:
        assert add(log, sent(38)) == (38, 39, -1, True)
        assert add(log, sent(40)).base_offset == 40
        with pytest.raises(KafkaError):
            add(log, sent(42))


async def test_retry_is_known_after_a_snapshot_and_a_replay(
    with_log: OpenLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    from odradek.log import partition

    monkeypatch.setattr(partition, "SNAPSHOT_INTERVAL", 500)
    async with with_log() as log:
        for sequence in range(40):
            add(log, sent(sequence))
            await committed(log)
        await wait_all_tasks_blocked()
        assert log._snapshots.offset > 0
        log.failure = Offline("the test keeps the end from being saved")
    async with with_log(epoch=1) as log:
        assert 0 < log._snapshots.offset < 40
        assert add(log, sent(39)) == (39, 40, -1, True)
        assert add(log, sent(36)) == (36, 37, -1, True)


async def test_damaged_snapshot_is_replaced_by_the_log(open_store: OpenStore) -> None:
    from odradek.contracts.storage import LogEdit
    from odradek.log.producer_snapshots import PRODUCERS_BLOB

    async with open_store() as store:
        async with opened(store) as log:
            for sequence in range(10):
                add(log, sent(sequence))
        writer = await store.open_writer(KEY, Claim(1, 1))
        await writer.commit(LogEdit(blobs={PRODUCERS_BLOB: b"rubbish" * 10}))
        await writer.aclose()
        async with opened(store, epoch=2) as log:
            assert add(log, sent(9)).duplicate


async def test_snapshot_of_a_lost_end_is_never_used_again(open_store: OpenStore) -> None:
    """With durability below `ack`, the end of the log may be lost while its snapshot is not."""
    from odradek.contracts.storage import LogEdit
    from odradek.log.producer_snapshots import PRODUCERS_BLOB
    from odradek.log.producers import Producers

    ahead = Producers()
    ahead.update(parse_header(sent(0, 20))._replace(base_offset=0, last_offset=19))
    async with open_store() as store:
        async with opened(store) as log:
            add(log, batch(5))
        writer = await store.open_writer(KEY, Claim(1, 1))
        await writer.commit(LogEdit(blobs={PRODUCERS_BLOB: ahead.snapshot(20)}))
        await writer.aclose()
        async with opened(store, epoch=2) as log:
            for _ in range(30):
                add(log, batch())
            await committed(log)
            log.failure = Offline("the test keeps the end from being saved")
        async with opened(store, epoch=3) as log:
            assert log.log_end_offset == 35
            assert not add(log, sent(0, 20)).duplicate


# -- failures ----------------------------------------------------------------------------------


class FailingTicket:
    def __init__(self, end_offset: int, failed: trio.Event) -> None:
        self.end_offset = end_offset
        self.durable = False
        self._failed = failed

    async def wait(self) -> None:
        await self._failed.wait()
        raise Offline("fsync: input/output error")


async def test_failed_sync_takes_the_log_offline_and_tells_those_who_wait(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = trio.Event()
    async with open_store() as store, opened(store) as log:
        add(log, batch(3))
        await committed(log)
        writer = log.reader()
        append = type(writer).append

        def failing(self: object, chunk: object) -> FailingTicket:
            append(writer, chunk)  # type: ignore[arg-type]  # passed on as it is
            return FailingTicket(log.log_end_offset + 1, failed)

        monkeypatch.setattr(type(writer), "append", failing)
        told: list[object] = []

        class Watcher:
            def advanced(self, log: PartitionLog) -> None:
                told.append(log.failure)

        log.watch(Watcher())
        add(log, batch())

        async def waits() -> None:
            with pytest.raises(Offline, match="input/output"):
                await log.wait_committed(4)
            told.append("waiter")

        with trio.fail_after(5):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(waits)
                await wait_all_tasks_blocked()
                failed.set()
        assert told == [log.failure, "waiter"]
        assert log.high_watermark == 3
        with pytest.raises(Offline):
            add(log, batch())
        assert len(list(iter_records(await read(log, 0)))) == 3, "reads go on"


async def test_offline_log_keeps_nothing_of_the_requests_it_refuses(with_log: OpenLog) -> None:
    async with with_log() as log:
        log.fail(Offline("gone"))

        def refused() -> None:
            big = bytearray(100)
            with pytest.raises(Offline):
                add(log, batch())
            assert big is not None

        for _ in range(10):
            refused()
        assert log.failure is not None
        depth, traceback = 0, log.failure.__traceback__
        while traceback is not None:
            depth, traceback = depth + 1, traceback.tb_next
        assert depth < 5


def store_has_room(log: PartitionLog) -> bool:
    """Append one batch more, if the store takes it."""
    from odradek.contracts.storage import Full

    try:
        add(log, batch())
    except Full:
        return False
    return True


async def test_full_store_refuses_and_takes_again_when_there_is_room() -> None:
    from odradek.contracts.storage import Full
    from odradek.memory.storage import MemoryStorageSettings, open_memory_store

    settings = MemoryStorageSettings(max_bytes=1000)
    async with open_memory_store("", settings) as store, opened(store, segment_bytes="300") as log:
        while store_has_room(log):
            pass
        with pytest.raises(Full):
            add(log, batch())
        end = log.log_end_offset
        await committed(log)
        assert log.failure is None
        await log.trim(-1)
        with trio.fail_after(5):
            await log.room()
        assert add(log, batch()).base_offset == end


async def test_producers_state_that_finds_no_room_does_no_harm(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from odradek.contracts.storage import Full

    async with open_store() as store:
        async with opened(store) as log:
            add(log, sent(0))
            await committed(log)

            async def full(self: object, edit: object) -> None:
                raise Full("no space")

            with monkeypatch.context() as patch:
                patch.setattr(type(log.reader()), "commit", full)
                await log.save_producers()
                assert log.failure is None
                add(log, sent(1))
                await log.aclose()
        assert "no space" in caplog.text
        async with opened(store, epoch=1) as log:
            assert add(log, sent(1)).duplicate


async def test_newer_claim_fences_the_log_before(open_store: OpenStore) -> None:
    async with open_store() as store, opened(store, close=False) as old:
        add(old, batch())
        await committed(old)
        async with opened(store, epoch=1) as log:
            with pytest.raises(Fenced):
                add(old, batch())
            assert add(log, batch()).base_offset == 1
        await old.aclose()


async def test_closed_log_refuses_and_tells_those_who_wait(with_log: OpenLog) -> None:
    async with with_log() as log:
        add(log, batch(2))
        waiting: list[StorageError | None] = []

        async def wait(end: int) -> None:
            try:
                await log.wait_committed(end)
            except StorageError as error:
                waiting.append(error)
            else:
                waiting.append(None)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait, 2)
            nursery.start_soon(wait, 3)
            await wait_all_tasks_blocked()
            await log.aclose()
        assert sorted(map(type, waiting), key=str) == [type(None), Offline]
        with pytest.raises(Offline):
            add(log, batch())
        await log.aclose()


async def test_bytes_that_vanished_are_corrupt_and_not_out_of_range(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    from odradek.contracts.storage import OutOfRange

    async with open_store() as store, opened(store) as log:
        add(log, batch())
        await committed(log)

        async def gone(*_: object) -> None:
            raise OutOfRange("no such segment")

        monkeypatch.setattr(type(log.reader()), "read", gone)
        with pytest.raises(Corrupt, match="no such segment"):
            await log.read(0, 1000)


# -- opening -----------------------------------------------------------------------------------


async def test_reopened_log_goes_on_where_it_ended(with_log: OpenLog) -> None:
    for life in range(4):
        async with with_log(epoch=life, segment_bytes="700") as log:
            assert log.log_end_offset == log.high_watermark == 10 * life
            for _ in range(10):
                add(log, batch())
            await committed(log)
            assert [r.offset for r in await everything(log)] == list(range(10 * life + 10))


async def test_logs_of_other_partitions_are_apart(open_store: OpenStore) -> None:
    from odradek.config import TopicSettings
    from odradek.contracts.background import open_tasks
    from odradek.log.index_cache import IndexCache
    from odradek.log.opening import open_log
    from odradek.types import PartitionKey

    async with open_store() as store, open_tasks() as tasks:
        logs = []
        for number in range(3):
            key = PartitionKey(UUID(int=8), number)
            log = await open_log(
                store, key, "t", TopicSettings(), Claim(0, 1), IndexCache(), tasks.start_soon
            )
            logs.append(log)
        for number, log in enumerate(logs):
            for _ in range(number):
                add(log, batch())
            await committed(log)
        assert [log.log_end_offset for log in logs] == [0, 1, 2]
        for log in logs:
            await log.aclose()


async def test_idle_log_has_no_task(with_log: OpenLog) -> None:
    async with with_log() as log:
        before = trio.lowlevel.current_statistics().tasks_living
        add(log, batch())
        await committed(log)
        await wait_all_tasks_blocked()
        assert trio.lowlevel.current_statistics().tasks_living == before


@pytest.mark.skipif(sys.platform != "linux", reason="counts descriptors in /proc")
async def test_closed_log_leaves_no_descriptor_open(open_store: OpenStore) -> None:
    import os

    async with open_store() as store:
        async with opened(store, segment_bytes="300") as log:
            add(log, batch())
            await committed(log)
        gc.collect()
        before = len(os.listdir("/proc/self/fd"))
        for life in range(1, 4):
            async with opened(store, epoch=life, segment_bytes="300") as log:
                for _ in range(10):
                    add(log, batch())
                await committed(log)
                await everything(log)
        gc.collect()
        assert len(os.listdir("/proc/self/fd")) <= before


async def test_producers_of_removed_segments_are_known_after_a_crash(with_log: OpenLog) -> None:
    def send(log: PartitionLog, sequence: int) -> bool:
        data = batch(producer_id=1, producer_epoch=0, base_sequence=sequence)
        return add(log, data).duplicate

    async with with_log() as log:
        for sequence in range(3):
            assert not send(log, sequence)
        await committed(log)
        await log.trim(-1)
        log.failure = Offline("killed")
    async with with_log(epoch=1) as log:
        assert send(log, 2), "a retry"
        assert not send(log, 3)
