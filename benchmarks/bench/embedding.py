"""A broker inside a program: what starting one costs, and a test's turn, and a blocking call."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from statistics import median

from odradek.blocking import connect, run_broker
from odradek.client import ConsumerSettings
from odradek.testing.fixture import Odradek, open_workshop

__all__ = ["embedding"]

Figures = dict[str, float]

REPEATS = 20

CONSUMER = """
import sys
from confluent_kafka import Consumer
consumer = Consumer({"bootstrap.servers": sys.argv[1], "group.id": "g", "auto.offset.reset":
                     "earliest", "log_level": 0})
consumer.subscribe(["topic"])
while True:
    if consumer.poll(1.0):
        print("consumed", flush=True)
"""
CALLS = 2_000
RECORDS = 100_000


def embedding() -> Figures:
    """Times of one process, which has the other core to itself; medians of 20 of each."""
    return {**_broker(), **_fixture(), **_plugin(), **_calls()}


def _median_ms(once: Callable[[], float]) -> float:
    return 1000 * median(once() for _ in range(REPEATS))


def _broker() -> Figures:
    """`run_broker`: until a client can connect, thread and plugins included; and its end."""
    ends: list[float] = []

    def start() -> float:
        began = time.perf_counter()
        with run_broker():
            started = time.perf_counter()
        ends.append(time.perf_counter() - started)
        return started - began

    first = 1000 * start()
    return {
        "run_broker, first of the process, ms": first,
        "run_broker, ms": _median_ms(start),
        "its end, ms": 1000 * median(ends),
    }


def _fixture() -> Figures:
    """From the end of a test's body to the beginning of the next one's."""
    with open_workshop() as workshop, workshop.broker():

        def turn(use: Callable[[Odradek, ExitStack], None]) -> float:
            with ExitStack() as left:
                current = workshop.broker()
                use(current.__enter__(), left)
                began = time.perf_counter()
                current.__exit__(None, None, None)
                following = workshop.broker()
                following.__enter__()
                taken = time.perf_counter() - began
                following.__exit__(None, None, None)
            return taken

        return {
            "reset, test without topics, ms": _median_ms(lambda: turn(_nothing)),
            "reset, 20 topics with records, ms": _median_ms(lambda: turn(_topics)),
            "reset, a consumer left in its group, ms": _median_ms(lambda: turn(_consumer)),
        }


def _nothing(_: Odradek, __: ExitStack) -> None:
    """A test that only looks."""


def _topics(odradek: Odradek, _: ExitStack) -> None:
    for number in range(20):
        odradek.produce(f"topic-{number}", [b"x" * 200] * 10)


def _consumer(odradek: Odradek, left: ExitStack) -> None:
    """A process that goes on consuming, in a group, while its broker goes away."""
    odradek.produce("topic", ["x"])
    process = left.enter_context(
        subprocess.Popen(
            [sys.executable, "-c", CONSUMER, odradek.bootstrap],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
    )
    left.callback(process.kill)
    assert process.stdout is not None
    process.stdout.readline()


def _plugin() -> Figures:
    """What a project pays whose tests do not use the fixture: the import, and three hooks."""
    code = (
        "import sys, time, pytest; began = time.perf_counter(); "
        "import odradek.testing.pytest_plugin; print(time.perf_counter() - began)"
    )

    def once() -> float:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
        return float(done.stdout)

    return {"pytest plugin, unused, ms": _median_ms(once)}


def _calls() -> Figures:
    with run_broker() as broker, connect(broker.bootstrap) as client:
        with client.producer() as producer:
            producer.send("one", b"x").wait()
            began = time.perf_counter()
            for _ in range(CALLS):
                producer.send("one", b"x" * 200)
            send = (time.perf_counter() - began) / CALLS
            began = time.perf_counter()
            for _ in range(10):
                producer.send_many("many", [b"x" * 200] * (RECORDS // 10))
            producer.flush()
            many = RECORDS / (time.perf_counter() - began)
        settings = ConsumerSettings(auto_offset_reset="earliest")
        with client.consumer("readers", ["many"], settings=settings) as consumer:
            next(iter(consumer))
            began = time.perf_counter()
            for count, _ in enumerate(consumer, 2):
                if count == RECORDS:
                    break
            read = RECORDS / (time.perf_counter() - began)
    return {
        "blocking send, us": 1e6 * send,
        "send_many, records/s": many,
        "iteration, records/s": read,
    }
