"""Consumers that share topics in a group, with a broker in process: who owns what, and when."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio
from tests.client.conftest import QUICK, FlakyTransport, run_broker, url_of
from tests.client.consuming import Worker, on_mock_clock, until, write

from odradek.broker import Broker
from odradek.broker.faults import Faults
from odradek.client import (
    Admin,
    ClientSettings,
    Cluster,
    CommitFailed,
    CommittedOffset,
    ConsumerSettings,
    Disconnected,
    NewTopic,
    TopicPartition,
    open_cluster,
    open_consumer,
)
from odradek.client.consumer import Consumer
from odradek.contracts.transport import ConnectFailed, Connection
from odradek.errors import ErrorCode, KafkaError

SETTINGS = ConsumerSettings(
    auto_offset_reset="earliest",
    session_timeout=6.0,
    heartbeat_interval=0.05,
    rebalance_timeout=20.0,
    drain_timeout=1.0,
    max_wait=0.1,
)
NO_DELAY = "groups.initial_rebalance_delay_ms=0"
PARTITIONS = 4
T = [TopicPartition("t", number) for number in range(PARTITIONS)]


def settings(**changes: Any) -> ConsumerSettings:
    from attrs import evolve

    return evolve(SETTINGS, **changes)


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with run_broker("memory", NO_DELAY) as broker:
        yield broker


@pytest.fixture
async def topic(cluster: Cluster) -> Cluster:
    """Topic `t`, four partitions with 100 records each."""
    await make(cluster)
    return cluster


async def make(cluster: Cluster, records: int = 100) -> None:
    await Admin(cluster).create_topic(NewTopic(name="t", partitions=PARTITIONS))
    for partition in T:
        await write(cluster, partition, range(records))


@asynccontextmanager
async def working(*workers: Worker) -> AsyncIterator[None]:
    """Start workers one after the other; they leave at the end."""
    async with trio.open_nursery() as nursery:
        for worker in workers:
            await nursery.start(worker.run)
        yield
        for worker in workers:
            worker.stop()
        with trio.fail_after(30):
            for worker in workers:
                await worker.stopped.wait()


def worker(cluster: Cluster | str, **options: Any) -> Worker:
    return Worker(cluster, **{"topics": ["t"], "settings": SETTINGS, **options})


def shared(*workers: Worker) -> bool:
    """Whether the workers are stable and own every partition once."""
    return all(each.stable for each in workers) and sorted(
        number for each in workers for number in each.has
    ) == list(range(PARTITIONS))


def all_of(worker: Worker) -> bool:
    """Whether it has had every record."""
    return len(worker.records) == 400


EVERYTHING = sorted((number, offset) for number in range(PARTITIONS) for offset in range(100))


# -- sharing ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("assignor", ["range", "roundrobin", "sticky", "cooperative-sticky"])
async def test_two_members_share_the_partitions(topic: Cluster, assignor: str) -> None:
    chosen = settings(assignors=(assignor,))
    one, two = worker(topic, settings=chosen), worker(topic, settings=chosen)
    async with working(one, two):
        await until(lambda: shared(one, two))
        assert len(one.has) == len(two.has) == 2
        await until(lambda: len(one.records + two.records) >= 400)
        for partition in T:
            await write(topic, partition, range(100, 110))
        await until(lambda: len(one.records + two.records) >= 440)
        for each in (one, two):
            late = {number for number, offset in each.records if offset >= 100}
            assert late == set(each.has)
    assert {record for record in one.records + two.records if record[1] < 100} == set(EVERYTHING)


async def test_cooperative_member_gives_up_only_what_moves(topic: Cluster) -> None:
    one, two = worker(topic), worker(topic)
    async with trio.open_nursery() as nursery:
        await nursery.start(one.run)
        await until(lambda: shared(one))
        await nursery.start(two.run)
        await until(lambda: shared(one, two))
        gone = sorted(set(range(PARTITIONS)) - set(one.has))
        assert one.events == [("assigned", [0, 1, 2, 3]), ("revoked", gone)]
        assert two.events == [("assigned", gone)]
        two.stop()
        await until(lambda: shared(one), timeout=5)
        assert one.events[2:] == [("assigned", gone)]
        assert two.events[1:] == [("revoked", gone)]
        one.stop()


async def test_eager_member_gives_up_everything_first(topic: Cluster) -> None:
    chosen = settings(assignors=("range", "cooperative-sticky"))
    one, two = worker(topic, settings=chosen), worker(topic, settings=chosen)
    async with trio.open_nursery() as nursery:
        await nursery.start(one.run)
        await until(lambda: shared(one))
        await nursery.start(two.run)
        await until(lambda: shared(one, two))
        assert one.events == [
            ("assigned", [0, 1, 2, 3]),
            ("revoked", [0, 1, 2, 3]),
            ("assigned", one.has),
        ]
        one.stop()
        two.stop()


async def test_members_that_share_process_each_record_once_while_members_come_and_go(
    topic: Cluster,
) -> None:
    async def pause(_: object) -> None:
        await trio.sleep(0.001)

    workers = [worker(topic, handle=pause) for _ in range(4)]
    async with trio.open_nursery() as nursery:
        for number, each in enumerate(workers):
            await nursery.start(each.run)
            await until(partial(shared, *workers[: number + 1]))
        workers[0].stop()
        await until(lambda: len({record for each in workers for record in each.records}) == 400)
        for each in workers[1:]:
            each.stop()
    seen = sorted(record for each in workers for record in each.records)
    again = len(seen) - 400
    assert sorted(set(seen)) == EVERYTHING
    assert again <= 1, "only what the first one had in hand when it was stopped"


async def test_inconsistent_member_is_told(topic: Cluster) -> None:
    one = worker(topic)
    other = worker(topic, settings=settings(assignors=("range",)))
    async with working(one):
        await until(lambda: one.stable)
        async with working(other):
            await other.stopped.wait()
        assert isinstance(other.error, KafkaError)
        assert other.error.code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


async def test_consumer_says_how_it_is_doing(topic: Cluster) -> None:
    one = worker(topic)
    async with working(one):
        await until(lambda: len(one.records) == 400)
        health = one.consumer.health
        assert (health.state, health.generation, health.lag) == ("stable", 1, 0)
        assert health.connected
        assert health.member_id
        assert health.assignment == set(T)
        assert health.last_error is None
    assert one.consumer.health.state == "idle"


# -- topics ----------------------------------------------------------------------------------------


async def test_pattern_finds_new_topics_and_leaves_gone_ones(broker: Broker) -> None:
    quick = ClientSettings(metadata_max_age=0.1, retry_backoff=0.01)
    async with open_cluster(url_of(broker), quick) as cluster:
        admin = Admin(cluster)
        for name in ("log-a", "other", "xlog-b"):
            await admin.create_topic(NewTopic(name=name, partitions=1))
        async with open_consumer(cluster, "g", pattern=r"log-.*", settings=SETTINGS) as consumer:
            await until(lambda: consumer.assignment == {("log-a", 0)})
            await admin.create_topic(NewTopic(name="log-b", partitions=2))
            await until(lambda: consumer.assignment == {("log-a", 0), ("log-b", 0), ("log-b", 1)})
            assert consumer.subscription == {"log-a", "log-b"}
            await admin.delete_topics(["log-a"])
            await until(lambda: consumer.assignment == {("log-b", 0), ("log-b", 1)})


async def test_topic_that_does_not_exist_yet_is_waited_for(broker: Broker) -> None:
    quick = ClientSettings(metadata_max_age=0.1, retry_backoff=0.01)
    async with open_cluster(url_of(broker), quick) as cluster:
        one = worker(cluster)
        async with working(one):
            await until(lambda: one.stable)
            assert one.has == []
            await make(cluster)
            await until(lambda: len(one.records) == 400)


async def test_new_partitions_are_shared_out(broker: Broker) -> None:
    quick = ClientSettings(metadata_max_age=0.1, retry_backoff=0.01)
    async with open_cluster(url_of(broker), quick) as cluster:
        await Admin(cluster).create_topic(NewTopic(name="t", partitions=2))
        one, two = worker(cluster), worker(cluster)
        async with working(one, two):
            await until(lambda: sorted(one.has + two.has) == [0, 1])
            await Admin(cluster).create_partitions({"t": 4})
            await until(lambda: shared(one, two))


async def test_subscription_can_be_changed(topic: Cluster) -> None:
    await Admin(topic).create_topic(NewTopic(name="u", partitions=1))
    await write(topic, TopicPartition("u", 0), [7])
    async with open_consumer(topic, "g", topics=["t"], settings=SETTINGS) as consumer:
        await until(lambda: consumer.assignment == set(T))
        consumer.subscribe(["u"])
        await until(lambda: consumer.assignment == {("u", 0)})
        with trio.fail_after(5):
            async for record in consumer:
                assert record.topic == "u"
                break
        await consumer.unsubscribe()
        assert consumer.assignment == frozenset()
        assert consumer.health.state == "idle"
        consumer.assign([T[0]])
        assert consumer.assignment == {T[0]}


async def test_topic_that_there_can_never_be_is_an_error(cluster: Cluster) -> None:
    with pytest.raises(ValueError, match="not empty"):
        async with open_consumer(cluster, "g", topics=["t", ""], settings=SETTINGS):
            raise AssertionError
    async with open_consumer(cluster, "g", topics=["bad name!"], settings=SETTINGS) as consumer:
        with trio.fail_after(10), pytest.raises(KafkaError, match="'bad name!'") as caught:
            await anext(aiter(consumer))
    assert caught.value.code == ErrorCode.INVALID_TOPIC_EXCEPTION


async def test_offset_in_a_topic_that_was_deleted_is_not_committed_to_the_next_of_its_name(
    topic: Cluster,
) -> None:
    """The record in hand is finished only when the topic is there again."""
    async with open_consumer(topic, "g", topics=["t"], settings=SETTINGS) as consumer:
        async for record in consumer:
            if (record.partition, record.offset) == (0, 99):
                break
        await Admin(topic).delete_topics(["t"])
        await until(lambda: consumer.health.state == "rebalancing")
        await make(topic)
        with trio.fail_after(20):
            async for record in consumer:
                if (record.partition, record.offset) == (0, 0):
                    break


# -- callbacks -------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [RuntimeError, CommitFailed])
async def test_member_leaves_though_its_callback_fails(
    topic: Cluster, error: type[Exception]
) -> None:
    chosen = settings(session_timeout=30.0)

    async def fail(_: Consumer, partitions: frozenset[TopicPartition]) -> None:
        raise error("in the callback")

    with pytest.raises(error, match="in the callback"):
        async with open_consumer(
            topic, "g", topics=["t"], settings=chosen, on_revoked=fail
        ) as consumer:
            await anext(aiter(consumer))
    two = worker(topic, settings=chosen)
    async with working(two):
        assert await until(lambda: two.has == [0, 1, 2, 3]) < 5


async def test_member_that_failed_leaves_too(topic: Cluster) -> None:
    chosen = settings(session_timeout=30.0)

    async def fail(_: Consumer, partitions: frozenset[TopicPartition]) -> None:
        raise CommitFailed("in the callback")

    async with open_consumer(
        topic, "g", topics=["t"], settings=chosen, on_assigned=fail
    ) as consumer:
        with pytest.raises(CommitFailed, match="in the callback"):
            await anext(aiter(consumer))
        assert consumer.health.state == "failed"
    two = worker(topic, settings=chosen)
    async with working(two):
        assert await until(lambda: two.has == [0, 1, 2, 3]) < 5


async def test_callback_is_told_that_it_cannot_wait_for_the_rebalance_it_is_in(
    topic: Cluster,
) -> None:
    refused: list[str] = []

    async def assigned(consumer: Consumer, _: frozenset[TopicPartition]) -> None:
        for wait in (consumer.unsubscribe, consumer.__aiter__().__anext__):
            with pytest.raises(RuntimeError, match="waits for the rebalance") as caught:
                await wait()
            refused.append(str(caught.value))

    async with open_consumer(
        topic, "g", topics=["t"], settings=SETTINGS, on_assigned=assigned
    ) as consumer:
        with trio.fail_after(10):
            await anext(aiter(consumer))
    assert len(refused) == 2


# -- offsets ---------------------------------------------------------------------------------------


async def test_member_goes_on_where_the_group_was(topic: Cluster) -> None:
    one = worker(topic)
    async with working(one):
        await until(lambda: len(one.records) == 400)
    two = worker(topic)
    async with working(two):
        await until(lambda: two.stable)
        await write(topic, T[2], [100])
        await until(lambda: (2, 100) in two.records)
    last = one.records[-1]
    assert set(two.records) <= {last, (2, 100)}, "what was in hand, and what is new"


async def test_auto_commit_commits_what_is_finished_and_nothing_else(topic: Cluster) -> None:
    chosen = settings(auto_commit_interval=0.02)
    async with open_consumer(topic, "g", topics=["t"], settings=chosen) as consumer:
        async for record in consumer:
            if record.offset == 57:
                break
        tp = TopicPartition(record.topic, record.partition)
        await until(lambda: consumer.assignment)
        with trio.fail_after(5):
            while (await consumer.committed([tp])).get(tp) != CommittedOffset(57, 0):  # noqa: ASYNC110
                await trio.sleep(0.01)
        await trio.sleep(0.1)
        assert (await consumer.committed([tp]))[tp].offset == 57


async def test_batch_in_hand_is_not_committed(topic: Cluster) -> None:
    chosen = settings(auto_commit_interval=0.02)
    async with open_consumer(topic, "g", topics=["t"], settings=chosen) as consumer:
        batch = await anext(consumer.batches())
        tp = batch.partition
        await trio.sleep(0.1)
        assert (await consumer.committed([tp]))[tp].offset == batch.first_offset
        later = await anext(consumer.batches())
        await trio.sleep(0.1)
        assert (await consumer.committed([tp]))[tp].offset == batch.end_offset
        assert later.first_offset == 50 or later.partition != tp


async def test_consumer_that_is_cancelled_commits_and_leaves(
    broker: Broker, topic: Cluster
) -> None:
    # with a cluster of its own, whose tasks are cancelled as well
    one, two = worker(url_of(broker), client_settings=QUICK), worker(topic)
    async with trio.open_nursery() as nursery:
        await nursery.start(two.run)
        async with trio.open_nursery() as inner:
            await inner.start(one.run)
            await until(lambda: shared(one, two))
            await until(lambda: len(one.records + two.records) >= 400)
            inner.cancel_scope.cancel()
        await until(lambda: two.has == [0, 1, 2, 3], timeout=1)
        await trio.sleep(0.1)
        two.stop()
    again = len(one.records + two.records) - 400
    assert again <= 2, "only what was in hand"


async def test_without_auto_commit_nothing_is_committed(topic: Cluster) -> None:
    chosen = settings(auto_commit=False)
    for _ in range(2):
        one = worker(topic, settings=chosen)
        async with working(one):
            await until(partial(all_of, one))


async def test_on_revoked_may_commit_and_lost_may_not(topic: Cluster) -> None:
    done: list[int] = []

    async def commit(consumer: Consumer, partitions: frozenset[TopicPartition]) -> None:
        await consumer.commit(dict.fromkeys(partitions, 33))
        done.append(len(partitions))

    chosen = settings(auto_commit=False)
    async with open_consumer(
        topic, "g", topics=["t"], settings=chosen, on_revoked=commit
    ) as consumer:
        await until(lambda: consumer.assignment == set(T))
        await consumer.unsubscribe()
        assert done == [4]
        with pytest.raises(CommitFailed):
            await consumer.commit({T[0]: 1})
    async with open_consumer(topic, "g", assignment=T, settings=chosen) as consumer:
        assert await consumer.committed() == dict.fromkeys(T, CommittedOffset(33))


async def test_commit_of_a_partition_of_another_member_is_refused(topic: Cluster) -> None:
    one, two = worker(topic), worker(topic)
    async with working(one, two):
        await until(lambda: shared(one, two))
        with pytest.raises(CommitFailed, match="not assigned"):
            await one.consumer.commit({T[two.has[0]]: 5})


async def test_on_assigned_may_seek(topic: Cluster) -> None:
    async def seek(consumer: Consumer, partitions: frozenset[TopicPartition]) -> None:
        await trio.lowlevel.checkpoint()
        for partition in partitions:
            consumer.seek(partition, 90)

    async with open_consumer(
        topic, "g", topics=["t"], settings=SETTINGS, on_assigned=seek
    ) as consumer:
        found = []
        async for record in consumer:
            found.append(record.offset)
            if len(found) == 40:
                break
    assert sorted(found) == sorted([*range(90, 100)] * 4)


async def test_what_a_callback_raises_arrives_where_the_consumer_was_opened(
    topic: Cluster,
) -> None:
    async def fail(_: Consumer, __: frozenset[TopicPartition]) -> None:
        await trio.lowlevel.checkpoint()
        raise ZeroDivisionError("of the application's own")

    with pytest.raises(ZeroDivisionError, match="own"):  # noqa: PT012
        async with open_consumer(
            topic, "g", topics=["t"], settings=SETTINGS, on_assigned=fail
        ) as consumer:
            async for _ in consumer:
                pass


async def test_rebalance_waits_for_the_record_in_hand(topic: Cluster) -> None:
    go_on = trio.Event()

    async def hold(_: object) -> None:
        await go_on.wait()

    one, two = worker(topic, handle=hold), worker(topic)
    async with trio.open_nursery() as nursery:
        chosen = settings(assignors=("range",), drain_timeout=8.0)
        one = worker(topic, handle=hold, settings=chosen)
        two = worker(topic, settings=chosen)
        await nursery.start(one.run)
        await until(lambda: one.records)
        await nursery.start(two.run)
        await trio.sleep(0.3)
        assert two.records == []
        assert len(one.records) == 1
        go_on.set()
        await until(lambda: len(one.records + two.records) == 400)
        one.stop()
        two.stop()
    assert sorted(one.records + two.records) == EVERYTHING, "none of them twice"


async def test_leaving_in_a_rebalance_does_not_wait_for_what_is_in_hand(topic: Cluster) -> None:
    chosen = settings(assignors=("range",), drain_timeout=8.0)
    two = worker(topic, settings=chosen)
    async with trio.open_nursery() as nursery:
        async with open_consumer(topic, "g", topics=["t"], settings=chosen) as consumer:
            await anext(aiter(consumer))
            await nursery.start(two.run)
            await until(lambda: consumer.health.state == "rebalancing")
            begun = trio.current_time()
        assert trio.current_time() - begun < 2
        await until(lambda: len(two.records) == 400, timeout=5)
        two.stop()


async def test_rebalance_does_not_wait_for_ever(topic: Cluster) -> None:
    async def hold(_: object) -> None:
        await trio.sleep_forever()

    chosen = settings(assignors=("range",), drain_timeout=0.1)
    one, two = worker(topic, handle=hold, settings=chosen), worker(topic, settings=chosen)
    async with trio.open_nursery() as nursery:
        await nursery.start(one.run)
        await until(lambda: one.records)
        await nursery.start(two.run)
        await until(lambda: shared(one, two), timeout=5)
        assert one.consumer.health.busy == 0, "it has nothing in hand that would count"
        one.stop()
        await until(lambda: len(two.records) == 400)
        two.stop()


# -- fencing ---------------------------------------------------------------------------------------


@pytest.fixture
def faults(broker: Broker) -> Faults:
    made = Faults()
    made.attach(broker)
    return made


@pytest.mark.parametrize("error", [ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION])
async def test_fenced_member_loses_what_it_has_and_joins_again(
    topic: Cluster, faults: Faults, error: ErrorCode
) -> None:
    one = worker(topic)
    async with working(one):
        await until(lambda: shared(one))
        faults.fail("Heartbeat", error)
        await until(lambda: len(one.events) == 3)
        assert one.events[1:] == [("lost", [0, 1, 2, 3]), ("assigned", [0, 1, 2, 3])]
        await until(lambda: shared(one))


async def test_commit_waits_for_a_generation_that_the_member_has_not_heard_of_yet(
    topic: Cluster, faults: Faults
) -> None:
    one = worker(topic)
    async with working(one):
        await until(lambda: shared(one))
        faults.fail("OffsetCommit", ErrorCode.ILLEGAL_GENERATION)
        await one.consumer.commit(dict.fromkeys(T, 5))
        assert not faults.pending
        assert one.events == [("assigned", [0, 1, 2, 3])]


async def test_commit_of_a_member_that_is_none_any_more_fails_and_it_joins_again(
    topic: Cluster, faults: Faults
) -> None:
    one = worker(topic, settings=settings(heartbeat_interval=2.0, auto_commit=False))
    async with working(one):
        await until(lambda: shared(one))
        faults.fail("OffsetCommit", ErrorCode.UNKNOWN_MEMBER_ID)
        with pytest.raises(CommitFailed):
            await one.consumer.commit(dict.fromkeys(T, 5))
        await until(lambda: len(one.events) == 2, timeout=1)  # sooner than a heartbeat tells
        await until(lambda: len(one.events) == 3)  # the broker waits for its other self
        assert one.events[1:] == [("lost", [0, 1, 2, 3]), ("assigned", [0, 1, 2, 3])]


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ],
)
async def test_coordinator_that_cannot_answer_now_is_asked_again(
    topic: Cluster, faults: Faults, error: ErrorCode
) -> None:
    for api in ("JoinGroup", "SyncGroup", "Heartbeat", "OffsetFetch", "OffsetCommit"):
        faults.fail(api, error, times=2)
    one = worker(topic)
    async with working(one):
        await until(lambda: len(one.records) == 400)
        await one.consumer.commit()
        await until(lambda: not faults.pending)
        assert one.events == [("assigned", [0, 1, 2, 3])]


async def test_rebalance_that_begins_anew_while_it_is_synchronised(
    topic: Cluster, faults: Faults
) -> None:
    faults.fail("SyncGroup", ErrorCode.REBALANCE_IN_PROGRESS)
    one = worker(topic)
    async with working(one):
        await until(lambda: len(one.records) == 400)


async def test_connections_that_break_cost_nothing(topic: Cluster, faults: Faults) -> None:
    for api in ("JoinGroup", "SyncGroup", "Heartbeat", "OffsetFetch", "OffsetCommit"):
        faults.disconnect(api)
    one = worker(topic)
    async with working(one):
        await until(lambda: len(one.records) == 400)
        await one.consumer.commit()
        await until(lambda: not faults.pending)
        assert one.events == [("assigned", [0, 1, 2, 3])]


@pytest.mark.parametrize("api", ["JoinGroup", "SyncGroup", "Heartbeat"])
async def test_error_that_waiting_cannot_heal_is_raised(
    topic: Cluster, faults: Faults, api: str
) -> None:
    one = worker(topic)
    faults.fail(api, ErrorCode.GROUP_AUTHORIZATION_FAILED)
    async with working(one):
        await one.stopped.wait()
    assert isinstance(one.error, KafkaError)
    assert one.error.code == ErrorCode.GROUP_AUTHORIZATION_FAILED


# -- static members --------------------------------------------------------------------------------


async def test_static_member_comes_back_to_what_it_had(topic: Cluster) -> None:
    one = worker(topic)
    static = settings(group_instance_id="rack-7")
    first = worker(topic, settings=static)
    async with working(one):
        async with working(first):
            await until(lambda: shared(one, first))
            had, generation = first.has, one.consumer.health.generation
        second = worker(topic, settings=static)
        async with working(second):
            await until(lambda: second._consumer is not None and second.has == had)
            assert one.consumer.health.generation == generation, "nobody else was disturbed"
            assert one.events[-1][0] != "assigned" or one.events[-1][1] == one.has


async def test_second_member_of_an_instance_ends_the_first(topic: Cluster) -> None:
    static = settings(group_instance_id="rack-7")
    first, second = worker(topic, settings=static), worker(topic, settings=static)
    async with trio.open_nursery() as nursery:
        await nursery.start(first.run)
        await until(lambda: shared(first))
        await nursery.start(second.run)
        await first.stopped.wait()
        assert isinstance(first.error, KafkaError)
        assert first.error.code == ErrorCode.FENCED_INSTANCE_ID
        assert first.events[-1] == ("lost", [0, 1, 2, 3])
        await until(lambda: shared(second))
        second.stop()


# -- time ------------------------------------------------------------------------------------------

UNHURRIED = ConsumerSettings(auto_offset_reset="earliest", session_timeout=10.0, max_wait=5.0)


class Cable(FlakyTransport):
    """Connects until it is cut, and never again after that."""

    def __init__(self) -> None:
        super().__init__(lambda _: self.is_cut)
        self.is_cut = False

    async def connect(self, url: str) -> Connection:
        if self.is_cut:
            raise ConnectFailed(f"{url}: the cable is cut")
        return await super().connect(url)


def test_partitions_of_a_member_that_dies_move_within_its_session() -> None:
    async def main() -> None:
        async with run_broker("memory", NO_DELAY) as broker, trio.open_nursery() as nursery:
            cable = Cable()
            async with (
                open_cluster(url_of(broker)) as cluster,
                open_cluster(url_of(broker), transport=cable) as doomed,
            ):
                await make(cluster)
                one = worker(cluster, settings=UNHURRIED)
                two = worker(doomed, settings=UNHURRIED)
                await nursery.start(one.run)
                await nursery.start(two.run)
                await until(lambda: shared(one, two), timeout=60)
                cable.is_cut = True
                took = await until(lambda: len(one.has) == PARTITIONS, timeout=60)
                last_heartbeat = UNHURRIED.heartbeat_interval  # it may have left after the cut
                assert took <= UNHURRIED.session_timeout + last_heartbeat + 1
                one.stop()
                two.stop()
                await one.stopped.wait()
                nursery.cancel_scope.cancel()

    on_mock_clock(main)


def test_slow_processing_evicts_nobody() -> None:
    async def main() -> None:
        async def slow(_: object) -> None:
            await trio.sleep(3 * UNHURRIED.session_timeout)

        async with (
            run_broker("memory", NO_DELAY) as broker,
            open_cluster(url_of(broker)) as cluster,
        ):
            await make(cluster, 1)
            one = worker(cluster, settings=UNHURRIED, handle=slow)
            async with working(one):
                await until(lambda: len(one.records) == 4, timeout=200, look=1.0)
                assert one.consumer.health.generation == 1
                assert one.events == [("assigned", [0, 1, 2, 3])]
                assert one.consumer.health.busy > 0
                await one.consumer.commit()

    on_mock_clock(main)


def test_slow_callback_evicts_nobody() -> None:
    async def main() -> None:
        async def slow(_: Consumer, __: frozenset[TopicPartition]) -> None:
            await trio.sleep(5 * UNHURRIED.session_timeout)

        async with (
            run_broker("memory", NO_DELAY, "topics.retention.ms=-1") as broker,
            open_cluster(url_of(broker)) as cluster,
        ):
            await make(cluster)
            async with open_consumer(
                cluster, "g", topics=["t"], settings=UNHURRIED, on_assigned=slow
            ) as consumer:
                with trio.fail_after(200):
                    await anext(aiter(consumer))
                assert consumer.health.generation == 1

    on_mock_clock(main)


def test_leaving_is_bounded_when_no_broker_answers() -> None:
    async def main() -> None:
        cable = Cable()
        async with (
            run_broker("memory", NO_DELAY) as broker,
            open_cluster(url_of(broker), transport=cable) as cluster,
        ):
            await make(cluster)
            async with open_consumer(cluster, "g", topics=["t"], settings=UNHURRIED) as one:
                await anext(aiter(one))
                cable.is_cut = True
                with pytest.raises(Disconnected):
                    await cluster.renew()
                begun = trio.current_time()
            assert trio.current_time() - begun < 10

    on_mock_clock(main)


async def test_group_and_offsets_survive_a_restart_of_the_broker() -> None:
    from odradek.broker import open_broker
    from odradek.config import config_from_options

    config = config_from_options(
        listen=["memory://restarted-under-a-group"],
        storage="memory://restarted-under-a-group",
        coordinator="memory:restarted-under-a-group",
        overrides=(NO_DELAY,),
    )
    async with open_cluster("memory://restarted-under-a-group", QUICK) as cluster:
        one, two = worker(cluster), worker(cluster)
        async with trio.open_nursery() as nursery:
            async with open_broker(config):
                await make(cluster)
                await nursery.start(one.run)
                await nursery.start(two.run)
                await until(lambda: shared(one, two))
                await until(lambda: len(one.records + two.records) >= 400)
                await one.consumer.commit()
                await two.consumer.commit()
                had = one.has, two.has
            await trio.sleep(0.2)
            async with open_broker(config):
                for partition in T:
                    await write(cluster, partition, [100])
                await until(lambda: len(one.records + two.records) >= 404)
                await until(lambda: shared(one, two))
                assert (one.has, two.has) == had
                assert "lost" not in [what for what, _ in one.events + two.events]
                one.stop()
                two.stop()
                await one.stopped.wait()
                await two.stopped.wait()
    assert sorted({*one.records, *two.records}) == sorted(
        [*EVERYTHING, *((number, 100) for number in range(PARTITIONS))]
    )
