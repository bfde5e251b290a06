"""The reader against a real broker: positions, order, ends, bounds."""

import pytest
import trio

from odradek.client import (
    EARLIEST,
    LATEST,
    Admin,
    Cluster,
    NewTopic,
    ProducerSettings,
    ReaderSettings,
    Start,
    TopicPartition,
    open_producer,
    open_reader,
)
from odradek.errors import ErrorCode, KafkaError

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


async def fill(cluster: Cluster, records: int, *, first: int = 0, batch: int = 2_000) -> None:
    settings = ProducerSettings(batch_bytes=batch)
    async with open_producer(cluster, settings) as producer:
        for n in range(first, first + records):
            await producer.send("t", b"%d" % n, partition=n % 2, timestamp=1000 + n)


@pytest.fixture
async def filled(cluster: Cluster) -> Cluster:
    """A topic `t` of two partitions; record n is in partition n % 2 at offset n // 2."""
    await Admin(cluster).create_topic(NewTopic(name="t", partitions=2))
    await fill(cluster, 1000)
    return cluster


async def values(cluster: Cluster, *starts: tuple[TopicPartition, Start]) -> list[int]:
    async with open_reader(cluster, dict(starts), until_end=True) as reader:
        return [int(record.value or b"") async for record in reader]


async def test_reader_yields_every_record_once_and_in_order(filled: Cluster) -> None:
    for partition in (P0, P1):
        found = await values(filled, (partition, Start(timestamp=EARLIEST)))
        assert found == list(range(partition.partition, 1000, 2))
    both = await values(filled, (P0, Start(timestamp=EARLIEST)), (P1, Start(timestamp=EARLIEST)))
    assert sorted(both) == list(range(1000))


async def test_reader_starts_inside_of_a_batch(filled: Cluster) -> None:
    assert await values(filled, (P0, Start(offset=123))) == list(range(246, 1000, 2))


async def test_reader_starts_at_a_time(filled: Cluster) -> None:
    assert await values(filled, (P0, Start(timestamp=1501))) == list(range(502, 1000, 2))


async def test_reader_of_a_time_after_every_record_starts_at_the_end(filled: Cluster) -> None:
    assert await values(filled, (P0, Start(timestamp=10**15))) == []


async def test_reader_ends_where_the_partition_ended_when_it_was_opened(filled: Cluster) -> None:
    start = {P0: Start(timestamp=EARLIEST)}
    async with open_reader(filled, start, until_end=True) as reader:
        await fill(filled, 100, first=1000)
        assert len([record async for record in reader]) == 500
        assert reader.finished


async def test_reader_of_an_empty_partition_ends_at_once(cluster: Cluster) -> None:
    await Admin(cluster).create_topic(NewTopic(name="t", partitions=2))
    assert await values(cluster, (P0, Start(timestamp=EARLIEST))) == []


async def test_reader_follows_new_records_as_they_come(filled: Cluster) -> None:
    async with open_reader(filled, {P0: Start(timestamp=LATEST)}) as reader:
        for first in (1000, 1002):
            await fill(filled, 2, first=first)
            with trio.fail_after(5):
                batch = await reader.next_batch()
            assert batch is not None
            assert [record.value for record in batch] == [b"%d" % first]


async def test_reader_loses_nothing_when_its_waiting_is_cancelled(filled: Cluster) -> None:
    async with open_reader(filled, {P0: Start(timestamp=LATEST)}) as reader:
        with trio.move_on_after(0.02) as waited:
            await reader.next_batch()
        assert waited.cancelled_caught
        await fill(filled, 2, first=1000)
        batch = await reader.next_batch()
        assert batch is not None
        assert [record.value for record in batch] == [b"1000"]


async def test_reader_fetches_ahead_no_further_than_its_buffer(filled: Cluster) -> None:
    settings = ReaderSettings(buffer_bytes=4_000, fetch_bytes=2_000, partition_bytes=1_000)
    start = {P0: Start(timestamp=EARLIEST), P1: Start(timestamp=EARLIEST)}
    found = most = 0
    async with open_reader(filled, start, settings, until_end=True) as reader:
        async for batch in reader.batches():
            most = max(most, reader.buffered_bytes + batch.meta.size)
            found += len(batch.records())
    assert found == 1000
    assert most <= 4_000 + 2 * 2_100  # an answer is whole batches


async def test_reader_raises_out_of_range_or_goes_where_it_is_told(filled: Cluster) -> None:
    await Admin(filled).delete_records({P0: 100})
    async with open_reader(filled, {P0: Start(offset=7)}) as reader:
        with pytest.raises(KafkaError, match="has no offset 7") as caught:
            await reader.next_batch()
    assert caught.value.code == ErrorCode.OFFSET_OUT_OF_RANGE
    start = {P0: Start(offset=7)}
    async with open_reader(filled, start, until_end=True, reset=EARLIEST) as reader:
        offsets = [record.offset async for record in reader]
    assert offsets == list(range(100, 500))


async def test_reader_gives_up_on_a_topic_that_goes_away(filled: Cluster) -> None:
    settings = ReaderSettings(missing_timeout=0.1, max_wait=0.05)
    async with open_reader(filled, {P0: Start(timestamp=LATEST)}, settings) as reader:
        with trio.move_on_after(0.02):
            await reader.next_batch()
        await Admin(filled).delete_topics(["t"])
        with trio.fail_after(10), pytest.raises(KafkaError) as caught:
            await reader.next_batch()
    assert caught.value.code in (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
    )


async def test_reader_goes_on_when_its_connection_breaks(filled: Cluster) -> None:
    settings = ReaderSettings(partition_bytes=2_000)
    found: list[int] = []
    start = {P0: Start(timestamp=EARLIEST)}
    async with open_reader(filled, start, settings, until_end=True) as reader:
        async for batch in reader.batches():
            found += [int(record.value or b"") for record in batch]
            (await filled.connection(1, "fetch")).close()
    assert found == list(range(0, 1000, 2))


async def test_open_reader_refuses_a_partition_that_does_not_exist(filled: Cluster) -> None:
    unknown = TopicPartition("t", 9)
    with pytest.raises(KafkaError) as caught:
        async with open_reader(filled, {unknown: Start(timestamp=EARLIEST)}):
            pass
    assert caught.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
