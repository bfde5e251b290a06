"""Few file descriptors, many connections, many partitions: the broker survives and recovers.

Fault F24, by RLIMIT_NOFILE.
"""

from __future__ import annotations

import shutil
import socket
from collections.abc import Callable
from contextlib import ExitStack, suppress

import pytest
from tests.faults.needs import missing
from tests.faults.traffic import Writer, batch_of, produce, until
from tests.interop.probe import Probe
from tests.interop.process import BrokerProcess

pytestmark = [pytest.mark.faults, pytest.mark.timeout(120)]

DESCRIPTORS = 64
CONNECTIONS = 200
PARTITIONS = 60


@pytest.fixture
def broker(make_broker: Callable[..., BrokerProcess]) -> BrokerProcess:
    if shutil.which("prlimit") is None:
        missing("prlimit is missing: scripts/install_test_tools.sh installs it")
    made = make_broker(
        {"topics.segment.bytes": 16 * 1024},
        under=("prlimit", f"--nofile={DESCRIPTORS}:{DESCRIPTORS}"),
    )
    made.start()
    with Probe(made.address) as probe:
        probe.create_topic("many", PARTITIONS)
    return made


def test_more_partitions_than_descriptors_are_served(broker: BrokerProcess) -> None:
    with Writer(broker.address, "many", PARTITIONS) as writer:
        writer.send(200)  # every partition rolls its segment
        writer.settle()
        assert writer.failed == {}
        assert writer.misses(broker.address) == []
    assert broker.problems() == []
    broker.stop()
    broker.start()
    assert writer.misses(broker.address) == []
    broker.stop()


def test_a_flood_of_connections_takes_no_partition_offline(broker: BrokerProcess) -> None:
    host, _, port = broker.address.rpartition(":")
    with Writer(broker.address, "many", PARTITIONS) as writer:
        writer.send_until(PARTITIONS)
        for _ in range(3):
            with ExitStack() as stack:
                for _ in range(CONNECTIONS):
                    with suppress(ConnectionError):  # it may be turned away
                        stack.enter_context(socket.create_connection((host, int(port)), 10))
                for _ in range(20):  # every partition rolls its segment meanwhile
                    writer.send(20)
                    writer.poll(0.02)
            # The flood is over: whoever was turned away comes back.
            writer.send(100)
            writer.settle()
        assert writer.failed == {}
        assert len(writer.acknowledged) == sum(writer.sent)
        assert writer.misses(broker.address) == []
        until(lambda: produce(broker.address, "many", batch_of([b"0."])).error_code == 0, "served")
    problems = [line for line in broker.problems() if "accepts no connections" not in line]
    assert problems == []
    broker.stop()
    assert (broker.data / "clean-shutdown").exists()
