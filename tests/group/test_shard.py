"""What the scenarios do not show of a shard: its caller's mistakes, fates, big groups, old logs."""

from math import inf

import pytest

from odradek.errors import ErrorCode, MalformedMessage
from odradek.group.effects import NOTHING, Effects, Request
from odradek.group.records import (
    CommittedOffset,
    GroupMetadataValue,
    MemberMetadata,
    encode_group,
    encode_group_key,
    encode_offset,
    encode_offset_key,
)
from odradek.group.settings import GroupSettings
from odradek.group.shard import GroupShard, partition_for_group
from odradek.wire.api.a08_offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from odradek.wire.api.a09_offset_fetch import OffsetFetchRequestGroup
from odradek.wire.api.a11_join_group import JoinGroupRequest, JoinGroupRequestProtocol
from odradek.wire.api.a12_heartbeat import HeartbeatRequest
from odradek.wire.api.a16_list_groups import ListGroupsRequest
from odradek.wire.api.a42_delete_groups import DeletableGroupResult
from odradek.wire.api.a47_offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)


@pytest.fixture
def shard():
    shard = GroupShard(GroupSettings(), lambda: "id")
    assert shard.start(0.0, 0) == NOTHING
    return shard


def send(shard, ticket, message, version=9):
    return shard.handle(Request(ticket, message, version, "client", "/127.0.0.1"), 1.0, 1000)


def commit(shard, ticket, offset, partitions=(0,), group="g"):
    parts = [
        OffsetCommitRequestPartition(
            partition_index=n, committed_offset=offset, committed_metadata=""
        )
        for n in partitions
    ]
    topics = [OffsetCommitRequestTopic(name="t", partitions=parts)]
    return send(shard, ticket, OffsetCommitRequest(group_id=group, topics=topics))


def fetched(shard, group="g"):
    answer = shard.fetch_offsets(OffsetFetchRequestGroup(group_id=group, topics=None), 9, 0)
    return {p.partition_index: p.committed_offset for t in answer.topics for p in t.partitions}


@pytest.mark.parametrize(
    ("group", "digest"),
    [
        ("", 0),
        ("a", 97),
        ("hello", 99162322),
        ("polygenelubricants", 0),  # its hash is Integer.MIN_VALUE, which has no absolute value
        ("zzzzzz", 685785664),  # of a negative one
        ("\N{GRINNING FACE}", 1772899),  # two UTF-16 units
    ],
)
def test_a_group_lives_where_kafka_puts_it(group, digest):
    for partitions in (1, 3, 50):
        assert partition_for_group(group, partitions) == digest % partitions


def test_a_message_that_is_not_for_a_group_is_refused(shard):
    with pytest.raises(TypeError, match="ListGroupsRequest"):
        send(shard, 1, ListGroupsRequest())


def test_fates_take_effect_in_the_order_of_the_writes(shard):
    [first] = commit(shard, 1, 5).writes
    [second] = commit(shard, 2, 6).writes
    assert shard.stored(second.id, 1.0, 1000) == NOTHING
    assert fetched(shard) == {}
    replies = shard.stored(first.id, 1.0, 1000).replies
    assert [reply.ticket for reply in replies] == [1, 2]
    assert fetched(shard) == {0: 6}


@pytest.mark.parametrize("told", [0, 1])
def test_the_fate_of_a_write_that_is_not_under_way_is_a_mistake(shard, told):
    [write] = commit(shard, 1, 5).writes
    shard.stored(write.id, 1.0, 1000)
    with pytest.raises(ValueError, match="not under way"):
        shard.stored(write.id + told, 1.0, 1000)


def test_a_shard_that_is_not_in_office_refuses_and_does_nothing():
    shard = GroupShard(GroupSettings(), lambda: "id")
    heartbeat = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
    [reply] = send(shard, 1, heartbeat).replies
    assert reply.message.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert shard.next_deadline == inf
    shard.start(0.0, 0)
    assert shard.next_deadline < inf
    [write] = commit(shard, 2, 5).writes
    [refused] = shard.resign(ErrorCode.NOT_COORDINATOR).replies
    assert refused.ticket == 2
    assert shard.resign(ErrorCode.NOT_COORDINATOR) == NOTHING
    assert shard.next_deadline == inf
    assert shard.stored(write.id, 1.0, 1000) == NOTHING
    assert shard.tick(1e9, 10**12) == NOTHING
    assert shard.forget_topics(["t"], 1e9, 0) == NOTHING
    [reply] = send(shard, 3, heartbeat).replies
    assert reply.message.error_code == ErrorCode.NOT_COORDINATOR
    [reply] = shard.delete(4, "g", 1.0, 1000).replies
    assert reply.message == DeletableGroupResult(group_id="g", error_code=ErrorCode.NOT_COORDINATOR)
    assert shard.describe("g", 6).error_code == ErrorCode.NOT_COORDINATOR
    asked = OffsetFetchRequestGroup(group_id="g", topics=None)
    assert shard.fetch_offsets(asked, 9, 0).error_code == ErrorCode.NOT_COORDINATOR


def test_nothing_happens_before_the_deadline(shard):
    assert shard.tick(shard.next_deadline - 0.001, 10**12) == NOTHING


def test_a_big_group_is_deleted_in_several_writes(shard):
    [write] = commit(shard, 1, 5, range(1200)).writes
    assert len(write.records) == 1200  # a commit is one write: it is accepted whole or not
    shard.stored(write.id, 1.0, 1000)
    writes = shard.delete(2, "g", 1.0, 1000).writes
    assert [len(write.records) for write in writes] == [500, 500, 201]
    assert writes[-1].records[-1] == (encode_group_key("g"), None)
    assert shard.stored(writes[0].id, 1.0, 1000) == NOTHING
    error = ErrorCode.NOT_ENOUGH_REPLICAS
    assert shard.failed(writes[1].id, error, 1.0, 1000) == NOTHING
    [reply] = shard.stored(writes[2].id, 1.0, 1000).replies
    assert reply.message.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert list(fetched(shard)) == list(range(500, 1000))
    first, last = shard.delete(3, "g", 1.0, 1000).writes
    shard.stored(first.id, 1.0, 1000)
    [reply] = shard.stored(last.id, 1.0, 1000).replies
    assert reply.message.error_code == ErrorCode.NONE
    assert len(shard) == 0


def test_the_two_commits_of_one_partition_in_one_request_end_with_the_last(shard):
    [write] = commit(shard, 1, 5, (0, 0)).writes
    shard.stored(write.id, 1.0, 1000)
    assert fetched(shard) == {0: 5}


def member(subscription: bytes) -> MemberMetadata:
    return MemberMetadata(
        member_id="m",
        client_id="c",
        client_host="/h",
        session_timeout=10_000,
        subscription=subscription,
        assignment=b"a",
    )


def replayed(*records):
    shard = GroupShard(GroupSettings(), lambda: "id")
    for key, value in records:
        shard.replay(key, value, 0)
    shard.start(0.0, 0)
    return shard


def test_records_of_other_types_are_passed_over():
    shard = replayed(
        (b"\0\3\0\1g", b"\0\0\0\0\0\5"),  # ConsumerGroupMetadata
        (b"\0\x63whatever", b"\0\0"),
        (encode_offset_key("g", "t", 0), encode_offset(CommittedOffset(5, 1, "", 0))),
        (b"\0\3\0\1g", None),
    )
    assert fetched(shard) == {0: 5}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"", b""),
        (encode_group_key("g"), b"\0\3\0"),
        (encode_offset_key("g", "t", 0), b"\0\7" + bytes(20)),
    ],
)
def test_a_record_that_cannot_be_read_is_told(key, value):
    shard = GroupShard(GroupSettings(), lambda: "id")
    with pytest.raises(MalformedMessage):
        shard.replay(key, value, 0)


@pytest.mark.parametrize("version", [0, 1, 2, 3, 4])
def test_a_group_that_an_older_kafka_wrote_lives_on(version):
    value = GroupMetadataValue(
        protocol_type="consumer", generation=4, protocol="range", leader="m", members=[member(b"")]
    )
    shard = replayed((encode_group_key("g"), encode_group(value, version)))
    heartbeat = HeartbeatRequest(group_id="g", generation_id=4, member_id="m")
    [reply] = send(shard, 1, heartbeat, 4).replies
    assert reply.message.error_code == ErrorCode.NONE
    assert shard.next_deadline == 10.0  # a heartbeat moved the session, and not its entry


def test_offsets_are_not_deleted_where_subscriptions_cannot_be_read():
    value = GroupMetadataValue(
        protocol_type="consumer",
        generation=4,
        protocol="own",
        leader="m",
        members=[member(b"something else")],
    )
    shard = replayed(
        (encode_group_key("g"), encode_group(value)),
        (encode_offset_key("g", "t", 0), encode_offset(CommittedOffset(5, 1, "", 0))),
    )
    topics = [
        OffsetDeleteRequestTopic(
            name="t", partitions=[OffsetDeleteRequestPartition(partition_index=0)]
        )
    ]
    [reply] = send(shard, 1, OffsetDeleteRequest(group_id="g", topics=topics), 0).replies
    [result] = reply.message.topics[0].partitions
    assert result.error_code == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC


def test_a_group_loaded_over_its_size_rebalances():
    members = [member(b"") for _ in range(3)]
    for number, each in enumerate(members):
        each.member_id = f"m{number}"
    value = GroupMetadataValue(
        protocol_type="consumer", generation=4, protocol="range", leader="m0", members=members
    )
    shard = GroupShard(GroupSettings(max_size=2), lambda: "id")
    shard.replay(encode_group_key("g"), encode_group(value), 0)
    assert shard.start(0.0, 0) == Effects()
    assert shard.describe("g", 6).group_state == "PreparingRebalance"


def test_a_long_client_id_gives_a_member_id_that_can_be_sent(shard):
    join = JoinGroupRequest(group_id="g", session_timeout_ms=10_000, protocol_type="consumer")
    request = Request(1, join, 4, "x" * 32_767, "/h")
    [reply] = shard.handle(request, 1.0, 1000).replies
    assert reply.message.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    join.protocols = [JoinGroupRequestProtocol(name="range", metadata=b"")]
    [reply] = shard.handle(request, 1.0, 1000).replies
    assert reply.message.error_code == ErrorCode.MEMBER_ID_REQUIRED
    assert len(reply.message.member_id) < 300


def test_expired_offsets_are_looked_for_in_portions():
    """So that 100,000 groups do not stop everything else every ten minutes."""
    settings = GroupSettings(offsets_retention_ms=1, offsets_retention_check_interval_ms=1000)
    shard = GroupShard(settings, lambda: "id")
    for number in range(5000):
        offset = encode_offset(CommittedOffset(5, 1, "", 0))
        shard.replay(encode_offset_key(f"g{number}", "t", 0), offset, 0)
    shard.start(0.0, 0)
    portions = []
    while shard.next_deadline < 1.5:
        portions.append(len(shard.tick(shard.next_deadline, 10**12).writes))
    assert sum(portions) == 5000
    assert max(portions) <= 2000
