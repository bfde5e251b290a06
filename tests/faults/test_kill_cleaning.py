"""kill -9 of a broker that compacts under load: newest values, and committed offsets, are right.

test_kill_compaction.py kills the compaction of one log many times. Here it is a whole broker, with
its loop, its clients' retries, and `__consumer_offsets`, which is compacted too.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.interop.probe import Probe
from tests.interop.process import BrokerProcess

from odradek.record import iter_records, scan
from odradek.wire.api.a08_offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from odradek.wire.api.a09_offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]

KILLS = int(os.environ.get("ODRADEK_CLEANING_KILLS", "20"))
PATIENCE = 60.0
TOPIC = "kept"
KEYS = 100
GROUPS = 5
WAITING = 5_000

SETTINGS: dict[str, object] = {
    "cleaner.backoff_ms": 10,
    "groups.offsets_partitions": 1,
    "groups.offsets_segment_bytes": 8192,
    "topics.segment.bytes": 32_768,
    "topics.min.cleanable.dirty.ratio": 0.01,
    "topics.delete.retention.ms": 100,
    "topics.file.delete.delay.ms": 1000,
}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    started = BrokerProcess(tmp_path, SETTINGS).start()
    yield started
    started.kill()


class Writer:
    """An idempotent producer of numbered records with few keys; some of them delete their key."""

    def __init__(self, broker: BrokerProcess, random: Random) -> None:
        kafka = pytest.importorskip("confluent_kafka")
        self._random = random
        self._producer = kafka.Producer(
            {
                "bootstrap.servers": broker.address,
                "enable.idempotence": True,
                "linger.ms": 1,
                "batch.size": 8_000,
                "message.timeout.ms": 120_000,
                "reconnect.backoff.ms": 10,
                "reconnect.backoff.max.ms": 100,
                "retry.backoff.ms": 20,
                "log_level": 0,
            }
        )
        self.sent: list[tuple[bytes, bool]] = []
        self.acknowledged: dict[int, int] = {}
        self.failed: list[str] = []

    def send(self, count: int) -> None:
        self._producer.poll(0)
        if len(self.sent) - len(self.acknowledged) > WAITING:
            return
        for _ in range(count):
            number = len(self.sent)
            key = b"key-%d" % self._random.randrange(KEYS)
            deletes = self._random.random() < 0.1
            self.sent.append((key, deletes))
            self._producer.produce(
                TOPIC,
                None if deletes else b"v" * self._random.randrange(300),
                key,
                headers=[("number", b"%d" % number)],
                on_delivery=partial(self._delivered, number),
            )

    def _delivered(self, number: int, error: object, message: Any) -> None:
        if error is None:
            self.acknowledged[number] = message.offset()
        else:
            self.failed.append(str(error))

    def poll(self) -> None:
        self._producer.poll(0.005)

    def finish(self) -> int:
        return int(self._producer.flush(PATIENCE))

    def check(self, found: dict[int, int]) -> None:
        """Hold a log, number by offset, against what was sent and acknowledged."""
        numbers = list(found.values())
        assert numbers == sorted(set(numbers)), "records are doubled or out of order"
        for offset, number in found.items():
            told = self.acknowledged.get(number, offset)
            assert told == offset, "an acknowledged offset holds another record"
        newest = {self.sent[number][0]: number for number in numbers}
        least = {self.sent[number][0]: number for number in sorted(self.acknowledged)}
        deleted = {key: number for number, (key, deletes) in enumerate(self.sent) if deletes}
        for key, number in least.items():
            if key in newest:
                assert newest[key] >= number, f"{key!r} has an old value again"
            else:
                assert deleted.get(key, -1) >= number, f"the newest value of {key!r} is gone"


class Groups:
    """Offsets that go up, committed by groups without members."""

    def __init__(self) -> None:
        self.committed = [0] * GROUPS

    def commit(self, probe: Probe, count: int) -> None:
        for _ in range(count):
            for group in range(GROUPS):
                offset = self.committed[group] + 1
                where = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
                topic = OffsetCommitRequestTopic(name=TOPIC, partitions=[where])
                request = OffsetCommitRequest(group_id=f"group-{group}", topics=[topic])
                answer = probe.call(request, 7, OffsetCommitResponse)
                assert answer.topics[0].partitions[0].error_code == 0
                self.committed[group] = offset

    def check(self, probe: Probe) -> None:
        for group, committed in enumerate(self.committed):
            assert self._fetched(probe, f"group-{group}") == committed

    def _fetched(self, probe: Probe, group: str) -> int:
        asked = OffsetFetchRequestTopics(name=TOPIC, partition_indexes=[0])
        wanted = OffsetFetchRequestGroup(group_id=group, topics=[asked])
        deadline = time.monotonic() + PATIENCE
        while True:
            answer = probe.call(OffsetFetchRequest(groups=[wanted]), 8, OffsetFetchResponse)
            (found,) = answer.groups
            if not found.error_code:  # otherwise it is still being loaded
                return max(found.topics[0].partitions[0].committed_offset, 0)
            assert time.monotonic() < deadline, f"the group cannot be read: {found.error_code}"


def read(probe: Probe) -> dict[int, int]:
    """Numbers by offset, to the high watermark."""
    found: dict[int, int] = {}
    offset = 0
    while True:
        answer = probe.fetch(TOPIC, 0, offset, max_bytes=4 << 20)
        assert answer.error_code == 0
        if not answer.records:
            return found
        batches = memoryview(answer.records)  # type: ignore[arg-type]  # decoded: bytes-like
        for record in iter_records(batches):
            if record.offset >= offset:
                found[record.offset] = int(bytes(record.headers[0][1] or b""))
        offset = scan(batches).metas[-1].last_offset + 1  # compaction leaves empty batches


def test_newest_values_and_commits_are_right_after_kills_of_a_broker_that_compacts(
    broker: BrokerProcess, random: Random
) -> None:
    with Probe(broker.address) as probe:
        probe.create_topic(TOPIC, cleanup_policy="compact")
        probe.create_offsets_topic()
    writer = Writer(broker, random)
    groups = Groups()
    for life in range(KILLS):
        goal = len(writer.acknowledged) + random.randrange(100, 1000)
        deadline = time.monotonic() + PATIENCE
        with Probe(broker.address) as probe:
            groups.check(probe)
            while len(writer.acknowledged) < goal:
                writer.send(random.randrange(1, 100))
                writer.poll()
                groups.commit(probe, random.randrange(5))
                assert time.monotonic() < deadline, f"life {life}: nothing is acknowledged"
        broker.kill()
        writer.send(random.randrange(1, 40))
        broker.start()
        with Probe(broker.address) as probe:
            writer.check(read(probe))
    assert writer.finish() == 0
    assert writer.failed == []
    with Probe(broker.address) as probe:
        writer.check(read(probe))
        groups.check(probe)
    broker.stop()
    said = broker.log_file.read_text()
    for topic in (TOPIC, "__consumer_offsets"):
        assert f"topic {topic}: compacted up to" in said
    assert broker.problems() == []
