"""Creating, changing and deleting topics, with others at it too and brokers that die half-way."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from uuid import UUID

import pytest
import trio
import trio.testing

from odradek.cluster import keys, planner, topics
from odradek.cluster.image import TopicImage
from odradek.cluster.view import ClusterView, open_view
from odradek.contracts.coordinator import Conflict, Coordinator, Entry, Op, Put, Unavailable
from odradek.errors import ErrorCode, KafkaError
from odradek.memory.coordinator import open_memory_coordinator
from odradek.types import PartitionKey

A, B = UUID(int=1), UUID(int=2)
MANY = 200
"""Partitions that do not fit into one transaction."""


class Dying:
    """A coordinator's client that is cancelled, or fails, at its nth transaction."""

    def __init__(self, real: Coordinator, at: int, how: str) -> None:
        self._real = real
        self._left = at
        self._how = how

    async def get(self, key: str) -> Entry | None:
        return await self._real.get(key)

    async def put(self, key: str, value: bytes) -> object:
        return await self._real.put(key, value)

    async def txn(self, *ops: Op) -> object:
        self._left -= 1
        if self._left < 0 or (self._how == "before" and self._left == 0):
            raise Unavailable("the broker died")
        done = await self._real.txn(*ops)
        if self._left == 0:
            raise Unavailable("the broker died")
        return done


@asynccontextmanager
async def cluster() -> AsyncIterator[tuple[Coordinator, ClusterView]]:
    async with open_memory_coordinator() as coordinator, open_view(coordinator, "c") as view:
        yield coordinator, view


async def partition_keys(coordinator: Coordinator) -> set[str]:
    return set(await coordinator.list(keys.PARTITIONS))


async def stored(coordinator: Coordinator, name: str = "events") -> TopicImage | None:
    entry = await coordinator.get(keys.topic_key(name))
    return None if entry is None else keys.topic_of(entry)


def expect(code: ErrorCode) -> pytest.RaisesExc[KafkaError]:
    return pytest.raises(KafkaError, check=lambda error: error.code is code)


async def restart(coordinator: Coordinator, view: ClusterView) -> None:
    """What the next broker that starts does about leftovers."""
    with trio.fail_after(5):
        await trio.testing.wait_all_tasks_blocked()
    found = [(k, p.version) for k, p in planner.orphans(view.image) if p.version is not None]
    await topics.sweep(coordinator, found)


# -- names -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["a", "A.b_c-9", "x" * 249, "...", "__consumer_offsets", "-", "0", "_"]
)
def test_names_that_kafka_allows_are_allowed(name: str) -> None:
    topics.check_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "x" * 250,
        "a b",
        "a/b",
        "../etc",
        "a\n",
        "\n",
        "ä",
        "a\x00",
        "a:b",
        "%41",
        "\u0661",
    ],
)
def test_names_that_kafka_refuses_are_refused(name: str) -> None:
    with expect(ErrorCode.INVALID_TOPIC_EXCEPTION) as caught:
        topics.check_name(name)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 300


async def test_names_that_differ_by_dot_and_underscore_collide() -> None:
    async with cluster() as (coordinator, view):
        await topics.create(coordinator, A, "a.b_c", [(1,)], {})
        await view.wait_until(lambda image: bool(image.topics))
        with expect(ErrorCode.INVALID_TOPIC_EXCEPTION):
            topics.check_collision(view.image, "a_b.c")
        topics.check_collision(view.image, "a.b_c")
        topics.check_collision(view.image, "abc")


# -- creating ----------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, topics.OPS_PER_TXN - 1, topics.OPS_PER_TXN, MANY])
async def test_created_topic_is_whole(count: int) -> None:
    async with cluster() as (coordinator, view):
        created = await topics.create(
            coordinator, A, "events", [(1, 2)] * count, {"retention.ms": "1"}
        )
        assert (created.partitions, created.replication_factor) == (count, 2)
        await trio.testing.wait_all_tasks_blocked()
        assert view.image.topics == {"events": created}
        assert len(view.image.partitions) == count
        for state in view.image.partitions.values():
            assert (state.leader, state.leader_epoch, state.isr) == (1, 0, (1, 2))
        assert planner.orphans(view.image) == []


@pytest.mark.parametrize("count", [1, MANY])
async def test_second_topic_of_a_name_is_refused_and_leaves_nothing(count: int) -> None:
    async with cluster() as (coordinator, view):
        await topics.create(coordinator, A, "events", [(1,)], {})
        with expect(ErrorCode.TOPIC_ALREADY_EXISTS):
            await topics.create(coordinator, B, "events", [(1,)] * count, {})
        assert await partition_keys(coordinator) == {f"partitions/{A}-0"}
        await trio.testing.wait_all_tasks_blocked()
        assert view.image.topics["events"].id == A


@pytest.mark.parametrize("count", [1, MANY])
async def test_of_two_brokers_that_create_a_name_one_succeeds(count: int) -> None:
    async with open_memory_coordinator("x") as one, open_memory_coordinator("x") as two:
        results: list[object] = []

        async def create(coordinator: Coordinator, topic_id: UUID) -> None:
            try:
                await topics.create(coordinator, topic_id, "events", [(1,)] * count, {})
            except KafkaError as error:
                results.append(error.code)
            else:
                results.append(topic_id)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(create, one, A)
            nursery.start_soon(create, two, B)
        assert ErrorCode.TOPIC_ALREADY_EXISTS in results
        results.remove(ErrorCode.TOPIC_ALREADY_EXISTS)
        topic = await stored(one)
        assert topic is not None
        assert results == [topic.id]
        assert await partition_keys(one) == {f"partitions/{topic.id}-{n}" for n in range(count)}


@pytest.mark.parametrize("how", ["before", "after"])
@pytest.mark.parametrize("at", range(1, 7))
async def test_broker_that_dies_while_creating_leaves_all_or_what_is_swept(
    at: int, how: str
) -> None:
    async with cluster() as (coordinator, view):
        dying = Dying(coordinator, at, how)
        with suppress(Unavailable):
            await topics.create(dying, A, "events", [(1,)] * MANY, {})  # type: ignore[arg-type]  # a client
        topic = await stored(coordinator)
        if topic is not None:
            assert len(await partition_keys(coordinator)) == MANY
        await restart(coordinator, view)
        expected = MANY if topic is not None else 0
        assert len(await partition_keys(coordinator)) == expected
        if topic is None:
            await topics.create(coordinator, B, "events", [(1,)] * MANY, {})


async def test_creation_that_is_cancelled_takes_back_what_it_wrote() -> None:
    async with cluster() as (coordinator, _):
        with trio.CancelScope() as scope:
            real = coordinator.txn

            async def cancelling(*ops: Op) -> object:
                done = await real(*ops)
                if len(await partition_keys(coordinator)) >= MANY // 2:
                    scope.cancel()
                return done

            coordinator.txn = cancelling  # type: ignore[method-assign,assignment]  # to cancel there
            await topics.create(coordinator, A, "events", [(1,)] * MANY, {})
        assert scope.cancelled_caught
        assert await partition_keys(coordinator) == set()
        assert await stored(coordinator) is None


async def test_sweep_makes_a_creation_in_progress_fail_and_start_again() -> None:
    async with cluster() as (coordinator, view):
        real = coordinator.txn
        swept = False

        async def sweeping(*ops: Op) -> object:
            nonlocal swept
            creates = [op for op in ops if isinstance(op, Put) and op.key == "topics/events"]
            if creates and not swept:
                swept = True
                await restart(coordinator, view)
                assert await partition_keys(coordinator) == set()
            return await real(*ops)

        coordinator.txn = sweeping  # type: ignore[method-assign,assignment]  # to come in between
        await topics.create(coordinator, A, "events", [(1,)] * MANY, {})
        assert swept
        assert len(await partition_keys(coordinator)) == MANY


async def test_sweep_leaves_alone_what_changed_since_it_was_found() -> None:
    async with cluster() as (coordinator, view):
        await topics.create(coordinator, A, "events", [(1,)] * MANY, {})
        await trio.testing.wait_all_tasks_blocked()
        found = [(k, p.version) for k, p in view.image.partitions.items() if p.version is not None]
        await topics.write_partitions(coordinator, list(view.image.partitions.items()))
        await topics.sweep(coordinator, found)
        assert len(await partition_keys(coordinator)) == MANY


# -- deleting ----------------------------------------------------------------------------------


async def test_deleted_topic_leaves_a_note_for_those_who_hold_its_logs() -> None:
    async with cluster() as (coordinator, _):
        topic = await topics.create(coordinator, A, "events", [(2, 1), (1, 2)], {})
        await topics.delete(coordinator, topic, {})
        assert await stored(coordinator) is None
        assert await partition_keys(coordinator) == set()
        entry = await coordinator.get(keys.deleted_key(A))
        assert entry is not None
        assert (keys.deleted_of(entry).partitions, keys.deleted_of(entry).brokers) == (2, (1, 2))
        with expect(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
            await topics.delete(coordinator, topic, {})


async def test_deletion_by_a_broker_that_has_not_seen_the_partitions_yet_names_their_hosts() -> (
    None
):
    async with cluster() as (coordinator, view):
        topic = await topics.create(coordinator, A, "events", [(2, 1), (3,)], {})
        await trio.testing.wait_all_tasks_blocked()
        seen = dict(view.image.partitions)
        del seen[PartitionKey(A, 1)]
        await topics.delete(coordinator, topic, seen)
        entry = await coordinator.get(keys.deleted_key(A))
        assert entry is not None
        assert keys.deleted_of(entry).brokers == (1, 2, 3)


async def test_deletion_of_a_topic_without_partitions_leaves_no_note() -> None:
    async with cluster() as (coordinator, _):
        topic = await topics.create(coordinator, A, "events", [(1,)], {})
        await topics.remove_partitions(coordinator, topic.partition_keys())
        await topics.delete(coordinator, topic, {})
        assert await stored(coordinator) is None
        assert await coordinator.get(keys.deleted_key(A)) is None


async def test_deletion_does_not_hit_the_next_topic_of_the_name() -> None:
    async with cluster() as (coordinator, _):
        old = await topics.create(coordinator, A, "events", [(1,)], {})
        await topics.delete(coordinator, old, {})
        await topics.create(coordinator, B, "events", [(1,)], {})
        with expect(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
            await topics.delete(coordinator, old, {})
        now = await stored(coordinator)
        assert now is not None
        assert now.id == B


async def test_deletion_wins_over_a_change_at_the_same_time() -> None:
    async with cluster() as (coordinator, _):
        topic = await topics.create(coordinator, A, "events", [(1,)], {})
        entry = await coordinator.get(keys.topic_key("events"))
        assert entry is not None
        await topics.set_configs(coordinator, keys.topic_of(entry), {"retention.ms": "7"})
        await topics.delete(coordinator, topic, {})
        assert await stored(coordinator) is None


@pytest.mark.parametrize("how", ["before", "after"])
@pytest.mark.parametrize("at", range(1, 6))
async def test_broker_that_dies_while_deleting_leaves_all_or_what_is_swept(
    at: int, how: str
) -> None:
    async with cluster() as (coordinator, view):
        topic = await topics.create(coordinator, A, "events", [(1,)] * MANY, {})
        with suppress(Unavailable):
            await topics.delete(Dying(coordinator, at, how), topic, {})  # type: ignore[arg-type]  # a client
        await restart(coordinator, view)
        gone = await stored(coordinator) is None
        assert (await coordinator.get(keys.deleted_key(A)) is not None) == gone
        assert len(await partition_keys(coordinator)) == (0 if gone else MANY)


# -- changing ----------------------------------------------------------------------------------


async def newest(coordinator: Coordinator) -> TopicImage:
    topic = await stored(coordinator)
    assert topic is not None
    return topic


@pytest.mark.parametrize("more", [1, MANY])
async def test_added_partitions_follow_the_last(more: int) -> None:
    async with cluster() as (coordinator, view):
        await topics.create(coordinator, A, "events", [(1,)] * 3, {"retention.ms": "5"})
        await topics.add_partitions(coordinator, await newest(coordinator), [(2,)] * more)
        grown = await newest(coordinator)
        assert grown.partitions == 3 + more
        assert grown.configs == {"retention.ms": "5"}
        await trio.testing.wait_all_tasks_blocked()
        assert sorted(key.partition for key in view.image.partitions) == list(range(3 + more))


@pytest.mark.parametrize("more", [1, MANY])
async def test_of_two_brokers_that_add_partitions_one_succeeds(more: int) -> None:
    async with cluster() as (coordinator, _):
        await topics.create(coordinator, A, "events", [(1,)], {})
        topic = await newest(coordinator)
        await topics.add_partitions(coordinator, topic, [(1,)])
        with expect(ErrorCode.INVALID_PARTITIONS):
            await topics.add_partitions(coordinator, topic, [(1,)] * more)
        assert await partition_keys(coordinator) == {f"partitions/{A}-0", f"partitions/{A}-1"}


@pytest.mark.parametrize("more", [1, MANY])
async def test_adding_partitions_keeps_settings_changed_meanwhile(more: int) -> None:
    async with cluster() as (coordinator, _):
        await topics.create(coordinator, A, "events", [(1,)], {})
        topic = await newest(coordinator)
        await topics.set_configs(coordinator, topic, {"retention.ms": "9"})
        await topics.add_partitions(coordinator, topic, [(1,)] * more)
        grown = await newest(coordinator)
        assert (grown.partitions, grown.configs) == (1 + more, {"retention.ms": "9"})


async def test_adding_partitions_to_a_topic_that_is_gone_tells_so() -> None:
    async with cluster() as (coordinator, _):
        await topics.create(coordinator, A, "events", [(1,)], {})
        topic = await newest(coordinator)
        await topics.delete(coordinator, topic, {})
        with expect(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
            await topics.add_partitions(coordinator, topic, [(1,)] * MANY)
        await topics.create(coordinator, B, "events", [(1,)], {})
        with expect(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
            await topics.add_partitions(coordinator, topic, [(1,)])
        assert await partition_keys(coordinator) == {f"partitions/{B}-0"}


@pytest.mark.parametrize("how", ["before", "after"])
@pytest.mark.parametrize("at", range(1, 7))
async def test_addition_that_was_broken_off_can_be_made_again(at: int, how: str) -> None:
    async with cluster() as (coordinator, view):
        await topics.create(coordinator, A, "events", [(1,)], {})
        topic = await newest(coordinator)
        dying = Dying(coordinator, at, how)
        with suppress(Unavailable):
            await topics.add_partitions(dying, topic, [(1,)] * MANY)  # type: ignore[arg-type]  # a client
        if (await newest(coordinator)).partitions == 1:
            await topics.add_partitions(coordinator, topic, [(1,)] * MANY)
        assert len(await partition_keys(coordinator)) == MANY + 1
        await restart(coordinator, view)
        assert len(await partition_keys(coordinator)) == MANY + 1


async def test_settings_changed_by_two_at_once_conflict() -> None:
    async with cluster() as (coordinator, _):
        await topics.create(coordinator, A, "events", [(1,)], {})
        topic = await newest(coordinator)
        await topics.set_configs(coordinator, topic, {"retention.ms": "1"})
        with pytest.raises(Conflict):
            await topics.set_configs(coordinator, topic, {"retention.ms": "2"})
        assert (await newest(coordinator)).configs == {"retention.ms": "1"}
