"""The native client against confluent-kafka: the same messages, the same broker, in turns.

Each client runs in a process of its own (`python -m bench.native ROLE BOOTSTRAP TOPIC COUNT
SIZE`), which prints its figures as JSON. Neither is pinned to a core. A ratio is taken between
two runs that followed one another.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any

import trio
from attrs import frozen

from bench.target import Target, started
from bench.workloads import PATIENCE, Workload, drop_topic, fresh_topic, produce

if TYPE_CHECKING:
    from odradek.client import Consumer, Reader

__all__ = ["report"]

Figures = dict[str, float]

CHUNK = 5_000
"""Messages handed over at once by `send_many`."""

BEST = {
    "acks": "all",
    "enable.idempotence": True,
    "linger.ms": 5,
    "batch.size": 1_000_000,
    "batch.num.messages": 100_000,
    "queue.buffering.max.messages": 1_000_000,
    "queue.buffering.max.kbytes": 1_048_576,
}
"""librdkafka's settings for throughput: fewer, larger requests than its defaults make."""


def _figures(count: int, begun: float, used: float) -> Figures:
    took = time.perf_counter() - begun
    cpu = time.process_time() - used
    return {"messages/s": count / took, "client CPU us/message": cpu / count * 1e6}


# Producing


def _confluent_produce(bootstrap: str, topic: str, count: int, size: int, report: bool) -> Figures:
    from confluent_kafka import KafkaError, Message, Producer

    delivered = failed = 0

    def note(error: KafkaError | None, _: Message) -> None:
        nonlocal delivered, failed
        delivered += 1
        failed += error is not None

    settings: dict[str, Any] = {"bootstrap.servers": bootstrap, "log_level": 0, **BEST}
    settings["on_delivery"] = note
    settings["delivery.report.only.error"] = not report
    producer = Producer(settings)
    value = bytes(size)
    producer.produce(topic, value)
    producer.flush(PATIENCE)
    begun, used = time.perf_counter(), time.process_time()
    for number in range(count):
        while True:
            try:
                producer.produce(topic, value)
            except BufferError:
                producer.poll(0.01)
            else:
                break
        if not number % 1000:
            producer.poll(0)
    left = producer.flush(PATIENCE)
    if left or failed or (report and delivered != count + 1):
        raise RuntimeError(f"{left} messages left, {failed} failed, {delivered} delivered")
    return _figures(count, begun, used)


async def _native_produce(bootstrap: str, topic: str, count: int, size: int, many: bool) -> Figures:
    from odradek.client import BatchOutcome, ProducerSettings, open_producer

    settings = ProducerSettings(batch_bytes=1_000_000, buffer_bytes=64 * 1024 * 1024)
    acknowledged = 0

    def note(outcome: BatchOutcome) -> None:
        nonlocal acknowledged
        if outcome.error is not None:
            raise outcome.error
        acknowledged += outcome.records

    async with open_producer(bootstrap, settings, observer=note) as producer:
        value = bytes(size)
        await (await producer.send(topic, value)).wait()
        begun, used = time.perf_counter(), time.process_time()
        if many:
            values = [value] * CHUNK
            for _ in range(count // CHUNK):
                await producer.send_many(topic, values)
        else:
            send = producer.send
            for _ in range(count):
                await send(topic, value)
        await producer.flush()
        figures = _figures(count, begun, used)
    if acknowledged != count + 1:
        raise RuntimeError(f"{acknowledged} of {count + 1} messages were acknowledged")
    return figures


# Consuming


def _confluent_consumer(bootstrap: str, topic: str) -> Any:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "log_level": 0,
            "group.id": "bench",
            "enable.auto.commit": False,
            "check.crcs": False,
            "queued.min.messages": 1_000_000,
            "fetch.message.max.bytes": 4 * 1024 * 1024,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    return consumer


def _confluent_consume(bootstrap: str, topic: str, count: int, size: int, many: bool) -> Figures:
    consumer = _confluent_consumer(bootstrap, topic)
    begun, used = time.perf_counter(), time.process_time()
    received = length = 0
    deadline = begun + PATIENCE
    try:
        if many:
            while received < count and time.perf_counter() < deadline:
                for message in consumer.consume(10_000, 1.0):
                    length += len(message.value())
                    received += 1
        else:
            poll = consumer.poll
            while received < count:
                message = poll(1.0)
                if message is not None:
                    length += len(message.value())
                    received += 1
                elif time.perf_counter() > deadline:
                    break
        figures = _figures(count, begun, used)
    finally:
        consumer.close()
    return _checked(figures, received, length, count, size)


async def _native_consume(bootstrap: str, topic: str, count: int, size: int, many: bool) -> Figures:
    from odradek.client import Start, TopicPartition, open_consumer

    begun, used = time.perf_counter(), time.process_time()
    assignment = {TopicPartition(topic, 0): Start(offset=0)}
    async with open_consumer(bootstrap, assignment=assignment) as consumer:
        received, length = await _iterate(consumer, count, many)
        figures = _figures(count, begun, used)
    return _checked(figures, received, length, count, size)


async def _native_read(bootstrap: str, topic: str, count: int, size: int, many: bool) -> Figures:
    from odradek.client import Start, TopicPartition, open_cluster, open_reader

    async with open_cluster(bootstrap) as cluster:
        begun, used = time.perf_counter(), time.process_time()
        start = {TopicPartition(topic, 0): Start(offset=0)}
        async with open_reader(cluster, start) as reader:
            received, length = await _iterate(reader, count, many)
            figures = _figures(count, begun, used)
    return _checked(figures, received, length, count, size)


async def _iterate(stream: Consumer | Reader, count: int, many: bool) -> tuple[int, int]:
    """Read so many messages, by whole batches or one by one; return how many, and their bytes."""
    received = length = 0
    with trio.fail_after(PATIENCE):
        if many:
            async for batch in stream.batches():
                for record in batch.records():
                    length += len(record.value or b"")
                    received += 1
                if received >= count:
                    break
        else:
            async for message in stream:
                length += len(message.value or b"")
                received += 1
                if received >= count:
                    break
    return received, length


def _checked(figures: Figures, received: int, length: int, count: int, size: int) -> Figures:
    if received < count or length < count * size:
        raise RuntimeError(f"{received} of {count} messages came, with {length} bytes")
    return figures


def _native(
    run: Callable[[str, str, int, int, bool], Awaitable[Figures]], many: bool
) -> Callable[[str, str, int, int], Figures]:
    return lambda bootstrap, topic, count, size: trio.run(run, bootstrap, topic, count, size, many)


ROLES: dict[str, Callable[[str, str, int, int], Figures]] = {
    "produce": partial(_confluent_produce, report=False),
    "produce-reported": partial(_confluent_produce, report=True),
    "send": _native(_native_produce, False),
    "send_many": _native(_native_produce, True),
    "consume": partial(_confluent_consume, many=True),
    "poll": partial(_confluent_consume, many=False),
    "batches": _native(_native_consume, True),
    "records": _native(_native_consume, False),
    "reader batches": _native(_native_read, True),
    "reader records": _native(_native_read, False),
}
"""What a child process does."""


@frozen
class Contest:
    """A native role against one of confluent-kafka, and the least ratio asked for."""

    native: str
    confluent: str
    asked: float
    produces: bool


CONTESTS = (
    Contest("send_many", "produce", 1.0, True),
    Contest("send_many", "produce-reported", 1.0, True),
    Contest("send", "produce", 0.5, True),
    Contest("send", "produce-reported", 0.5, True),
    Contest("batches", "consume", 1.0, False),
    Contest("records", "poll", 0.5, False),
    Contest("reader batches", "consume", 1.0, False),
    Contest("reader records", "poll", 0.5, False),
)


def _child(role: str, target: Target, topic: str, count: int, size: int) -> Figures:
    command = [sys.executable, "-m", "bench.native", role, target.bootstrap, topic]
    done = subprocess.run(
        [*command, str(count), str(size)],
        check=False,
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE,
    )
    if done.returncode:
        raise RuntimeError(f"{role} ended with {done.returncode}: {done.stderr[-2000:]}")
    figures: Figures = json.loads(done.stdout)
    return figures


def _run(role: str, target: Target, count: int, size: int, *, produces: bool) -> Figures:
    topic = fresh_topic(target)
    try:
        if not produces:
            load = Workload("fill", "", count, size, lambda *_: {}, {"linger.ms": 20})
            produce(target, topic, load)
        return _child(role, target, topic, count, size)
    finally:
        drop_topic(target, topic)


def _spread(values: Sequence[float], form: str = ",.0f") -> str:
    return f"{median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def report(
    *, rounds: int, durability: str = "ack", count: int = 1_000_000, size: int = 200,
    contests: Sequence[Contest] = CONTESTS,
) -> str:  # fmt: skip
    """Run every contest and return a Markdown table: rates and ratios with their extremes."""
    from odradek.record import implementation

    lines = [
        f"{count:,} messages of {size} bytes, one partition, durability = {durability}; "
        f"record codec: {implementation()}",
        "",
        "| native | confluent-kafka | native messages/s | confluent messages/s | ratio | asked "
        "| client CPU us/message: native, confluent |",
        "|--|--|--|--|--|--|--|",
    ]
    with started(durability=durability) as target:
        for contest in contests:
            ours: list[Figures] = []
            theirs: list[Figures] = []
            for number in range(rounds):
                pair = [(contest.native, ours), (contest.confluent, theirs)]
                for role, figures in pair if number % 2 else reversed(pair):
                    figures.append(_run(role, target, count, size, produces=contest.produces))
            rates = [each["messages/s"] for each in ours], [each["messages/s"] for each in theirs]
            ratios = [mine / other for mine, other in zip(*rates, strict=True)]
            cpu = [
                f"{median(each['client CPU us/message'] for each in figures):.2f}"
                for figures in (ours, theirs)
            ]
            lines.append(
                f"| `{contest.native}` | `{contest.confluent}` | {_spread(rates[0])} "
                f"| {_spread(rates[1])} | {_spread(ratios, '.2f')} | {contest.asked:g} "
                f"| {', '.join(cpu)} |"
            )
            print(lines[-1], file=sys.stderr, flush=True)
    return "\n".join(lines)


if __name__ == "__main__":
    role, bootstrap, topic, count, size = sys.argv[1:]
    print(json.dumps(ROLES[role](bootstrap, topic, int(count), int(size))))
