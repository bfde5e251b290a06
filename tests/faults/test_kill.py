"""kill -9 of the only broker while clients write: what was acknowledged is there, once, in order.

Fault F1 of the matrix for one broker, with invariants I1 (nothing acknowledged is lost), I2 (no
duplicate under idempotence), I3 (order of sending) and I4 (an acknowledged offset is true).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from tests.interop.process import BrokerProcess

from odradek.record import iter_records

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]

KILLS = int(os.environ.get("ODRADEK_KILLS", "100"))
PARTITIONS = 3
PATIENCE = 60.0
WAITING = 20_000
"""Messages handed over and not acknowledged: a fifth of what librdkafka holds."""


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    # Small segments: the kills fall into rolls and snapshots of the producers' state as well.
    started = BrokerProcess(tmp_path, {"topics.segment.bytes": 256 * 1024}).start()
    yield started
    started.kill()


class Writer:
    """An idempotent producer that numbers its messages per partition and notes what happened."""

    def __init__(self, broker: BrokerProcess, topic: str) -> None:
        kafka = pytest.importorskip("confluent_kafka")
        self._kafka = kafka
        self._topic = topic
        self._producer = kafka.Producer(
            {
                "bootstrap.servers": broker.address,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 1,
                "batch.size": 100_000,
                "message.timeout.ms": 120_000,
                "reconnect.backoff.ms": 10,
                "reconnect.backoff.max.ms": 100,
                "retry.backoff.ms": 20,
                "log_level": 0,
            }
        )
        self.sent = [0] * PARTITIONS
        self.acknowledged: dict[tuple[int, int], int] = {}
        self.failed: list[str] = []

    def send(self, number: int) -> None:
        """Hand over some messages to every partition, unless many wait already."""
        self._producer.poll(0)
        if sum(self.sent) - len(self.acknowledged) > WAITING:
            return
        for _ in range(number):
            for partition in range(PARTITIONS):
                value = b"%d" % self.sent[partition]
                self._producer.produce(
                    self._topic,
                    value + b"." * 100,
                    partition=partition,
                    on_delivery=self._delivered,
                )
                self.sent[partition] += 1

    def _delivered(self, error: object, message: object) -> None:
        assert isinstance(message, self._kafka.Message)
        if error is not None:
            self.failed.append(str(error))
            return
        number = int(message.value().split(b".", 1)[0])
        self.acknowledged[message.partition(), number] = message.offset()

    def poll(self) -> None:
        """Serve the callbacks of what was acknowledged."""
        self._producer.poll(0.005)

    def finish(self) -> int:
        """Wait until everything is acknowledged; return how much is not."""
        return int(self._producer.flush(PATIENCE))


def stored(broker: BrokerProcess, topic: str, partition: int) -> dict[int, int]:
    """Numbers by offset, read from the segment files with every CRC checked."""
    found: dict[int, int] = {}
    for path in broker.segments(topic, partition):
        for record in iter_records(memoryview(path.read_bytes())):
            assert record.offset not in found
            assert record.value is not None
            found[record.offset] = int(bytes(record.value).split(b".", 1)[0])
    return found


def test_nothing_acknowledged_is_lost_or_doubled_by_kills_of_the_broker(
    broker: BrokerProcess,
) -> None:
    from tests.interop.probe import Probe

    seed = int(os.environ.get("ODRADEK_SEED", str(Random().randrange(2**32))))
    print(f"ODRADEK_SEED={seed}")
    random = Random(seed)
    with Probe(broker.address) as probe:
        probe.create_topic("kills", PARTITIONS)
    writer = Writer(broker, "kills")
    for kill in range(KILLS):
        # Wait for some acknowledgements of this life, so that each kill hits a working broker,
        # then a random moment longer.
        before = len(writer.acknowledged)
        deadline = time.monotonic() + PATIENCE
        while len(writer.acknowledged) <= before + random.randrange(300):
            writer.send(random.randrange(1, 40))
            writer.poll()
            assert time.monotonic() < deadline, f"life {kill}: nothing is acknowledged any more"
        broker.kill()
        writer.send(random.randrange(1, 40))
        broker.start()
    assert writer.finish() == 0
    assert writer.failed == []
    for partition in range(PARTITIONS):
        found = stored(broker, "kills", partition)
        assert list(found) == list(range(len(found))), "offsets are not dense"
        numbers = list(found.values())
        assert numbers == sorted(set(numbers)), "records are doubled or out of order"
        assert numbers == list(range(writer.sent[partition])), "acknowledged records are missing"
        for (owner, number), offset in writer.acknowledged.items():
            if owner == partition:
                assert found[offset] == number, "an acknowledged offset holds another record"
    assert broker.problems() == []
