"""What a client wrote is what every client reads."""

from __future__ import annotations

import hashlib
import random
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.interop.conftest import CLIENTS, NewClient
from tests.interop.drivers.base import Driver, Record, Refused
from tests.interop.probe import Probe
from tests.interop.process import BrokerProcess

from odradek.errors import ErrorCode
from odradek.record import CompressionType, decode_records, scan

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
NOW = int(time.time() * 1000)


def _records(driver: Driver, count: int = 20) -> list[Record]:
    """Records as various as the client can make them."""
    headers: tuple[tuple[str, bytes | None], ...] = (
        ("trace", b"abc"),
        ("empty", b""),
        ("trace", b"2"),
    )
    if driver.null_headers:
        headers += (("none", None),)
    return [
        Record(
            value=None if number % 5 == 4 else f"value {number} ".encode() * 20,
            key=f"key {number}".encode(),
            headers=() if not driver.headers or number % 2 else headers,
            timestamp=NOW - 1000 + number if driver.timestamps else None,
        )
        for number in range(count)
    ]


def _same(got: list[Record], sent: list[Record]) -> None:
    assert [(r.key, r.value, r.headers) for r in got] == [(r.key, r.value, r.headers) for r in sent]
    for mine, theirs in zip(got, sent, strict=True):
        if theirs.timestamp is not None:
            assert mine.timestamp == theirs.timestamp
        else:
            assert mine.timestamp is not None
            assert abs(mine.timestamp - time.time() * 1000) < 60_000
    assert [r.offset for r in got] == list(range(len(got)))


@pytest.mark.parametrize("writer", CLIENTS)
def test_what_any_client_wrote_any_client_reads(
    writer: str, driver: Driver, broker: BrokerProcess, topic: str, new_client: NewClient
) -> None:
    written_by = new_client(writer, broker.address)
    records = _records(written_by)
    offsets = written_by.produce(topic, records)
    if written_by.reports_offsets:
        assert offsets == list(range(len(records)))
    _same(driver.consume(topic, len(records)), records)


@pytest.mark.parametrize("codec", CODECS)
def test_a_compressed_batch_is_stored_as_it_was_compressed(
    codec: str, driver: Driver, broker: BrokerProcess, topic: str
) -> None:
    records = _records(driver, 50)
    driver.produce(topic, records, compression=codec)
    batches = broker.batches(topic)
    # librdkafka leaves a batch as it is when compressing makes it larger, as it does a first one
    # that went off with a single record.
    stored = {
        CompressionType(batch.compression).name.lower()
        for batch in batches
        if batch.record_count > 1
    }
    assert stored == {codec}
    assert sum(batch.record_count for batch in batches) == len(records)
    _same(driver.consume(topic, len(records)), records)


def test_kcat_sends_headers(broker: BrokerProcess, topic: str, new_client: NewClient) -> None:
    kcat = new_client("kcat", broker.address)
    sent = [Record(b"x", b"k", (("a", b"1"), ("b", b"2"), ("a", b"3")))]
    kcat.produce(topic, sent)
    assert kcat.consume(topic, 1)[0].headers == sent[0].headers


def test_a_null_key_and_an_empty_value_are_not_the_same(driver: Driver, topic: str) -> None:
    if driver.name == "kcat":
        pytest.skip("kcat sends every empty message as null, or none")
    sent = [Record(b"", None), Record(None, b""), Record(b"", b"")]
    driver.produce(topic, sent)
    got = driver.consume(topic, 3)
    assert [(r.key, r.value) for r in got] == [(None, b""), (b"", None), (b"", b"")]


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_every_kind_of_acknowledgement(acks: str, driver: Driver, topic: str) -> None:
    sent = [Record(f"{number}".encode(), b"k") for number in range(100)]
    driver.produce(topic, sent, acks=acks)
    assert [r.value for r in driver.consume(topic, 100)] == [r.value for r in sent]


def test_a_megabyte_is_accepted_and_two_are_not(driver: Driver, probe: Probe, topic: str) -> None:
    fits = Record(bytes(range(1, 29)) * 37_000, b"k")
    assert fits.value is not None
    assert len(fits.value) == 1_036_000
    driver.produce(topic, [fits])
    (got,) = driver.consume(topic, 1)
    assert got.value == fits.value
    with pytest.raises(Refused) as refused:
        driver.produce(topic, [Record(fits.value * 2, b"k")])
    assert refused.value.code is ErrorCode.MESSAGE_TOO_LARGE
    assert probe.end_offset(topic) == 1


def test_idempotent_producers_have_ids_and_sequences(
    driver: Driver, broker: BrokerProcess, topic: str
) -> None:
    sent = [Record(f"{number}".encode() * 100, b"k") for number in range(300)]
    driver.produce(topic, sent, idempotent=True)
    batches = broker.batches(topic)
    assert len({batch.producer_id for batch in batches}) == 1
    assert batches[0].producer_id >= 0
    expected = 0
    for batch in batches:
        assert batch.base_sequence == expected
        expected += batch.record_count
    assert [r.value for r in driver.consume(topic, 300)] == [r.value for r in sent]


def test_a_reader_can_start_in_the_middle_of_a_batch(
    driver: Driver, broker: BrokerProcess, topic: str
) -> None:
    sent = [Record(f"{number}".encode(), b"k") for number in range(100)]
    driver.produce(topic, sent, compression="lz4")
    batch = max(broker.batches(topic), key=lambda batch: batch.record_count)
    assert batch.record_count > 2
    middle = (batch.base_offset + batch.last_offset) // 2
    (got,) = driver.consume(topic, 1, start=middle)
    assert (got.offset, got.value) == (middle, sent[middle].value)


def test_partitions_are_apart_and_may_be_empty(
    driver: Driver, probe: Probe, topic_name: str
) -> None:
    probe.create_topic(topic_name, partitions=5)
    for partition in (1, 3):
        driver.produce(topic_name, [Record(f"to {partition}".encode(), b"k")], partition=partition)
    assert [probe.end_offset(topic_name, number) for number in range(5)] == [0, 1, 0, 1, 0]
    for partition in (1, 3):
        (got,) = driver.consume(topic_name, 1, partitions=[partition])
        assert got.value == f"to {partition}".encode()
    assert driver.offset_at(topic_name, "earliest", partition=2) == 0
    assert driver.offset_at(topic_name, "latest", partition=2) == 0
    assert driver.offset_at(topic_name, NOW, partition=2) == -1


def test_a_reader_at_the_end_gets_what_comes(
    driver: Driver, broker: BrokerProcess, topic: str
) -> None:
    """The reader's fetch is waiting at the broker when the second record arrives."""
    driver.produce(topic, [Record(b"first", b"k")])
    seen: list[int] = []

    def on_progress(count: int) -> None:
        if count and not seen:
            seen.append(count)
            with Probe(broker.address) as probe:
                probe.produce_values(topic, [b"second"])

    got = driver.consume(topic, 2, on_progress=on_progress)
    assert [r.value for r in got] == [b"first", b"second"]


def test_many_partitions_are_read_by_one_consumer(
    driver: Driver, probe: Probe, topic_name: str
) -> None:
    count = 100
    probe.create_topic(topic_name, partitions=count)
    for number in range(0, count, 2):
        probe.produce_values(topic_name, [b"%d" % number] * 3, partition=number)
    got = driver.consume(topic_name, 150, partitions=range(count))
    assert sorted((r.partition, r.offset, r.value) for r in got) == [
        (number, offset, b"%d" % number) for number in range(0, count, 2) for offset in range(3)
    ]


SPELLINGS = {"kafka-python": "_", "aiokafka": "_"}
"""What stands for the dots of Kafka's names of settings."""


def _settings(driver: Driver, **settings: object) -> dict[str, object]:
    dot = SPELLINGS.get(driver.name, ".")
    return {name.replace("_", dot): value for name, value in settings.items()}


def test_a_reader_with_small_fetches_gets_everything(driver: Driver, topic: str) -> None:
    records = [Record(b"%d " % number + b"x" * 300, b"k") for number in range(300)]
    for part in range(0, 300, 25):
        driver.produce(topic, records[part : part + 25])
    settings = _settings(driver, max_partition_fetch_bytes=2000)
    got = driver.consume(topic, 300, settings=settings)
    assert [r.value for r in got] == [r.value for r in records]


@pytest.mark.parametrize("start", [3, 99], ids=["deleted", "not there yet"])
def test_a_reader_out_of_range_starts_anew_where_it_wants_to(
    start: int, driver: Driver, probe: Probe, topic: str
) -> None:
    probe.produce_values(topic, [b"%d" % number for number in range(20)])
    probe.delete_records(topic, 10)
    settings = _settings(driver, auto_offset_reset="earliest")
    got = driver.consume(topic, 10, start=start, settings=settings)
    assert [r.offset for r in got] == list(range(10, 20))


def test_a_reader_of_committed_records_gets_everything(driver: Driver, topic: str) -> None:
    records = [Record(b"%d" % number, b"k") for number in range(50)]
    driver.produce(topic, records, idempotent=True)
    got = driver.consume(topic, 50, settings=_settings(driver, isolation_level="read_committed"))
    assert [r.value for r in got] == [r.value for r in records]


def test_several_producers_share_a_partition(
    broker: BrokerProcess, topic: str, new_client: NewClient
) -> None:
    """Each keeps its own order, and nothing is lost between them."""
    names = [name for name in CLIENTS if not name.startswith("java")]

    def work(name: str) -> None:
        records = [Record(b"%d" % number, name.encode()) for number in range(500)]
        new_client(name, broker.address).produce(topic, records, idempotent=True)

    with ThreadPoolExecutor(len(names)) as pool:
        list(pool.map(work, names))
    got = new_client("confluent-kafka", broker.address).consume(topic, 500 * len(names))
    for name in names:
        mine = [r.value for r in got if r.key == name.encode()]
        assert mine == [b"%d" % number for number in range(500)]


def test_a_lot_of_data_arrives_unchanged(
    broker: BrokerProcess, probe: Probe, topic_name: str
) -> None:
    """64 MiB through several segments, every byte compared."""
    probe.create_topic(topic_name, segment_bytes="20000000")
    block = random.Random(1).randbytes(1 << 20)
    sent = hashlib.sha256()
    for number in range(64):
        part = [bytes([number]) + block[at : at + (1 << 18)] for at in range(0, 1 << 20, 1 << 18)]
        for value in part:
            sent.update(value)
        for value in part:
            probe.produce_values(topic_name, [value])
    assert len(broker.segments(topic_name)) >= 4
    received = hashlib.sha256()
    offset = 0
    while offset < 64 * 4:
        data = probe.fetch(topic_name, 0, offset, max_bytes=5_000_000)
        assert isinstance(data.records, memoryview)
        held = scan(data.records)
        for meta, position in zip(held.metas, held.positions, strict=True):
            assert meta.base_offset == offset
            for record in decode_records(data.records, position):
                assert record.value is not None
                received.update(record.value)
            offset = meta.last_offset + 1
    assert received.digest() == sent.digest()
