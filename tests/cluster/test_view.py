"""A broker's live image of the cluster."""

from __future__ import annotations

from uuid import UUID

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from odradek.cluster import keys, topics
from odradek.cluster.image import DeletedTopic
from odradek.cluster.view import open_view
from odradek.contracts.coordinator import ABSENT, Coordinator, Put
from odradek.memory.coordinator import MemoryCoordinator, open_memory_coordinator
from odradek.types import PartitionKey

A = UUID(int=1)


async def create(coordinator: Coordinator, name: str = "events", topic_id: UUID = A) -> None:
    await topics.create(coordinator, topic_id, name, [(1,), (1,)], {"retention.ms": "5"})


async def test_view_holds_what_was_there_and_follows_what_happens() -> None:
    async with open_memory_coordinator() as coordinator:
        await create(coordinator, "before")
        async with open_view(coordinator, "c1") as view:
            image = view.image
            assert image.cluster_id == "c1"
            assert set(image.topics) == {"before"}
            assert set(image.partitions) == {PartitionKey(A, 0), PartitionKey(A, 1)}
            await create(coordinator, "after", UUID(int=2))
            with trio.fail_after(5):
                await view.wait_until(lambda now: "after" in now.topics)
            assert "after" not in image.topics, "an image never changes"
            found = view.image.topic_by_id(UUID(int=2))
            assert found is not None
            assert found.name == "after"
            assert view.image.topic_by_id(UUID(int=3)) is None


async def test_image_is_the_same_object_until_something_changes() -> None:
    async with open_memory_coordinator() as coordinator, open_view(coordinator, "c1") as view:
        assert view.image is view.image
        before = view.image
        await create(coordinator)
        await wait_all_tasks_blocked()
        assert view.image is not before


async def test_every_change_is_reported_with_its_key() -> None:
    async with open_memory_coordinator() as coordinator, open_view(coordinator, "c1") as view:
        seen: set[str] = set()
        view.on_change = seen.add
        await create(coordinator)
        await wait_all_tasks_blocked()
        assert seen == {"topics/events", f"partitions/{A}-0", f"partitions/{A}-1"}
        seen.clear()
        topic = view.image.topics["events"]
        await topics.delete(coordinator, topic, {})
        await wait_all_tasks_blocked()
        assert f"deleted/{A}" in seen
        assert view.image.deleted == {A: DeletedTopic(A, 2, (1,))}
        assert not view.image.topics
        assert not view.image.names
        assert not view.image.partitions


async def test_topic_recreated_under_the_same_name_has_its_new_id_alone() -> None:
    async with open_memory_coordinator() as coordinator, open_view(coordinator, "c1") as view:
        await create(coordinator)
        await view.wait_until(lambda image: "events" in image.topics)
        await topics.delete(coordinator, view.image.topics["events"], {})
        await create(coordinator, topic_id=UUID(int=2))
        await wait_all_tasks_blocked()
        assert view.image.topics["events"].id == UUID(int=2)
        assert view.image.names == {UUID(int=2): "events"}


async def test_broker_is_in_view_as_long_as_its_session_lives() -> None:
    from odradek.cluster.image import BrokerImage, Endpoint

    broker = BrokerImage(3, (Endpoint("tcp", "h", 1), Endpoint("tls", "h", 2)), "rack-a")
    async with open_memory_coordinator() as coordinator, open_view(coordinator, "c1") as view:
        assert view.image.controller == -1
        async with coordinator.session(10) as session:
            put = Put(keys.broker_key(3), keys.broker_value(broker), ABSENT, session)
            await coordinator.txn(put)
            await wait_all_tasks_blocked()
            assert view.image.brokers == {3: broker}
            assert view.image.controller == 3
        await wait_all_tasks_blocked()
        assert view.image.brokers == {}
    assert broker.endpoint("tls") == Endpoint("tls", "h", 2)
    assert broker.endpoint("other") == Endpoint("tcp", "h", 1)
    assert BrokerImage(3, ()).endpoint("tcp") is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("topics/events", b"not json"),
        ("topics/other", b"{}"),
        ("partitions/what", b'{"leader": 1}'),
        ("brokers/x", b'{"endpoints": []}'),
        ("deleted/x", b'{"partitions": 1, "brokers": []}'),
    ],
)
async def test_entry_that_is_not_understood_is_reported_and_left_out(
    key: str, value: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_memory_coordinator() as coordinator, open_view(coordinator, "c1") as view:
        await create(coordinator)
        await wait_all_tasks_blocked()
        before = view.image
        await coordinator.put(key, value)
        await wait_all_tasks_blocked()
        assert key in caplog.text
        assert view.image is before
        await create(coordinator, "later", UUID(int=9))
        await wait_all_tasks_blocked()
        assert "later" in view.image.topics
        async with open_view(coordinator, "c1") as next_one:
            assert "later" in next_one.image.topics, "a broker that starts now starts"


async def test_view_catches_up_after_being_cut_off() -> None:
    async with open_memory_coordinator("x") as cut_off, open_memory_coordinator("x") as other:
        assert isinstance(cut_off, MemoryCoordinator)
        async with open_view(cut_off, "c1") as view:
            cut_off.disconnect()
            await create(other)
            await wait_all_tasks_blocked()
            assert not view.image.topics
            cut_off.reconnect()
            with trio.fail_after(5):
                await view.wait_until(lambda image: "events" in image.topics)


async def test_view_stays_as_it_was_when_the_coordinator_is_gone_for_good(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with open_memory_coordinator() as coordinator:
        await create(coordinator)
        async with open_view(coordinator, "c1") as view:
            coordinator._close()
            await wait_all_tasks_blocked()
            assert "events" in view.image.topics
            assert "followed no further" in caplog.text
