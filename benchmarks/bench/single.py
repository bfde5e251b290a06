"""Measurements of one broker by itself: starting, idling, a long backlog, many partitions."""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path
from statistics import median

import trio
from attrs import evolve
from confluent_kafka import Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # it has no __all__
    AdminClient,
    NewTopic,
)

from bench.target import started
from bench.workloads import WORKLOADS, fresh_topic, produce
from odradek.broker import open_broker
from odradek.config import config_from_options

__all__ = ["backlog", "in_process", "partitions", "startup"]

Figures = dict[str, float]


def startup() -> Figures:
    """Cold start: from starting the process to its first acknowledged message, in seconds.

    The client is created before, so that what is measured is the broker: it connects as soon
    as the broker says that it is ready.
    """
    begun = time.perf_counter()
    with started() as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap, "log_level": 0, "linger.ms": 0})
        producer.produce("first", b"message")
        if producer.flush(30):
            raise RuntimeError("the first message was not acknowledged")
        acknowledged = time.perf_counter() - begun
        resident = broker.resident_bytes() or 0
        return {
            "ready s": broker.to_ready,
            "first ack s": acknowledged,
            "resident MB": resident / 1e6,
        }


def in_process() -> Figures:
    """Start of a broker inside a running program, defaults all through, in milliseconds.

    The first start of a process pays for imports; the second is what a test suite pays each time.
    """
    times: list[float] = []

    async def start(root: str) -> None:
        config = config_from_options(
            listen=["tcp://127.0.0.1:0"],
            storage=f"file://{root}/log",
            coordinator=f"embedded:{root}/coordinator",
        )
        begun = time.perf_counter()
        async with open_broker(config):
            times.append(time.perf_counter() - begun)

    for _ in range(6):
        with tempfile.TemporaryDirectory(prefix="odradek-bench-") as root:
            trio.run(start, root)
    return {"first start ms": times[0] * 1000, "next starts ms": median(times[1:]) * 1000}


def partitions(number: int = 1000) -> Figures:
    """A broker with many partitions: how long it takes to start, what it costs while idle."""
    root = Path(tempfile.mkdtemp(prefix="odradek-bench-"))
    try:
        with started(directory=root) as broker:
            admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
            admin.create_topics([NewTopic("many", number, 1)])["many"].result(60)
            producer = Producer(
                {"bootstrap.servers": broker.bootstrap, "log_level": 0, "linger.ms": 50}
            )
            for partition in range(number):
                producer.produce("many", b"x" * 200, partition=partition)
            if producer.flush(60):
                raise RuntimeError("not every partition acknowledged")
        with started(directory=root) as broker:
            cpu = broker.cpu_seconds() or 0.0
            idle = 10.0
            time.sleep(idle)
            used = (broker.cpu_seconds() or 0.0) - cpu
            return {
                "start s": broker.to_ready,
                "idle CPU %": 100 * used / idle,
                "resident MB": (broker.resident_bytes() or 0) / 1e6,
            }
    finally:
        shutil.rmtree(root, ignore_errors=True)


def backlog(gigabytes: float = 10.0) -> Figures:
    """Throughput of a topic that holds a backlog, over that of an empty one, in one run."""
    load = WORKLOADS["produce-default"]
    with started() as broker:
        topic = fresh_topic(broker)
        filler = evolve(
            WORKLOADS["produce-1k"], messages=int(gigabytes * 1e9 / 1024), name="backlog"
        )
        produce(broker, topic, filler)
        ratios = []
        for _ in range(3):
            empty = fresh_topic(broker)
            before = produce(broker, empty, load)["messages/s"]
            after = produce(broker, topic, load)["messages/s"]
            ratios.append(after / before)
        ratios.sort()
        return {
            "produce, backlog / empty": ratios[1],
            "lowest": ratios[0],
            "highest": ratios[2],
            "resident MB": (broker.resident_bytes() or 0) / 1e6,
        }
