"""Decentralised groups over the memory coordinator: joining, leaving, dying, committing."""

import pytest
import trio
import trio.testing
from tests.client.decentralised import (
    GROUP,
    TTL,
    ToldCluster,
    Worker,
    World,
    in_a_world,
    open_world,
)

from odradek.client import TopicPartition
from odradek.client.consumer_settings import ConsumerSettings
from odradek.client.decentralised import open_membership
from odradek.client.decentralised.keys import StoredOffset, offset_of, offset_value
from odradek.client.decentralised.life import CoordinatorClosed
from odradek.client.membership import CommitFailed, CommittedOffset, MembershipState
from odradek.contracts.coordinator import Delete, Put
from odradek.errors import ErrorCode, KafkaError
from odradek.memory.coordinator import MemoryCoordinator, open_memory_coordinator

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def numbers(worker: Worker) -> list[int]:
    return sorted(each.partition for each in worker.live)


def calls(worker: Worker) -> list[tuple[str, list[int]]]:
    return [(what, sorted(each.partition for each in them)) for what, them in worker.log]


@in_a_world
async def test_single_member_owns_everything(world: World) -> None:
    worker = await world.join("t")
    await world.until_settled(1)
    assert calls(worker) == [("assigned", [0, 1, 2, 3, 4, 5])]
    status = worker.membership.status
    assert (status.state, status.member_id, status.generation, status.last_error) == (
        MembershipState.STABLE,
        worker.name,
        0,
        None,
    )


@in_a_world
async def test_members_share_in_ranges_and_keep_what_stays(world: World) -> None:
    first = await world.join("t")
    await world.until_settled(1)
    second = await world.join("t")
    assert await world.until_settled(1) < 0.5
    assert (numbers(first), numbers(second)) == ([0, 1, 2], [3, 4, 5])
    assert calls(first)[1:] == [("revoked", [3, 4, 5]), ("assigned", [])]
    assert calls(second) == [("assigned", [3, 4, 5])]
    third = await world.join("t")
    await world.until_settled(1)
    assert [numbers(each) for each in (first, second, third)] == [[0, 1], [2, 3], [4, 5]]


@in_a_world
async def test_member_that_leaves_gives_its_partitions_at_once(world: World) -> None:
    first, second = await world.join("t"), await world.join("t")
    await world.until_settled(1)
    await first.leave()
    assert await world.until_settled(1) < 0.1
    assert numbers(second) == [0, 1, 2, 3, 4, 5]


@in_a_world
async def test_member_that_leaves_while_it_runs_does_not_come_back(world: World) -> None:
    worker = await world.join("t")
    await world.until_settled(1)
    await worker.membership.leave()
    assert worker.membership.status.state is MembershipState.LEFT
    await trio.sleep(60)
    assert not await world.observer.list(world.keys.members)
    assert worker.membership.status.state is MembershipState.LEFT
    assert len(worker.coordinator.sessions) == 1


@in_a_world
async def test_group_that_everybody_left_has_only_offsets(world: World) -> None:
    workers = [await world.join("t"), await world.join("t")]
    await world.until_settled(1)
    for worker in workers:
        await worker.leave()
    assert not await world.observer.list(world.keys.members)
    assert not await world.observer.list(world.keys.owners)
    assert len(await world.observer.list(world.keys.offsets)) == 6
    assert list(await world.observer.list("groups")) == [world.keys.index]


@in_a_world
async def test_member_without_partitions_leaves_nothing_behind(world: World) -> None:
    worker = await world.join("unknown")
    await world.until_settled(1)
    assert calls(worker) == [("assigned", [])]
    await worker.leave()
    assert not await world.observer.list("groups")


@in_a_world
async def test_partitions_of_a_killed_member_move_within_its_session_and_a_second(
    world: World,
) -> None:
    first, second = await world.join("t", working=True), await world.join("t", working=True)
    await world.until_settled(1)
    await trio.sleep(10)
    await first.kill()
    taken = await world.until_settled(TTL + 1)
    assert TTL - 1 < taken < TTL + 1
    assert numbers(second) == [0, 1, 2, 3, 4, 5]


@in_a_world
async def test_hundred_members_joining_at_once_settle_in_a_few_rebalances(world: World) -> None:
    world.topics.counts["t"] = 100
    await world.join("t")
    await world.until_settled(1)
    async with trio.open_nursery() as nursery:
        for _ in range(99):
            nursery.start_soon(world.join, "t")
    assert await world.until_settled(3) < 1
    assert max(w.membership.status.generation for w in world.workers.values()) < 4


@in_a_world
async def test_topics_are_shared_by_their_subscribers(world: World) -> None:
    world.topics.counts["u"] = 2
    first, second = await world.join("t", "u"), await world.join("u")
    await world.until_settled(1)
    assert second.live == {TopicPartition("u", 1)}
    second.topics = frozenset("t")
    second.membership.subscription_changed()
    await world.until_owned(second, *(TopicPartition("t", n) for n in (3, 4, 5)))
    assert first.live == world.topics.partitions("u") | {T0, T1, TopicPartition("t", 2)}
    second.topics = frozenset()
    second.membership.subscription_changed()
    await world.until_owned(second)


@in_a_world
async def test_partitions_that_are_added_are_shared_as_soon_as_one_member_sees_them(
    world: World,
) -> None:
    first, second = await world.join("t"), await world.join("t")
    await world.until_settled(1)
    world.topics.counts["t"] = 8
    await second.cluster.renew()
    assert await world.until_settled(5) < 1
    assert (numbers(first), numbers(second)) == ([0, 1, 2, 3], [4, 5, 6, 7])


@in_a_world
async def test_topic_is_consumed_once_it_exists(world: World) -> None:
    worker = await world.join("later")
    await world.until_settled(1)
    world.topics.counts["later"] = 1
    assert await world.until_settled(10) < 6
    assert worker.live == {TopicPartition("later", 0)}


@in_a_world
async def test_topic_that_is_created_again_begins_anew(world: World) -> None:
    worker = await world.join("t")
    await world.until_settled(1)
    worker.positions[T0] = 7
    old = world.key(T0)
    world.topics.lives["t"] = 1
    await worker.cluster.renew()
    await world.until(lambda: len(worker.log) == 3)
    assert calls(worker)[1] == ("revoked", [0, 1, 2, 3, 4, 5])
    assert await worker.membership.committed([T0]) == {}
    entry = await world.observer.get(world.keys.offset(old))
    assert entry is not None
    assert offset_of(entry).committed == CommittedOffset(7), "committed when it was revoked"


# --- offsets


@in_a_world
async def test_committed_offset_is_found_by_the_next_owner(world: World) -> None:
    first = await world.join("t")
    await world.until_settled(1)
    offset = CommittedOffset(42, 3, "mine\n☃")
    await first.membership.commit({T0: offset})
    assert await first.membership.committed([T0, T1]) == {T0: offset}
    await first.kill()
    second = await world.join("t")
    assert await second.membership.committed([T0]) == {T0: offset}, "nobody owns it yet"
    await world.until_settled(TTL + 1)
    assert await second.membership.committed([T0, T1]) == {T0: offset}


@in_a_world
async def test_commit_of_what_another_owns_is_refused_and_the_rest_stored(world: World) -> None:
    first, second = await world.join("t"), await world.join("t")
    await world.until_settled(1)
    five = TopicPartition("t", 5)
    with pytest.raises(CommitFailed, match=r"1 of 2 offsets are not stored \(t-5\)"):
        await first.membership.commit({T0: CommittedOffset(1), five: CommittedOffset(1)})
    committed = await second.membership.committed([T0, five])
    assert committed[T0] == CommittedOffset(1)
    assert committed.get(five) != CommittedOffset(1)


@in_a_world
async def test_many_offsets_are_committed_in_few_transactions(world: World) -> None:
    world.topics.counts["t"] = 200
    worker = await world.join("t")
    await world.until_settled(1)
    before = world.observer.state.keyspace.revision
    offsets = {each: CommittedOffset(each.partition) for each in worker.live}
    with worker.coordinator.counted() as transactions:
        await worker.membership.commit(offsets)
    assert len(transactions) == 4, "63 offsets and the check that the member is alive"
    assert world.observer.state.keyspace.revision == before + 200
    assert await worker.membership.committed(offsets) == offsets


@in_a_world
async def test_metadata_of_an_offset_is_bounded(world: World) -> None:
    worker = await world.join("t")
    await world.until_settled(1)
    await worker.membership.commit({T0: CommittedOffset(1, -1, "\0" * 4096)})
    with pytest.raises(KafkaError) as caught:
        await worker.membership.commit({T0: CommittedOffset(2, -1, "ü" * 2049)})
    assert caught.value.code == ErrorCode.OFFSET_METADATA_TOO_LARGE


@in_a_world
async def test_commits_are_stored_in_the_order_of_the_calls(world: World) -> None:
    worker = await world.join("t")
    await world.until_settled(1)
    worker.coordinator.latency = 1.0
    async with trio.open_nursery() as nursery:
        for n in range(1, 6):
            nursery.start_soon(worker.membership.commit, {T0: CommittedOffset(n)})
            await trio.testing.wait_all_tasks_blocked()
    assert await worker.membership.committed([T0]) == {T0: CommittedOffset(5)}


@in_a_world
async def test_offset_that_is_reset_from_outside_is_where_the_owner_begins_again(
    world: World,
) -> None:
    worker = await world.join("t")
    await world.until_settled(1)
    await worker.membership.commit({T0: CommittedOffset(9)})
    key = world.keys.offset(world.key(T0))
    entry = await world.observer.get(key)
    assert entry is not None
    stored = StoredOffset("reset", "t", CommittedOffset(9, 0, "reset"))
    await world.observer.txn(Put(key, offset_value(stored), entry.version))
    with pytest.raises(CommitFailed):
        await worker.membership.commit({T0: CommittedOffset(10)})
    await world.until(lambda: calls(worker)[1:] == [("lost", [0]), ("assigned", [0])])
    assert await worker.membership.committed([T0]) == {T0: CommittedOffset(9, 0, "reset")}
    await worker.membership.commit({T0: CommittedOffset(10)})


# --- faults


@in_a_world
async def test_member_whose_session_is_lost_loses_everything_and_joins_again(world: World) -> None:
    first, second = await world.join("t"), await world.join("t")
    await world.until_settled(1)
    world.observer.state.expire(first.coordinator.sessions[0].id)
    assert not first.live, "not even before it was told"
    with pytest.raises(CommitFailed):
        await first.membership.commit({T0: CommittedOffset(1)})
    await world.until(lambda: len(first.coordinator.sessions) == 2)
    assert calls(first)[-1] == ("lost", [0, 1, 2])
    await world.until_settled(5)
    assert (numbers(first), numbers(second)) == ([0, 1, 2], [3, 4, 5])


@in_a_world
async def test_member_works_on_while_the_coordinator_is_away_for_less_than_its_session(
    world: World,
) -> None:
    worker = await world.join("t")
    await world.until_settled(1)
    worker.coordinator.inner.disconnect()
    await trio.sleep(TTL - 0.1)
    assert numbers(worker) == [0, 1, 2, 3, 4, 5]
    worker.coordinator.inner.reconnect()
    await trio.sleep(TTL)
    assert calls(worker) == [("assigned", [0, 1, 2, 3, 4, 5])]
    await worker.membership.commit({T0: CommittedOffset(1)})


@in_a_world
async def test_member_stops_once_its_session_may_have_expired_by_its_own_clock(
    world: World,
) -> None:
    worker = await world.join("t")
    await world.until_settled(1)
    worker.coordinator.inner.disconnect()
    await trio.sleep(TTL)
    assert not worker.membership.alive
    assert not worker.live
    await trio.sleep(1)
    assert calls(worker)[1:] == [("lost", [0, 1, 2, 3, 4, 5])]
    assert worker.membership.status.state is MembershipState.JOINING
    assert worker.membership.status.last_error is not None
    await trio.sleep(100)
    worker.coordinator.inner.reconnect()
    assert await world.until_settled(5) < 2
    assert numbers(worker) == [0, 1, 2, 3, 4, 5]
    assert worker.membership.status.last_error is None


@in_a_world
async def test_commit_waits_for_the_coordinator_and_gives_up_after_the_request_timeout(
    world: World,
) -> None:
    worker = await world.join("t")
    await world.until_settled(1)
    worker.coordinator.inner.disconnect()
    with pytest.raises(KafkaError) as caught:
        await worker.membership.commit({T0: CommittedOffset(1)})
    assert caught.value.code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    async with trio.open_nursery() as nursery:
        nursery.start_soon(worker.membership.commit, {T0: CommittedOffset(2)})
        await trio.sleep(0.5)
        worker.coordinator.inner.reconnect()
    assert await worker.membership.committed([T0]) == {T0: CommittedOffset(2)}


@in_a_world
async def test_owner_key_deleted_by_hand_is_lost_and_claimed_again(world: World) -> None:
    worker = await world.join("t")
    await world.until_settled(1)
    entry = await world.observer.get(world.keys.owner(world.key(T1)))
    assert entry is not None
    await world.observer.txn(Delete(entry.key, entry.version))
    await world.until(lambda: calls(worker)[1:] == [("lost", [1]), ("assigned", [1])])


@in_a_world
async def test_registration_deleted_by_hand_is_made_again(world: World) -> None:
    first, second = await world.join("t"), await world.join("t")
    await world.until_settled(1)
    entry = await world.observer.get(world.keys.member(first.coordinator.sessions[0].id))
    assert entry is not None
    await world.observer.txn(Delete(entry.key, entry.version))
    await world.until(lambda: world.observer.state.keyspace.get(entry.key) is not None)
    await trio.sleep(1)
    await world.until_settled(5)
    assert (numbers(first), numbers(second)) == ([0, 1, 2], [3, 4, 5])


@in_a_world
async def test_keys_that_are_not_understood_are_left_alone(world: World) -> None:
    await world.observer.put(f"{world.keys.members}/stranger", b"?")
    await world.observer.put(f"{world.keys.owners}/stranger", b"?")
    worker = await world.join("t")
    await world.until_settled(1)
    assert numbers(worker) == [0, 1, 2, 3, 4, 5]


@in_a_world
async def test_partition_whose_owner_does_not_let_go_is_waited_for(world: World) -> None:
    key = world.keys.owner(world.key(T0))
    version = await world.observer.put(key, b'{"member": "another", "topic": "t"}')
    worker = await world.join("t")
    await trio.sleep(60)
    assert numbers(worker) == [1, 2, 3, 4, 5]
    assert worker.membership.status.state is not MembershipState.STABLE
    await world.observer.txn(Delete(key, version))
    assert await world.until_settled(1) < 0.1


class Raising(Worker):
    async def assigned(self, partitions: object) -> None:
        raise ZeroDivisionError("in the application's callback")


@in_a_world
async def test_error_of_the_application_ends_the_member(world: World) -> None:
    worker = await world.join("t")
    await world.until_settled(1)
    async with (
        trio.open_nursery() as nursery,
        open_membership(
            ToldCluster(world.topics, nursery), world.observer, GROUP, world.settings
        ) as membership,
    ):
        with pytest.raises(ZeroDivisionError):
            await membership.run(Raising(world, "raising", ["t"]))
        assert membership.status.state is MembershipState.FAILED
        assert not membership.alive
        await world.until_settled(1)
        assert numbers(worker) == [0, 1, 2, 3, 4, 5]
        await membership.leave()


async def lend_coordinator(task_status: trio.TaskStatus[MemoryCoordinator]) -> None:
    async with open_memory_coordinator(GROUP) as coordinator:
        task_status.started(coordinator)
        await trio.sleep_forever()


@in_a_world
async def test_closed_coordinator_ends_the_member(world: World) -> None:
    async with trio.open_nursery() as nursery:
        worker = Worker(world, "unlucky", ["t"])
        coordinator = await nursery.start(lend_coordinator)
        cluster = ToldCluster(world.topics, nursery)
        async with open_membership(cluster, coordinator, GROUP, world.settings) as membership:
            worker.membership = membership
            async with trio.open_nursery() as running:

                @running.start_soon
                async def run() -> None:
                    with pytest.raises(CoordinatorClosed, match="was closed"):
                        await membership.run(worker)

                await world.until(lambda: bool(worker.live))
                coordinator._close()
            assert membership.status.state is MembershipState.FAILED
            assert calls(worker)[-1] == ("lost", [0, 1, 2, 3, 4, 5])
            nursery.cancel_scope.cancel()


async def test_group_without_a_name_is_refused() -> None:
    async with trio.open_nursery() as nursery, open_world() as world:
        cluster = ToldCluster(world.topics, nursery)
        with pytest.raises(KafkaError) as caught:
            async with open_membership(cluster, world.observer, "", ConsumerSettings()):
                pass
    assert caught.value.code == ErrorCode.INVALID_GROUP_ID
