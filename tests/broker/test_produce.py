"""Produce, version by version and error by error."""

from __future__ import annotations

import logging
from uuid import UUID

import pytest
from tests.broker.peer import (
    NOW,
    FixedHost,
    Peer,
    batch,
    code,
    connected,
    metas_of,
    produce_request,
    records_of,
)

from odradek.broker import Broker
from odradek.record import CompressionType, parse_header
from odradek.record.batch import CRC_POSITION
from odradek.wire.api.a00_produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)


@pytest.mark.parametrize("version", range(3, 13))
@pytest.mark.parametrize("acks", [-1, 1])
async def test_batch_is_appended_and_answered(peer: Peer, version: int, acks: int) -> None:
    await peer.create("events")
    for offset in (0, 3):
        result = await peer.produce("events", batch(3), version=version, acks=acks)
        assert code(result.error_code) == "NONE"
        assert result.base_offset == offset
        assert result.log_append_time_ms == -1
        assert result.error_message is None
        if version >= 5:
            assert result.log_start_offset == 0
    assert [r.offset for r in records_of(await peer.fetch("events"))] == list(range(6))


async def test_topic_is_named_by_its_id_from_version_13_on(peer: Peer) -> None:
    topic_id = (await peer.create("events")).topic_id
    result = await peer.produce("", batch(), version=13, topic_id=topic_id)
    assert code(result.error_code) == "NONE"
    result = await peer.produce("", batch(), version=13, topic_id=UUID(int=99))
    assert code(result.error_code) == "UNKNOWN_TOPIC_ID"


@pytest.mark.parametrize("compression", list(CompressionType))
async def test_batch_is_kept_as_it_was_compressed(peer: Peer, compression: CompressionType) -> None:
    await peer.create("events")
    data = batch(5, 100, compression=compression)
    assert code((await peer.produce("events", data)).error_code) == "NONE"
    (meta,) = metas_of(await peer.fetch("events"))
    assert meta.compression == compression
    assert meta.size == len(data)


async def test_zstd_needs_version_7(peer: Peer) -> None:
    await peer.create("events")
    data = batch(5, 100, compression=CompressionType.ZSTD)
    assert (
        code((await peer.produce("events", bytes(data), version=6)).error_code)
        == "UNSUPPORTED_COMPRESSION_TYPE"
    )
    assert code((await peer.produce("events", bytes(data), version=7)).error_code) == "NONE"


def wrong_crc() -> bytes:
    data = batch()
    data[CRC_POSITION] ^= 1
    return bytes(data)


@pytest.mark.parametrize(
    ("data", "error"),
    [
        pytest.param(b"", "INVALID_RECORD", id="no batch"),
        pytest.param(None, "INVALID_RECORD", id="null"),
        pytest.param(b"x" * 70, "CORRUPT_MESSAGE", id="rubbish"),
        pytest.param(wrong_crc(), "CORRUPT_MESSAGE", id="wrong CRC"),
        pytest.param(bytes(batch())[:-1], "INVALID_RECORD", id="cut"),
        pytest.param(bytes(batch()) * 2, "INVALID_RECORD", id="two batches"),
        pytest.param(batch(1, 2**20 + 20), "MESSAGE_TOO_LARGE", id="too large"),
        pytest.param(batch(control=True, producer_id=1, producer_epoch=0, base_sequence=0),
                     "INVALID_RECORD", id="control batch"),
        pytest.param(batch(transactional=True, producer_id=1, producer_epoch=0, base_sequence=0),
                     "INVALID_TXN_STATE", id="transactional"),
        pytest.param(batch(timestamp=NOW + 3_600_001), "INVALID_TIMESTAMP", id="in the future"),
    ],
)  # fmt: skip
async def test_batch_that_breaks_a_rule_is_refused(
    peer: Peer, data: bytes | None, error: str
) -> None:
    await peer.create("events")
    request = produce_request("events", b"")
    request.topic_data[0].partition_data[0].records = data
    answer = await peer.ask(request, 9, ProduceResponse)
    result = answer.responses[0].partition_responses[0]
    assert code(result.error_code) == error
    assert result.base_offset == -1
    assert result.error_message
    assert records_of(await peer.fetch("events")) == []


async def test_record_without_key_is_refused_on_a_compacted_topic(peer: Peer) -> None:
    await peer.create("events", cleanup_policy="compact")
    assert code((await peer.produce("events", batch())).error_code) == "INVALID_RECORD"
    data = batch(keys=[b"key"])
    assert code((await peer.produce("events", data)).error_code) == "NONE"


async def test_batch_larger_than_a_segment_is_refused(peer: Peer) -> None:
    await peer.create("events", segment_bytes="1000")
    data = batch(1, 2000)
    assert code((await peer.produce("events", data)).error_code) == "RECORD_LIST_TOO_LARGE"


async def test_topics_limit_on_batches_counts(peer: Peer) -> None:
    await peer.create("events", max_message_bytes="100")
    assert code((await peer.produce("events", batch(1, 10))).error_code) == "NONE"
    assert code((await peer.produce("events", batch(1, 50))).error_code) == "MESSAGE_TOO_LARGE"


async def test_log_append_time_is_the_brokers(peer: Peer, host: FixedHost) -> None:
    await peer.create("events", message_timestamp_type="LogAppendTime")
    host.now = NOW + 5
    result = await peer.produce("events", batch(2, timestamp=NOW - 1000))
    assert result.log_append_time_ms == NOW + 5
    assert [r.timestamp for r in records_of(await peer.fetch("events"))] == [NOW + 5] * 2


@pytest.mark.parametrize(
    ("topic", "partition", "error"),
    [
        ("nowhere", 0, "UNKNOWN_TOPIC_OR_PARTITION"),
        ("events", 1, "UNKNOWN_TOPIC_OR_PARTITION"),
        ("events", -1, "UNKNOWN_TOPIC_OR_PARTITION"),
        ("events", 2**31 - 1, "UNKNOWN_TOPIC_OR_PARTITION"),
        ("", 0, "UNKNOWN_TOPIC_OR_PARTITION"),
    ],
)
async def test_partition_that_is_not_there_is_unknown(
    peer: Peer, topic: str, partition: int, error: str
) -> None:
    await peer.create("events")
    assert code((await peer.produce(topic, partition=partition)).error_code) == error


@pytest.mark.parametrize("acks", [2, -2, 32767])
async def test_acks_are_all_one_or_none(peer: Peer, acks: int) -> None:
    await peer.create("events")
    result = await peer.produce("events", acks=acks)
    assert code(result.error_code) == "INVALID_REQUIRED_ACKS"
    assert records_of(await peer.fetch("events")) == []


async def test_transactional_ids_are_refused(peer: Peer) -> None:
    await peer.create("events")
    result = await peer.produce("events", transactional_id="t")
    assert code(result.error_code) == "INVALID_TXN_STATE"


async def test_acks_all_needs_the_in_sync_replicas_that_the_topic_asks_for(peer: Peer) -> None:
    await peer.create("events", min_insync_replicas="2")
    assert code((await peer.produce("events", acks=-1)).error_code) == "NOT_ENOUGH_REPLICAS"
    assert code((await peer.produce("events", acks=1)).error_code) == "NONE"
    assert len(records_of(await peer.fetch("events"))) == 1


async def test_partitions_succeed_and_fail_by_themselves(peer: Peer) -> None:
    await peer.create("events", 3)
    request = ProduceRequest(
        acks=-1,
        timeout_ms=1000,
        topic_data=[
            TopicProduceData(
                name="events",
                partition_data=[
                    PartitionProduceData(index=0, records=batch()),
                    PartitionProduceData(index=7, records=batch()),
                    PartitionProduceData(index=2, records=b"rubbish"),
                    PartitionProduceData(index=0, records=batch()),
                ],
            ),
            TopicProduceData(
                name="nowhere", partition_data=[PartitionProduceData(index=0, records=batch())]
            ),
        ],
    )
    answer = await peer.ask(request, 9, ProduceResponse)
    results = {
        topic.name: [
            (p.index, code(p.error_code), p.base_offset) for p in topic.partition_responses
        ]
        for topic in answer.responses
    }
    assert results == {
        "events": [
            (0, "NONE", 0),
            (7, "UNKNOWN_TOPIC_OR_PARTITION", -1),
            (2, "INVALID_RECORD", -1),
            (0, "NONE", 1),
        ],
        "nowhere": [(0, "UNKNOWN_TOPIC_OR_PARTITION", -1)],
    }


@pytest.mark.parametrize("timeout_ms", [0, -1, -(2**31), 2**31 - 1])
async def test_absurd_timeouts_do_no_harm(peer: Peer, timeout_ms: int) -> None:
    await peer.create("events")
    result = await peer.produce("events", timeout_ms=timeout_ms)
    assert code(result.error_code) in ("NONE", "REQUEST_TIMED_OUT")
    assert len(records_of(await peer.fetch("events"))) == 1


# -- acks=0 ------------------------------------------------------------------------------------


async def test_acks_0_gets_no_response(peer: Peer) -> None:
    await peer.create("events")
    for _ in range(3):
        await peer.send(produce_request("events", acks=0), 9)
    found = await peer.fetch("events", min_bytes=3 * len(batch()), max_wait_ms=10_000)
    assert len(records_of(found)) == 3


async def test_acks_0_with_an_error_closes_the_connection_after_what_came_before(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "odradek")
    async with connected(broker) as peer:
        await peer.create("events")
        good = peer.encode(produce_request("events", batch(2)), 9)
        await peer.send_bytes(good + peer.encode(produce_request("bad\n\x1b[31mtopic", acks=0), 9))
        _, answer = await peer.receive()
        assert isinstance(answer, ProduceResponse)
        assert answer.responses[0].partition_responses[0].base_offset == 0
        await peer.ended()
    lost = [r.getMessage() for r in caplog.records if "acks=0" in r.getMessage()]
    assert len(lost) == 1
    assert lost[0].isprintable(), "what the client sent is escaped"


# -- idempotence -------------------------------------------------------------------------------


def numbered(sequence: int, count: int = 1, epoch: int = 0, pid: int = 1000) -> bytearray:
    return batch(count, producer_id=pid, producer_epoch=epoch, base_sequence=sequence)


async def test_retry_is_answered_with_the_offset_of_the_original(peer: Peer) -> None:
    await peer.create("events")
    for sequence in range(6):
        await peer.produce("events", numbered(sequence))
    for sequence in range(1, 6):
        result = await peer.produce("events", numbered(sequence))
        assert (code(result.error_code), result.base_offset) == ("NONE", sequence)
    result = await peer.produce("events", numbered(0))
    assert code(result.error_code) == "OUT_OF_ORDER_SEQUENCE_NUMBER"
    assert len(records_of(await peer.fetch("events"))) == 6


async def test_gap_and_old_epoch_are_refused(peer: Peer) -> None:
    await peer.create("events")
    await peer.produce("events", numbered(0, epoch=1))
    result = await peer.produce("events", numbered(2, epoch=1))
    assert code(result.error_code) == "OUT_OF_ORDER_SEQUENCE_NUMBER"
    result = await peer.produce("events", numbered(1, epoch=0))
    assert code(result.error_code) == "INVALID_PRODUCER_EPOCH"
    result = await peer.produce("events", numbered(0, epoch=2))
    assert code(result.error_code) == "NONE"


async def test_five_batches_in_flight_are_each_appended_once(peer: Peer) -> None:
    await peer.create("events")
    data = b"".join(peer.encode(produce_request("events", numbered(n)), 9) for n in range(5))
    await peer.send_bytes(data)
    again = b"".join(peer.encode(produce_request("events", numbered(n)), 9) for n in range(5))
    await peer.send_bytes(again)
    offsets = []
    for _ in range(10):
        _, answer = await peer.receive()
        assert isinstance(answer, ProduceResponse)
        offsets.append(answer.responses[0].partition_responses[0].base_offset)
    assert offsets == [0, 1, 2, 3, 4] * 2


async def test_stored_bytes_are_what_was_sent_but_for_offset_and_epoch(peer: Peer) -> None:
    await peer.create("events")
    await peer.produce("events", batch(4))
    data = batch(3, 1000, compression=CompressionType.LZ4)
    await peer.produce("events", bytes(data))
    found = await peer.fetch("events", 4)
    assert found.records is not None
    stored = bytes(found.records)  # type: ignore[call-overload]  # decoded: bytes-like
    assert parse_header(stored).base_offset == 4
    assert stored[8:12] == data[8:12]
    assert stored[16:] == data[16:]
