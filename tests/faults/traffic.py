"""Writing numbered messages, noting what was acknowledged, and holding the log against it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

import pytest
from tests.interop.probe import Probe

from odradek.errors import CorruptBatch, ErrorCode
from odradek.record import BatchBuilder, iter_records
from odradek.wire.api.a00_produce import PartitionProduceResponse
from odradek.wire.api.a19_create_topics import (
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
)

__all__ = ["Unserved", "Writer", "batch_of", "create", "produce", "read_back", "until"]

PATIENCE = 30.0


class Unserved(Exception):
    """A partition cannot be read: the broker refuses, or what it sends fails its CRC."""


def until(condition: Callable[[], object], what: str, seconds: float = PATIENCE) -> None:
    """Return when the condition holds; fail the test when it does not in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not in {seconds} s: {what}"
        time.sleep(0.005)


class Writer:
    """An idempotent librdkafka producer that numbers its messages per partition.

    `acknowledged`: (partition, number) -> offset as the broker told it. `failed`: what was given
    up, which may or may not be stored. A context manager: what is unsent at its end is dropped.
    """

    def __init__(
        self, address: str, topic: str, partitions: int = 1, size: int = 100, **settings: object
    ) -> None:
        kafka = pytest.importorskip("confluent_kafka")
        self._message = kafka.Message
        self.topic = topic
        self.partitions = partitions
        self.sent = [0] * partitions
        self.acknowledged: dict[tuple[int, int], int] = {}
        self.failed: dict[tuple[int, int], object] = {}
        self._padding = b"." * size
        self._producer = kafka.Producer(
            {
                "bootstrap.servers": address,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 1,
                "batch.size": 16_000,
                "message.timeout.ms": 60_000,
                "reconnect.backoff.ms": 10,
                "reconnect.backoff.max.ms": 100,
                "retry.backoff.ms": 20,
                "retry.backoff.max.ms": 100,
                "log_level": 0,
                "error_cb": self._problem,
                **{name.replace("_", "."): value for name, value in settings.items()},
            }
        )

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._producer.purge()
        self._producer.flush(PATIENCE)

    def send(self, count: int = 1) -> None:
        """Hand messages to the client, `count` to every partition."""
        for _ in range(count):
            for partition in range(self.partitions):
                value = b"%d" % self.sent[partition] + self._padding
                self._producer.produce(
                    self.topic, value, partition=partition, on_delivery=self._delivered
                )
                self.sent[partition] += 1
        self._producer.poll(0)

    def _delivered(self, error: object, message: object) -> None:
        assert isinstance(message, self._message)
        number = int(message.value().split(b".", 1)[0])
        if error is None:
            self.acknowledged[message.partition(), number] = message.offset()
        else:
            self.failed[message.partition(), number] = error

    def _problem(self, error: Any) -> None:
        """A lost connection is usual here; a fatal error is kept for the test to fail with."""
        if error.fatal():
            self.failed[-1, -1] = error

    def poll(self, seconds: float = 0.005) -> None:
        """Serve the callbacks of what was acknowledged."""
        self._producer.poll(seconds)

    def settle(self, seconds: float = PATIENCE) -> None:
        """Wait until every message is acknowledged or given up."""
        assert self._producer.flush(seconds) == 0, "messages are neither acknowledged nor failed"

    def send_until(self, acknowledged: int, batch: int = 20) -> None:
        """Keep sending until so many messages in all are acknowledged."""
        deadline = time.monotonic() + PATIENCE
        while len(self.acknowledged) < acknowledged:
            assert time.monotonic() < deadline, f"too few acknowledgements; {self.failed}"
            if sum(self.sent) < len(self.acknowledged) + 2_000:
                self.send(batch)
            self.poll()

    def misses(self, address: str) -> list[str]:
        """What an invariant says against the log as consumers see it; empty when all is well.

        I1 nothing acknowledged is lost, I2 nothing is there twice, I3 in the order of sending,
        I4 an acknowledged offset holds its record.
        """
        wrong = []
        for partition in range(self.partitions):
            where = f"{self.topic}-{partition}"
            found = {
                offset: int(value.split(b".", 1)[0])
                for offset, value in read_back(address, self.topic, partition).items()
            }
            if sorted(found) != list(range(len(found))):
                wrong.append(f"{where}: offsets are not dense")
            numbers = list(found.values())
            if numbers != sorted(set(numbers)):
                wrong.append(f"{where}: records are doubled or out of order")
            for (owner, number), offset in self.acknowledged.items():
                if owner == partition and found.get(offset) != number:
                    wrong.append(f"{where}: {number}, acknowledged at {offset}, is not there")
        return wrong


def read_back(address: str, topic: str, partition: int = 0, start: int = 0) -> dict[int, bytes]:
    """Values by offset, read to the high watermark by Fetch. Raises Unserved."""
    found: dict[int, bytes] = {}
    with Probe(address) as probe:
        offset = start
        while True:
            answer = probe.fetch(topic, partition, offset, max_bytes=4 << 20)
            if answer.error_code:
                raise Unserved(ErrorCode(answer.error_code).name)
            if not answer.records:
                assert offset == answer.high_watermark
                return found
            try:
                for record in iter_records(answer.records):  # type: ignore[arg-type]  # a view
                    if record.offset >= offset:
                        assert record.value is not None
                        found[record.offset] = bytes(record.value)
            except CorruptBatch as error:
                raise Unserved(str(error)) from error
            offset = max(found) + 1


def batch_of(values: Sequence[bytes], timestamp: int | None = None) -> bytes:
    """One uncompressed record batch, timestamped now (ms) if not told otherwise."""
    builder = BatchBuilder(max_bytes=1 << 20)
    if timestamp is None:
        timestamp = time.time_ns() // 1_000_000
    for value in values:
        assert builder.append(timestamp, None, value)
    return bytes(builder.build())


def create(address: str, topic: str) -> int:
    """Ask for a topic; return the error code."""
    wanted = CreatableTopic(name=topic, num_partitions=1, replication_factor=1)
    request = CreateTopicsRequest(topics=[wanted], timeout_ms=5_000)
    with Probe(address) as probe:
        (result,) = probe.call(request, 7, CreateTopicsResponse).topics
    return result.error_code


def produce(address: str, topic: str, batch: bytes, partition: int = 0) -> PartitionProduceResponse:
    """Send one batch over a connection of its own."""
    with Probe(address) as probe:
        return probe.produce(topic, batch, partition)
