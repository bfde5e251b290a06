"""The producer against a real broker: order, acknowledgement, retries without duplicates."""

from typing import Any

import pytest
import trio
from attrs import evolve
from tests.record.implementations import load

from odradek.broker import Broker
from odradek.client import (
    EARLIEST,
    Admin,
    BatchOutcome,
    ClientClosed,
    ClientSettings,
    Cluster,
    ConsumerRecord,
    ConsumerSettings,
    Delivery,
    DeliveryTimedOut,
    NewTopic,
    Producer,
    ProducerSettings,
    Start,
    TopicPartition,
    open_cluster,
    open_producer,
    open_reader,
)
from odradek.client.partitioner import partition_for_key
from odradek.errors import ErrorCode, KafkaError
from odradek.record import CompressionType
from odradek.record.compression import compress

QUICK = ClientSettings(retry_backoff=0.01, retry_backoff_max=0.05)


async def read(cluster: Cluster, topic: str) -> list[ConsumerRecord]:
    known = await cluster.topic(topic)
    start = {
        TopicPartition(topic, each.partition): Start(timestamp=EARLIEST)
        for each in known.partitions
    }
    async with open_reader(cluster, start, until_end=True) as reader:
        return [record async for record in reader]


async def test_producer_says_where_each_record_is(cluster: Cluster) -> None:
    await Admin(cluster).create_topic(NewTopic(name="t"))
    async with open_producer(cluster) as producer:
        deliveries = [await producer.send("t", b"%d" % n, timestamp=7) for n in range(5)]
        found = [await delivery.wait() for delivery in deliveries]
    assert found == [("t", 0, offset, 7) for offset in range(5)]
    records = await read(cluster, "t")
    assert [(r.offset, r.value, r.timestamp) for r in records] == [
        (n, b"%d" % n, 7) for n in range(5)
    ]


async def test_producer_carries_keys_nulls_headers_and_any_bytes(cluster: Cluster) -> None:
    headers = (("a", b"\x00\xff"), ("b", None), ("a", b""))
    async with open_producer(cluster) as producer:
        await producer.send("t", b"\xff\x00", key=b"\n", headers=headers)
        await producer.send("t", None, key=b"gone")
        await producer.send("t", b"")
    (first, second, third) = await read(cluster, "t")
    assert (first.key, first.value, first.headers) == (b"\n", b"\xff\x00", headers)
    assert (second.key, second.value) == (b"gone", None)
    assert (third.key, third.value) == (None, b"")


@pytest.mark.parametrize("compression", CompressionType)
async def test_producer_compresses_by_every_codec(
    cluster: Cluster, compression: CompressionType
) -> None:
    settings = ProducerSettings(compression=compression)
    async with open_producer(cluster, settings) as producer:
        for n in range(1000):
            await producer.send("t", b"value %d" % n)
    assert [record.value for record in await read(cluster, "t")] == [
        b"value %d" % n for n in range(1000)
    ]
    (directory,) = await Admin(cluster).describe_log_dirs()
    stored = sum(each.size for each in directory.replicas)
    assert (stored < 10_000) == (compression is not CompressionType.NONE)


async def test_producer_places_keys_as_the_java_client_does_and_keeps_their_order(
    cluster: Cluster,
) -> None:
    await Admin(cluster).create_topic(NewTopic(name="t", partitions=4))
    async with open_producer(cluster, ProducerSettings(batch_bytes=500)) as producer:
        for n in range(400):
            await producer.send("t", b"%d" % n, key=b"key %d" % (n % 7))
    seen: dict[bytes, list[int]] = {}
    for record in await read(cluster, "t"):
        assert record.key is not None
        assert record.value is not None
        assert record.partition == partition_for_key(record.key, 4)
        seen.setdefault(record.key, []).append(int(record.value))
    assert len(seen) == 7
    assert all(values == sorted(values) for values in seen.values())


async def test_producer_without_keys_fills_batches_and_reaches_every_partition(
    cluster: Cluster,
) -> None:
    await Admin(cluster).create_topic(NewTopic(name="t", partitions=3))
    batches: list[BatchOutcome] = []
    settings = ProducerSettings(batch_bytes=2000, linger=5.0)
    async with open_producer(cluster, settings, observer=batches.append) as producer:
        for _ in range(2000):
            await producer.send("t", b"x" * 90)
    assert {outcome.partition.partition for outcome in batches} == {0, 1, 2}
    small = [outcome for outcome in batches if outcome.records < 10]
    assert len(small) <= 3  # the last of each partition


async def test_producer_refuses_a_partition_that_does_not_exist(cluster: Cluster) -> None:
    await Admin(cluster).create_topic(NewTopic(name="t", partitions=2))
    async with open_producer(cluster) as producer:
        with pytest.raises(KafkaError, match="partitions 0 to 1, not 2") as caught:
            await producer.send("t", b"", partition=2)
    assert caught.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_producer_sees_partitions_that_were_added(cluster: Cluster) -> None:
    admin = Admin(cluster)
    await admin.create_topic(NewTopic(name="t"))
    async with open_producer(cluster) as producer:
        await producer.send("t", b"")
        await admin.create_partitions({"t": 3})
        delivery = await producer.send("t", b"new", partition=2)
        assert (await delivery.wait()).partition == 2


async def test_producer_reports_the_brokers_refusal_and_goes_on(cluster: Cluster) -> None:
    configs = {"max.message.bytes": "1000"}
    await Admin(cluster).create_topic(NewTopic(name="t", configs=configs))
    async with open_producer(cluster) as producer:
        first = await producer.send("t", b"x")
        await producer.flush()
        large = await producer.send("t", b"x" * 2000)
        await producer.flush()
        last = await producer.send("t", b"y")
        assert (await first.wait()).offset == 0
        with pytest.raises(KafkaError) as caught:
            await large.wait()
        assert caught.value.code == ErrorCode.MESSAGE_TOO_LARGE
        assert (await last.wait()).offset == 1


async def test_producer_refuses_a_record_that_no_request_may_carry(cluster: Cluster) -> None:
    settings = ProducerSettings(max_request_bytes=1000)
    async with open_producer(cluster, settings) as producer:
        with pytest.raises(KafkaError) as caught:
            await producer.send("t", b"x" * 2000)
        assert caught.value.code == ErrorCode.MESSAGE_TOO_LARGE
        assert (await (await producer.send("t", b"small")).wait()).offset == 0


@pytest.mark.parametrize("acks", [0, 1])
async def test_producer_without_idempotence_keeps_the_order(cluster: Cluster, acks: int) -> None:
    settings = ProducerSettings(acks=acks, idempotent=False, batch_bytes=1000)
    async with open_producer(cluster, settings) as producer:
        deliveries = [await producer.send("t", b"%d" % n) for n in range(1000)]
    offsets = [(await delivery.wait()).offset for delivery in deliveries]
    assert offsets == ([-1] * 1000 if acks == 0 else list(range(1000)))
    values: list[bytes | None] = []
    with trio.fail_after(5):
        while len(values) < 1000:  # acks = 0: they arrive when they arrive
            values = [record.value for record in await read(cluster, "t")]
    assert values == [b"%d" % n for n in range(1000)]


def test_producer_settings_refuse_what_cannot_be_kept() -> None:
    with pytest.raises(ValueError, match="acks = -1"):
        ProducerSettings(acks=1)
    with pytest.raises(ValueError, match="at most 5"):
        ProducerSettings(max_in_flight=6)


@pytest.mark.parametrize(
    ("settings", "given", "error", "message"),
    [
        (ProducerSettings, {"compression": "gzipp"}, ValueError, "none, gzip, .*not 'gzipp'"),
        (ProducerSettings, {"compression": 9}, ValueError, "not 9"),
        (ProducerSettings, {"compression": None}, ValueError, "not None"),
        (ProducerSettings, {"acks": 2}, ValueError, r"^acks is one of -1, 0, 1, not 2$"),
        (ProducerSettings, {"max_in_flight": 2.5}, TypeError, "max_in_flight is a whole number"),
        (ProducerSettings, {"batch_bytes": 2**31}, ValueError, "batch_bytes is from 1 to"),
        (ClientSettings, {"request_timeout": 1e9}, ValueError, "request_timeout"),
        (ClientSettings, {"request_timeout": float("inf")}, ValueError, "request_timeout"),
        (ConsumerSettings, {"session_timeout": 1e9}, ValueError, "session_timeout"),
        (ConsumerSettings, {"rebalance_timeout": 1e9}, ValueError, "rebalance_timeout"),
        (ConsumerSettings, {"max_wait": 1e9}, ValueError, "max_wait"),
        (ConsumerSettings, {"fetch_bytes": 2**31}, ValueError, "fetch_bytes"),
        (ConsumerSettings, {"group_protocol": "x"}, ValueError, r"^group_protocol is one of 'cl"),
        (ConsumerSettings, {"assignors": ("x",)}, ValueError, r"^assignors is one of .* not 'x'$"),
        (ConsumerSettings, {"auto_offset_reset": 1}, ValueError, r"^auto_offset_reset is one of"),
    ],
)
def test_settings_refuse_at_once_and_in_words_what_would_fail_later(
    settings: type, given: dict[str, object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message) as raised:
        settings(**given)
    assert "Attribute(" not in str(raised.value)


@pytest.mark.parametrize("codec", CompressionType)
def test_producer_settings_take_a_codec_by_its_name(codec: CompressionType) -> None:
    for name in (codec.name, codec.name.lower()):
        assert ProducerSettings(compression=name).compression is codec


async def test_producer_fails_a_batch_that_cannot_be_built_and_no_other(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(codec: CompressionType, data: bytes, level: int | None) -> bytes:
        if b"bad" in bytes(data):
            raise MemoryError("no more")
        return compress(codec, data, level)

    monkeypatch.setattr("odradek.record.builder.compress", failing)
    await Admin(cluster).create_topic(NewTopic(name="t", partitions=2))
    outcomes: list[BatchOutcome] = []
    settings = ProducerSettings(compression=CompressionType.GZIP)
    async with open_producer(cluster, settings, observer=outcomes.append) as producer:
        bad = await producer.send("t", b"bad", partition=0)
        good = await producer.send("t", b"good", partition=1)
        with pytest.raises(KafkaError, match=r"INVALID_RECORD.*cannot be built.*no more"):
            await bad.wait()
        assert (await good.wait()).offset == 0
        again = await producer.send("t", b"again", partition=0)
        assert (await again.wait()).offset == 0
        assert producer.buffered_bytes == 0
    assert len([each for each in outcomes if each.error]) == 1


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"value": "text"}, "bytes or None, not str"),
        ({"value": bytearray(b"x")}, "bytes or None, not bytearray"),
        ({"value": 0}, "bytes or None, not int"),
        ({"key": "text"}, "bytes or None, not str"),
        ({"key": bytearray(b"x")}, "bytes or None, not bytearray"),
        ({"key": bytearray(b"x" * 300)}, "bytes or None, not bytearray"),
        ({"key": 7}, "bytes or None, not int"),
        ({"headers": [("name", "text")]}, "bytes or None, not str"),
        ({"headers": [(b"name", b"x")]}, "text, not bytes"),
        ({"timestamp": 1.5}, "'float'.*integer"),
        ({"partition": 0.5}, "'float'.*integer"),
        ({"partition": "0"}, "'str'.*integer"),
    ],
)
@pytest.mark.parametrize("implementation", ["pure", "compiled"])
async def test_send_refuses_at_once_what_is_of_another_type_and_goes_on(
    cluster: Cluster,
    wrong: dict[str, Any],
    message: str,
    implementation: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    codec = load(implementation)
    monkeypatch.setattr("odradek.client.accumulator.BatchBuilder", codec.BatchBuilder)
    monkeypatch.setattr("odradek.client.partitioner.murmur2", codec.murmur2)
    arguments: dict[str, Any] = {"topic": "t", "value": b"x", **wrong}
    async with open_producer(cluster, ProducerSettings(linger=60)) as producer:
        with pytest.raises(TypeError, match=message):
            await producer.send(**arguments)  # there is no open batch
        fine = await producer.send("t", b"fine", partition=0)
        with pytest.raises(TypeError, match=message):
            await producer.send(**arguments)  # there is one
        if arguments.keys() <= {"topic", "value", "key", "timestamp", "partition"}:
            given: dict[str, Any] = {
                f"{name}s": [arguments.pop(name)]
                for name in ("value", "key")  # as send_many
                if name in arguments
            }
            with pytest.raises(TypeError, match=message):
                await producer.send_many(**arguments, **given)
        await producer.flush()
        assert (await fine.wait()).offset == 0
        assert producer.buffered_bytes == 0
    assert [record.value for record in await read(cluster, "t")] == [b"fine"]


async def test_producer_waits_for_room_and_never_buffers_beyond_its_bound(
    cluster: Cluster,
) -> None:
    settings = ProducerSettings(buffer_bytes=20_000, batch_bytes=5_000, linger=60.0)
    most = 0
    async with open_producer(cluster, settings) as producer:
        for _ in range(500):
            await producer.send("t", b"x" * 1000)
            most = max(most, producer.buffered_bytes)
    assert most <= 20_000
    assert producer.buffered_bytes == 0
    assert len(await read(cluster, "t")) == 500


async def test_producer_flush_lingers_for_nothing(cluster: Cluster) -> None:
    async with open_producer(cluster, ProducerSettings(linger=3600.0)) as producer:
        delivery = await producer.send("t", b"x")
        with trio.fail_after(5):
            await producer.flush()
        assert delivery.done


async def test_producer_fails_what_is_on_its_way_when_its_body_fails(cluster: Cluster) -> None:
    deliveries: list[Delivery] = []
    producers: list[Producer] = []

    async def body() -> None:
        async with open_producer(cluster, ProducerSettings(linger=3600.0)) as producer:
            producers.append(producer)
            deliveries.append(await producer.send("t", b"x"))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await body()
    with pytest.raises(ClientClosed):
        await deliveries[0].wait()
    with pytest.raises(ClientClosed):
        await producers[0].send("t", b"y")


async def test_producer_writes_each_record_once_though_answers_get_lost(
    broker: Broker, network: Any
) -> None:
    (url,) = broker.urls.values()
    network.lose = lambda answers: answers > 8 and answers % 5 == 0
    settings = ProducerSettings(batch_bytes=2_000, linger=0.0)
    async with open_cluster(url, QUICK, transport=network) as cluster:
        await Admin(cluster).create_topic(NewTopic(name="t", partitions=2))
        async with open_producer(cluster, settings) as producer:
            # How many records share an answer depends on the moment: go on until enough are lost.
            sent = 0
            while network.lost < 5:
                await producer.send("t", b"%d" % sent, partition=sent % 2)
                sent += 1
        network.lose = lambda _: False
        records = await read(cluster, "t")
    for partition in (0, 1):
        values = [int(r.value or b"") for r in records if r.partition == partition]
        assert values == list(range(partition, sent, 2))


async def test_producer_gives_up_after_the_delivery_timeout(broker: Broker, network: Any) -> None:
    (url,) = broker.urls.values()
    settings = ProducerSettings(delivery_timeout=0.2)
    async with open_cluster(url, QUICK, transport=network) as cluster:
        async with open_producer(cluster, settings) as producer:
            await (await producer.send("t", b"arrives")).wait()
            network.lose = lambda _: True
            delivery = await producer.send("t", b"in doubt")
            with pytest.raises(
                DeliveryTimedOut, match="may have been written; the last error was "
            ):
                await delivery.wait()
            network.lose = lambda _: False
            after = await (await producer.send("t", b"after")).wait()
        values = [record.value for record in await read(cluster, "t")]
    assert values[0] == b"arrives"
    assert values[-1] == b"after"
    assert values.count(b"in doubt") <= 1
    assert after.offset == len(values) - 1


async def test_producer_survives_a_topic_created_again(cluster: Cluster) -> None:
    admin = Admin(cluster)
    await admin.create_topic(NewTopic(name="t"))
    settings = evolve(ProducerSettings(), create_topics=False)
    async with open_producer(cluster, settings) as producer:
        await (await producer.send("t", b"old")).wait()
        await (await producer.send("t", b"old")).wait()
        await admin.delete_topics(["t"])
        await admin.create_topic(NewTopic(name="t"))
        await (await producer.send("t", b"new")).wait()
    assert [record.value for record in await read(cluster, "t")] == [b"new"]


async def test_producer_brings_back_the_topic_of_what_it_holds_and_no_other(
    cluster: Cluster,
) -> None:
    admin = Admin(cluster)
    settings = ProducerSettings(create_topics=True, linger=60)
    async with open_producer(cluster, settings) as producer:
        for name in ("t", "followed"):
            await admin.create_topic(NewTopic(name=name))
            await cluster.topic(name)
        delivery = await producer.send("t", b"x")
        await admin.delete_topics(["t", "followed"])
        await producer.flush()
        assert (await delivery.wait()).offset == 0
    assert set((await cluster.renew(None)).topics) == {"t"}
