"""Timestamps: whose they are, what is refused, and how an offset is found by them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, cast

import pytest
from tests.interop.drivers.base import Driver, Record, Refused
from tests.interop.probe import Probe, batch_of
from tests.interop.process import BrokerProcess

from odradek.errors import ErrorCode

if TYPE_CHECKING:
    from tests.interop.drivers.java import Java

NOW = int(time.time() * 1000)
HOUR = 3_600_000


def test_offsets_are_found_by_time(driver: Driver, probe: Probe, topic: str) -> None:
    for start in (0, 100, 50):  # the third batch is older than the second
        result = probe.produce(topic, batch_of([b"a", b"b"], timestamp=NOW - 1000 + start))
        assert result.error_code == 0
    at = driver.offset_at
    assert at(topic, "earliest") == 0
    assert at(topic, "latest") == 6
    assert at(topic, NOW - 2000) == 0
    assert at(topic, NOW - 1000) == 0
    assert at(topic, NOW - 999) == 2
    assert at(topic, NOW - 900) == 2
    assert at(topic, NOW - 899) == -1
    if driver.max_timestamp:
        assert at(topic, "max_timestamp") == 2
    if driver.name.startswith("java"):
        assert cast("Java", driver).offsets_for_times(topic, NOW - 999) == 2


def test_a_time_inside_of_a_batch_finds_its_record(driver: Driver, topic: str) -> None:
    if not driver.timestamps:
        pytest.skip("records cannot be given timestamps")
    records = [Record(b"x", b"k", timestamp=NOW - 1000 + 10 * number) for number in range(50)]
    driver.produce(topic, records, compression="gzip")
    assert driver.offset_at(topic, NOW - 1000 + 245) == 25
    assert driver.offset_at(topic, NOW - 1000 + 250) == 25
    if driver.max_timestamp:
        assert driver.offset_at(topic, "max_timestamp") == 49


def test_under_log_append_time_records_have_the_brokers_time(
    driver: Driver, probe: Probe, topic_name: str
) -> None:
    probe.create_topic(topic_name, message_timestamp_type="LogAppendTime")
    given = NOW - 10 * HOUR if driver.timestamps else None
    before = int(time.time() * 1000)
    for codec in ("none", "zstd"):
        driver.produce(topic_name, [Record(b"x", b"k", timestamp=given)] * 3, compression=codec)
    after = int(time.time() * 1000)
    for record in driver.consume(topic_name, 6):
        assert record.timestamp is not None
        assert before <= record.timestamp <= after
    assert driver.offset_at(topic_name, before - 1) == 0


def test_timestamps_out_of_the_topics_range_are_refused(
    driver: Driver, probe: Probe, topic_name: str
) -> None:
    if not driver.timestamps:
        pytest.skip("records cannot be given timestamps")
    probe.create_topic(topic_name, message_timestamp_before_max_ms=str(HOUR))
    for offset in (-2 * HOUR, 2 * HOUR):
        with pytest.raises(Refused) as refused:
            driver.produce(topic_name, [Record(b"x", b"k", timestamp=NOW + offset)])
        assert refused.value.code is ErrorCode.INVALID_TIMESTAMP
    driver.produce(topic_name, [Record(b"x", b"k", timestamp=NOW)])
    assert probe.end_offset(topic_name) == 1


def test_the_newest_record_is_found_across_segments(
    driver: Driver, broker: BrokerProcess, probe: Probe, topic_name: str
) -> None:
    probe.create_topic(topic_name, segment_bytes="2000")
    for number in range(20):
        stamp = NOW - 1000 + (500 if number == 7 else number)
        probe.produce(topic_name, batch_of([b"x" * 500], timestamp=stamp))
    assert len(broker.segments(topic_name)) > 3
    if driver.max_timestamp:
        assert driver.offset_at(topic_name, "max_timestamp") == 7
    assert driver.offset_at(topic_name, NOW - 1000 + 15) == 7
    assert driver.offset_at(topic_name, NOW - 1000 + 5) == 5
