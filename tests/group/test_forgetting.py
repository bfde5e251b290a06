"""Offsets do not outlive their topic, whatever the log says to the tombstones."""

import pytest

from odradek.errors import ErrorCode
from odradek.group.effects import NOTHING, Request
from odradek.group.records import CommittedOffset, encode_offset, encode_offset_key
from odradek.group.settings import GroupSettings
from odradek.group.shard import GroupShard
from odradek.wire.api.a08_offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from odradek.wire.api.a09_offset_fetch import OffsetFetchRequestGroup

FULL = ErrorCode.COORDINATOR_NOT_AVAILABLE
TOMBSTONE = (encode_offset_key("g", "t", 0), None)


def replayed(*groups, partitions=1, settings=None):
    shard = GroupShard(settings or GroupSettings(), lambda: "id")
    offset = encode_offset(CommittedOffset(5, 1, "", 0))
    for group in groups:
        for number in range(partitions):
            shard.replay(encode_offset_key(group, "t", number), offset, 0)
    return shard


@pytest.fixture
def shard():
    shard = replayed("g")
    assert shard.start(0.0, 0) == NOTHING
    assert fetched(shard) == {0: 5}
    return shard


def commit(shard, offset):
    part = OffsetCommitRequestPartition(committed_offset=offset, committed_metadata="")
    topics = [OffsetCommitRequestTopic(name="t", partitions=[part])]
    message = OffsetCommitRequest(group_id="g", topics=topics)
    [write] = shard.handle(Request(1, message, 9, "client", "/127.0.0.1"), 1.0, 1000).writes
    return write.id


def forget(shard):
    return shard.forget_topics(["t"], 1.0, 1000).writes


def fetched(shard, group="g"):
    answer = shard.fetch_offsets(OffsetFetchRequestGroup(group_id=group, topics=None), 9, 0)
    return {p.partition_index: p.committed_offset for t in answer.topics for p in t.partitions}


def tick(shard):
    return shard.tick(shard.next_deadline, 1000).writes


def test_offsets_are_out_of_force_before_the_tombstone_is_stored_and_without_it(shard):
    [write] = forget(shard)
    assert fetched(shard) == {}
    shard.failed(write.id, FULL, 1.0, 1000)
    assert fetched(shard) == {}
    assert shard.forgetting == 1


def test_a_tombstone_that_is_not_stored_is_tried_again_later_each_time(shard):
    [write] = forget(shard)
    delays = []
    for _ in range(9):
        now = shard._context.now
        assert write.records == (TOMBSTONE,)
        shard.failed(write.id, FULL, now, 1000)
        delays.append(shard.next_deadline - now)
        [write] = tick(shard)
    assert delays == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    shard.stored(write.id, shard._context.now, 1000)
    assert shard.forgetting == 0
    assert tick(shard)[0].records[0][0][:2] == b"\0\2"  # the group, which has nothing, expires


def test_a_commit_to_the_next_topic_of_the_name_is_not_deleted_by_a_late_tombstone(shard):
    [write] = forget(shard)
    shard.failed(write.id, FULL, 1.0, 1000)
    new = commit(shard, 7)
    assert not tick(shard)  # while its fate is open
    shard.stored(new, 3.0, 1000)
    assert fetched(shard) == {0: 7}
    tick(shard)
    assert fetched(shard) == {0: 7}
    assert shard.forgetting == 0


def test_a_commit_to_the_next_topic_that_fails_leaves_the_tombstone_to_be_written(shard):
    [write] = forget(shard)
    shard.failed(write.id, FULL, 1.0, 1000)
    new = commit(shard, 7)
    assert not tick(shard)
    shard.failed(new, FULL, 3.0, 1000)
    assert fetched(shard) == {}
    [write] = tick(shard)
    assert write.records == (TOMBSTONE,)


def test_a_commit_that_was_under_way_when_its_topic_went_is_never_in_force(shard):
    old = commit(shard, 6)
    assert not forget(shard)
    new = commit(shard, 7)
    shard.stored(old, 1.0, 1000)
    assert fetched(shard) == {}
    shard.stored(new, 1.0, 1000)
    assert fetched(shard) == {0: 7}


def test_offsets_of_topics_that_are_gone_are_forgotten_when_loaded():
    shard = replayed("g")
    [write] = shard.start(0.0, 0, {"u"}.__contains__).writes
    assert write.records == (TOMBSTONE,)
    assert fetched(shard) == {}
    assert replayed("g").start(0.0, 0, {"t"}.__contains__) == NOTHING


def test_many_groups_forget_at_once_and_write_in_portions():
    groups = [f"g{number}" for number in range(5000)]
    shard = replayed(*groups)
    shard.start(0.0, 0)
    portions = [len(forget(shard))]
    assert all(fetched(shard, group) == {} for group in groups)
    while shard.next_deadline < 60:
        portions.append(len(tick(shard)))
    assert sum(portions) == 5000
    assert max(portions) <= 1000


def test_many_offsets_of_one_group_are_forgotten_in_portions():
    shard = replayed("g", partitions=5000)
    shard.start(0.0, 0)
    writes = [forget(shard)]
    while shard.next_deadline < 60:
        writes.append(tick(shard))
    assert max(sum(len(write.records) for write in each) for each in writes) <= 1000
    keys = {key for each in writes for write in each for key, _ in write.records}
    assert len(keys) == 5000


def test_tombstones_with_long_keys_are_written_in_batches_that_fit():
    """30,000 bytes of group id 60 times are more than a batch may have."""
    group = "G" * 30_000
    shard = replayed(group, partitions=60)
    shard.start(0.0, 0)
    writes = shard.delete(1, group, 1.0, 1000).writes
    assert sum(len(write.records) for write in writes) == 61
    sizes = [sum(len(key) for key, _ in write.records) for write in writes]
    assert max(sizes) <= 128 * 1024
    for write in writes[:-1]:
        shard.stored(write.id, 1.0, 1000)
    [reply] = shard.stored(writes[-1].id, 1.0, 1000).replies
    assert reply.message.error_code == ErrorCode.NONE


def test_a_record_above_the_bound_of_a_batch_is_a_batch_by_itself():
    shard = replayed("g", partitions=3, settings=GroupSettings(batch_max_bytes=10))
    shard.start(0.0, 0)
    assert [len(write.records) for write in forget(shard)] == [1, 1, 1]


def test_a_group_that_is_being_deleted_forgets_too(shard):
    deletion = shard.delete(1, "g", 1.0, 1000).writes
    forget(shard)
    for write in deletion:
        shard.failed(write.id, FULL, 1.0, 1000)
    assert fetched(shard) == {}
