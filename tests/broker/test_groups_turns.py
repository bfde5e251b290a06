"""Requests about many things: others get their turns while one is answered, and there are limits.

Counted in turns, not in seconds: a task that does nothing but give way gets one turn for each
checkpoint of the handler's.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import TypeVar

import pytest
import trio
from tests.broker.grouping import QUICK, Member, commit, committed, find
from tests.broker.peer import FixedHost, Peer, code, connected, running

from odradek.broker import Broker
from odradek.broker.guard import ASKED_LIMIT
from odradek.wire import Message
from odradek.wire.api.a08_offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from odradek.wire.api.a09_offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from odradek.wire.api.a10_find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from odradek.wire.api.a13_leave_group import LeaveGroupRequest, MemberIdentity
from odradek.wire.api.a14_sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from odradek.wire.api.a15_describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from odradek.wire.api.a21_delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from odradek.wire.api.a42_delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from odradek.wire.api.a47_offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)

M = TypeVar("M", bound=Message)
PARTITIONS = 2500


@pytest.fixture
async def peer(host: FixedHost) -> AsyncIterator[Peer]:
    async with running(host=host, groups=QUICK) as broker, connected(broker) as peer:
        await peer.create("events")
        await find(peer)
        yield peer


async def turns(peer: Peer, request: Message, version: int, response: type[M]) -> tuple[int, M]:
    """Ask; return how many turns another task had meanwhile, and the answer."""
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await trio.lowlevel.checkpoint()
            ticks += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(tick)
        answer = await peer.ask(request, version, response)
        nursery.cancel_scope.cancel()
    return ticks, answer


def names(count: int, length: int = 8) -> list[str]:
    return [f"{number:0{length}}" for number in range(count)]


MANY: list[tuple[Callable[[list[str]], Message], int, type[Message]]] = [
    (lambda ids: DeleteGroupsRequest(groups_names=ids), 2, DeleteGroupsResponse),
    (lambda ids: DescribeGroupsRequest(groups=ids), 5, DescribeGroupsResponse),
    (
        lambda ids: FindCoordinatorRequest(coordinator_keys=ids, key_type=0),
        4,
        FindCoordinatorResponse,
    ),
    (
        lambda ids: OffsetFetchRequest(
            groups=[OffsetFetchRequestGroup(group_id=each, topics=[]) for each in ids]
        ),
        8,
        OffsetFetchResponse,
    ),
]


@pytest.mark.parametrize(("count", "length", "least"), [(10_000, 8, 20), (300, 32_000, 15)])
@pytest.mark.parametrize(("request_of", "version", "response"), MANY)
async def test_others_have_turns_while_many_groups_or_long_ids_are_looked_at(
    peer: Peer,
    request_of: Callable[[list[str]], Message],
    version: int,
    response: type[Message],
    count: int,
    length: int,
    least: int,
) -> None:
    few, _ = await turns(peer, request_of(names(1)), version, response)
    many, _ = await turns(peer, request_of(names(count, length)), version, response)
    assert many - few >= least


def commit_of(count: int, modulo: int = 1) -> OffsetCommitRequest:
    partitions = [
        OffsetCommitRequestPartition(partition_index=n % modulo, committed_offset=n)
        for n in range(count)
    ]
    return OffsetCommitRequest(
        group_id="g", topics=[OffsetCommitRequestTopic(name="events", partitions=partitions)]
    )


@pytest.mark.parametrize(
    ("modulo", "least"), [(1, 15), (10_000, 2)], ids=["known", "most are unknown"]
)
async def test_large_commit_is_stored_in_portions_and_answered_in_one(
    peer: Peer, modulo: int, least: int
) -> None:
    few, _ = await turns(peer, commit_of(1), 7, OffsetCommitResponse)
    many, answer = await turns(peer, commit_of(10_000, modulo), 7, OffsetCommitResponse)
    assert many - few >= least
    (topic,) = answer.topics
    assert [p.partition_index for p in topic.partitions] == [n % modulo for n in range(10_000)]
    expected = ["NONE" if n % modulo == 0 else "UNKNOWN_TOPIC_OR_PARTITION" for n in range(10_000)]
    assert [code(p.error_code) for p in topic.partitions] == expected
    assert await committed(peer, "g", "events") == [9_999 if modulo == 1 else 0]


async def test_large_fetch_of_offsets_is_answered_topic_by_topic_as_asked(peer: Peer) -> None:
    await commit(peer, "g", {("events", 0): 7})
    asked = [("a", PARTITIONS), ("events", PARTITIONS), ("none", 0), ("events", 1), ("b", 999)]
    named = [
        OffsetFetchRequestTopics(name=name, partition_indexes=list(range(count)))
        for name, count in asked
    ]
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=named)])
    _, answer = await turns(peer, request, 8, OffsetFetchResponse)
    topics = answer.groups[0].topics
    assert [(topic.name, len(topic.partitions)) for topic in topics] == asked
    for topic in topics:
        assert [p.partition_index for p in topic.partitions] == list(range(len(topic.partitions)))
        offsets = [p.committed_offset for p in topic.partitions]
        assert offsets[:1] == ([7] if topic.name == "events" else [-1] if offsets else [])
        assert set(offsets[1:]) <= {-1}


OVER = ASKED_LIMIT + 1


@pytest.mark.parametrize(
    ("request_", "version"),
    [
        (DeleteGroupsRequest(groups_names=[""] * OVER), 2),
        (commit_of(OVER), 7),
        (LeaveGroupRequest(group_id="g", members=[MemberIdentity(member_id="m")] * OVER), 3),
        (
            SyncGroupRequest(
                group_id="g",
                member_id="m",
                assignments=[SyncGroupRequestAssignment(member_id="m", assignment=b"")] * OVER,
            ),
            3,
        ),
        (
            OffsetDeleteRequest(
                group_id="g",
                topics=[
                    OffsetDeleteRequestTopic(
                        name="events", partitions=[OffsetDeleteRequestPartition()] * OVER
                    )
                ],
            ),
            0,
        ),
    ],
    ids=["DeleteGroups", "OffsetCommit", "LeaveGroup", "SyncGroup", "OffsetDelete"],
)
async def test_connection_that_asks_for_more_than_anybody_has_is_closed(
    peer: Peer, request_: Message, version: int
) -> None:
    await peer.send(request_, version)
    await peer.ended()


async def test_found_coordinator_has_an_empty_message(peer: Peer) -> None:
    assert (await find(peer)).error_message == ""


async def test_records_of_groups_cannot_be_deleted(peer: Peer) -> None:
    await Member(peer).enter()
    partition = DeleteRecordsPartition(partition_index=0, offset=-1)
    topic = DeleteRecordsTopic(name="__consumer_offsets", partitions=[partition])
    request = DeleteRecordsRequest(topics=[topic], timeout_ms=1000)
    answer = await peer.ask(request, 2, DeleteRecordsResponse)
    assert code(answer.topics[0].partitions[0].error_code) == "INVALID_TOPIC_EXCEPTION"


async def test_deleting_the_topic_of_groups_is_told_in_the_log(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    from odradek.wire.api.a20_delete_topics import DeleteTopicsRequest, DeleteTopicsResponse

    async with connected(broker) as peer:
        await find(peer)
        request = DeleteTopicsRequest(topic_names=["__consumer_offsets"], timeout_ms=5000)
        answer = await peer.ask(request, 4, DeleteTopicsResponse)
    assert code(answer.responses[0].error_code) == "NONE"
    assert "every group begins anew" in caplog.text
