"""What a topic's settings do to batches on their way in, seen through every client."""

from __future__ import annotations

import pytest
from tests.interop.drivers.base import Driver, Record, Refused
from tests.interop.probe import Probe
from tests.interop.process import BrokerProcess

from odradek.errors import ErrorCode
from odradek.record import CompressionType

RECORDS = [Record(f"value {number} ".encode() * 20, f"{number}".encode()) for number in range(50)]


@pytest.mark.parametrize(
    ("sent", "stored"),
    [
        ("gzip", "zstd"),
        ("none", "lz4"),
        ("lz4", "snappy"),
        ("snappy", "gzip"),
        ("zstd", "uncompressed"),
    ],
)
def test_the_topics_codec_goes_before_the_producers(
    sent: str, stored: str, driver: Driver, broker: BrokerProcess, probe: Probe, topic_name: str
) -> None:
    probe.create_topic(topic_name, compression_type=stored)
    driver.produce(topic_name, RECORDS, compression=sent)
    expected = "NONE" if stored == "uncompressed" else stored.upper()
    batches = broker.batches(topic_name)
    assert {CompressionType(batch.compression).name for batch in batches} == {expected}
    got = driver.consume(topic_name, len(RECORDS))
    assert [(r.key, r.value) for r in got] == [(r.key, r.value) for r in RECORDS]


def test_a_compacted_topic_takes_no_record_without_key(
    driver: Driver, probe: Probe, topic_name: str
) -> None:
    probe.create_topic(topic_name, cleanup_policy="compact")
    driver.produce(topic_name, [Record(b"value", b"key"), Record(None, b"key")])
    with pytest.raises(Refused) as refused:
        driver.produce(topic_name, [Record(b"value", None)])
    if driver.name != "aiokafka":  # it does not know this code
        assert refused.value.code is ErrorCode.INVALID_RECORD
    assert probe.end_offset(topic_name) == 2


def test_the_topics_own_limit_is_in_force(driver: Driver, probe: Probe, topic_name: str) -> None:
    probe.create_topic(topic_name, max_message_bytes="1000")
    with pytest.raises(Refused) as refused:
        driver.produce(topic_name, [Record(bytes(range(1, 29)) * 40, b"k")])
    assert refused.value.code is ErrorCode.MESSAGE_TOO_LARGE
    driver.produce(topic_name, [Record(b"x" * 800, b"k")])
    assert probe.end_offset(topic_name) == 1


def test_segments_are_rolled_and_read_through(
    driver: Driver, broker: BrokerProcess, probe: Probe, topic_name: str
) -> None:
    probe.create_topic(topic_name, segment_bytes="16384")
    for part in range(5):
        driver.produce(topic_name, RECORDS[part * 10 : part * 10 + 10] * 4)
    assert len(broker.segments(topic_name)) >= 2
    expected = [r.value for part in range(5) for r in RECORDS[part * 10 : part * 10 + 10] * 4]
    got = driver.consume(topic_name, 200)
    assert [r.value for r in got] == expected
    assert [r.offset for r in got] == list(range(200))
