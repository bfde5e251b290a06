"""A broker that goes away and comes back, with clients in the middle of their work."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from tests.interop.conftest import CLIENTS, NewClient
from tests.interop.drivers.base import Record
from tests.interop.probe import Probe
from tests.interop.process import BrokerProcess

TIMEOUT = 60.0
COUNT = 20_000
STOPS = pytest.mark.parametrize("stop", ["stop", "kill"])


class Background:
    """A client at work in a thread of its own."""

    def __init__(self, work: Callable[[], object]) -> None:
        self._work = work
        self._failure: BaseException | None = None
        self.result: object = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.result = self._work()
        except BaseException as error:
            self._failure = error

    @property
    def alive(self) -> bool:
        """Whether the work goes on."""
        return self._thread.is_alive()

    def join(self) -> None:
        """Wait for the end of the work; raises what it raised."""
        self._thread.join(TIMEOUT)
        assert not self._thread.is_alive(), "the client did not finish"
        if self._failure is not None:
            raise self._failure


def _grown(broker: BrokerProcess, topic: str, to: int, work: Background) -> int:
    """Wait until the log is at least so long."""
    with Probe(broker.address) as probe:
        while (end := probe.end_offset(topic)) < to and work.alive:
            pass
    return end


@STOPS
@pytest.mark.parametrize("name", CLIENTS)
def test_a_producer_loses_nothing_and_repeats_nothing(
    name: str, stop: str, own_broker: Callable[..., BrokerProcess], new_client: NewClient
) -> None:
    broker = own_broker()
    driver = new_client(name, broker.address)
    with Probe(broker.address) as probe:
        probe.create_topic("t")
    records = [Record(b"%d " % number + b"x" * 200, b"k") for number in range(COUNT)]
    # librdkafka would put thousands of records into a batch, and be done in five requests
    settings = {"batch.num.messages": 50} if name in ("kcat", "confluent-kafka") else None
    work = Background(lambda: driver.produce("t", records, idempotent=True, settings=settings))
    reached = _grown(broker, "t", 1000, work)
    getattr(broker, stop)()
    assert reached < COUNT, "it was over too soon to be interrupted"
    broker.start()
    work.join()
    if driver.reports_offsets:
        assert work.result == list(range(COUNT))
    with Probe(broker.address) as probe:
        assert probe.end_offset("t") == COUNT
    got = new_client("confluent-kafka", broker.address).consume("t", COUNT)
    assert [r.value for r in got] == [r.value for r in records]


@STOPS
@pytest.mark.parametrize("name", CLIENTS)
def test_a_consumer_goes_on_where_it_was(
    name: str, stop: str, own_broker: Callable[..., BrokerProcess], new_client: NewClient
) -> None:
    broker = own_broker()
    driver = new_client(name, broker.address)
    values = [b"%d" % number for number in range(2000)]
    with Probe(broker.address) as probe:
        probe.create_topic("t")
        probe.create_offsets_topic()
        probe.produce_values("t", values[:1000])
    half = threading.Event()

    def on_progress(count: int) -> None:
        if count >= 1000:
            half.set()

    work = Background(lambda: driver.consume("t", 2000, on_progress=on_progress))
    assert half.wait(TIMEOUT)
    getattr(broker, stop)()
    broker.start()
    with Probe(broker.address) as probe:
        probe.produce_values("t", values[1000:])
    work.join()
    got = work.result
    assert isinstance(got, list)
    assert [(r.offset, r.value) for r in got] == list(enumerate(values))


def test_topics_settings_ids_and_offsets_outlive_the_broker(
    own_broker: Callable[..., BrokerProcess], new_client: NewClient
) -> None:
    broker = own_broker()
    driver = new_client("confluent-kafka", broker.address)
    with Probe(broker.address) as probe:
        probe.create_topic("t", partitions=3, retention_ms="-1")
        probe.create_offsets_topic()
        before = probe.topic_id("t")
        for number in range(10):
            probe.produce_values("t", [b"%d" % number] * 10, partition=1)
    deleted = driver.delete_records("t", 25, partition=1)  # type: ignore[attr-defined]  # an AdminDriver
    assert deleted == 25
    for stop in (broker.stop, broker.kill):
        stop()
        broker.start()
        with Probe(broker.address) as probe:
            assert probe.topic_id("t") == before
            assert probe.end_offset("t", 1) == 100
        assert driver.configs("topic", "t")["retention.ms"] == "-1"  # type: ignore[attr-defined]
        assert driver.offset_at("t", "earliest", partition=1) == 25
        (got,) = driver.consume("t", 1, partitions=[1], start=25)
        assert (got.offset, got.value) == (25, b"2")


def test_a_producer_id_is_known_after_a_restart(own_broker: Callable[..., BrokerProcess]) -> None:
    """A batch that is sent again after a crash is told from a new one."""
    from tests.interop.probe import batch_of

    broker = own_broker()
    first, second = (batch_of([b"a", b"b"], producer=(4711, 0, base)) for base in (0, 2))
    with Probe(broker.address) as probe:
        probe.create_topic("t")
        assert probe.produce("t", first).base_offset == 0
        assert probe.produce("t", second).base_offset == 2
    for stop in (broker.kill, broker.stop):
        stop()
        broker.start()
        with Probe(broker.address) as probe:
            again = probe.produce("t", second)
            assert (again.error_code, again.base_offset) == (0, 2)
            assert probe.end_offset("t") == 4
