"""kill -9 of members and of the broker under load: everything is processed, no commit is lost.

Faults F1 and F20 for one broker, with invariant I8: every acknowledged record is processed at
least once, and a committed offset never goes back.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from tests.faults.test_kill import PARTITIONS, Writer
from tests.interop.members.process import Member, wait_until
from tests.interop.probe import Probe
from tests.interop.process import BrokerProcess

from odradek.wire.api.a09_offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from odradek.wire.api.a10_find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]

KILLS = int(os.environ.get("ODRADEK_GROUP_KILLS", "25"))
CLIENTS = ("confluent-kafka", "native", "kafka-python", "aiokafka")
PATIENCE = 60.0
TOPIC, GROUP = "work", "workers"
SESSION_MS = 1000


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    settings = {
        "groups.initial_rebalance_delay_ms": 0,
        "groups.min_session_timeout_ms": SESSION_MS,
        "topics.segment.bytes": 256 * 1024,
    }
    started = BrokerProcess(tmp_path, settings).start()
    yield started
    started.kill()


class Group:
    """Members of several clients, of whom some are killed and replaced."""

    def __init__(self, broker: BrokerProcess, logs: Path) -> None:
        self._broker = broker
        self._logs = logs
        self.living: list[Member] = []
        self.dead: list[Member] = []
        self._committed = [0] * PARTITIONS

    def start(self, client: str) -> None:
        """Add a member."""
        log = self._logs / f"member{len(self.living) + len(self.dead)}.log"
        self.living.append(
            Member(client, self._broker.address, GROUP, [TOPIC], session_ms=SESSION_MS, log=log)
        )

    def kill(self, number: int) -> str:
        """Kill one member; returns which client it was."""
        member = self.living.pop(number)
        member.kill()
        self.dead.append(member)
        return member.client

    @property
    def members(self) -> list[Member]:
        """All there ever were."""
        return self.dead + self.living

    def processed(self) -> set[tuple[int, int]]:
        """Partition and number of everything that was processed."""
        return {
            (partition, int(value.split(".", 1)[0]))
            for member in self.members
            for _, partition, _, value in member.records[: len(member.records)]
        }

    def check_commits(self) -> None:
        """Ask the broker for the group's offsets: none is before what a member was told."""
        told = list(self._committed)
        for member in self.members:
            for (_, partition), offset in list(member.commits.items()):
                told[partition] = max(told[partition], offset)
        with Probe(self._broker.address) as probe:
            now = committed(probe)
        assert all(has >= at_least for has, at_least in zip(now, told, strict=True)), (now, told)
        self._committed = now

    def end(self) -> None:
        """Kill whoever lives."""
        for member in self.living:
            member.kill()


def committed(probe: Probe) -> list[int]:
    """The group's offset in each partition, 0 where it has none."""
    deadline = time.monotonic() + PATIENCE
    while True:
        probe.call(FindCoordinatorRequest(key=GROUP), 2, FindCoordinatorResponse)
        asked = OffsetFetchRequestTopics(name=TOPIC, partition_indexes=list(range(PARTITIONS)))
        request = OffsetFetchRequest(
            groups=[OffsetFetchRequestGroup(group_id=GROUP, topics=[asked])]
        )
        (found,) = probe.call(request, 8, OffsetFetchResponse).groups
        if not found.error_code:  # otherwise it is still being loaded
            (topic,) = found.topics
            at = {each.partition_index: each.committed_offset for each in topic.partitions}
            return [max(at[partition], 0) for partition in range(PARTITIONS)]
        assert time.monotonic() < deadline, f"the group cannot be read: {found.error_code}"


def test_everything_acknowledged_is_processed_and_no_commit_is_lost_under_kills(
    broker: BrokerProcess, random: Random, tmp_path: Path
) -> None:
    with Probe(broker.address) as probe:
        probe.create_topic(TOPIC, PARTITIONS)
    writer = Writer(broker, TOPIC)
    group = Group(broker, tmp_path)
    try:
        for client in CLIENTS:
            group.start(client)
        for kill in range(KILLS):
            # Some progress between kills, so that each hits members at work
            before = len(group.processed())
            goal = before + random.randrange(1, 300)
            deadline = time.monotonic() + PATIENCE
            while len(group.processed()) < goal:
                writer.send(random.randrange(1, 10))
                writer.poll()
                assert time.monotonic() < deadline, f"kill {kill}: nothing is processed any more"
            what = random.choice(("member", "member", "broker", "both"))
            if what != "member":
                broker.kill()
            killed = [] if what == "broker" else [group.kill(random.randrange(len(group.living)))]
            if what != "member":
                broker.start()
            for name in killed:
                group.start(name)
            group.check_commits()
        assert writer.finish() == 0
        assert writer.failed == []
        wanted = set(writer.acknowledged)
        wait_until(lambda: wanted <= group.processed(), group.living, PATIENCE)
        ends = [writer.sent[partition] for partition in range(PARTITIONS)]

        def all_committed() -> bool:
            with Probe(broker.address) as probe:
                return committed(probe) == ends

        wait_until(all_committed, group.living, PATIENCE)
        group.check_commits()
    finally:
        group.end()
    assert broker.problems() == []
