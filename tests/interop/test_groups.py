"""Consumer groups of foreign clients: they share, they hand over, they lose nothing."""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.interop.conftest import KAFKA_VERSIONS, jars, missing
from tests.interop.members.process import Member, wait_until
from tests.interop.probe import Probe
from tests.interop.process import BrokerProcess

PARTITIONS = 6
SESSION_MS = 6000
"""Kafka's shortest by default (group.min.session.timeout.ms)."""
SLACK = 1.0
"""How long, beyond the session timeout, partitions of a member that died may be without one."""
JAVAS = tuple(f"java-{version}" for version in KAFKA_VERSIONS)
CLIENTS = ("confluent-kafka", "kafka-python", "aiokafka", "native", *JAVAS)
MODULES = {"confluent-kafka": "confluent_kafka", "kafka-python": "kafka", "aiokafka": "aiokafka"}
COOPERATIVE = tuple(name for name in CLIENTS if name != "aiokafka")

pytestmark = pytest.mark.timeout(240)

NewMember = Callable[..., Member]


@pytest.fixture
def new_member(broker: BrokerProcess, tmp_path: Path) -> Iterator[NewMember]:
    """Start members; those that are left at the end are killed."""
    started: list[Member] = []

    def start(client: str, group: str, topics: Sequence[str], **options: object) -> Member:
        classpath = None
        if client.startswith("java-"):
            classpath = jars(client.removeprefix("java-"))
        elif client != "native" and find_spec(MODULES[client]) is None:
            missing(client)
        member = Member(
            client,
            str(options.pop("address", broker.address)),
            group,
            topics,
            classpath=classpath,
            log=tmp_path / f"member{len(started)}.log",
            **options,  # type: ignore[arg-type]  # as given
        )
        started.append(member)
        return member

    yield start
    for member in started:
        member.kill()


@pytest.fixture
def shared_topic(topic_name: str, probe: Probe) -> str:
    """A topic of several partitions that nobody else uses."""
    probe.create_topic(topic_name, partitions=PARTITIONS)
    return topic_name


def fill(probe: Probe, topic: str, start: int, count: int) -> set[str]:
    """Write `count` records to each partition, and return their values."""
    written = set()
    for partition in range(PARTITIONS):
        values = [f"{partition}:{number}" for number in range(start, start + count)]
        probe.produce_values(topic, [value.encode() for value in values], partition=partition)
        written.update(values)
    return written


def shared(members: Sequence[Member]) -> bool:
    """Whether every partition has one owner, and every member a part."""
    owned = [each for member in members for each in member.assignment]
    return len(owned) == len(set(owned)) == PARTITIONS and all(m.assignment for m in members)


def processed(members: Sequence[Member]) -> set[str]:
    """The values that were processed, by whomever."""
    return {value for member in members for *_, value in list(member.records)}


def done(member: Member, written: set[str]) -> bool:
    """Whether a member processed, and committed, everything."""
    return processed([member]) == written and member.committed == len(member.records)


def in_order(member: Member) -> bool:
    """Whether the offsets of each partition grow, except where the member was given it anew."""
    last: dict[int, int] = {}
    for _, partition, offset, _ in member.records:
        if offset <= last.get(partition, -1) and member.assignments < 2:
            return False
        last[partition] = offset
    return True


@pytest.mark.parametrize("client", CLIENTS)
def test_two_members_share_and_one_takes_over_when_the_other_leaves(
    client: str, shared_topic: str, probe: Probe, new_member: NewMember
) -> None:
    group = f"g-{shared_topic}"
    written = fill(probe, shared_topic, 0, 50)
    first = new_member(client, group, [shared_topic])
    wait_until(lambda: processed([first]) == written, [first])
    assert in_order(first)
    second = new_member(client, group, [shared_topic])
    both = [first, second]
    wait_until(lambda: shared(both), both)
    written |= fill(probe, shared_topic, 50, 50)
    wait_until(lambda: processed(both) == written, both)
    assert second.records, "the second member got nothing"
    wait_until(lambda: first.committed == len(first.records), both)
    first.leave()
    seconds = wait_until(lambda: len(second.assignment) == PARTITIONS, [second])
    assert seconds < SESSION_MS / 2000, "a clean leave hands over at once"  # not at its timeout
    before = len(second.records)
    written |= fill(probe, shared_topic, 100, 10)
    wait_until(lambda: processed(both) == written, both)
    new = [value for *_, value in second.records[before:]]
    assert len(new) == 10 * PARTITIONS, "what was committed came again"
    second.leave()


@pytest.mark.parametrize("client", CLIENTS)
def test_a_killed_members_partitions_move_within_its_session(
    client: str, shared_topic: str, probe: Probe, new_member: NewMember
) -> None:
    both = [new_member(client, f"g-{shared_topic}", [shared_topic]) for _ in range(2)]
    wait_until(lambda: shared(both), both)
    written = fill(probe, shared_topic, 0, 50)
    wait_until(lambda: processed(both) == written, both)
    both[0].kill()
    rest = both[1]
    seconds = wait_until(lambda: len(rest.assignment) == PARTITIONS, [rest])
    # 0.5 s: until its next heartbeat the survivor does not know that there is a rebalance
    assert seconds < SESSION_MS / 1000 + SLACK + 0.5
    written |= fill(probe, shared_topic, 50, 50)
    wait_until(lambda: processed(both) == written, both)
    rest.leave()


@pytest.mark.parametrize("client", COOPERATIVE)
def test_a_cooperative_member_keeps_what_it_may_keep(
    client: str, shared_topic: str, probe: Probe, new_member: NewMember
) -> None:
    group = f"g-{shared_topic}"
    options = {"strategy": "cooperative-sticky"}
    first = new_member(client, group, [shared_topic], **options)
    wait_until(lambda: len(first.assignment) == PARTITIONS, [first])
    told = first.assignments
    second = new_member(client, group, [shared_topic], **options)
    both = [first, second]
    wait_until(lambda: shared(both) and len(first.assignment) == PARTITIONS // 2, both)
    assert first.assignments > told
    written = fill(probe, shared_topic, 0, 50)
    wait_until(lambda: processed(both) == written, both)
    second.leave()
    wait_until(lambda: len(first.assignment) == PARTITIONS, [first])
    first.leave()


@pytest.mark.parametrize("client", CLIENTS)
def test_a_static_member_comes_back_without_a_rebalance(
    client: str, shared_topic: str, probe: Probe, new_member: NewMember
) -> None:
    group = f"g-{shared_topic}"
    both = [
        new_member(client, group, [shared_topic], instance=f"i{number}", session_ms=30_000)
        for number in range(2)
    ]
    wait_until(lambda: shared(both), both)
    stays, goes = both
    told, had = stays.assignments, goes.assignment
    goes.kill()
    back = new_member(client, group, [shared_topic], instance="i1", session_ms=30_000)
    wait_until(lambda: back.assignment == had, [stays, back])
    written = fill(probe, shared_topic, 0, 20)
    wait_until(lambda: processed([stays, back]) == written, [stays, back])
    assert stays.assignments == told, "the other member was disturbed"


@pytest.mark.parametrize(
    "clients",
    [CLIENTS, tuple(reversed(CLIENTS))],
    ids=["librdkafka-leads", "java-leads"],
)
def test_different_clients_share_one_group(
    clients: Sequence[str], shared_topic: str, probe: Probe, new_member: NewMember
) -> None:
    """Whoever comes first leads, and computes the assignment of the others."""
    group = f"g-{shared_topic}"
    written = fill(probe, shared_topic, 0, 20)
    members: list[Member] = []
    for client in clients:
        members.append(new_member(client, group, [shared_topic]))
        wait_until(lambda: shared(members), members)
    written |= fill(probe, shared_topic, 20, 50)
    wait_until(lambda: processed(members) == written, members)
    while len(members) > 1:
        wait_until(lambda: all(m.committed == len(m.records) for m in members), members)
        members.pop(0).leave()
        wait_until(lambda: shared(members), members)


def test_different_clients_share_one_cooperative_group(
    shared_topic: str, probe: Probe, new_member: NewMember
) -> None:
    members: list[Member] = []
    for client in COOPERATIVE:
        options = {"strategy": "cooperative-sticky"}
        members.append(new_member(client, f"g-{shared_topic}", [shared_topic], **options))
        wait_until(lambda: shared(members), members)
    written = fill(probe, shared_topic, 0, 50)
    wait_until(lambda: processed(members) == written, members)


@pytest.mark.parametrize("client", CLIENTS)
def test_a_member_that_was_stopped_for_too_long_is_fenced_and_comes_back(
    client: str, shared_topic: str, probe: Probe, new_member: NewMember
) -> None:
    both = [new_member(client, f"g-{shared_topic}", [shared_topic]) for _ in range(2)]
    wait_until(lambda: shared(both), both)
    sleeper, rest = both
    sleeper.send(signal.SIGSTOP)
    wait_until(lambda: len(rest.assignment) == PARTITIONS, both)
    written = fill(probe, shared_topic, 0, 50)
    wait_until(lambda: processed([rest]) == written, both)
    sleeper.send(signal.SIGCONT)
    wait_until(lambda: shared(both), both)
    written |= fill(probe, shared_topic, 50, 50)
    wait_until(lambda: processed(both) == written, both)


@pytest.mark.parametrize("stop", ["stop", "kill"])
def test_groups_and_offsets_outlive_the_broker(
    stop: str,
    topic_name: str,
    own_broker: Callable[..., BrokerProcess],
    new_member: NewMember,
) -> None:
    """Members of every client go on in their groups; what was committed does not come again."""
    broker = own_broker()
    with Probe(broker.address) as probe:
        probe.create_topic(topic_name, partitions=PARTITIONS)
        written = fill(probe, topic_name, 0, 50)
    members = [
        new_member(client, f"g-{client}", [topic_name], address=broker.address, session_ms=30_000)
        for client in CLIENTS
    ]
    for member in members:
        wait_until(partial(done, member, written), members)
    getattr(broker, stop)()
    broker.start()
    with Probe(broker.address) as probe:
        written |= fill(probe, topic_name, 50, 50)
    for member in members:
        wait_until(partial(done, member, written), members)
        assert len(member.records) == len(written), f"{member.client} got records twice"
        assert member.alive


def test_kcat_consumes_in_a_group(
    shared_topic: str, probe: Probe, broker: BrokerProcess, new_member: NewMember
) -> None:
    if shutil.which("kcat") is None:
        missing("kcat")
    written = fill(probe, shared_topic, 0, 50)
    group = f"g-{shared_topic}"

    def consume(count: int) -> set[str]:
        arguments = ["-X", "auto.offset.reset=earliest", "-q", "-c", str(count)]
        command = ["kcat", "-b", broker.address, *arguments, "-G", group, shared_topic]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        return set(done.stdout.split())

    assert consume(len(written)) == written
    later = fill(probe, shared_topic, 50, 10)
    assert consume(len(later)) == later
