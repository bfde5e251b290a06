"""Compaction in a running broker: how fast, in how much memory, and what producers notice of it.

The log is produced into a topic that is not compacted, over a plain socket, and then declared to
be. How long a pass took is read from the broker's own log.
"""

from __future__ import annotations

import re
import selectors
import time
from collections import deque
from collections.abc import Iterator
from random import Random
from statistics import quantiles
from typing import TypeVar

from attrs import frozen

from bench.groups import Wire, encoded
from bench.target import Started, started
from odradek.record import BatchBuilder, CompressionType
from odradek.wire import Message, decode_response
from odradek.wire.api.a00_produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from odradek.wire.api.a19_create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from odradek.wire.api.a44_incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

__all__ = ["LOADS", "compaction", "compaction_latency", "compaction_latency_small"]

Figures = dict[str, float]
M = TypeVar("M", bound=Message)

PRODUCE, CREATE, ALTER = 9, 7, 1
"""Versions."""

VALUE = 200
RECORD = 224
"""Bytes of a record with its key of 16, about."""

SEGMENT = 128 * 1024 * 1024
WINDOW = 64
"""Requests under way while the log is filled."""

PATIENCE = 600.0
RATE = 3000
"""Batches of one record in a second: what `latency` measures at, too."""

DONE = re.compile(
    r"compacted up to offset (\d+) .*: (\d+) bytes became (\d+), "
    r"(\d+) segments were rewritten, (\d+) bytes read in ([\d.]+) s"
)
SETTINGS = ("cleaner.backoff_ms=50", "scrub.bytes_per_s=0")


@frozen
class Load:
    """What the log is made of; `keys`: how many there are, 0 for another in each record."""

    name: str
    keys: int
    batch_bytes: int = 16_384
    codec: CompressionType = CompressionType.NONE


LOADS = (
    Load("100,000 keys", 100_000),
    Load("all unique", 0),
    Load("100,000 keys, lz4", 100_000, codec=CompressionType.LZ4),
    Load("100,000 keys, 1 MB batches", 100_000, batch_bytes=1_000_000),
)

SMALL = Load("100,000 keys, one record a batch, lz4", 100_000, 300, CompressionType.LZ4)

TURNS = 3
"""How often latencies are measured without a compaction and beside one."""


@frozen
class Pass:
    """What the broker says of one compaction."""

    cleaned_to: int
    before: int
    after: int
    rewritten: int
    read: int
    seconds: float


def _ask(wire: Wire, request: Message, version: int, answer: type[M]) -> M:
    wire.send(request, version)
    return decode_response(answer, version, wire.frame())


def _create(wire: Wire, topic: str, **configs: object) -> None:
    wanted = CreatableTopic(
        name=topic,
        num_partitions=1,
        replication_factor=1,
        configs=[
            CreatableTopicConfig(name=name.replace("_", "."), value=str(value))
            for name, value in configs.items()
        ],
    )
    request = CreateTopicsRequest(topics=[wanted], timeout_ms=30_000)
    (result,) = _ask(wire, request, CREATE, CreateTopicsResponse).topics
    if result.error_code:
        raise RuntimeError(f"{topic}: {result.error_message}")


def _alter(wire: Wire, topic: str, name: str, value: str) -> None:
    resource = AlterConfigsResource(
        resource_type=2,
        resource_name=topic,
        configs=[AlterableConfig(name=name, config_operation=0, value=value)],
    )
    request = IncrementalAlterConfigsRequest(resources=[resource])
    (result,) = _ask(wire, request, ALTER, IncrementalAlterConfigsResponse).responses
    if result.error_code:
        raise RuntimeError(f"{topic}: {result.error_message}")


def _request(topic: str, batch: bytes | bytearray) -> ProduceRequest:
    data = PartitionProduceData(index=0, records=batch)
    topic_data = [TopicProduceData(name=topic, partition_data=[data])]
    return ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=topic_data)


def _check(frame: bytes) -> None:
    (topic,) = decode_response(ProduceResponse, PRODUCE, frame).responses
    (partition,) = topic.partition_responses
    if partition.error_code:
        raise RuntimeError(f"Produce: error {partition.error_code} {partition.error_message}")


def _batches(load: Load, records: int) -> Iterator[bytearray]:
    """Yield batches; half of each value is as good as random, so that codecs have some work."""
    random = Random(1)
    now = time.time_ns() // 1_000_000
    text = b'{"name": "Odradek", "form": "a flat star-shaped spool", "home": "no fixed abode", ..'
    values = [(random.randbytes(VALUE) + text)[-VALUE:] for _ in range(1000)]
    keys = [b"%016d" % number for number in range(load.keys)]
    number = 0
    while number < records:
        builder = BatchBuilder(load.batch_bytes, compression=load.codec)
        add = builder.append
        while number < records:
            key = random.choice(keys) if keys else b"%016d" % number
            if not add(now, key, values[number % 1000]):
                break
            number += 1
        yield builder.build()


def _fill(wire: Wire, topic: str, load: Load, megabytes: float) -> None:
    """Produce a log of so many MB of records."""
    under_way = 0
    for batch in _batches(load, int(megabytes * 1e6 / RECORD)):
        if under_way == WINDOW:
            _check(wire.frame())
            under_way -= 1
        wire.send(_request(topic, batch), PRODUCE)
        under_way += 1
    for _ in range(under_way):
        _check(wire.frame())


def _filled(
    broker: Started, topic: str, load: Load, megabytes: float, linger_ms: int
) -> tuple[Wire, int]:
    """Make the log; return a connection, and the offset up to which it is sealed."""
    wire = Wire(broker.bootstrap)
    _create(
        wire,
        topic,
        retention_ms=-1,
        segment_bytes=min(SEGMENT, int(megabytes * 1e6 / 8)),
        min_cleanable_dirty_ratio=0,
        file_delete_delay_ms=linger_ms,
    )
    _fill(wire, topic, load, megabytes)
    return wire, max(_segments(broker))


def _segments(broker: Started) -> dict[int, int]:
    """Bytes of each segment by its base offset; the last one is not compacted."""
    found = (broker.directory / "log").glob("*/*.log")
    return {int(path.stem): path.stat().st_size for path in found}


def _passes(broker: Started) -> list[Pass]:
    """What the broker said of compactions so far."""
    found = []
    for message in broker.said():
        told = DONE.search(message)
        if told is not None:
            to, before, after, rewritten, read = (int(each) for each in told.groups()[:5])
            found.append(Pass(to, before, after, rewritten, read, float(told[6])))
    return found


def _compacted(broker: Started, end: int) -> list[Pass]:
    """Wait until the log is compacted up to an offset; return the passes that it took."""
    deadline = time.monotonic() + PATIENCE
    while not (passes := _passes(broker)) or passes[-1].cleaned_to < end:
        if time.monotonic() > deadline:
            raise RuntimeError(f"not compacted after {PATIENCE} s: {list(broker.said())[-5:]}")
        time.sleep(0.1)
    return passes


def compaction(megabytes: float = 1000) -> Figures:
    """A log of 200-byte values with keys, compacted by the broker that has it."""
    figures: Figures = {}
    for load in LOADS:
        with started(settings=SETTINGS) as broker:
            wire, end = _filled(broker, "log", load, megabytes, 0)
            size = sum(each for base, each in _segments(broker).items() if base < end) / 1e6
            before = broker.resident_bytes() or 0
            broker.forget_peak()
            cpu = broker.cpu_seconds() or 0.0
            _alter(wire, "log", "cleanup.policy", "compact")
            passes = _compacted(broker, end)
            cpu = (broker.cpu_seconds() or 0.0) - cpu
            wire.socket.close()
            left = sum(each for base, each in _segments(broker).items() if base < end) / 1e6
            seconds = sum(each.seconds for each in passes)
            figures |= {
                f"MB/s, {load.name}": size / seconds,
                f"million records/s, {load.name}": end / 1e6 / seconds,
                f"log MB, {load.name}": size,
                f"left MB, {load.name}": left,
                f"passes, {load.name}": len(passes),
                f"CPU s/GB, {load.name}": cpu / (size / 1000),
                f"peak resident MB, {load.name}": broker.peak_bytes() / 1e6,
                f"resident MB before, {load.name}": before / 1e6,
            }
    return figures


class Probe:
    """Batches of one record at a fixed rate, and how long each took from when it was due.

    From when it was due, not from when it was sent: a stall then counts for all that waited.
    """

    def __init__(self, broker: Started, topic: str) -> None:
        builder = BatchBuilder(1 << 16)
        builder.append(time.time_ns() // 1_000_000, b"key", bytes(VALUE))
        self._frame = encoded(_request(topic, builder.build()), PRODUCE)
        self._wire = Wire(broker.bootstrap)
        self._wire.socket.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wire.socket, selectors.EVENT_READ)

    def run(self, seconds: float) -> list[float]:
        """Produce for so long; return the latencies in seconds."""
        due: deque[float] = deque()
        times: list[float] = []
        begun = time.perf_counter()
        following = begun
        while due or following < begun + seconds:
            now = time.perf_counter()
            while following <= now and following < begun + seconds:
                self._wire.socket.sendall(self._frame)
                due.append(following)
                following += 1 / RATE
            left = max(following - time.perf_counter(), 0) if following < begun + seconds else 1
            if self._selector.select(left):
                self._wire.fill()
                now = time.perf_counter()
                while (frame := self._wire.buffered()) is not None:
                    times.append(now - due.popleft())
                    if not len(times) % 100:
                        _check(frame)
        return times

    def close(self) -> None:
        self._selector.close()
        self._wire.socket.close()


def compaction_latency(megabytes: float = 1000, seconds: float = 3.0) -> Figures:
    """Acknowledgements at a fixed rate: before a compaction, while one runs, and afterwards."""
    return _latency(LOADS[0], megabytes, seconds)


def compaction_latency_small(megabytes: float = 90, seconds: float = 3.0) -> Figures:
    """The same, where each record of the log is a batch of its own, compressed."""
    return _latency(SMALL, min(megabytes, 90), seconds)


def _latency(load: Load, megabytes: float, seconds: float) -> Figures:
    """Measure in turns, for other load of the machine changes meanwhile; a new log each time."""
    quiet: list[float] = []
    beside: list[float] = []
    took = 0.0
    for _ in range(TURNS):
        with started(settings=SETTINGS) as broker:
            took += _turn(broker, load, megabytes / TURNS, seconds, quiet, beside)
    alone, both = quantiles(quiet, n=1000), quantiles(beside, n=1000)
    return {
        "p50 us, quiet": alone[499] * 1e6,
        "p50 us, compacting": both[499] * 1e6,
        "p50, ratio": both[499] / alone[499],
        "p99 us, quiet": alone[989] * 1e6,
        "p99 us, compacting": both[989] * 1e6,
        "p99, ratio": both[989] / alone[989],
        "p99.9, ratio": both[998] / alone[998],
        "compacting s": took,
        "compacting MB/s": megabytes / took,
    }


def _turn(
    broker: Started,
    load: Load,
    megabytes: float,
    seconds: float,
    quiet: list[float],
    beside: list[float],
) -> float:
    """Add latencies without and beside a compaction; return how long it took."""
    wire, end = _filled(broker, "log", load, megabytes, 60_000)
    _create(wire, "probe")
    probe = Probe(broker, "probe")
    try:
        probe.run(1.0)  # connections and caches
        quiet += probe.run(seconds)
        _alter(wire, "log", "cleanup.policy", "compact")
        time.sleep(0.1)  # twice the back-off: it has begun
        while not (passes := _passes(broker)) or passes[-1].cleaned_to < end:
            beside += probe.run(0.3)
        quiet += probe.run(seconds)
    finally:
        probe.close()
        wire.socket.close()
    return sum(each.seconds for each in passes)
