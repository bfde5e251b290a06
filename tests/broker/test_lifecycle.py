"""A broker's life: starting, being restarted, losing its session, ending."""

from __future__ import annotations

import gc
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import trio
import trio.testing
from tests.broker.conftest import MockTime
from tests.broker.peer import (
    Peer,
    batch,
    code,
    connected,
    fetch_request,
    metas_of,
    produce_request,
    records_of,
    running,
)
from tests.broker.test_connections import HeldTicket
from trio.testing import wait_all_tasks_blocked

from odradek.broker import Broker, IdInUse
from odradek.cluster import keys, topics
from odradek.cluster.image import PartitionImage
from odradek.contracts.coordinator import Delete, Op
from odradek.contracts.storage import Corrupt, Full, SegmentStore, StorageError
from odradek.contracts.transport import AddressInUse
from odradek.errors import OdradekError
from odradek.memory import storage
from odradek.memory.coordinator import MemoryCoordinator, memory_state
from odradek.memory.storage import forget_memory_store
from odradek.types import PartitionKey
from odradek.wire.api.a00_produce import ProduceResponse
from odradek.wire.api.a01_fetch import FetchResponse
from odradek.wire.api.a03_metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from odradek.wire.api.a18_api_versions import ApiVersionsRequest, ApiVersionsResponse
from odradek.wire.api.a20_delete_topics import (
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from odradek.wire.api.a22_init_producer_id import InitProducerIdRequest, InitProducerIdResponse


@pytest.fixture(params=["memory", "file"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dict[str, Any]]:
    """Storage and coordinator that outlive the broker."""
    coordinator = f"embedded:{tmp_path}/coordinator"
    if request.param == "memory":
        name = f"life-{tmp_path.name}"
        yield {"storage": f"memory://{name}", "coordinator": coordinator}
        forget_memory_store(name)
    else:
        pytest.importorskip("odradek_storage_file")
        yield {"storage": f"file://{tmp_path}/logs", "coordinator": coordinator}


async def new_producer_id(peer: Peer) -> int:
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000)
    return (await peer.ask(request, 4, InitProducerIdResponse)).producer_id


# -- restarting --------------------------------------------------------------------------------


async def test_topics_ids_records_and_settings_survive_a_restart(where: dict[str, Any]) -> None:
    async with running(**where) as broker, connected(broker) as peer:
        cluster_id = broker.image.cluster_id
        created = await peer.create("events", 3, retention_ms="77")
        await peer.produce("events", batch(4), partition=1)
    async with running(**where) as broker, connected(broker) as peer:
        assert broker.image.cluster_id == cluster_id
        topic = broker.image.topics["events"]
        assert (topic.id, topic.partitions) == (created.topic_id, 3)
        assert topic.configs == {"retention.ms": "77"}
        found = await peer.fetch("events", partition=1)
        assert [r.offset for r in records_of(found)] == [0, 1, 2, 3]
        assert (await peer.produce("events", partition=1)).base_offset == 4


async def test_restart_raises_the_leader_epoch(where: dict[str, Any]) -> None:
    for life in range(3):
        async with running(**where) as broker, connected(broker) as peer:
            if not life:
                await peer.create("events")
            await peer.produce("events")
            found = await peer.fetch("events")
            assert [m.leader_epoch for m in metas_of(found)] == list(range(life + 1))
            stale = await peer.fetch("events", current_leader_epoch=life - 1)
            assert code(stale.error_code) == ("FENCED_LEADER_EPOCH" if life else "NONE")


async def test_retry_after_a_restart_is_answered_with_the_offset_of_the_original(
    where: dict[str, Any],
) -> None:
    data = batch(2, producer_id=7, producer_epoch=0, base_sequence=0)
    async with running(**where) as broker, connected(broker) as peer:
        await peer.create("events")
        await peer.produce("events")
        assert (await peer.produce("events", bytes(data))).base_offset == 1
    async with running(**where) as broker, connected(broker) as peer:
        assert (await peer.produce("events", bytes(data))).base_offset == 1
        assert len(records_of(await peer.fetch("events"))) == 3


async def test_producer_ids_are_not_given_again_after_a_restart(where: dict[str, Any]) -> None:
    given: list[int] = []
    for _ in range(3):
        async with running(**where) as broker, connected(broker) as peer:
            given += [await new_producer_id(peer) for _ in range(5)]
    assert len(set(given)) == 15


async def test_deleted_topic_stays_deleted_after_a_restart(where: dict[str, Any]) -> None:
    async with running(**where) as broker, connected(broker) as peer:
        await peer.create("events")
        await peer.create("other")
        request = DeleteTopicsRequest(topics=[DeleteTopicState(name="events")], timeout_ms=5000)
        await peer.ask(request, 6, DeleteTopicsResponse)
    async with running(**where) as broker:
        assert set(broker.image.topics) == {"other"}
        assert len(await broker.store.partitions()) == 1


async def test_removal_of_a_deleted_topics_logs_goes_on_after_a_restart(
    where: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from odradek.broker.hosting import Hosting

    async def dies(self: Hosting, topic_id: UUID) -> None:
        """The broker stops before it has removed anything."""

    async with running(**where) as broker, connected(broker) as peer:
        await peer.create("events", 2)
        with monkeypatch.context() as patch:
            patch.setattr(Hosting, "_deleted", dies)
            topic = broker.image.topics["events"]
            await topics.delete(broker.coordinator, topic, {})
            await broker.hosting.wait_for(lambda: topic.id not in broker.hosting.by_id)
        assert len(await broker.store.partitions()) == 2
    async with running(**where) as broker:
        with trio.fail_after(5):
            await broker.view.wait_until(lambda image: not image.deleted)
        assert list(await broker.store.partitions()) == []


async def test_partitions_of_a_topic_that_was_never_finished_are_swept(
    where: dict[str, Any],
) -> None:
    async with running(**where) as broker:
        left = [
            (PartitionKey(UUID(int=4), number), PartitionImage((1,), 1, 0, (1,)))
            for number in range(100)
        ]
        await topics.write_partitions(broker.coordinator, left)
    async with running(**where) as broker:
        with trio.fail_after(5):
            await broker.view.wait_until(lambda image: not image.partitions)
        assert list(await broker.store.partitions()) == [], "no log was opened for them"


# -- starting ----------------------------------------------------------------------------------


async def test_address_in_use_is_found_before_anything_changes(where: dict[str, Any]) -> None:
    async with running(listen="memory://taken"):
        with pytest.raises(AddressInUse, match="taken"):
            async with running(listen="memory://taken", **where):
                pass
    async with running(listen="memory://taken", **where) as broker:
        assert broker.addresses == {"memory": "taken:0"}


def test_two_brokers_cannot_have_one_id(mock_time: MockTime) -> None:
    async def main() -> None:
        state = memory_state("ids")
        async with running(coordinator="memory:ids") as first:
            with pytest.raises(IdInUse, match="id 1 is alive"):
                async with running(coordinator="memory:ids"):
                    pass
            async with connected(first) as peer:
                assert code((await peer.create("events")).error_code) == "NONE"
        async with running(coordinator="memory:ids") as next_one:
            assert next_one.image.controller == 1
        assert state.name == "ids"

    mock_time(main)


def test_broker_waits_for_its_earlier_life_to_end(mock_time: MockTime) -> None:
    began = 0.0

    async def main() -> None:
        name = "earlier"
        state = memory_state(name)
        async with trio.open_nursery() as nursery:
            release = trio.Event()

            async def earlier(task_status: trio.TaskStatus[None]) -> None:
                async with running(coordinator=f"memory:{name}"):
                    task_status.started()
                    await release.wait()

            await nursery.start(earlier)
            nursery.start_soon(lambda: after(15, release))
            async with running(coordinator=f"memory:{name}") as broker:
                assert 15 <= trio.current_time() - began < 30
                assert broker.image.controller == 1
        assert state.name == name

    async def after(seconds: float, event: trio.Event) -> None:
        nonlocal began
        began = trio.current_time()
        await trio.sleep(seconds)
        event.set()

    mock_time(main)


@pytest.fixture
def bad_partition(monkeypatch: pytest.MonkeyPatch) -> list[StorageError]:
    """While the list holds an error, partition 1 of any topic cannot be opened for it."""
    errors: list[StorageError] = []
    real = storage.MemoryStore.open_writer

    async def open_writer(self: SegmentStore, key: PartitionKey, claim: object) -> object:
        if errors and key.partition == 1:
            raise errors[0]
        return await real(self, key, claim)  # type: ignore[arg-type]  # passed on

    monkeypatch.setattr(storage.MemoryStore, "open_writer", open_writer)
    return errors


async def test_partition_that_cannot_be_opened_is_offline_and_the_others_serve(
    broker: Broker, bad_partition: list[StorageError]
) -> None:
    bad_partition.append(Corrupt("a flipped bit"))
    async with connected(broker) as peer:
        assert code((await peer.create("events", 3)).error_code) == "NONE"
        for partition, error in ((0, "NONE"), (1, "KAFKA_STORAGE_ERROR"), (2, "NONE")):
            result = await peer.produce("events", partition=partition)
            assert code(result.error_code) == error
            found = await peer.fetch("events", partition=partition)
            assert code(found.error_code) == error


def test_partition_refused_by_a_full_disk_is_opened_when_there_is_room(
    mock_time: MockTime, bad_partition: list[StorageError]
) -> None:
    async def main() -> None:
        async with running() as broker, connected(broker) as peer:
            bad_partition.append(Full("no space"))
            await peer.create("events", 2)
            result = await peer.produce("events", partition=1)
            assert code(result.error_code) == "KAFKA_STORAGE_ERROR"
            await trio.sleep(5)
            bad_partition.clear()
            await trio.sleep(5)
            result = await peer.produce("events", partition=1)
            assert code(result.error_code) == "NONE"

    mock_time(main)


async def test_damaged_headers_take_one_partition_offline_and_not_the_broker(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    from odradek.errors import CorruptBatch
    from odradek.log.partition import PartitionLog

    async def damaged(self: PartitionLog) -> None:
        if self.key.partition == 0:
            raise CorruptBatch("no magic")

    monkeypatch.setattr(PartitionLog, "restore_producers", damaged)
    async with connected(broker) as peer:
        await peer.create("events", 2)
        for version in (7, 8):
            refused = await peer.produce("events", version=version)
            assert code(refused.error_code) == "KAFKA_STORAGE_ERROR"
            assert refused.error_message == ("CORRUPT_MESSAGE: no magic" if version >= 8 else None)
        assert code((await peer.produce("events", partition=1)).error_code) == "NONE"


# -- the coordinator goes away -----------------------------------------------------------------


def the_session(broker: Broker) -> str:
    assert isinstance(broker.coordinator, MemoryCoordinator)
    (session,) = broker.coordinator._sessions
    return session.id


def test_broker_whose_session_was_lost_registers_again(
    mock_time: MockTime, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with running() as broker, connected(broker) as peer:
            assert isinstance(broker.coordinator, MemoryCoordinator)
            await peer.create("events")
            for life in range(1, 4):
                lost = the_session(broker)
                broker.coordinator.state.expire(lost)
                assert code((await peer.produce("events")).error_code) == "NONE"
                await trio.sleep(1)
                assert the_session(broker) != lost
                assert caplog.text.count("registered again") == life
                answer = await peer.ask(MetadataRequest(topics=None), 9, MetadataResponse)
                assert [b.node_id for b in answer.brokers] == [1]
                assert answer.topics[0].partitions[0].leader_id == 1

    mock_time(main)


def test_broker_that_is_cut_off_serves_and_comes_back(
    mock_time: MockTime, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with running() as broker, connected(broker) as peer:
            coordinator = broker.coordinator
            assert isinstance(coordinator, MemoryCoordinator)
            await peer.create("events")
            coordinator.disconnect()
            await trio.sleep(100)
            assert code((await peer.produce("events", batch(2))).error_code) == "NONE"
            assert len(records_of(await peer.fetch("events"))) == 2
            created = await peer.create("more")
            assert code(created.error_code) == "COORDINATOR_NOT_AVAILABLE"
            asked = MetadataRequest(topics=[MetadataRequestTopic(name="more")])
            answer = await peer.ask(asked, 4, MetadataResponse)
            assert code(answer.topics[0].error_code) == "LEADER_NOT_AVAILABLE"
            coordinator.reconnect()
            await trio.sleep(10)
            assert broker.image.controller == 1
            assert code((await peer.create("more")).error_code) == "NONE"
            assert code((await peer.produce("more")).error_code) == "NONE"

    mock_time(main)


async def test_leader_epoch_raised_by_somebody_else_reopens_the_log(broker: Broker) -> None:
    async with connected(broker) as peer:
        await peer.create("events")
        await peer.produce("events", batch(2))
        (item,) = broker.image.partitions.items()
        key, state = item
        raised = PartitionImage((1,), 1, 7, (1,), state.version)
        await topics.write_partitions(broker.coordinator, [(key, raised)])
        hosted = broker.topic("events")
        with trio.fail_after(5):
            await broker.hosting.wait_for(
                lambda: (log := hosted.logs[0]) is not None and log.leader_epoch == 7
            )
        assert (await peer.produce("events")).base_offset == 2
        assert [m.leader_epoch for m in metas_of(await peer.fetch("events"))] == [0, 7]
        given_away = PartitionImage((2,), 2, 8, (2,), broker.image.partitions[key].version)
        await topics.write_partitions(broker.coordinator, [(key, given_away)])
        with trio.fail_after(5):
            await broker.hosting.wait_for(lambda: hosted.logs[0] is None)
        assert code((await peer.produce("events")).error_code) == "NOT_LEADER_OR_FOLLOWER"
        assert code((await peer.fetch("events")).error_code) == "NOT_LEADER_OR_FOLLOWER"
        answer = await peer.ask(MetadataRequest(topics=None), 9, MetadataResponse)
        (partition,) = answer.topics[0].partitions
        assert (code(partition.error_code), partition.leader_id) == ("LEADER_NOT_AVAILABLE", -1)
        assert keys.partition_key(key) in await broker.coordinator.list("partitions")


# -- ending ------------------------------------------------------------------------------------


def test_ending_broker_answers_what_it_has_read_at_once(mock_time: MockTime) -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            end = trio.Event()

            async def live(task_status: trio.TaskStatus[Broker]) -> None:
                async with running() as broker:
                    task_status.started(broker)
                    await end.wait()

            broker = await nursery.start(live)
            async with connected(broker) as waiting, connected(broker) as idle:
                await waiting.create("events")
                await idle.ask(ApiVersionsRequest(), 0, ApiVersionsResponse)
                await waiting.send(fetch_request("events", max_wait_ms=300_000), 12)
                await waiting.send(fetch_request("events", max_wait_ms=300_000), 12)
                await wait_all_tasks_blocked()
                began = trio.current_time()
                end.set()
                for _ in range(2):
                    _, answer = await waiting.receive()
                    assert isinstance(answer, FetchResponse)
                await waiting.ended()
                await idle.ended()
                assert trio.current_time() - began < 1

    mock_time(main)


def test_ending_broker_finishes_the_request_it_is_at(mock_time: MockTime) -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            end = trio.Event()

            async def live(task_status: trio.TaskStatus[Broker]) -> None:
                async with running() as broker:
                    task_status.started(broker)
                    await end.wait()

            broker = await nursery.start(live)
            real = broker.create_topic

            async def slow(*args: object, **more: object) -> object:
                await trio.sleep(3)
                return await real(*args, **more)

            broker.create_topic = slow
            async with connected(broker) as peer:
                request = MetadataRequest(topics=[MetadataRequestTopic(name="fresh")])
                await peer.send(request, 4)
                await wait_all_tasks_blocked()
                end.set()
                _, answer = await peer.receive()
                assert isinstance(answer, MetadataResponse)
                assert code(answer.topics[0].error_code) == "NONE"
                await peer.ended()

    mock_time(main)


@pytest.mark.parametrize("what", ["a response is not read", "a handler hangs", "half a frame"])
def test_ending_broker_waits_for_nobody_for_long(mock_time: MockTime, what: str) -> None:
    async def main() -> None:
        lived = 0.0
        async with trio.open_nursery() as nursery:
            end = trio.Event()

            async def live(task_status: trio.TaskStatus[Broker]) -> None:
                nonlocal lived
                async with running() as broker:
                    task_status.started(broker)
                    await end.wait()
                    began = trio.current_time()
                lived = trio.current_time() - began

            broker = await nursery.start(live)
            async with connected(broker) as peer:
                await peer.create("events", max_message_bytes="3000000")
                await peer.produce("events", batch(1, 2_000_000))
                if what == "a response is not read":
                    await peer.send(fetch_request("events", partition_max_bytes=2**24), 12)
                elif what == "half a frame":
                    await peer.send_bytes(peer.encode(produce_request("events"), 9)[:30])
                else:

                    async def hangs(*_: object, **__: object) -> None:
                        await trio.sleep_forever()

                    broker.create_topic = hangs
                    asked = MetadataRequest(topics=[MetadataRequestTopic(name="fresh")])
                    await peer.send(asked, 4)
                await wait_all_tasks_blocked()
                end.set()
                await trio.sleep(60)
        assert broker.server.connections == 0
        assert lived < 10

    mock_time(main)


async def test_cancelled_broker_closes_its_logs(where: dict[str, Any]) -> None:
    with trio.CancelScope() as scope:
        async with running(**where) as broker, connected(broker) as peer:
            await peer.create("events")
            await peer.produce("events", batch(3))
            scope.cancel()
            await trio.lowlevel.checkpoint()
    assert scope.cancelled_caught
    async with running(**where) as broker, connected(broker) as peer:
        log = broker.topic("events").log(0)
        assert log.reader().recovery.clean
        assert len(records_of(await peer.fetch("events"))) == 3


async def test_owners_exception_arrives_as_it_is(where: dict[str, Any]) -> None:
    with pytest.raises(KeyError, match="mine"):
        async with running(**where):
            raise KeyError("mine")


async def test_produce_that_waits_as_the_broker_ends_is_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    released = trio.Event()
    monkeypatch.setattr(storage, "_Ticket", lambda end: HeldTicket(end, released))
    async with trio.open_nursery() as nursery:
        end = trio.Event()

        async def live(task_status: trio.TaskStatus[Broker]) -> None:
            async with running() as broker:
                task_status.started(broker)
                await end.wait()

        broker = await nursery.start(live)
        async with connected(broker) as peer:
            await peer.create("events")
            await peer.send(produce_request("events"), 9)
            await wait_all_tasks_blocked()
            end.set()
            await wait_all_tasks_blocked()
            released.set()
            _, answer = await peer.receive()
            assert isinstance(answer, ProduceResponse)
            assert code(answer.responses[0].partition_responses[0].error_code) == "NONE"
            await peer.ended()


async def test_log_that_fails_to_close_does_not_stop_the_broker(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from odradek.contracts.storage import Offline

    async with connected(broker) as peer:
        await peer.create("events")
        await peer.create("other")

        async def broken(self: object) -> None:
            raise Offline("fsync: input/output error")

        with monkeypatch.context() as patch:
            patch.setattr(type(broker.topic("events").log(0).reader()), "flush", broken)
            await broker.delete_topic(broker.image.topics["events"])
        assert "input/output error" in caplog.text
        assert code((await peer.produce("other")).error_code) == "NONE"


def test_coordinator_that_does_not_answer_does_not_keep_logs_open(
    mock_time: MockTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with running() as broker, connected(broker) as peer:
            await peer.create("events")
            await peer.create("other")
            log = broker.topic("other").log(0)
            real = broker.coordinator.txn

            async def hangs(*ops: Op) -> object:
                if any(op.key.startswith("deleted/") for op in ops if isinstance(op, Delete)):
                    await trio.sleep_forever()
                return await real(*ops)

            monkeypatch.setattr(broker.coordinator, "txn", hangs)
            await broker.delete_topic(broker.image.topics["events"])
            await wait_all_tasks_blocked()
            began = trio.current_time()
        assert trio.current_time() - began < 20
        with pytest.raises(StorageError):
            await log.wait_committed(10**9)

    mock_time(main)


@pytest.mark.skipif(sys.platform != "linux", reason="counts descriptors in /proc")
async def test_ended_broker_leaves_no_task_thread_or_descriptor(tmp_path: Path) -> None:
    import threading

    pytest.importorskip("odradek_storage_file")
    pytest.importorskip("odradek_transport_tcp")
    where: dict[str, Any] = {
        "listen": "tcp://127.0.0.1:0",
        "storage": f"file://{tmp_path}/logs",
        "coordinator": f"embedded:{tmp_path}/coordinator",
    }

    async def life() -> tuple[int, int, set[str]]:
        async with running(**where) as broker, connected(broker) as peer:
            if "events" not in broker.image.topics:
                await peer.create("events", 5)
            await peer.produce("events", batch(10, 100))
            await peer.fetch("events")
        gc.collect()
        threads = {t.name for t in threading.enumerate() if not t.name.startswith("Trio thread")}
        return (
            trio.lowlevel.current_statistics().tasks_living,
            len(os.listdir("/proc/self/fd")),
            threads,
        )

    first = await life()
    for _ in range(3):
        assert await life() == first


async def test_nothing_worse_than_a_warning_is_logged_in_an_ordinary_life(
    where: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    for _ in range(2):
        async with running(**where) as broker, connected(broker) as peer:
            if "events" not in broker.image.topics:
                await peer.create("events")
            await peer.produce("events")
            await peer.fetch("events")
            await peer.send(fetch_request("events", 99, max_wait_ms=10_000), 12)
    assert [r for r in caplog.records if r.levelno >= logging.WARNING] == []


def test_ids_in_use_are_an_error_of_the_project() -> None:
    assert issubclass(IdInUse, OdradekError)


async def test_refused_batch_is_told_as_the_store_refused_it(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    from odradek.contracts.storage import Full

    async with connected(broker) as peer:
        await peer.create("events")
        assert code((await peer.produce("events")).error_code) == "NONE"
        log = broker.topic("events").log(0)

        def full(chunk: object) -> None:
            raise Full("no room")

        # The batch has its offset written into it by then, and must not be validated again.
        with monkeypatch.context() as patched:
            patched.setattr(log._writer, "append", full)
            refused = await peer.produce("events")
        assert code(refused.error_code) == "KAFKA_STORAGE_ERROR"
        assert (await peer.produce("events")).base_offset == 1
