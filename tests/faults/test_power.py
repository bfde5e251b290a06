"""Power cuts under a broker: what was acknowledged is on the disk, and the rest is cut clean.

Fault F3 for one broker, by an ext4 that is shut down without flushing its journal.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest
import trio
from tests.faults.traffic import Writer, until
from tests.faults.volumes import Volume, ext4
from tests.interop.probe import Probe
from tests.interop.process import BrokerProcess

pytestmark = [pytest.mark.faults, pytest.mark.timeout(180), pytest.mark.usefixtures("root")]

CUTS = 10
PARTITIONS = 3
MIB = 1024 * 1024


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[Volume]:
    with ext4(tmp_path, 128 * MIB) as mounted:
        yield mounted


@pytest.fixture
def broker(volume: Volume, make_broker: Callable[..., BrokerProcess]) -> Iterator[BrokerProcess]:
    # Small segments: the cuts fall into rolls, recovery points and producers' snapshots as well.
    made = make_broker(SETTINGS, volume.path)
    yield made
    made.kill()  # before the volume is unmounted


SETTINGS: dict[str, object] = {
    "topics.segment.bytes": 64 * 1024,
    "storage.min_free_bytes": MIB,
    "storage.ballast_bytes": MIB,
    "storage.recovery_bytes": 64 * 1024,
}


def stopped(pid: int) -> bool:
    """Whether every thread of a process is stopped, or waits for the disk."""
    states = (path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/stat"))
    return all(state.rpartition(")")[2].split()[0] in "TD" for state in states)


def cut_power(volume: Volume, pid: int) -> None:
    """Cut the power of the volume and of the process that uses it, at once.

    The process is stopped before: an fdatasync that is under way when ext4 is shut down may report
    success for bytes that are lost (Linux 6.18: one in seven, in a loop of writes and syncs), and
    what a machine without power acknowledges nobody hears.
    """
    os.kill(pid, signal.SIGSTOP)
    until(lambda: stopped(pid), "the process is stopped")
    volume.cut_power()


def lose_power(volume: Volume, broker: BrokerProcess) -> None:
    cut_power(volume, broker.pid)
    broker.kill()
    volume.unmount()
    volume.mount()


def test_nothing_acknowledged_is_lost_by_power_cuts(
    broker: BrokerProcess, volume: Volume, random: Random
) -> None:
    broker.start()
    with Probe(broker.address) as probe:
        probe.create_topic("power", PARTITIONS)
    with Writer(broker.address, "power", PARTITIONS) as writer:
        for cut in range(CUTS):
            writer.send_until(len(writer.acknowledged) + random.randrange(1, 1500))
            with Probe(broker.address) as probe:
                probe.create_topic(f"just-before-{cut}")
            writer.send(random.randrange(1, 200))
            lose_power(volume, broker)
            writer.send(random.randrange(1, 40))
            broker.start()
            assert writer.misses(broker.address) == [], f"after cut {cut}"
            with Probe(broker.address) as probe:
                for earlier in range(cut + 1):
                    probe.topic_id(f"just-before-{earlier}")
        writer.settle()
        assert writer.failed == {}
        assert writer.misses(broker.address) == []
        assert len(writer.acknowledged) == sum(writer.sent)
    broker.stop()


def test_newest_values_are_right_after_power_cuts_during_compaction(
    volume: Volume, random: Random, tmp_path: Path
) -> None:
    pytest.importorskip("odradek_storage_file")
    from tests.faults.compaction_model import Model
    from tests.faults.compaction_watch import Lives, found, kill

    def lose_it(pid: int) -> None:
        cut_power(volume, pid)
        kill(pid)

    lives = Lives(volume.path / "log", tmp_path / "lives.log")
    model = Model(random.randrange(2**32))
    try:
        for _ in range(CUTS):
            lives.live(model, random, end=lose_it)
            volume.unmount()
            volume.mount()
            model.check(trio.run(found, volume.path / "log"))
    finally:
        lives.close()
    assert lives.ended_in["compact"]
    assert model.compacted >= CUTS // 4


def test_a_weaker_durability_is_seen_to_lose_data(
    volume: Volume, make_broker: Callable[..., BrokerProcess]
) -> None:
    """The test above can fail: without syncs the same power cut loses acknowledged records."""
    broker = make_broker(SETTINGS | {"storage.durability": "none"}, volume.path)
    broker.start()
    with Probe(broker.address) as probe:
        probe.create_topic("power")
    # An idempotent client would find out by itself: the sequence numbers do not fit any more
    with Writer(broker.address, "power", enable_idempotence=False) as writer:
        writer.send_until(1000)
        lose_power(volume, broker)
        broker.start()
        found = writer.misses(broker.address)
    broker.kill()
    assert any("is not there" in miss for miss in found)


def test_a_torn_tail_is_cut_and_reported(
    volume: Volume, make_broker: Callable[..., BrokerProcess]
) -> None:
    broker = make_broker({"storage.min_free_bytes": 0, "storage.ballast_bytes": 0}, volume.path)
    broker.start()
    with Probe(broker.address) as probe:
        probe.create_topic("power")
    with Writer(broker.address, "power") as writer:
        writer.send_until(100)
        writer.settle()
        (segment,) = broker.segments("power")
        broker.kill()
        whole = segment.stat().st_size
        with segment.open("ab") as file:  # half a batch, as a torn write leaves it
            file.write(segment.read_bytes()[:70])
        broker.start()
        assert segment.stat().st_size == whole
        assert writer.misses(broker.address) == []
        writer.send_until(200)
        writer.settle()
        assert writer.misses(broker.address) == []
    said = broker.log_file.read_text()
    assert "70 bytes" in said
    assert str(segment) in said
    broker.stop()
