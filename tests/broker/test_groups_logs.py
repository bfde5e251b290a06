"""Groups and the log they are kept in: restarts, loading, leader epochs, and logs that fail."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from attrs import evolve
from tests.broker.conftest import MockTime
from tests.broker.grouping import OFFSETS, QUICK, Member, commit, commit_request, committed, find
from tests.broker.peer import FixedHost, Peer, code, connected, running
from trio.testing import wait_all_tasks_blocked

from odradek.broker import Broker
from odradek.cluster import topics
from odradek.contracts.storage import Full, Offline, Unavailable
from odradek.log.partition import PartitionLog, ReadResult
from odradek.memory.storage import forget_memory_store
from odradek.record import BatchBuilder, parse_header
from odradek.types import PartitionKey
from odradek.wire.api.a08_offset_commit import OffsetCommitResponse
from odradek.wire.api.a15_describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from odradek.wire.api.a16_list_groups import ListGroupsRequest, ListGroupsResponse

T0 = ("events", 0)
ONE = {**QUICK, "offsets_partitions": 1}


@pytest.fixture(params=["memory", "file"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dict[str, Any]]:
    """Storage and coordinator that outlive the broker."""
    coordinator = f"embedded:{tmp_path}/coordinator"
    if request.param == "memory":
        name = f"groups-{tmp_path.name}"
        yield {"storage": f"memory://{name}", "coordinator": coordinator}
        forget_memory_store(name)
    else:
        pytest.importorskip("odradek_storage_file")
        yield {"storage": f"file://{tmp_path}/logs", "coordinator": coordinator}


@pytest.fixture
async def broker(host: FixedHost) -> AsyncIterator[Broker]:
    async with running(host=host, groups=ONE) as broker:
        yield broker


def log_of(broker: Broker, number: int = 0) -> PartitionLog:
    return broker.topic(OFFSETS).log(number)


async def raise_epoch(broker: Broker) -> None:
    """Have this broker elected once more, and wait until it leads under the new epoch."""
    before = log_of(broker)
    key = PartitionKey(broker.topic(OFFSETS).image.id, 0)
    state = broker.image.partitions[key]
    newer = evolve(state, leader_epoch=state.leader_epoch + 1)
    await topics.write_partitions(broker.coordinator, [(key, newer)])
    with trio.fail_after(5):
        await broker.hosting.wait_for(lambda: broker.topic(OFFSETS).logs[0] not in {None, before})
    await wait_all_tasks_blocked()


# -- restarting --------------------------------------------------------------------------------


async def test_groups_and_offsets_are_back_after_a_restart(where: dict[str, Any]) -> None:
    host = FixedHost()
    async with running(**where, host=host, groups=QUICK) as broker, connected(broker) as peer:
        await peer.create("events")
        member = await Member(peer).enter()
        assert await member.commit({T0: 42}) == ["NONE"]
        for number in range(20):
            await commit(peer, f"g{number}", {T0: number})
        assert await commit(peer, "g3", {T0: 33}, metadata="last") == ["NONE"]
    async with running(**where, host=host, groups=QUICK) as broker, connected(broker) as peer:
        member.peer = peer
        with trio.fail_after(10):
            while await member.commit({T0: 43}) != ["NONE"]:  # what a client does while it loads
                await trio.lowlevel.checkpoint()
        assert await member.heartbeat() == "NONE"
        assert await committed(peer, "g", "events") == [43]
        for number in range(20):
            expected = 33 if number == 3 else number
            assert await committed(peer, f"g{number}", "events") == [expected]
        describe = DescribeGroupsRequest(groups=["g"])
        (group,) = (await peer.ask(describe, 5, DescribeGroupsResponse)).groups
        (only,) = group.members
        assert (group.group_state, only.member_id) == ("Stable", member.id)
        assert (bytes(only.member_assignment), only.client_id) == (b"all of it", "peer")
        assert await member.leave() == "NONE"


async def test_groups_follow_the_leader_epoch_of_their_partition(broker: Broker) -> None:
    async with connected(broker) as peer, connected(broker) as other:
        await peer.create("events")
        member = await Member(peer).enter()
        await member.commit({T0: 5})
        late = Member(other)
        await late.send_join()
        await wait_all_tasks_blocked()
        await raise_epoch(broker)
        assert code((await late.joined()).error_code) == "NOT_COORDINATOR"
        with trio.fail_after(5):
            while await member.commit({T0: 6}) != ["NONE"]:
                await trio.lowlevel.checkpoint()
        assert await committed(peer, "g", "events") == [6]
        assert await member.heartbeat() == "NONE"


# -- loading -----------------------------------------------------------------------------------


async def test_requests_are_sent_away_while_groups_are_loaded(
    where: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(**where, groups=ONE) as broker, connected(broker) as peer:
        await peer.create("events")
        member = await Member(peer).enter()
        await member.commit({T0: 5})
    let = trio.Event()
    read = PartitionLog.read

    async def slow(self: PartitionLog, *args: Any, **more: Any) -> ReadResult:
        await let.wait()
        return await read(self, *args, **more)

    monkeypatch.setattr(PartitionLog, "read", slow)
    async with running(**where, groups=ONE) as broker, connected(broker) as peer:
        member.peer = peer
        loading = "COORDINATOR_LOAD_IN_PROGRESS"
        assert code((await find(peer)).error_code) == "NONE"
        assert await member.commit({T0: 6}) == [loading]
        assert await member.join() == loading
        assert code((await member.sync()).error_code) == loading
        assert await member.heartbeat() == "NONE", "as in Kafka: it need not know"
        listed = await peer.ask(ListGroupsRequest(), 4, ListGroupsResponse)
        assert (code(listed.error_code), listed.groups) == (loading, [])
        await broker.delete_topic(broker.image.topics["events"])
        let.set()
        with trio.fail_after(5):
            while (await peer.ask(ListGroupsRequest(), 4, ListGroupsResponse)).error_code:
                await trio.lowlevel.checkpoint()
        with trio.fail_after(5):  # the topic went while they loaded: as soon as that is stored
            while await committed(peer, "g", "events") != [-1]:
                await trio.lowlevel.checkpoint()


async def test_broker_ends_while_groups_are_loaded(
    where: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(**where, groups=ONE) as broker, connected(broker) as peer:
        await peer.create("events")
        await find(peer)
        await commit(peer, "g", {T0: 5})

    async def never(self: PartitionLog, *args: Any, **more: Any) -> ReadResult:
        await trio.sleep_forever()
        raise AssertionError

    monkeypatch.setattr(PartitionLog, "read", never)
    with trio.fail_after(5):
        async with running(**where, groups=ONE):
            await wait_all_tasks_blocked()


async def test_record_that_cannot_be_read_keeps_its_partition_from_being_coordinated(
    where: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    async with running(**where, groups=ONE) as broker, connected(broker) as peer:
        await peer.create("events")
        await find(peer)
        await commit(peer, "g", {T0: 5})
        builder = BatchBuilder(1000)
        builder.append(1, b"\x00\x01\x00", b"cut off")
        batch = builder.build()
        log_of(broker).append(parse_header(batch), batch, 1)
    async with running(**where, groups=ONE) as broker, connected(broker) as peer:
        await wait_all_tasks_blocked(0.01)
        assert code((await find(peer)).error_code) == "COORDINATOR_NOT_AVAILABLE"
        assert await commit(peer, "g", {T0: 6}) == ["NOT_COORDINATOR"]
        assert code((await peer.produce("events")).error_code) == "NONE"
    told = [r for r in caplog.records if "cannot be loaded" in r.getMessage()]
    assert len(told) == 1
    assert told[0].levelno == logging.ERROR


async def test_offsets_topic_that_deletes_is_warned_of(
    where: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Kafka takes such settings, too."""

    def told() -> list[str]:
        found = [r.getMessage() for r in caplog.records if "committed offsets are lost" in r.msg]
        caplog.clear()
        return found

    async with running(**where, groups=ONE) as broker, connected(broker) as peer:
        await peer.create("events")
        await find(peer)

        async def alter(policy: str) -> None:
            image = broker.topic(OFFSETS).image
            await broker.set_configs(image, {**image.configs, "cleanup.policy": policy})

        assert told() == []
        for _ in range(2):
            await alter("compact,delete")
            (said,) = told()
            assert "cleanup.policy of __consumer_offsets has delete in it" in said
            await alter("delete")
            assert told() == []
            await alter("compact")
        await alter("delete")
        assert len(told()) == 1
    async with running(**where, groups=ONE):
        assert len(told()) == 1


def test_loading_is_tried_again_when_the_storage_was_away(
    mock_time: MockTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with running(groups=ONE) as broker, connected(broker) as peer:
            await peer.create("events")
            await find(peer)
            await commit(peer, "g", {T0: 5})
            read = PartitionLog.read
            failures = [Unavailable("away"), Unavailable("away")]

            async def sometimes(self: PartitionLog, *args: Any, **more: Any) -> ReadResult:
                if failures:
                    raise failures.pop()
                return await read(self, *args, **more)

            monkeypatch.setattr(PartitionLog, "read", sometimes)
            await raise_epoch(broker)
            assert await commit(peer, "g", {T0: 6}) == ["NOT_COORDINATOR"]
            await trio.sleep(3)
            assert await committed(peer, "g", "events") == [5]

    mock_time(main)


# -- appending ---------------------------------------------------------------------------------


async def test_commits_of_one_connection_are_in_flight_together_and_stored_in_order(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connected(broker) as peer, connected(broker) as other:
        await peer.create("events")
        await find(peer)
        log = log_of(broker)
        let = trio.Event()
        wait = type(log)._commit_appends

        async def held(self: PartitionLog) -> None:
            await let.wait()
            await wait(self)

        monkeypatch.setattr(PartitionLog, "_commit_appends", held)
        for number in range(100):
            await peer.send(commit_request("g", {T0: number}), 7)
        await wait_all_tasks_blocked(0.01)
        assert log.log_end_offset - log.high_watermark == 100
        assert await committed(other, "g", "events") == [-1], "none of them is committed"
        let.set()
        for _ in range(100):
            _, answer = await peer.receive()
            assert isinstance(answer, OffsetCommitResponse)
            assert code(answer.topics[0].partitions[0].error_code) == "NONE"
        assert await committed(other, "g", "events") == [99]


async def test_full_storage_refuses_commits_for_now(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connected(broker) as peer:
        await peer.create("events")
        member = await Member(peer).enter()
        await member.commit({T0: 1})

        def full(chunk: object) -> None:
            raise Full("no room")

        with monkeypatch.context() as patched:
            patched.setattr(log_of(broker)._writer, "append", full)
            assert await member.commit({T0: 2}) == ["COORDINATOR_NOT_AVAILABLE"]
            assert await member.heartbeat() == "NONE"
            assert await committed(peer, "g", "events") == [1]
        assert await member.commit({T0: 3}) == ["NONE"]
        assert await committed(peer, "g", "events") == [3]


async def test_offsets_do_not_outlive_their_topic_though_the_storage_is_full(
    where: dict[str, Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(chunk: object) -> None:
        raise Full("no room")

    async with running(**where, groups=ONE) as broker, connected(broker) as peer:
        await peer.create("events")
        await peer.create("others")
        await find(peer)
        await commit(peer, "g", {T0: 4711, ("others", 0): 3})
        with monkeypatch.context() as patched:
            patched.setattr(log_of(broker)._writer, "append", full)
            for name in ("events", "others"):
                await broker.delete_topic(broker.image.topics[name])
            assert not {"events", "others"} & broker.hosting.by_name.keys()
            await peer.create("events")
            assert await committed(peer, "g", "events") == [-1]
        assert await commit(peer, "g", {T0: 1}) == ["NONE"]
        assert await committed(peer, "g", "events") == [1]
    assert caplog.text.count("cannot be removed yet (COORDINATOR_NOT_AVAILABLE)") == 1
    async with running(**where, groups=ONE) as broker, connected(broker) as peer:
        with trio.fail_after(5):  # and what was not removed in time is, as soon as it is loaded
            while await fetched(peer) != [1]:
                await trio.lowlevel.checkpoint()
        assert await committed(peer, "g", "others") == [-1]


async def test_record_that_is_too_large_is_told_once_with_its_group(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    async with connected(broker) as peer:
        await peer.create("events", 40)
        await find(peer)
        group = "G" * 30_000
        for _ in range(3):
            codes = await commit(peer, group, {("events", n): 1 for n in range(40)})
            assert set(codes) == {"UNKNOWN_SERVER_ERROR"}
    told = [r for r in caplog.records if "more than max.message.bytes" in r.getMessage()]
    assert [r.levelno for r in told] == [logging.WARNING]
    assert "group 'GGG" in told[0].getMessage()
    assert len(told[0].getMessage()) < 500


@pytest.mark.parametrize("at", ["append", "sync"])
async def test_log_that_fails_lets_its_groups_go(
    broker: Broker, at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connected(broker) as peer, connected(broker) as other:
        await peer.create("events")
        member = await Member(peer).enter()
        late = Member(other)
        await late.send_join()
        await wait_all_tasks_blocked()
        log = log_of(broker)

        def broken(chunk: object) -> None:
            raise Offline("fsync: input/output error")

        async def hanging(self: PartitionLog) -> None:
            log.fail(Offline("fsync: input/output error"))

        if at == "append":
            monkeypatch.setattr(log._writer, "append", broken)
        else:
            monkeypatch.setattr(PartitionLog, "_commit_appends", hanging)
        assert await member.commit({T0: 1}) == ["NOT_COORDINATOR"]
        assert code((await late.joined()).error_code) == "NOT_COORDINATOR"
        assert await member.heartbeat() == "NOT_COORDINATOR"
        assert code((await find(peer)).error_code) == "COORDINATOR_NOT_AVAILABLE"
        assert broker.groups.waiting_bytes == 0


def test_defect_in_the_machine_costs_a_second_and_nothing_else(
    mock_time: MockTime, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with running(groups=ONE) as broker, connected(broker) as peer:
            await peer.create("events")
            member = await Member(peer).enter()
            await member.commit({T0: 1})
            (shard,) = broker.groups.shards()

            def defect(*args: object) -> None:
                raise AssertionError("a defect")

            monkeypatch.setattr(shard.machine, "handle", defect)
            assert await member.commit({T0: 2}) == ["NOT_COORDINATOR"]
            assert await member.heartbeat() == "NOT_COORDINATOR"
            await trio.sleep(1.5)
            assert await member.heartbeat() == "NONE"
            assert await committed(peer, "g", "events") == [1]

    mock_time(main)
    assert "a defect" in caplog.text


# -- ending ------------------------------------------------------------------------------------


async def test_broker_that_ends_answers_who_waits_for_other_members() -> None:
    began = trio.current_time()
    async with running(groups=ONE) as broker:
        peers = [connected(broker) for _ in range(2)]
        async with peers[0] as one, peers[1] as two:
            await Member(one).enter()
            late = Member(two)
            await late.send_join()
            await wait_all_tasks_blocked()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(broker_ends, broker)
                assert code((await late.joined()).error_code) == "NOT_COORDINATOR"
                await two.ended()
    assert trio.current_time() - began < 5


async def broker_ends(broker: Broker) -> None:
    broker.server.drain()
    await broker.server.drained()


async def test_commit_that_is_under_way_when_the_broker_ends_is_answered(
    where: dict[str, Any],
) -> None:
    async with running(**where, groups=ONE) as broker, connected(broker) as peer:
        await peer.create("events")
        await find(peer)
        await peer.send(commit_request("g", {T0: 5}), 7)
        await wait_all_tasks_blocked()
        broker.server.drain()
        _, answer = await peer.receive()
        assert isinstance(answer, OffsetCommitResponse)
        assert code(answer.topics[0].partitions[0].error_code) == "NONE"
    async with running(**where, groups=ONE) as broker, connected(broker) as peer:
        with trio.fail_after(5):
            while await fetched(peer) != [5]:
                await trio.lowlevel.checkpoint()


async def fetched(peer: Peer) -> list[int]:
    try:
        return await committed(peer, "g", "events")
    except AssertionError:  # still loading
        return []
