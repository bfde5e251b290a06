"""Fetch, version by version and error by error."""

from __future__ import annotations

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

from odradek.broker import Broker
from odradek.wire.api.a01_fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic


@pytest.mark.parametrize("version", range(4, 18))
async def test_what_was_produced_is_fetched(peer: Peer, version: int) -> None:
    topic_id = (await peer.create("events")).topic_id
    await peer.produce("events", batch(3))
    await peer.produce("events", batch(2))
    named: Any = {"topic_id": topic_id} if version >= 13 else {}
    found = await peer.fetch("events", version=version, **named)
    assert [r.offset for r in records_of(found)] == [0, 1, 2, 3, 4]
    assert found.high_watermark == found.last_stable_offset == 5
    if version >= 5:
        assert found.log_start_offset == 0


@pytest.mark.parametrize("version", [4, 11, 12, 17])
async def test_partition_with_nothing_to_read_carries_empty_records_and_not_null(
    peer: Peer, version: int
) -> None:
    topic_id = (await peer.create("events")).topic_id
    named: Any = {"topic_id": topic_id} if version >= 13 else {}
    found = await peer.fetch("events", version=version, **named)
    assert code(found.error_code) == "NONE"
    assert found.records is not None, "librdkafka cannot read a negative size"
    assert len(found.records) == 0


async def test_offset_inside_a_batch_gets_the_whole_batch(peer: Peer) -> None:
    await peer.create("events")
    await peer.produce("events", batch(10))
    (meta,) = metas_of(await peer.fetch("events", 7))
    assert (meta.base_offset, meta.last_offset) == (0, 9)


@pytest.mark.parametrize("offset", [-1, 4, 6, 2**62])
async def test_offset_outside_of_the_log_is_out_of_range(peer: Peer, offset: int) -> None:
    from odradek.wire.api.a21_delete_records import (
        DeleteRecordsPartition,
        DeleteRecordsRequest,
        DeleteRecordsResponse,
        DeleteRecordsTopic,
    )

    await peer.create("events")
    await peer.produce("events", batch(5))
    trim = DeleteRecordsPartition(partition_index=0, offset=5)
    request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name="events", partitions=[trim])])
    await peer.ask(request, 2, DeleteRecordsResponse)
    found = await peer.fetch("events", offset)
    assert code(found.error_code) == "OFFSET_OUT_OF_RANGE"
    assert (found.log_start_offset, found.high_watermark) == (5, 5)
    assert code((await peer.fetch("events", 5)).error_code) == "NONE"


@pytest.mark.parametrize(
    ("topic", "partition", "error"),
    [
        ("nowhere", 0, "UNKNOWN_TOPIC_OR_PARTITION"),
        ("events", 1, "UNKNOWN_TOPIC_OR_PARTITION"),
        ("events", -1, "UNKNOWN_TOPIC_OR_PARTITION"),
    ],
)
async def test_partition_that_is_not_there_answers_at_once(
    peer: Peer, topic: str, partition: int, error: str
) -> None:
    await peer.create("events")
    with trio.fail_after(5):
        found = await peer.fetch(topic, partition=partition, max_wait_ms=60_000)
    assert code(found.error_code) == error


async def test_unknown_topic_id_is_told_so(peer: Peer) -> None:
    found = await peer.fetch("", version=13, topic_id=UUID(int=9), max_wait_ms=60_000)
    assert code(found.error_code) == "UNKNOWN_TOPIC_ID"


@pytest.mark.parametrize(
    ("epoch", "error"),
    [(-1, "NONE"), (0, "NONE"), (1, "UNKNOWN_LEADER_EPOCH")],
)
async def test_request_is_fenced_by_the_leader_epoch_it_knows(
    peer: Peer, epoch: int, error: str
) -> None:
    await peer.create("events")
    await peer.produce("events")
    found = await peer.fetch("events", current_leader_epoch=epoch)
    assert code(found.error_code) == error


async def test_reader_of_a_lost_epoch_is_told_where_the_logs_part(peer: Peer) -> None:
    await peer.create("events")
    await peer.produce("events", batch(3))
    found = await peer.fetch("events", 3, last_fetched_epoch=0)
    assert found.diverging_epoch is None
    found = await peer.fetch("events", 3, last_fetched_epoch=4)
    assert code(found.error_code) == "OFFSET_OUT_OF_RANGE", "an epoch that never was"


# -- limits ------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", ["partition_max_bytes", "max_bytes"])
async def test_limits_count_but_one_batch_always_comes(peer: Peer, limit: str) -> None:
    await peer.create("events")
    for _ in range(10):
        await peer.produce("events", batch(1, 1000))
    size = len(batch(1, 1000))
    for max_bytes, count in ((3 * size, 3), (3 * size + 10, 3), (size, 1), (1, 1), (0, 1), (-5, 1)):
        found = await peer.fetch("events", **{limit: max_bytes})
        assert len(metas_of(found)) == count, max_bytes


async def test_first_partition_with_data_comes_and_the_others_only_if_they_fit(
    peer: Peer,
) -> None:
    await peer.create("events", 3)
    for partition in (1, 2):
        await peer.produce("events", batch(1, 1000), partition=partition)
    request = FetchRequest(
        max_bytes=100,
        topics=[
            FetchTopic(
                topic="events",
                partitions=[
                    FetchPartition(partition=n, fetch_offset=0, partition_max_bytes=100)
                    for n in range(3)
                ],
            )
        ],
    )
    answer = await peer.ask(request, 12, FetchResponse)
    assert [len(metas_of(p)) for p in answer.responses[0].partitions] == [0, 1, 0]


# -- waiting -----------------------------------------------------------------------------------


async def test_fetch_waits_until_there_is_something(broker: Broker) -> None:
    async with connected(broker) as reader, connected(broker) as writer:
        await writer.create("events", 2)
        await reader.send(fetch_request("events", max_wait_ms=60_000), 12)
        await trio.testing.wait_all_tasks_blocked()
        await writer.produce("events", batch(2), partition=1)
        await trio.testing.wait_all_tasks_blocked()
        assert not reader._received
        await writer.produce("events", batch(2))
        _, answer = await reader.receive()
        assert isinstance(answer, FetchResponse)
        assert len(records_of(answer.responses[0].partitions[0])) == 2


async def test_fetch_waits_for_min_bytes(broker: Broker) -> None:
    async with connected(broker) as reader, connected(broker) as writer:
        await writer.create("events")
        size = len(batch(1, 1000))
        await reader.send(fetch_request("events", max_wait_ms=60_000, min_bytes=3 * size), 12)
        for _ in range(3):
            await writer.produce("events", batch(1, 1000))
        _, answer = await reader.receive()
        assert isinstance(answer, FetchResponse)
        assert len(records_of(answer.responses[0].partitions[0])) == 3


def test_fetch_waits_no_longer_than_it_asks_for(mock_time: MockTime) -> None:
    async def main() -> None:
        async with running() as broker, connected(broker) as peer:
            await peer.create("events")
            for wait_ms, least, most in ((0, 0, 0), (-5, 0, 0), (7000, 7, 7)):
                began = trio.current_time()
                await peer.send(fetch_request("events", max_wait_ms=wait_ms), 12)
                await peer.receive()
                assert least <= trio.current_time() - began <= most + 0.01

    mock_time(main)


def test_absurd_waits_are_cut_to_the_brokers_limit(mock_time: MockTime) -> None:
    async def main() -> None:
        limits = {"wait_max_ms": 5000}
        async with running(limits=limits) as broker, connected(broker) as peer:
            await peer.create("events")
            began = trio.current_time()
            await peer.send(fetch_request("events", max_wait_ms=2**31 - 1), 12)
            await peer.receive()
            assert trio.current_time() - began == pytest.approx(5, abs=0.01)

    mock_time(main)


async def test_waiting_fetch_is_answered_when_its_topic_is_deleted(broker: Broker) -> None:
    async with connected(broker) as reader, connected(broker) as writer:
        await writer.create("events")
        await reader.send(fetch_request("events", max_wait_ms=60_000), 12)
        await trio.testing.wait_all_tasks_blocked()
        await broker.delete_topic(broker.image.topics["events"])
        _, answer = await reader.receive()
        assert isinstance(answer, FetchResponse)
        error = answer.responses[0].partitions[0].error_code
        assert code(error) == "UNKNOWN_TOPIC_OR_PARTITION"


async def test_client_that_leaves_while_it_waits_leaves_nothing_behind(broker: Broker) -> None:
    async with connected(broker) as peer:
        await peer.create("events")
        log = broker.topic("events").log(0)
        before = trio.lowlevel.current_statistics().tasks_living
        async with connected(broker) as other:
            await other.send(fetch_request("events", max_wait_ms=60_000), 12)
            await trio.testing.wait_all_tasks_blocked()
            assert log._watchers
        with trio.fail_after(5):
            while broker.server.connections > 1:
                await trio.testing.wait_all_tasks_blocked()
        assert not log._watchers
        assert trio.lowlevel.current_statistics().tasks_living == before


# -- sessions ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("session_id", "epoch", "error"),
    [
        (0, -1, "NONE"),
        (0, 0, "NONE"),
        (77, 0, "NONE"),
        (77, -1, "NONE"),
        (77, 1, "FETCH_SESSION_ID_NOT_FOUND"),
        (0, 5, "FETCH_SESSION_ID_NOT_FOUND"),
    ],
)
async def test_fetch_sessions_are_never_opened(
    peer: Peer, session_id: int, epoch: int, error: str
) -> None:
    await peer.create("events")
    await peer.produce("events")
    request = fetch_request("events", session_id=session_id, session_epoch=epoch)
    answer = await peer.ask(request, 12, FetchResponse)
    assert code(answer.error_code) == error
    assert answer.session_id == 0
    assert bool(answer.responses) == (error == "NONE")


# -- many at once ------------------------------------------------------------------------------


async def test_each_of_many_waiting_readers_is_woken(broker: Broker) -> None:
    async with connected(broker) as writer:
        await writer.create("events")
        got: list[int] = []

        async def read() -> None:
            async with connected(broker) as reader:
                found = await reader.fetch("events", max_wait_ms=60_000)
                got.append(len(records_of(found)))

        async with trio.open_nursery() as nursery:
            for _ in range(50):
                nursery.start_soon(read)
            await trio.testing.wait_all_tasks_blocked()
            await writer.send(produce_request("events", batch(3)), 9)
        assert got == [3] * 50
