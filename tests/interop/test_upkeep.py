"""What retention and compaction leave, as every client reads it: a later beginning, gaps between
offsets, batches without records.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress

import pytest
from tests.interop.conftest import CLIENTS, NewClient
from tests.interop.drivers.base import Driver, Record
from tests.interop.probe import Probe
from tests.interop.process import BrokerProcess

from odradek.record import iter_records, scan

KEYS = 10
PATIENCE = 60.0


@pytest.fixture(scope="module")
def cleaning_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker that removes and compacts as soon as there is anything to remove or compact."""
    settings = {"cleaner.backoff_ms": 20, "retention.check_interval_ms": 20}
    broker = BrokerProcess(tmp_path_factory.mktemp("broker"), settings)
    broker.start()
    try:
        yield broker
        broker.stop()
        assert broker.problems() == []
    finally:
        broker.kill()


@pytest.fixture(params=CLIENTS)
def cleaned(
    request: pytest.FixtureRequest, cleaning_broker: BrokerProcess, new_client: NewClient
) -> Driver:
    """Each client in turn, on that broker."""
    return new_client(request.param, cleaning_broker.address)


def left(probe: Probe, topic: str) -> list[int]:
    """The offsets of all records, read from the beginning."""
    found: list[int] = []
    offset = 0
    while True:
        answer = probe.fetch(topic, 0, offset)
        assert answer.error_code == 0
        if not answer.records:
            return found
        batches = memoryview(answer.records)  # type: ignore[arg-type]  # decoded: bytes-like
        found += [record.offset for record in iter_records(batches) if record.offset >= offset]
        offset = scan(batches).metas[-1].last_offset + 1


def round_of(number: int, deleted: int = -1) -> list[Record]:
    return [
        Record(None if key == deleted else b"%d of %d" % (number, key), b"key %d" % key)
        for key in range(KEYS)
    ]


def test_what_retention_leaves_is_read_from_its_beginning(
    cleaned: Driver, cleaning_broker: BrokerProcess, topic_name: str
) -> None:
    kept = 8192
    with Probe(cleaning_broker.address) as probe:
        probe.create_topic(topic_name, segment_bytes="4096", retention_bytes=str(kept))
    values = [b"%d." % number + b"x" * 1500 for number in range(16)]
    for value in values:
        cleaned.produce(topic_name, [Record(value)])

    def sizes() -> dict[int, int]:
        held: dict[int, int] = {}
        for path in cleaning_broker.segments(topic_name):
            with suppress(FileNotFoundError):  # removed meanwhile
                held[int(path.stem)] = path.stat().st_size
        return held

    deadline = time.monotonic() + PATIENCE
    while (found := sizes()) and sum(found.values()) - found[min(found)] >= kept:
        assert time.monotonic() < deadline, found
        time.sleep(0.02)
    start = min(found)
    assert 0 < start < len(values)
    assert cleaned.offset_at(topic_name, "earliest") == start
    got = cleaned.consume(topic_name, len(values) - start, start=start)
    assert [record.value for record in got] == values[start:]
    assert [record.offset for record in got] == list(range(start, len(values)))


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_what_compaction_leaves_is_read_at_its_offsets(
    compression: str, cleaned: Driver, cleaning_broker: BrokerProcess, topic_name: str
) -> None:
    with Probe(cleaning_broker.address) as probe:
        probe.create_topic(
            topic_name,
            cleanup_policy="compact",
            min_cleanable_dirty_ratio="0",
            max_compaction_lag_ms="1",  # the segment that is written is not left out either
        )
        for number in range(3):
            # A producer for each: of the first two only an empty batch stays, with its sequence
            cleaned.produce(
                topic_name,
                round_of(number, deleted=3 if number == 2 else -1),
                compression=compression,
                idempotent=cleaned.idempotent,
            )
        wanted = list(range(2 * KEYS, 3 * KEYS))
        deadline = time.monotonic() + PATIENCE
        while left(probe, topic_name) != wanted:
            assert time.monotonic() < deadline, left(probe, topic_name)
            time.sleep(0.02)
    expected = [(record.key, record.value) for record in round_of(2, deleted=3)]
    for start in (0, 5, 2 * KEYS):
        got = cleaned.consume(topic_name, KEYS, start=start)
        assert [record.offset for record in got] == wanted
        assert [(record.key, record.value) for record in got] == expected
    (last,) = cleaned.consume(topic_name, 1, start=3 * KEYS - 1)
    assert (last.offset, last.key) == (3 * KEYS - 1, b"key 9")
    cleaned.produce(topic_name, [Record(b"next", b"key")])
    (after,) = cleaned.consume(topic_name, 1, start=3 * KEYS)
    assert (after.offset, after.value) == (3 * KEYS, b"next")
