"""Records handed over at once: all of them or none, where each of them is, and in order."""

from collections import Counter
from itertools import count
from typing import Any

import pytest
import trio
from tests.client.test_produce import read

from odradek.client import (
    Admin,
    BatchOutcome,
    ClientClosed,
    Cluster,
    NewTopic,
    Producer,
    ProducerSettings,
    TopicInfo,
    open_producer,
)
from odradek.client.partitioner import partition_for_key
from odradek.errors import ErrorCode, KafkaError


async def test_send_many_says_where_the_records_are(cluster: Cluster) -> None:
    await Admin(cluster).create_topic(NewTopic(name="t"))
    async with open_producer(cluster) as producer:
        await producer.send("t", b"before")
        deliveries = await producer.send_many("t", [b"a", None, b"c"], timestamp=7)
        (found,) = await deliveries.wait()
    assert found == ("t", 0, 1, 7, range(3))
    assert len(deliveries) == 3
    assert [record.value for record in await read(cluster, "t")] == [b"before", b"a", None, b"c"]


async def test_send_many_is_in_order_across_batches_and_with_send_between(
    cluster: Cluster,
) -> None:
    await Admin(cluster).create_topic(NewTopic(name="t"))
    settings = ProducerSettings(batch_bytes=1000)
    numbers = count()
    async with open_producer(cluster, settings) as producer:
        for _ in range(20):
            await producer.send_many("t", [b"%d" % next(numbers) for _ in range(100)])
            await producer.send("t", b"%d" % next(numbers))
    values = [record.value for record in await read(cluster, "t")]
    assert values == [b"%d" % n for n in range(2020)]


async def test_send_many_places_keys_as_send_does_and_says_which_went_where(
    cluster: Cluster,
) -> None:
    await Admin(cluster).create_topic(NewTopic(name="t", partitions=4))
    keys = [b"key %d" % (n % 13) if n % 5 else None for n in range(500)]
    values = [b"%d" % n for n in range(500)]
    async with open_producer(cluster, ProducerSettings(batch_bytes=2000)) as producer:
        deliveries = await producer.send_many("t", values, keys=keys)
        ranges = await deliveries.wait()
    records = {(r.partition, r.offset): r for r in await read(cluster, "t")}
    seen = set()
    for topic, partition, base_offset, _, indexes in ranges:
        assert topic == "t"
        for step, index in enumerate(indexes):
            record = records[partition, base_offset + step]
            key = keys[index]
            assert (record.key, record.value) == (key, values[index])
            assert key is None or partition == partition_for_key(key, 4)
            seen.add(index)
    assert seen == set(range(500))


async def test_send_many_without_keys_reaches_every_partition_in_full_batches(
    cluster: Cluster,
) -> None:
    await Admin(cluster).create_topic(NewTopic(name="t", partitions=3))
    outcomes: list[BatchOutcome] = []
    settings = ProducerSettings(batch_bytes=2000, linger=5.0)
    async with open_producer(cluster, settings, observer=outcomes.append) as producer:
        for _ in range(20):
            await producer.send_many("t", [b"x" * 90] * 100)
    assert {outcome.partition.partition for outcome in outcomes} == {0, 1, 2}
    assert sum(outcome.records for outcome in outcomes) == 2000
    assert sum(outcome.records < 10 for outcome in outcomes) <= 3


async def test_send_many_goes_to_the_partition_it_is_told(cluster: Cluster) -> None:
    await Admin(cluster).create_topic(NewTopic(name="t", partitions=3))
    async with open_producer(cluster) as producer:
        deliveries = await producer.send_many("t", [b"a", b"b"], keys=[b"x", b"y"], partition=2)
        (found,) = await deliveries.wait()
    assert found[:3] == ("t", 2, 0)


async def test_send_many_of_nothing_is_done_at_once(cluster: Cluster) -> None:
    async with open_producer(cluster) as producer:
        deliveries = await producer.send_many("t", [])
        assert deliveries.done
        assert await deliveries.wait() == []


@pytest.mark.parametrize(
    ("values", "keys", "error"),
    [
        ([b"good", "bad"], None, TypeError),
        ([b"good", b"good"], [b"k", 7], TypeError),
        ([b"good", b"good"], [b"k"], ValueError),
        ([b"good", b"x" * 60_000], None, KafkaError),
        ([b"good", b"x" * 30_000], [None, b"k" * 30_000], KafkaError),
        ([b"x" * 1000] * 110, None, ValueError),
    ],
)
async def test_send_many_takes_none_where_one_cannot_be_sent(
    cluster: Cluster, values: list[bytes], keys: list[bytes] | None, error: type[Exception]
) -> None:
    settings = ProducerSettings(max_request_bytes=50_000, buffer_bytes=100_000)
    async with open_producer(cluster, settings) as producer:
        with pytest.raises(error):
            await producer.send_many("t", values, keys=keys)
        assert producer.buffered_bytes == 0
        await (await producer.send("t", b"only")).wait()
    assert [record.value for record in await read(cluster, "t")] == [b"only"]


async def test_send_many_refuses_a_timestamp_out_of_range(cluster: Cluster) -> None:
    async with open_producer(cluster) as producer:
        with pytest.raises(ValueError, match="timestamp"):
            await producer.send_many("t", [b"x"], timestamp=2**63)


async def test_send_many_takes_kinds_of_bytes_as_send_does(cluster: Cluster) -> None:
    class Kind(bytes):
        pass

    async with open_producer(cluster) as producer:
        await producer.send_many("t", [Kind(b"a"), None, b"b"])
        await producer.send("t", Kind(b"c"))
    values = [record.value for record in await read(cluster, "t")]
    assert sorted(values, key=bool) == [None, b"a", b"b", b"c"]


async def test_producer_refuses_a_partitioner_that_answers_no_number(cluster: Cluster) -> None:
    def wrong(topic: TopicInfo, key: bytes | None, value: bytes | None) -> Any:
        answers: dict[bytes | None, Any] = {b"half": 0.5, b"text": "0"}
        return answers.get(value, 0)

    async with open_producer(cluster, partitioner=wrong) as producer:
        for value in (b"half", b"text"):
            with pytest.raises(TypeError, match="integer"):
                await producer.send("t", value)
            with pytest.raises(TypeError, match="integer"):
                await producer.send_many("t", [b"fine", value])
        assert producer.buffered_bytes == 0
        assert (await (await producer.send("t", b"fine")).wait()).offset == 0


async def test_send_many_carries_a_record_larger_than_a_batch(cluster: Cluster) -> None:
    async with open_producer(cluster, ProducerSettings(batch_bytes=1000)) as producer:
        values = [b"a", b"x" * 5000, b"b" * 600, b"c" * 600]
        await (await producer.send_many("t", values)).wait()
    assert [record.value for record in await read(cluster, "t")] == values


async def test_send_many_waits_for_room_and_never_buffers_beyond_the_bound(
    cluster: Cluster,
) -> None:
    settings = ProducerSettings(buffer_bytes=50_000, batch_bytes=5_000, linger=60.0)
    most = 0
    async with open_producer(cluster, settings) as producer:
        for _ in range(50):
            await producer.send_many("t", [b"x" * 500] * 40)
            most = max(most, producer.buffered_bytes)
    assert 20_000 < most <= 50_000
    assert len(await read(cluster, "t")) == 2000


async def test_send_many_that_is_cancelled_while_it_waits_took_nothing(cluster: Cluster) -> None:
    settings = ProducerSettings(buffer_bytes=50_000, linger=0.0)
    async with open_producer(cluster, settings) as producer:
        await producer.send_many("t", [b"first" * 100] * 50)  # leaves no room for another
        with trio.CancelScope() as scope:
            scope.cancel()
            await producer.send_many("t", [b"never" * 100] * 50)
        assert scope.cancelled_caught
    values = [record.value for record in await read(cluster, "t")]
    assert values == [b"first" * 100] * 50


async def test_send_many_and_send_take_turns_when_the_buffer_is_full(cluster: Cluster) -> None:
    await Admin(cluster).create_topic(NewTopic(name="t"))
    settings = ProducerSettings(buffer_bytes=30_000, batch_bytes=3_000)
    done: Counter[str] = Counter()

    async def small(producer: Producer) -> None:
        for _ in range(300):
            await producer.send("t", b"s" * 400)
            done["small"] += 1

    async def large(producer: Producer) -> None:
        for _ in range(10):
            await producer.send_many("t", [b"l" * 400] * 50)
            done["large"] += 1
            if done["large"] == 5:
                assert done["small"] < 300, "the large ones had to wait for every small one"

    async with open_producer(cluster, settings) as producer, trio.open_nursery() as nursery:
        nursery.start_soon(small, producer)
        nursery.start_soon(small, producer)
        nursery.start_soon(large, producer)
    assert done == {"small": 600, "large": 10}


async def test_send_many_tells_which_records_failed_and_which_did_not(cluster: Cluster) -> None:
    configs = {"max.message.bytes": "1000"}
    await Admin(cluster).create_topic(NewTopic(name="t", configs=configs))
    async with open_producer(cluster, ProducerSettings(batch_bytes=800)) as producer:
        deliveries = await producer.send_many("t", [b"a" * 500, b"x" * 2000, b"b" * 500])
        with pytest.raises(KafkaError) as caught:
            await deliveries.wait()
        assert caught.value.code == ErrorCode.MESSAGE_TOO_LARGE
        (failure,) = deliveries.failed
        assert (failure.error, list(failure.indexes)) == (caught.value, [1])
        assert [list(each.indexes) for each in deliveries.delivered] == [[0], [2]]


async def test_send_many_asks_the_partitioner_once_for_each_record(cluster: Cluster) -> None:
    await Admin(cluster).create_topic(NewTopic(name="t", partitions=3))
    turns = count()

    def in_turn(topic: TopicInfo, key: bytes | None, value: bytes | None) -> int | None:
        return None if key is not None else next(turns) % len(topic.partitions)

    async with open_producer(cluster, partitioner=in_turn) as producer:
        for n in range(10):
            await producer.send("t", b"%d" % n)
        await producer.send_many("t", [b"%d" % n for n in range(10, 30)])
        keyed = await producer.send("t", b"keyed", key=b"k")
        assert keyed.partition.partition == partition_for_key(b"k", 3)
        await producer.send("t", b"told", partition=0)
    assert next(turns) == 30
    for record in await read(cluster, "t"):
        if record.value not in (b"keyed", b"told"):
            assert int(record.value or b"") % 3 == record.partition


async def test_producer_refuses_what_a_partitioner_answers_beyond_the_partitions(
    cluster: Cluster,
) -> None:
    await Admin(cluster).create_topic(NewTopic(name="t", partitions=3))
    async with open_producer(cluster, partitioner=lambda *_: 3) as producer:
        with pytest.raises(KafkaError, match="partitions 0 to 2, not 3"):
            await producer.send("t", b"")
        with pytest.raises(KafkaError, match="partitions 0 to 2, not 3"):
            await producer.send_many("t", [b""])
        assert producer.buffered_bytes == 0


async def test_send_many_to_a_closed_producer_raises(cluster: Cluster) -> None:
    async with open_producer(cluster) as producer:
        await producer.send_many("t", [b"x"])
    with pytest.raises(ClientClosed):
        await producer.send_many("t", [b"y"])
    with pytest.raises(ClientClosed):
        await producer.send_many("t", [])
