"""Groups over the wire: what the broker adds to the machine, whose own rules are tests/group's."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import trio
from tests.broker.conftest import MockTime
from tests.broker.grouping import (
    OFFSETS,
    QUICK,
    Member,
    commit,
    commit_request,
    committed,
    find,
    sync_all,
)
from tests.broker.peer import FixedHost, Peer, code, connected, running
from trio.testing import wait_all_tasks_blocked

from odradek.broker import Broker
from odradek.wire.api.a03_metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from odradek.wire.api.a08_offset_commit import OffsetCommitResponse
from odradek.wire.api.a09_offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchResponse,
)
from odradek.wire.api.a10_find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from odradek.wire.api.a11_join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
)
from odradek.wire.api.a12_heartbeat import HeartbeatRequest, HeartbeatResponse
from odradek.wire.api.a13_leave_group import LeaveGroupRequest, LeaveGroupResponse
from odradek.wire.api.a14_sync_group import SyncGroupRequest, SyncGroupResponse
from odradek.wire.api.a15_describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from odradek.wire.api.a16_list_groups import ListGroupsRequest, ListGroupsResponse
from odradek.wire.api.a20_delete_topics import (
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from odradek.wire.api.a37_create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from odradek.wire.api.a42_delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from odradek.wire.api.a47_offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
)

T0 = ("events", 0)


@pytest.fixture
async def broker(host: FixedHost) -> AsyncIterator[Broker]:
    """Without the initial delay: a join of one is answered at once."""
    async with running(host=host, groups=QUICK) as broker:
        yield broker


@pytest.fixture
async def member(peer: Peer) -> Member:
    await peer.create("events", 2)
    return await Member(peer).enter()


# -- the topic that keeps them -----------------------------------------------------------------


async def test_offsets_topic_is_created_once_however_many_ask_at_once(broker: Broker) -> None:
    found = []

    async def ask() -> None:
        async with connected(broker) as peer:
            found.append(await find(peer))

    async with trio.open_nursery() as nursery:
        for _ in range(8):
            nursery.start_soon(ask)
    assert {(code(each.error_code), each.node_id) for each in found} == {("NONE", 1)}
    topic = broker.image.topics[OFFSETS]
    assert (topic.partitions, topic.replication_factor) == (4, 1)
    assert topic.configs == {
        "cleanup.policy": "compact",
        "compression.type": "producer",
        "segment.bytes": "104857600",
    }


async def test_offsets_topic_has_8_partitions_unless_configured(host: FixedHost) -> None:
    async with running(host=host) as broker, connected(broker) as peer:
        assert code((await find(peer)).error_code) == "NONE"
        assert broker.image.topics[OFFSETS].partitions == 8


@pytest.mark.parametrize("name", [OFFSETS, "__own", "__transaction_state"])
async def test_only_kafkas_internal_topics_are_internal(peer: Peer, name: str) -> None:
    await peer.create(name)
    request = MetadataRequest(topics=[MetadataRequestTopic(name=name)])
    (topic,) = (await peer.ask(request, 12, MetadataResponse)).topics
    assert topic.is_internal == (name != "__own")
    expected = "NONE" if name == "__own" else "INVALID_TOPIC_EXCEPTION"
    assert code((await peer.produce(name)).error_code) == expected


async def test_offsets_topic_that_metadata_asks_for_is_the_same_as_ever(
    peer: Peer, broker: Broker
) -> None:
    wanted = [MetadataRequestTopic(name=OFFSETS)]
    request = MetadataRequest(topics=wanted, allow_auto_topic_creation=True)
    (topic,) = (await peer.ask(request, 12, MetadataResponse)).topics
    assert (code(topic.error_code), len(topic.partitions)) == ("NONE", 4)
    assert broker.image.topics[OFFSETS].configs["cleanup.policy"] == "compact"


async def test_offsets_topic_does_not_grow(peer: Peer) -> None:
    await find(peer)
    grow = CreatePartitionsTopic(name=OFFSETS, count=8)
    request = CreatePartitionsRequest(topics=[grow], timeout_ms=1000)
    (result,) = (await peer.ask(request, 3, CreatePartitionsResponse)).results
    assert code(result.error_code) == "INVALID_PARTITIONS"


async def test_deleting_the_offsets_topic_lets_all_groups_go(
    member: Member, broker: Broker
) -> None:
    async with connected(broker) as admin, connected(broker) as other:
        late = Member(other)
        await late.send_join()  # waits: the first member is not asked again before its heartbeat
        await wait_all_tasks_blocked()
        request = DeleteTopicsRequest(topics=[DeleteTopicState(name=OFFSETS)], timeout_ms=5000)
        (result,) = (await admin.ask(request, 6, DeleteTopicsResponse)).responses
        assert code(result.error_code) == "NONE"
        assert code((await late.joined()).error_code) == "NOT_COORDINATOR"
        assert await member.heartbeat() == "NOT_COORDINATOR"
        await find(admin)
        assert await member.heartbeat() == "UNKNOWN_MEMBER_ID"


@pytest.mark.parametrize("version", range(7))
async def test_coordinator_that_cannot_be_yet_is_asked_for_again(
    peer: Peer, broker: Broker, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from odradek.contracts.coordinator import Unavailable

    async def away(*ops: object) -> object:
        raise Unavailable("nobody there")

    monkeypatch.setattr(broker.coordinator, "txn", away)
    named = {"coordinator_keys": ["g"]} if version >= 4 else {"key": "g"}
    request = FindCoordinatorRequest(**named)
    answer = await peer.ask(request, version, FindCoordinatorResponse)
    found = answer.coordinators[0] if version >= 4 else answer
    assert (code(found.error_code), found.node_id) == ("COORDINATOR_NOT_AVAILABLE", -1)


# -- one member, every version -----------------------------------------------------------------


@pytest.mark.parametrize("version", range(10))
async def test_life_of_a_member_at_every_version(broker: Broker, version: int) -> None:
    async with connected(broker) as peer:
        await peer.create("events", 2)
        await find(peer)
        member = Member(peer, version=version)
        if version >= 4:
            assert await member.join() == "MEMBER_ID_REQUIRED"
        assert await member.join() == "NONE"
        assert member.leads
        synced = await member.sync(min(version, 5))
        assert bytes(synced.assignment) == b"all of it"
        assert await member.heartbeat(min(version, 4)) == "NONE"
        assert await member.commit({T0: 7, ("events", 1): 9}, max(version, 2)) == ["NONE"] * 2
        assert await committed(peer, "g", "events", 0, 1, 2, version=max(version, 1)) == [7, 9, -1]
        described = await peer.ask(
            DescribeGroupsRequest(groups=["g"]), min(version, 6), DescribeGroupsResponse
        )
        (group,) = described.groups
        assert (group.group_state, group.members[0].client_id) == ("Stable", "peer")
        assert group.members[0].client_host.startswith("/")
        listed = await peer.ask(ListGroupsRequest(), min(version, 5), ListGroupsResponse)
        assert [each.group_id for each in listed.groups] == ["g"]
        assert await member.leave(min(version, 5)) == "NONE"
        assert await member.heartbeat() == "UNKNOWN_MEMBER_ID"
        deleted = await peer.ask(
            DeleteGroupsRequest(groups_names=["g", "nope", "g"]),
            min(version, 2),
            DeleteGroupsResponse,
        )
        assert [(each.group_id, code(each.error_code)) for each in deleted.results] == [
            ("g", "NONE"),
            ("nope", "GROUP_ID_NOT_FOUND"),
        ]
        assert await committed(peer, "g", "events") == [-1]


async def test_coordinator_is_asked_for_before_anything_else(peer: Peer) -> None:
    member = Member(peer)
    assert await member.join() == "NOT_COORDINATOR"
    assert await member.heartbeat() == "NOT_COORDINATOR"
    assert code((await member.sync()).error_code) == "NOT_COORDINATOR"
    assert await member.leave() == "NOT_COORDINATOR"
    await peer.create("events")
    assert await commit(peer, "g", {T0: 1}) == ["NOT_COORDINATOR"]
    delete = DeleteGroupsRequest(groups_names=["g"])
    (result,) = (await peer.ask(delete, 2, DeleteGroupsResponse)).results
    assert code(result.error_code) == "NOT_COORDINATOR"
    describe = DescribeGroupsRequest(groups=["g"])
    (group,) = (await peer.ask(describe, 6, DescribeGroupsResponse)).groups
    assert code(group.error_code) == "NOT_COORDINATOR"
    assert (await peer.ask(ListGroupsRequest(), 5, ListGroupsResponse)).groups == []


@pytest.mark.parametrize(
    ("version", "where"), [(1, "partition"), (2, "top"), (7, "top"), (8, "group")]
)
async def test_offset_fetch_has_the_error_where_its_version_has_room(
    peer: Peer, version: int, where: str
) -> None:
    if version >= 8:
        groups = [OffsetFetchRequestGroup(group_id="g", topics=None)]
        request = OffsetFetchRequest(groups=groups)
    else:
        topic = OffsetFetchRequestTopic(name="events", partition_indexes=[3])
        request = OffsetFetchRequest(group_id="g", topics=[topic])
    answer = await peer.ask(request, version, OffsetFetchResponse)
    codes = {
        "partition": [p.error_code for topic in answer.topics for p in topic.partitions],
        "top": [answer.error_code] if version >= 2 else [],
        "group": [group.error_code for group in answer.groups],
    }
    assert [code(each) for each in codes[where]] == ["NOT_COORDINATOR"]


# -- several members ---------------------------------------------------------------------------


async def pair(one: Peer, two: Peer) -> tuple[Member, Member]:
    """A stable group of two in its second generation, led by the first."""
    first, second = await Member(one).enter(), Member(two)
    await second.send_join()
    await wait_all_tasks_blocked()
    assert await first.heartbeat() == "REBALANCE_IN_PROGRESS"
    assert await first.join() == "NONE"
    assert code((await second.joined()).error_code) == "NONE"
    assert first.leads
    assert first.generation == second.generation == 2
    await sync_all(first, second)
    return first, second


async def test_members_get_what_the_leader_assigned(broker: Broker) -> None:
    async with connected(broker) as one, connected(broker) as two:
        for member in await pair(one, two):
            assert await member.heartbeat() == "NONE"


async def test_requests_behind_a_waiting_join_are_acted_upon_and_answered_in_order(
    broker: Broker,
) -> None:
    async with connected(broker) as one, connected(broker) as two:
        await one.create("events")
        first = await Member(one).enter()
        second = Member(two)
        await second.send_join()
        await two.send(commit_request("other", {T0: 5}), 7)
        await two.send(HeartbeatRequest(group_id="nope", member_id="x"), 3)
        with trio.fail_after(5):
            while await committed(one, "other", "events") != [5]:
                await trio.lowlevel.checkpoint()
        assert await first.join() == "NONE"
        assert code((await second.joined()).error_code) == "NONE"
        assert isinstance((await two.receive())[1], OffsetCommitResponse)
        assert isinstance((await two.receive())[1], HeartbeatResponse)


def test_dead_member_is_missed_after_its_session_timeout(mock_time: MockTime) -> None:
    async def main() -> None:
        async with (
            running(groups=QUICK) as broker,
            connected(broker) as one,
            connected(broker) as two,
        ):
            await find(one)
            dead, survivor = await pair(one, two)
            began = trio.current_time()
            while await survivor.heartbeat() == "NONE":  # noqa: ASYNC110  # as a member does
                await trio.sleep(0.5)
            assert 10 <= trio.current_time() - began <= 11
            assert await survivor.join() == "NONE", "nobody is waited for"
            assert trio.current_time() - began <= 11
            assert survivor.leads
            assert await dead.heartbeat() == "UNKNOWN_MEMBER_ID"

    mock_time(main)


def test_empty_group_waits_three_seconds_for_more_members(mock_time: MockTime) -> None:
    async def main() -> None:
        async with running() as broker, connected(broker) as peer:
            await find(peer)
            began = trio.current_time()
            member = Member(peer)
            assert await member.join() == "NONE"
            assert 3 <= trio.current_time() - began < 3.5
            assert code((await member.sync()).error_code) == "NONE"
            await trio.sleep(9)
            assert await member.heartbeat() == "NONE"
            await trio.sleep(10.5)
            assert await member.heartbeat() == "UNKNOWN_MEMBER_ID"

    mock_time(main)


async def test_many_groups_spread_over_the_partitions(broker: Broker, peer: Peer) -> None:
    await peer.create("events")
    await find(peer)
    for number in range(20):
        assert await commit(peer, f"g{number}", {T0: number}) == ["NONE"]
    written = [log.log_end_offset for log in broker.topic(OFFSETS).logs if log is not None]
    assert sum(written) >= 20
    assert sum(1 for each in written if each) >= 3
    for number in range(20):
        assert await committed(peer, f"g{number}", "events") == [number]


# -- bad input ---------------------------------------------------------------------------------


async def test_empty_group_ids_are_invalid_where_kafka_says_so(peer: Peer) -> None:
    await find(peer)
    await peer.create("events")
    join = await peer.ask(JoinGroupRequest(member_id="x"), 7, JoinGroupResponse)
    assert (code(join.error_code), join.member_id) == ("INVALID_GROUP_ID", "x")
    heartbeat = await peer.ask(HeartbeatRequest(), 4, HeartbeatResponse)
    assert code(heartbeat.error_code) == "INVALID_GROUP_ID"
    sync = await peer.ask(SyncGroupRequest(), 4, SyncGroupResponse)
    assert code(sync.error_code) == "INVALID_GROUP_ID"
    sync = await peer.ask(SyncGroupRequest(), 5, SyncGroupResponse)
    assert code(sync.error_code) == "INCONSISTENT_GROUP_PROTOCOL", "the protocol is looked at first"
    leave = await peer.ask(LeaveGroupRequest(), 5, LeaveGroupResponse)
    assert code(leave.error_code) == "INVALID_GROUP_ID"
    delete = await peer.ask(OffsetDeleteRequest(), 0, OffsetDeleteResponse)
    assert code(delete.error_code) == "INVALID_GROUP_ID"
    assert await commit(peer, "", {T0: 3}) == ["NONE"], "old clients keep offsets so"
    assert await committed(peer, "", "events") == [3]


async def test_commit_tells_unknown_partitions_apart_from_the_rest(peer: Peer) -> None:
    await find(peer)
    await peer.create("events")
    offsets = {("nope", 0): 1, T0: 2, ("events", 1): 3, ("events", -1): 4, ("", 0): 5}
    unknown = "UNKNOWN_TOPIC_OR_PARTITION"
    assert await commit(peer, "g", offsets) == [unknown, "NONE", unknown, unknown, unknown]
    assert await committed(peer, "g", "events", 0, 1) == [2, -1]
    alone = await commit(
        peer, "g", {("nope", 0): 1}, member_id="x", generation_id_or_member_epoch=5
    )
    assert alone == [unknown], "the group is not asked, as in Kafka"
    both = {("nope", 0): 1, T0: 2}
    fenced = await commit(peer, "g", both, member_id="x", generation_id_or_member_epoch=5)
    assert fenced == [unknown, "UNKNOWN_MEMBER_ID"]


async def test_offset_delete_answers_for_every_partition(peer: Peer) -> None:
    await find(peer)
    await peer.create("events", 2)
    await commit(peer, "g", {T0: 2})

    def request(group: str, *wanted: tuple[str, int]) -> OffsetDeleteRequest:
        topics = [
            OffsetDeleteRequestTopic(
                name=name, partitions=[OffsetDeleteRequestPartition(partition_index=number)]
            )
            for name, number in wanted
        ]
        return OffsetDeleteRequest(group_id=group, topics=topics)

    asked = [T0, ("events", 7), ("nope", 0)]
    answer = await peer.ask(request("g", *asked), 0, OffsetDeleteResponse)
    codes = [code(p.error_code) for topic in answer.topics for p in topic.partitions]
    assert codes == ["NONE", "UNKNOWN_TOPIC_OR_PARTITION", "UNKNOWN_TOPIC_OR_PARTITION"]
    assert await committed(peer, "g", "events") == [-1]
    absent = await peer.ask(request("absent", ("nope", 0)), 0, OffsetDeleteResponse)
    assert (code(absent.error_code), absent.topics) == ("GROUP_ID_NOT_FOUND", [])


async def test_join_that_could_never_be_kept_is_refused_at_once(member: Member) -> None:
    big = Member(member.peer, "big", protocols=member.join_request().protocols)
    big._join["protocols"][0].metadata = bytes(1_100_000)
    assert await big.join() == "UNKNOWN_SERVER_ERROR"
    assert await member.heartbeat() == "NONE"


async def test_commit_that_fits_no_batch_is_refused(broker: Broker, member: Member) -> None:
    from attrs import evolve

    for log in broker.topic(OFFSETS).logs:
        assert log is not None
        log.settings = evolve(log.settings, max_message_bytes=600)
    offsets = {("events", number): 1 for number in range(2)}
    refused = await commit(member.peer, "other", offsets, metadata="x" * 400)
    assert refused == ["UNKNOWN_SERVER_ERROR"] * 2
    assert await commit(member.peer, "other", {T0: 1}) == ["NONE"]
    assert await committed(member.peer, "other", "events", 0, 1) == [1, -1]


# -- topics go ---------------------------------------------------------------------------------


async def test_offsets_of_a_deleted_topic_are_forgotten(member: Member, broker: Broker) -> None:
    peer = member.peer
    await peer.create("kept")
    await commit(peer, "other", {T0: 5, ("kept", 0): 6})
    await broker.delete_topic(broker.image.topics["events"])
    await peer.create("events", 2)
    assert await committed(peer, "other", "events") == [-1]
    assert await committed(peer, "other", "kept") == [6]


# -- bounds ------------------------------------------------------------------------------------


async def test_only_so_much_may_wait_for_members_at_once(broker: Broker, member: Member) -> None:
    broker.groups.waiting_max_bytes = 6_000
    async with connected(broker) as two, connected(broker) as three, connected(broker) as four:
        second, third, fourth = Member(two), Member(three), Member(four, "elsewhere")
        await second.send_join()
        await wait_all_tasks_blocked()
        assert broker.groups.waiting_bytes > 0
        assert await third.join() == "COORDINATOR_NOT_AVAILABLE", "a fourth is its group's"
        assert await fourth.join() == "NONE"
        broker.groups.waiting_max_bytes = 0
        assert await member.heartbeat() == "REBALANCE_IN_PROGRESS", "what does not wait is served"
        text = "x" * 4000
        assert await commit(member.peer, "other", {T0: 1}, metadata=text) == ["NONE"]
        assert await fourth.leave() == "NONE"
        broker.groups.waiting_max_bytes = 60_000
        assert await member.join() == "NONE"
        assert code((await second.joined()).error_code) == "NONE"
    assert broker.groups.waiting_bytes == 0
    assert not broker.groups._waiting_of


async def test_members_of_all_groups_keep_only_so_much(broker: Broker, member: Member) -> None:
    budget = broker.groups.member_budget
    before = budget.used
    assert before > 2_000
    budget.limit = before + 14_000
    protocols = [JoinGroupRequestProtocol(name="range", metadata=b"x" * 4_000)]
    members = [Member(member.peer, f"g{number}", protocols=protocols) for number in range(3)]
    found = [await each.join() for each in members]
    assert found == ["NONE", "NONE", "COORDINATOR_NOT_AVAILABLE"]
    assert await member.heartbeat() == "NONE"
    assert [await each.leave() for each in members[:2]] == ["NONE", "NONE"]
    assert budget.used == before
    assert await members[2].join() == "NONE"
    broker.groups.aclose()
    assert budget.used == 0


async def test_client_that_goes_away_while_it_waits_is_not_kept_in_mind(
    broker: Broker, member: Member
) -> None:
    async with connected(broker) as two:
        await Member(two).send_join()
        await wait_all_tasks_blocked()
        assert broker.groups.waiting_bytes > 0
    with trio.fail_after(5):
        await broker_has_one_connection(broker)
    assert broker.groups.waiting_bytes == 0


async def broker_has_one_connection(broker: Broker) -> None:
    while broker.server.connections > 1:
        await wait_all_tasks_blocked(0.001)


async def test_request_that_asks_for_too_much_ends_its_connection(broker: Broker) -> None:
    many = [""] * 500_001
    for request, version in (
        (FindCoordinatorRequest(coordinator_keys=many), 4),
        (DescribeGroupsRequest(groups=many), 5),
        (DeleteGroupsRequest(groups_names=many), 2),
    ):
        async with connected(broker) as peer:
            await peer.send(request, version)
            await peer.ended()
