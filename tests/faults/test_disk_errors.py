"""A disk that answers with errors: nothing is retried, nothing false is acknowledged, reads go on.

Fault F12, by strace, which makes the system calls of the running broker fail.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.faults.injection import failing
from tests.faults.traffic import Writer, batch_of, create, read_back, until
from tests.interop.probe import Probe
from tests.interop.process import BrokerProcess

from odradek.errors import ErrorCode

pytestmark = [pytest.mark.faults, pytest.mark.timeout(120), pytest.mark.usefixtures("strace")]

WRITES = "pwritev,pwritev2"
BATCH = batch_of([b"later"])


@pytest.fixture
def broker(make_broker: Callable[..., BrokerProcess]) -> BrokerProcess:
    made = make_broker()
    made.start()
    with Probe(made.address) as probe:
        probe.create_topic("disk", 2)
        probe.create_topic("other")
    return made


@pytest.mark.parametrize("when", ["1", "2", "1+"], ids=["once", "once, later", "always"])
@pytest.mark.parametrize("calls", ["fdatasync", WRITES], ids=["sync", "write"])
def test_after_an_error_nothing_is_acknowledged_and_a_restart_recovers(
    broker: BrokerProcess, tmp_path: Path, calls: str, when: str
) -> None:
    with Writer(broker.address, "disk", 2) as writer:
        writer.send_until(200)
        writer.settle()
        with failing(broker.pid, calls, tmp_path, when) as injection:
            writer.send(50)
            until(lambda: injection.count, "the disk fails")
            writer.poll()
            refused_at = len(writer.acknowledged)
            with Probe(broker.address) as probe:
                until(lambda: probe.produce("other", BATCH).error_code, "the directory is offline")
        # The disk is well again, but what it holds of the last moments is not known.
        with Probe(broker.address) as probe:
            for partition in range(2):
                answer = probe.produce("disk", BATCH, partition)
                assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR
                assert "Input/output error" in (answer.error_message or "")
        writer.send(10)
        writer.poll(0.2)
        assert len(writer.acknowledged) == refused_at
        assert len(read_back(broker.address, "disk")) >= 100
        assert writer.misses(broker.address) == []
        said = broker.problems()
        assert any("Input/output error" in line for line in said)
        broker.stop()
        assert not (broker.data / "clean-shutdown").exists()
        broker.start()
        writer.settle()
        assert writer.failed == {}
        assert len(writer.acknowledged) == sum(writer.sent)
        assert writer.misses(broker.address) == []
    broker.stop()


def test_partitions_are_served_when_the_coordinator_cannot_write_and_a_restart_mends_it(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    with Writer(broker.address, "disk", 2) as writer:
        writer.send_until(100)
        writer.settle()
        with failing(broker.pid, "fdatasync,fsync", tmp_path, "1+"):
            # The write may have reached the disk: nobody knows before the database is read anew.
            assert create(broker.address, "uncertain") == ErrorCode.REQUEST_TIMED_OUT
        assert create(broker.address, "refused") == ErrorCode.COORDINATOR_NOT_AVAILABLE
        writer.send(100)
        writer.settle()
        assert writer.failed == {}
        assert any("coordinator.db" in line for line in broker.problems())
        broker.stop()
        broker.start()
        assert writer.misses(broker.address) == []
        assert create(broker.address, "after") == 0
        assert create(broker.address, "uncertain") in {0, ErrorCode.TOPIC_ALREADY_EXISTS}
    broker.stop()


def test_a_read_error_is_told_and_passes(broker: BrokerProcess, tmp_path: Path) -> None:
    with Writer(broker.address, "disk", 2) as writer:
        writer.send_until(200)
        writer.settle()
        with failing(broker.pid, "sendfile", tmp_path, "1+") as injection:
            with pytest.raises((EOFError, AssertionError, ConnectionError)):
                read_back(broker.address, "disk")
            assert injection.count
        assert writer.misses(broker.address) == []
    broker.stop()
