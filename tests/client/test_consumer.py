"""The consumer of partitions assigned by hand, against a real broker: what it reads, and where."""

from collections.abc import AsyncIterator

import pytest
import trio
from tests.client.conftest import QUICK, FlakyTransport, run_broker, url_of
from tests.client.consuming import until, write

from odradek.broker import Broker
from odradek.broker.faults import Faults
from odradek.client import (
    EARLIEST,
    LATEST,
    Admin,
    ClientClosed,
    Cluster,
    CommittedOffset,
    ConsumerRecord,
    ConsumerSettings,
    NewTopic,
    RecordStream,
    Start,
    TopicPartition,
    open_cluster,
    open_consumer,
)
from odradek.client.connection import BrokerConnection
from odradek.client.consumer import Consumer
from odradek.errors import CorruptBatch, ErrorCode, KafkaError

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
FROM_START = {P0: Start(offset=0)}
EARLY = ConsumerSettings(auto_offset_reset="earliest", max_wait=0.2)


@pytest.fixture
async def filled(cluster: Cluster) -> Cluster:
    """A topic `t` of two partitions with 500 records each; record n has the time 1000 + n."""
    await Admin(cluster).create_topic(NewTopic(name="t", partitions=2))
    for partition in (P0, P1):
        await write(cluster, partition, range(500))
    return cluster


@pytest.fixture
async def consumer(filled: Cluster) -> AsyncIterator[Consumer]:
    """A consumer of partition 0 from its beginning."""
    async with open_consumer(filled, assignment=FROM_START, settings=EARLY) as consumer:
        yield consumer


async def take(consumer: Consumer, count: int) -> list[int]:
    """The values of the next records."""
    found: list[int] = []
    with trio.fail_after(10):
        async for record in consumer:
            found.append(int(record.value or b""))
            if len(found) == count:
                break
    return found


async def nothing_comes(consumer: Consumer, seconds: float = 0.3) -> bool:
    with trio.move_on_after(seconds) as waited:
        await anext(aiter(consumer))
    return waited.cancelled_caught


async def test_consumer_yields_records_in_order_with_all_that_they_carry(
    consumer: Consumer,
) -> None:
    record = await anext(aiter(consumer))
    assert record == ("t", 0, 0, 1000, None, b"0", (), 0)
    assert await take(consumer, 499) == list(range(1, 500))


async def test_consumer_yields_new_records_as_they_come(
    filled: Cluster, consumer: Consumer
) -> None:
    await take(consumer, 500)
    for number in (500, 501):
        await write(filled, P0, [number])
        assert await take(consumer, 1) == [number]


async def test_breaking_off_an_iteration_loses_nothing(consumer: Consumer) -> None:
    assert await take(consumer, 3) == [0, 1, 2]
    assert await take(consumer, 3) == [3, 4, 5]


async def test_batches_go_on_behind_the_last_record(consumer: Consumer) -> None:
    assert await take(consumer, 3) == [0, 1, 2]
    found: list[int] = []
    async for batch in consumer.batches():
        assert batch.partition == P0
        found += [int(record.value or b"") for record in batch]
        if found[-1] == 499:
            break
    assert found == list(range(3, 500))
    assert consumer.position(P0) == 500


async def test_batches_come_as_columns_too(consumer: Consumer) -> None:
    await take(consumer, 3)
    batch = await anext(consumer.batches())
    columns = batch.columns()
    assert list(columns.offsets) == [record.offset for record in batch]
    assert columns.offsets[0] == 3


async def test_records_go_on_behind_the_last_batch(consumer: Consumer) -> None:
    batch = await anext(consumer.batches())
    assert await take(consumer, 1) == [batch.end_offset]


async def test_cancelled_wait_loses_no_record(filled: Cluster, consumer: Consumer) -> None:
    await take(consumer, 500)
    for number in range(500, 530):
        with trio.move_on_after(0.002):
            record = await anext(aiter(consumer))
            raise AssertionError(f"{record} was not written yet")
        await write(filled, P0, [number])
        seen: list[int] = []
        while not seen:
            with trio.move_on_after(0.001):
                async for record in consumer:
                    seen.append(int(record.value or b""))
                    break
        assert seen == [number]


async def test_iteration_lets_other_tasks_run_in_the_middle_of_a_batch(consumer: Consumer) -> None:
    batch = await anext(consumer.batches())
    records = aiter(consumer)
    await anext(records)
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
        before = trio.current_time()
        for _ in range(len(batch.records()) - 2):
            await anext(records)
            while trio.current_time() - before < 0.006:
                pass  # work without a checkpoint
            before = trio.current_time()
        nursery.cancel_scope.cancel()
    assert turns >= 10


# -- positions -------------------------------------------------------------------------------------


async def test_position_is_behind_the_last_record_handed_out(consumer: Consumer) -> None:
    assert consumer.position(P0) == 0
    await take(consumer, 7)
    assert consumer.position(P0) == 7
    with pytest.raises(ValueError, match="t-1 is not assigned"):
        consumer.position(P1)


async def test_seek_hands_out_nothing_from_before_it(consumer: Consumer) -> None:
    for offset in (400, 3, 123, 490, 0, 250):
        await take(consumer, 2)
        consumer.seek(P0, offset)
        assert consumer.position(P0) == offset
        assert await take(consumer, 1) == [offset]


async def test_seek_while_a_fetch_is_on_its_way_drops_its_answer(
    filled: Cluster, consumer: Consumer
) -> None:
    await take(consumer, 500)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(write, filled, P0, range(500, 510))
        for _ in range(40):
            consumer.seek(P0, 42)
            await trio.sleep(0.001)
    assert await take(consumer, 3) == [42, 43, 44]


async def test_seek_by_time(consumer: Consumer) -> None:
    consumer.seek_to_time(P0, 1300)
    assert await take(consumer, 1) == [300]
    consumer.seek_to_time(P0, EARLIEST)
    assert await take(consumer, 1) == [0]


async def test_seek_by_a_time_after_every_record_waits_for_the_next(
    filled: Cluster, consumer: Consumer
) -> None:
    consumer.seek_to_time(P0, 10**12)
    assert consumer.position(P0) is None
    assert await nothing_comes(consumer)
    assert consumer.position(P0) == 500
    await write(filled, P0, [500])
    assert await take(consumer, 1) == [500]


async def test_paused_partition_keeps_its_place(filled: Cluster) -> None:
    starts = {P0: Start(offset=0), P1: Start(offset=0)}
    async with open_consumer(filled, assignment=starts, settings=EARLY) as consumer:
        seen = [(record.partition, record.offset) async for record in _some(consumer, 60)]
        consumer.pause(P0)
        assert consumer.paused == {P0}
        at = consumer.position(P0)
        later = [(record.partition, record.offset) async for record in _some(consumer, 200)]
        assert {partition for partition, _ in later} == {1}
        assert consumer.position(P0) == at
        consumer.pause(P1)
        assert await nothing_comes(consumer)
        consumer.resume(P0, P1)
        seen += later
        seen += [
            (record.partition, record.offset) async for record in _some(consumer, 1000 - len(seen))
        ]
    for partition in (0, 1):
        assert [offset for part, offset in seen if part == partition] == list(range(500))


async def _some(consumer: Consumer, count: int) -> AsyncIterator[ConsumerRecord]:
    with trio.fail_after(10):
        for _ in range(count):
            yield await anext(aiter(consumer))


async def test_paused_partitions_do_not_fill_the_buffer_of_the_others(filled: Cluster) -> None:
    settings = ConsumerSettings(
        buffer_bytes=4_000, fetch_bytes=2_000, partition_bytes=2_000, max_wait=0.1
    )
    starts = {P0: Start(offset=0), P1: Start(offset=0)}
    async with open_consumer(filled, assignment=starts, settings=settings) as consumer:
        while not consumer._buffers.positions[P0].buffered:
            await trio.lowlevel.checkpoint()
        consumer.pause(P0)
        with trio.fail_after(10):
            found = [record.offset async for record in _some(consumer, 500)]
        assert found == list(range(500))
        consumer.pause(P1)
        consumer.resume(P0)
        assert await take(consumer, 500) == list(range(500))


async def test_lag_counts_what_was_not_handed_out(filled: Cluster, consumer: Consumer) -> None:
    assert consumer.lag().partitions == {P0: None}
    assert not consumer.lag().complete
    await take(consumer, 100)
    assert consumer.lag().total == 400
    await take(consumer, 400)
    assert consumer.lag().partitions == {P0: 0}
    health = consumer.health
    assert (health.state, health.lag, health.connected) == ("assigned", 0, True)
    assert health.assignment == {P0}
    assert health.busy > 0


async def test_assign_keeps_the_place_in_partitions_that_stay(
    filled: Cluster, consumer: Consumer
) -> None:
    await take(consumer, 10)
    consumer.assign({P0: Start(offset=400), P1: Start(offset=450)})
    found = [(record.partition, record.offset) async for record in _some(consumer, 490 + 50)]
    assert [offset for part, offset in found if part == 0] == list(range(10, 500))
    consumer.assign([P1])
    await write(filled, P0, [500])
    await write(filled, P1, [500])
    assert [(r.partition, r.offset) async for r in _some(consumer, 1)] == [(1, 500)]
    assert await nothing_comes(consumer)
    assert consumer.assignment == {P1}


async def test_consumer_without_a_committed_offset_begins_where_it_is_told(
    filled: Cluster,
) -> None:
    async with open_consumer(filled, "g", assignment=[P0], settings=EARLY) as consumer:
        assert await take(consumer, 1) == [0]
    late = ConsumerSettings(max_wait=0.1, auto_commit=False)
    async with open_consumer(filled, "h", assignment=[P0], settings=late) as consumer:
        assert await nothing_comes(consumer)
        await write(filled, P0, [500])
        assert await take(consumer, 1) == [500]
    neither = ConsumerSettings(auto_offset_reset="none")
    async with open_consumer(filled, "i", assignment=[P0], settings=neither) as consumer:
        with pytest.raises(KafkaError, match="no committed offset"):
            await take(consumer, 1)


async def test_offset_that_is_not_in_the_log_is_reset(filled: Cluster) -> None:
    await Admin(filled).delete_records({P0: 100})
    async with open_consumer(filled, assignment=FROM_START, settings=EARLY) as consumer:
        assert await take(consumer, 1) == [100]
    neither = ConsumerSettings(auto_offset_reset="none")
    async with open_consumer(filled, assignment=FROM_START, settings=neither) as consumer:
        with pytest.raises(KafkaError, match="has no offset 0") as caught:
            await take(consumer, 1)
    assert caught.value.code == ErrorCode.OFFSET_OUT_OF_RANGE


async def test_position_that_a_new_leader_does_not_have_is_moved_to_where_the_logs_part(
    broker: Broker, filled: Cluster
) -> None:
    faults = Faults()
    faults.attach(broker)
    async with open_consumer(filled, assignment=FROM_START, settings=EARLY) as consumer:
        await take(consumer, 10)
        assert faults.seen("OffsetForLeaderEpoch") == 0, (
            "who reads on under one leader asks nothing"
        )
        consumer.seek(P0, 200, leader_epoch=0)
        assert await take(consumer, 1) == [200]
        assert faults.seen("OffsetForLeaderEpoch") == 1
        consumer.seek(P0, CommittedOffset(777, 0))  # read from a log that was cut since
        await until(lambda: consumer.position(P0) == 500)
        await write(filled, P0, [500])
        assert await take(consumer, 1) == [500]


async def test_cut_log_is_an_error_without_a_place_to_go_on(filled: Cluster) -> None:
    neither = ConsumerSettings(auto_offset_reset="none")
    async with open_consumer(filled, assignment=FROM_START, settings=neither) as consumer:
        consumer.seek(P0, 777, leader_epoch=0)
        with pytest.raises(KafkaError, match="was cut at offset 500") as caught:
            await take(consumer, 1)
    assert caught.value.code == ErrorCode.OFFSET_OUT_OF_RANGE


# -- several tasks ---------------------------------------------------------------------------------


async def test_streams_share_partitions_and_keep_their_order(filled: Cluster) -> None:
    starts = {P0: Start(offset=0), P1: Start(offset=0)}
    seen: dict[int, list[int]] = {0: [], 1: []}
    in_hand: set[int] = set()
    at_once = 0

    async with open_consumer(filled, assignment=starts, settings=EARLY) as consumer:

        async def work(stream: RecordStream) -> None:
            nonlocal at_once
            async for record in stream:
                assert record.partition not in in_hand
                in_hand.add(record.partition)
                at_once = max(at_once, len(in_hand))
                await trio.lowlevel.checkpoint()
                in_hand.remove(record.partition)
                seen[record.partition].append(record.offset)
                if sum(map(len, seen.values())) == 1000:
                    nursery.cancel_scope.cancel()

        with trio.fail_after(10):
            async with trio.open_nursery() as nursery:
                for stream in consumer.streams(3):
                    nursery.start_soon(work, stream)
    assert seen == {0: list(range(500)), 1: list(range(500))}
    assert at_once == 2


# -- committing by hand ----------------------------------------------------------------------------


async def test_commit_and_committed_outside_of_a_membership(filled: Cluster) -> None:
    async with open_consumer(filled, "g", assignment=FROM_START, settings=EARLY) as consumer:
        assert await consumer.committed() == {}
        await take(consumer, 10)
        await consumer.commit()
        assert await consumer.committed() == {P0: CommittedOffset(10, 0)}
        await consumer.commit({P0: CommittedOffset(7, 0, "half")})
        assert await consumer.committed([P0, P1]) == {P0: CommittedOffset(7, 0, "half")}
    async with open_consumer(filled, "g", assignment=[P0], settings=EARLY) as consumer:
        assert await take(consumer, 1) == [9]  # in hand and not finished when it was left


async def test_leaving_does_not_go_back_behind_what_was_committed_on_purpose(
    filled: Cluster,
) -> None:
    async with open_consumer(filled, "g", assignment=FROM_START, settings=EARLY) as consumer:
        await take(consumer, 10)
        await consumer.commit()
    async with open_consumer(filled, "g", assignment=[P0], settings=EARLY) as consumer:
        assert await take(consumer, 1) == [10]


async def test_consumer_without_a_group_has_no_offsets(consumer: Consumer) -> None:
    with pytest.raises(ValueError, match="has none"):
        await consumer.commit()
    with pytest.raises(ValueError, match="has none"):
        await consumer.committed()
    with pytest.raises(ValueError, match="needs a group"):
        consumer.subscribe(["t"])


async def test_commit_refuses_metadata_that_is_too_long(filled: Cluster) -> None:
    async with open_consumer(filled, "g", assignment=FROM_START, settings=EARLY) as consumer:
        with pytest.raises(KafkaError) as caught:
            await consumer.commit({P0: CommittedOffset(1, metadata="x" * 5000)})
    assert caught.value.code == ErrorCode.OFFSET_METADATA_TOO_LARGE


async def test_assigned_partitions_and_topics_exclude_each_other(filled: Cluster) -> None:
    async with open_consumer(filled, "g", assignment=FROM_START) as consumer:
        with pytest.raises(ValueError, match="by hand"):
            consumer.subscribe(["t"])
    async with open_consumer(filled, "g", topics=["t"]) as consumer:
        with pytest.raises(ValueError, match="subscribed"):
            consumer.assign([P0])
    with pytest.raises(ValueError, match="or an assignment"):
        async with open_consumer(filled, "g", topics=["t"], pattern="t"):
            pass
    with pytest.raises(ValueError, match="collection of names"):
        async with open_consumer(filled, "g", topics="t"):
            pass


# -- what goes wrong -------------------------------------------------------------------------------


async def test_consumer_has_a_cluster_of_its_own_by_bootstrap(broker: Broker) -> None:
    async with open_consumer(url_of(broker), "g", assignment=[], client_settings=QUICK) as consumer:
        assert consumer.health.state == "assigned"


async def test_left_consumer_says_so(filled: Cluster) -> None:
    async with open_consumer(filled, assignment=FROM_START) as consumer:
        pass
    with pytest.raises(ClientClosed, match="was closed"):
        await anext(aiter(consumer))
    assert consumer.assignment == frozenset()


async def test_consumer_survives_lost_answers() -> None:
    async with run_broker() as broker:
        network = FlakyTransport(lambda count: not count % 4)
        async with open_cluster(url_of(broker), QUICK) as steady:
            await Admin(steady).create_topic(NewTopic(name="t", partitions=2))
            await write(steady, P0, range(500))
            settings = ConsumerSettings(partition_bytes=1_000, max_wait=0.05)
            async with (
                open_cluster(url_of(broker), QUICK, transport=network) as cluster,
                open_consumer(cluster, assignment=FROM_START, settings=settings) as consumer,
            ):
                assert await take(consumer, 500) == list(range(500))
        assert network.lost >= 2


async def test_errors_that_pass_are_seen_in_health_and_nowhere_else(
    broker: Broker, filled: Cluster
) -> None:
    faults = Faults()
    faults.attach(broker)
    faults.fail("Fetch", ErrorCode.NOT_LEADER_OR_FOLLOWER, times=2)
    async with open_consumer(filled, assignment=FROM_START, settings=EARLY) as consumer:
        while consumer.health.last_error is None:
            await trio.lowlevel.checkpoint()
        assert "NOT_LEADER_OR_FOLLOWER" in str(consumer.health.last_error)
        assert await take(consumer, 500) == list(range(500))
        assert consumer.health.last_error is None


async def test_server_that_failed_once_to_answer_a_fetch_is_asked_again(
    broker: Broker, filled: Cluster
) -> None:
    faults = Faults()
    faults.attach(broker)
    faults.fail("Fetch", ErrorCode.UNKNOWN_SERVER_ERROR, times=2)
    async with open_consumer(filled, assignment=FROM_START, settings=EARLY) as consumer:
        while consumer.health.last_error is None:
            await trio.lowlevel.checkpoint()
        assert "UNKNOWN_SERVER_ERROR" in str(consumer.health.last_error)
        assert await take(consumer, 500) == list(range(500))
        assert consumer.health.last_error is None


@pytest.mark.parametrize("reset", ["earliest", "none"])
async def test_offset_in_a_topic_that_was_deleted_means_nothing_in_the_next_one_of_its_name(
    filled: Cluster, reset: str
) -> None:
    settings = ConsumerSettings(auto_offset_reset=reset, max_wait=0.05)
    async with open_consumer(filled, assignment=FROM_START, settings=settings) as consumer:
        await take(consumer, 500)
        await Admin(filled).delete_topics(["t"])
        await Admin(filled).create_topic(NewTopic(name="t", partitions=2))
        await write(filled, P0, range(500))  # so that the old offset is in the log
        if reset == "earliest":
            assert await take(consumer, 500) == list(range(500))
        else:
            with pytest.raises(KafkaError, match="deleted and created again") as caught:
                await take(consumer, 1)
            assert caught.value.code == ErrorCode.OFFSET_OUT_OF_RANGE


async def test_offset_of_a_deleted_topic_is_not_fetched_from_the_next_one_that_came_meanwhile(
    filled: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Getting a connection may take longer than it takes to learn of the new topic."""
    settings = ConsumerSettings(auto_offset_reset="none", max_wait=0.05)
    connect, replaced, held = filled.connection, trio.Event(), trio.Event()

    async def connection(node: int, purpose: str = "") -> BrokerConnection:
        if purpose.startswith("fetch"):
            held.set()
            await replaced.wait()
        return await connect(node, purpose)

    async with open_consumer(filled, assignment=FROM_START, settings=settings) as consumer:
        await take(consumer, 500)
        monkeypatch.setattr(filled, "connection", connection)
        await held.wait()
        await Admin(filled).delete_topics(["t"])
        await Admin(filled).create_topic(NewTopic(name="t", partitions=2))
        await write(filled, P0, range(600))
        replaced.set()
        with pytest.raises(KafkaError, match="deleted and created again"):
            await take(consumer, 1)


async def test_batch_that_is_damaged_is_fetched_again(filled: Cluster, consumer: Consumer) -> None:
    assert await take(consumer, 1) == [0]
    position = consumer._buffers.positions[P0]
    while not position.ready:
        await trio.lowlevel.checkpoint()
    broken = position.ready[0]
    data = bytearray(broken.view)
    data[-1] ^= 1
    broken._view = memoryview(data)
    await take(consumer, broken.first_offset - 1)
    first, last = broken.first_offset, broken.meta.last_offset
    with pytest.raises(CorruptBatch, match=f"partition t-0, offsets {first} to {last}: "):
        await anext(aiter(consumer))
    with pytest.raises(CorruptBatch, match=f"partition t-0, offsets {first} to {last}: "):
        broken.columns()
    assert await take(consumer, 1) == [first]


async def test_latest_begins_at_the_end(filled: Cluster) -> None:
    start = {P0: Start(timestamp=LATEST)}
    async with open_consumer(filled, assignment=start, settings=EARLY) as consumer:
        assert await nothing_comes(consumer, 0.1)
        await write(filled, P0, [500])
        assert await take(consumer, 1) == [500]
