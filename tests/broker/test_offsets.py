"""ListOffsets, DeleteRecords and OffsetForLeaderEpoch."""

from __future__ import annotations

from typing import Any

import pytest
from tests.broker.peer import NOW, Peer, batch, code, connected, running

from odradek.broker import Broker
from odradek.wire.api.a02_list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from odradek.wire.api.a21_delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from odradek.wire.api.a23_offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED = -1, -2, -3, -4, -5


async def list_offset(
    peer: Peer,
    timestamp: int,
    topic: str = "events",
    partition: int = 0,
    version: int = 10,
    **more: Any,
) -> ListOffsetsPartitionResponse:
    wanted = ListOffsetsPartition(partition_index=partition, timestamp=timestamp, **more)
    request = ListOffsetsRequest(topics=[ListOffsetsTopic(name=topic, partitions=[wanted])])
    answer = await peer.ask(request, version, ListOffsetsResponse)
    return answer.topics[0].partitions[0]


async def trim(
    peer: Peer, offset: int, topic: str = "events", partition: int = 0, version: int = 2
) -> DeleteRecordsPartitionResult:
    wanted = DeleteRecordsPartition(partition_index=partition, offset=offset)
    request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name=topic, partitions=[wanted])])
    answer = await peer.ask(request, version, DeleteRecordsResponse)
    return answer.topics[0].partitions[0]


async def epoch_end(
    peer: Peer, epoch: int, version: int = 4, topic: str = "events", **more: Any
) -> EpochEndOffset:
    wanted = OffsetForLeaderPartition(partition=0, leader_epoch=epoch, **more)
    request = OffsetForLeaderEpochRequest(
        topics=[OffsetForLeaderTopic(topic=topic, partitions=[wanted])]
    )
    answer = await peer.ask(request, version, OffsetForLeaderEpochResponse)
    return answer.topics[0].partitions[0]


@pytest.mark.parametrize("version", range(1, 11))
async def test_earliest_and_latest_are_the_ends_of_the_log(peer: Peer, version: int) -> None:
    await peer.create("events")
    for expected in ((0, 0), (0, 5)):
        for which, timestamp in enumerate((EARLIEST, LATEST)):
            found = await list_offset(peer, timestamp, version=version)
            assert code(found.error_code) == "NONE"
            assert (found.offset, found.timestamp) == (expected[which], -1)
        await peer.produce("events", batch(5))
    await trim(peer, 3)
    assert (await list_offset(peer, EARLIEST, version=version)).offset == 3
    found = await list_offset(peer, LATEST, version=version)
    assert found.leader_epoch == (0 if version >= 4 else -1)


async def test_time_gets_the_first_record_at_or_after_it(peer: Peer) -> None:
    await peer.create("events")
    for start in (0, 100, 200):
        await peer.produce("events", batch(5, timestamp=NOW + start))
    for past, offset in ((-(10**6), 0), (0, 0), (3, 3), (5, 5), (100, 5), (204, 14)):
        found = await list_offset(peer, NOW + past)
        assert found.offset == offset
        assert found.timestamp >= NOW + past
        assert found.leader_epoch == 0
    found = await list_offset(peer, NOW + 205)
    assert (found.offset, found.timestamp, code(found.error_code)) == (-1, -1, "NONE")


async def test_other_kinds_of_offset(peer: Peer) -> None:
    await peer.create("events")
    assert (await list_offset(peer, MAX_TIMESTAMP)).offset == -1
    for shift in (5, 90, 10, 90):
        await peer.produce("events", batch(timestamp=NOW + shift))
    found = await list_offset(peer, MAX_TIMESTAMP)
    assert (found.offset, found.timestamp) == (1, NOW + 90)
    await trim(peer, 1)
    assert (await list_offset(peer, EARLIEST_LOCAL)).offset == 1
    assert (await list_offset(peer, LATEST_TIERED)).offset == -1
    for unknown in (-6, -(2**63)):
        assert code((await list_offset(peer, unknown)).error_code) == "UNSUPPORTED_VERSION"


async def test_newest_record_is_found_when_a_newer_one_lies_below_the_start(peer: Peer) -> None:
    await peer.create("events")
    for shift in (100, 10, 30, 20):
        await peer.produce("events", batch(timestamp=NOW + shift))
    await trim(peer, 1)
    found = await list_offset(peer, MAX_TIMESTAMP)
    assert (found.offset, found.timestamp) == (2, NOW + 30)


async def test_list_offsets_tells_what_is_not_there(peer: Peer) -> None:
    await peer.create("events")
    for topic, partition in (("nowhere", 0), ("events", 1), ("events", -1)):
        found = await list_offset(peer, LATEST, topic, partition)
        assert code(found.error_code) == "UNKNOWN_TOPIC_OR_PARTITION"
    found = await list_offset(peer, LATEST, current_leader_epoch=3)
    assert code(found.error_code) == "UNKNOWN_LEADER_EPOCH"


@pytest.mark.parametrize("version", range(3))
async def test_delete_records_moves_the_start(peer: Peer, version: int) -> None:
    await peer.create("events")
    await peer.produce("events", batch(10))
    result = await trim(peer, 4, version=version)
    assert (code(result.error_code), result.low_watermark) == ("NONE", 4)
    assert (await trim(peer, 2, version=version)).low_watermark == 4
    assert (await trim(peer, -1, version=version)).low_watermark == 10


async def test_delete_records_refuses_what_cannot_be(peer: Peer) -> None:
    await peer.create("events")
    await peer.create("compacted", cleanup_policy="compact")
    await peer.create("both", cleanup_policy="compact,delete")
    for topic, partition, offset, error in (
        ("events", 0, 1, "OFFSET_OUT_OF_RANGE"),
        ("events", 0, -2, "OFFSET_OUT_OF_RANGE"),
        ("events", 1, 0, "UNKNOWN_TOPIC_OR_PARTITION"),
        ("nowhere", 0, 0, "UNKNOWN_TOPIC_OR_PARTITION"),
        ("compacted", 0, 0, "POLICY_VIOLATION"),
        ("both", 0, 0, "NONE"),
    ):
        result = await trim(peer, offset, topic, partition)
        assert code(result.error_code) == error, (topic, partition, offset)
        assert result.low_watermark == (0 if error == "NONE" else -1)


@pytest.mark.parametrize("version", [2, 3, 4])
async def test_epoch_ends_where_the_next_began(tmp_path: Any, version: int) -> None:
    where: Any = {"storage": f"memory://epochs-{version}", "coordinator": f"embedded:{tmp_path}"}
    for life in range(3):
        async with running(**where) as broker, connected(broker) as peer:
            if life == 0:
                await peer.create("events")
            await peer.produce("events", batch(2))
            if life == 2:
                for epoch, expected in ((0, (0, 2)), (1, (1, 4)), (2, (2, 6)), (3, (-1, -1))):
                    found = await epoch_end(peer, epoch, version)
                    assert code(found.error_code) == "NONE"
                    assert (found.leader_epoch, found.end_offset) == expected
    from odradek.memory.storage import forget_memory_store

    forget_memory_store(f"epochs-{version}")


async def test_epoch_end_is_fenced_and_tells_what_is_not_there(peer: Peer, broker: Broker) -> None:
    await peer.create("events")
    found = await epoch_end(peer, 0, current_leader_epoch=1)
    assert code(found.error_code) == "UNKNOWN_LEADER_EPOCH"
    found = await epoch_end(peer, 0, topic="nowhere")
    assert (code(found.error_code), found.end_offset) == ("UNKNOWN_TOPIC_OR_PARTITION", -1)


@pytest.mark.parametrize(
    ("timestamp", "first"),
    [(LATEST, 1), (EARLIEST, 1), (MAX_TIMESTAMP, 7), (EARLIEST_LOCAL, 8), (LATEST_TIERED, 9)],
)
async def test_kinds_of_offset_belong_to_the_version_that_brought_them(
    peer: Peer, timestamp: int, first: int
) -> None:
    await peer.create("events")
    for version in range(1, 11):
        found = await list_offset(peer, timestamp, version=version)
        refused = version < first
        assert code(found.error_code) == ("UNSUPPORTED_VERSION" if refused else "NONE")
        if refused:
            assert (found.offset, found.timestamp) == (-1, -1)
