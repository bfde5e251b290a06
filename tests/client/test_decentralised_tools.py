"""Looking at decentralised groups, and changing their offsets."""

import pytest
from tests.client.decentralised import GROUP, World, in_a_world

from odradek.client import TopicPartition
from odradek.client.decentralised import (
    delete_group,
    describe_group,
    list_groups,
    reset_offsets,
)
from odradek.client.membership import CommitFailed, CommittedOffset
from odradek.contracts.coordinator import Coordinator
from odradek.errors import ErrorCode, KafkaError

T0 = TopicPartition("t", 0)


async def code_of(call) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        await call
    return caught.value.code


@in_a_world
async def test_description_shows_members_owners_offsets_and_lag(world: World) -> None:
    first, second = await world.join("t"), await world.join("t")
    await world.until_settled(1)
    await first.membership.commit({T0: CommittedOffset(7, 2, "x")})
    group = await describe_group(world.observer, GROUP)
    assert group.active
    assert [(m.member, list(m.topics), m.client_id) for m in group.members] == [
        (first.name, ["t"], "worker"),
        (second.name, ["t"], "worker"),
    ]
    assert [(p.name, p.owner) for p in group.partitions] == [
        (TopicPartition("t", n), (first if n < 3 else second).name) for n in range(6)
    ]
    assert group.partitions[0].committed == CommittedOffset(7, 2, "x")
    assert [group.partitions[n].lag(10) for n in range(2)] == [3, None]
    assert group.partitions[0].lag(5) == 0
    assert await list_groups(world.observer) == [GROUP]


@in_a_world
async def test_offsets_are_reset_while_nobody_is_there(world: World) -> None:
    keys = [world.key(each) for each in sorted(world.topics.partitions("t"))]
    topics = {keys[0].topic_id: "t"}
    await reset_offsets(
        world.observer, GROUP, {key: CommittedOffset(key.partition) for key in keys}, topics
    )
    assert not (await describe_group(world.observer, GROUP)).active
    worker = await world.join("t")
    await world.until_settled(1)
    assert worker.positions == {TopicPartition("t", n): n for n in range(6)}
    await worker.leave()
    world.forgetful = True
    await reset_offsets(world.observer, GROUP, {keys[1]: None}, topics)
    group = await describe_group(world.observer, GROUP)
    assert [p.committed is None for p in group.partitions] == [n == 1 for n in range(6)]


@in_a_world
async def test_owner_begins_again_where_its_offset_was_reset_to(world: World) -> None:
    worker = await world.join("t")
    await world.until_settled(1)
    await worker.membership.commit({T0: CommittedOffset(2)})
    key = world.key(T0)
    await reset_offsets(world.observer, GROUP, {key: CommittedOffset(9)}, {key.topic_id: "t"})
    with pytest.raises(CommitFailed):
        await worker.membership.commit({T0: CommittedOffset(3)})
    await world.until(lambda: worker.positions.get(T0) == 9)


@in_a_world
async def test_group_is_deleted_when_nobody_is_there(world: World) -> None:
    worker = await world.join("t")
    await world.until_settled(1)
    assert await code_of(delete_group(world.observer, GROUP)) == ErrorCode.NON_EMPTY_GROUP
    await worker.leave()
    world.forgetful = True
    await delete_group(world.observer, GROUP)
    assert await list_groups(world.observer) == []
    for call in (describe_group, delete_group):
        assert await code_of(call(world.observer, GROUP)) == ErrorCode.GROUP_ID_NOT_FOUND


@in_a_world
async def test_tools_settle_lost_answers(world: World) -> None:
    keys = [world.key(each) for each in world.topics.partitions("t")]
    topics = {keys[0].topic_id: "t"}
    unsure: Coordinator = world.unsure()
    world.forgetful = True
    for n in range(20):
        await reset_offsets(unsure, GROUP, dict.fromkeys(keys, CommittedOffset(n)), topics)
        group = await describe_group(world.observer, GROUP)
        assert {p.committed for p in group.partitions} == {CommittedOffset(n)}
        if n % 5 == 4:
            await delete_group(unsure, GROUP)
            assert await list_groups(world.observer) == []
