"""A broker whose owner is cancelled: it takes its leave as if it had been asked to."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from tests.broker.conftest import MockTime
from tests.broker.grouping import QUICK, Member
from tests.broker.peer import (
    batch,
    code,
    connected,
    fetch_request,
    produce_request,
    records_of,
    running,
)
from tests.broker.test_connections import HeldTicket
from trio.testing import wait_all_tasks_blocked

from odradek.broker import Broker
from odradek.broker.shelter import open_sheltered
from odradek.contracts.background import open_tasks
from odradek.contracts.transport import AddressInUse
from odradek.memory import storage
from odradek.wire.api.a00_produce import ProduceResponse
from odradek.wire.api.a01_fetch import FetchResponse
from odradek.wire.api.a03_metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from odradek.wire.api.a14_sync_group import SyncGroupRequest, SyncGroupResponse


@asynccontextmanager
async def cancellable(**sections: Any) -> AsyncIterator[tuple[Broker, Callable[[], None]]]:
    """A broker in a task that `cancel()` cancels, as whoever embeds it would."""
    scope = trio.CancelScope()

    async def live(task_status: trio.TaskStatus[Broker]) -> None:
        with scope:
            async with running(**sections) as broker:
                task_status.started(broker)
                await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        broker = await nursery.start(live)
        yield broker, scope.cancel
    assert scope.cancelled_caught


# -- what was read is answered -----------------------------------------------------------------


def test_members_and_fetches_that_wait_are_answered(mock_time: MockTime) -> None:
    async def main() -> None:
        async with (
            cancellable(groups=QUICK) as (broker, cancel),
            connected(broker) as one,
            connected(broker) as two,
            connected(broker) as three,
            connected(broker) as reader,
        ):
            await reader.create("events")
            await Member(one).enter()
            await Member(three, "h").enter()
            late, other = Member(two), Member(three, "h")
            await late.send_join()  # waits for the first member to join again
            await reader.send(fetch_request("events", max_wait_ms=300_000), 12)
            await reader.send(fetch_request("events", max_wait_ms=300_000), 12)
            await other.send_join()
            await wait_all_tasks_blocked()
            began = trio.current_time()
            cancel()
            assert code((await late.joined()).error_code) == "NOT_COORDINATOR"
            assert code((await other.joined()).error_code) == "NOT_COORDINATOR"
            for _ in range(2):
                _, answer = await reader.receive()
                assert isinstance(answer, FetchResponse)
                assert code(answer.responses[0].partitions[0].error_code) == "NONE"
            for peer in (one, two, three, reader):
                await peer.ended()
            assert trio.current_time() - began < 1

    mock_time(main)


def test_member_that_waits_for_its_assignment_is_answered(mock_time: MockTime) -> None:
    async def main() -> None:
        async with (
            cancellable(groups=QUICK) as (broker, cancel),
            connected(broker) as one,
            connected(broker) as two,
        ):
            leader, follower = await Member(one).enter(), Member(two)
            await follower.send_join()
            await wait_all_tasks_blocked()
            assert await leader.join() == "NONE"
            assert code((await follower.joined()).error_code) == "NONE"
            assert not follower.leads
            sync = SyncGroupRequest(
                group_id="g", generation_id=follower.generation, member_id=follower.id
            )
            await two.send(sync, 3)  # waits for the leader's
            await wait_all_tasks_blocked()
            cancel()
            _, answer = await two.receive()
            assert isinstance(answer, SyncGroupResponse)
            assert code(answer.error_code) == "NOT_COORDINATOR"
            await one.ended()
            await two.ended()

    mock_time(main)


async def test_produce_is_acknowledged_once_it_is_committed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    released = trio.Event()
    monkeypatch.setattr(storage, "_Ticket", lambda end: HeldTicket(end, released))
    async with cancellable() as (broker, cancel), connected(broker) as peer:
        await peer.create("events")
        for _ in range(3):
            await peer.send(produce_request("events"), 9)
        await wait_all_tasks_blocked()
        cancel()
        await wait_all_tasks_blocked()
        released.set()
        for offset in range(3):
            _, answer = await peer.receive()
            assert isinstance(answer, ProduceResponse)
            (result,) = answer.responses[0].partition_responses
            assert (code(result.error_code), result.base_offset) == ("NONE", offset)
        await peer.ended()


def test_request_that_needs_the_coordinator_is_finished(mock_time: MockTime) -> None:
    async def main() -> None:
        async with cancellable() as (broker, cancel), connected(broker) as peer:
            real = broker.create_topic

            async def slow(*args: Any, **more: Any) -> Any:
                await trio.sleep(3)
                return await real(*args, **more)

            broker.create_topic = slow  # type: ignore[method-assign]  # for this test
            request = MetadataRequest(topics=[MetadataRequestTopic(name="fresh")])
            await peer.send(request, 4)
            await wait_all_tasks_blocked()
            cancel()
            _, answer = await peer.receive()
            assert isinstance(answer, MetadataResponse)
            assert code(answer.topics[0].error_code) == "NONE"
            await peer.ended()

    mock_time(main)


# -- within a bound of time, and whole ----------------------------------------------------------


@pytest.mark.parametrize("what", ["a response is not read", "a handler hangs", "half a frame"])
def test_a_cancelled_broker_waits_for_nobody_for_long(mock_time: MockTime, what: str) -> None:
    async def main() -> None:
        before = trio.lowlevel.current_statistics().tasks_living
        async with cancellable() as (broker, cancel), connected(broker) as peer:
            await peer.create("events", max_message_bytes="3000000")
            await peer.produce("events", batch(1, 2_000_000))
            if what == "a response is not read":
                await peer.send(fetch_request("events", partition_max_bytes=2**24), 12)
            elif what == "half a frame":
                await peer.send_bytes(peer.encode(produce_request("events"), 9)[:30])
            else:

                async def hangs(*_: object, **__: object) -> None:
                    await trio.sleep_forever()

                broker.create_topic = hangs  # type: ignore[method-assign,assignment]  # for this test
                asked = MetadataRequest(topics=[MetadataRequestTopic(name="fresh")])
                await peer.send(asked, 4)
            await wait_all_tasks_blocked()
            began = trio.current_time()
            cancel()
            await broker.server.quiet()
            assert trio.current_time() - began < 7
        assert trio.current_time() - began < 10
        assert trio.lowlevel.current_statistics().tasks_living == before

    mock_time(main)


async def test_topics_and_records_survive_a_cancelled_broker(tmp_path: Any) -> None:
    where: dict[str, Any] = {
        "storage": f"memory://{tmp_path.name}",
        "coordinator": f"embedded:{tmp_path}/c",
    }
    try:
        async with cancellable(**where) as (broker, cancel), connected(broker) as peer:
            await peer.create("events")
            await peer.produce("events", batch(3))
            cancel()
            await peer.ended()
        async with running(**where) as broker, connected(broker) as peer:
            assert broker.topic("events").log(0).reader().recovery.clean
            assert len(records_of(await peer.fetch("events"))) == 3
    finally:
        storage.forget_memory_store(tmp_path.name)


def test_cancelled_while_it_opens_it_ends_at_once(mock_time: MockTime) -> None:
    async def main() -> None:
        async with running(coordinator="memory:opening", listen="memory://first"):
            began = trio.current_time()
            with trio.move_on_after(1) as scope:
                # Waits: a broker with its id is alive.
                async with running(coordinator="memory:opening", listen="memory://second"):
                    raise AssertionError("it opened")
            assert scope.cancelled_caught
            assert trio.current_time() - began == pytest.approx(1)
            with pytest.raises(AddressInUse):
                async with running(listen="memory://first"):
                    pass

    mock_time(main)


async def test_cancelled_as_it_has_opened_it_ends() -> None:
    """Whichever of the two is first, nobody waits for the other for ever."""
    for steps in range(60):
        with trio.fail_after(10), trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:

                async def later(steps: int = steps) -> None:
                    for _ in range(steps):
                        await trio.lowlevel.checkpoint()
                    scope.cancel()

                nursery.start_soon(later)
                async with running():
                    await trio.sleep_forever()
        assert scope.cancelled_caught


# -- the shelter by itself ----------------------------------------------------------------------


async def test_failure_of_a_task_inside_arrives_as_it_is_and_ends_the_body() -> None:
    @asynccontextmanager
    async def inner(_: trio.CancelScope) -> AsyncIterator[Callable[[], None]]:
        fail = trio.Event()

        async def task() -> None:
            await fail.wait()
            raise KeyError("inside")

        async with open_tasks() as tasks:
            tasks.start_soon(task)
            yield fail.set

    async def body() -> None:
        async with open_sheltered(inner) as fail:
            fail()
            await trio.sleep_forever()

    with trio.fail_after(5), pytest.raises(KeyError, match="inside"):
        await body()


async def test_what_is_left_to_do_is_cancelled_only_if_the_owner_was() -> None:
    done: list[str] = []

    @asynccontextmanager
    async def inner(shelter: trio.CancelScope) -> AsyncIterator[None]:
        yield
        await trio.lowlevel.checkpoint()
        done.append("sheltered")
        shelter.shield = False
        await trio.lowlevel.checkpoint()
        done.append("rest")

    async with open_sheltered(inner):
        pass
    assert done == ["sheltered", "rest"]
    done.clear()
    with pytest.raises(KeyError):
        async with open_sheltered(inner):
            raise KeyError
    assert done == ["sheltered", "rest"]
    done.clear()
    with trio.CancelScope() as scope:
        async with open_sheltered(inner):
            scope.cancel()
    assert done == ["sheltered"]
