"""Requests that no client here sends, or not so that a test could tell what came of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from uuid import UUID

import pytest
from tests.interop.probe import Probe, batch_of
from tests.interop.process import BrokerProcess

from odradek.errors import ErrorCode
from odradek.record import BatchMeta, Record, assemble, decode_records
from odradek.wire import encode_request
from odradek.wire.api.a01_fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from odradek.wire.api.a03_metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)
from odradek.wire.api.a18_api_versions import ApiVersionsRequest, ApiVersionsResponse
from odradek.wire.api.a20_delete_topics import (
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from odradek.wire.api.a22_init_producer_id import InitProducerIdRequest, InitProducerIdResponse

EMPTY = BatchMeta(
    base_offset=0,
    last_offset=-1,
    size=61,
    leader_epoch=-1,
    attributes=0,
    base_timestamp=-1,
    max_timestamp=-1,
    producer_id=-1,
    producer_epoch=-1,
    base_sequence=-1,
    record_count=0,
)
"""The header of a batch without records."""


def records_of(data: PartitionData) -> list[Record]:
    """Decode the one batch of an answer."""
    assert isinstance(data.records, memoryview)
    return decode_records(data.records)


def test_a_batch_that_is_sent_again_is_stored_once(probe: Probe, topic: str) -> None:
    request = InitProducerIdRequest(
        transactional_id=None, transaction_timeout_ms=60_000, producer_id=-1, producer_epoch=-1
    )
    given = probe.call(request, 4, InitProducerIdResponse)
    assert given.error_code == 0
    who = (given.producer_id, given.producer_epoch)
    batches = [batch_of([b"a", b"b"], producer=(*who, base)) for base in (0, 2, 4, 6, 8, 10)]
    for number, batch in enumerate(batches):
        assert probe.produce(topic, batch).base_offset == 2 * number
    for number in (3, 5, 1):  # the last five are remembered
        again = probe.produce(topic, batches[number])
        assert (again.error_code, again.base_offset) == (0, 2 * number)
    assert probe.end_offset(topic) == 12


@pytest.mark.parametrize(
    ("producer", "code"),
    [
        ((900, 0, 3), ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
        ((900, 1, 1), ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
        ((900, 0, 0), None),
        ((900, 0, 1), None),
        ((901, 0, 5), None),
    ],
    ids=["gap", "new epoch not from 0", "repeated", "next", "unknown producer"],
)
def test_sequences_have_no_gaps(
    producer: tuple[int, int, int], code: ErrorCode | None, probe: Probe, topic: str
) -> None:
    assert probe.produce(topic, batch_of([b"a"], producer=(900, 0, 0))).error_code == 0
    result = probe.produce(topic, batch_of([b"b"], producer=producer))
    assert result.error_code == (code or 0), ErrorCode(result.error_code)


def test_an_old_epoch_is_fenced(probe: Probe, topic: str) -> None:
    assert probe.produce(topic, batch_of([b"a"], producer=(902, 3, 0))).error_code == 0
    result = probe.produce(topic, batch_of([b"b"], producer=(902, 2, 1)))
    assert result.error_code == ErrorCode.INVALID_PRODUCER_EPOCH


def test_a_fetch_waits_for_what_it_asked_for(
    broker: BrokerProcess, probe: Probe, topic: str
) -> None:
    request = probe.fetch_request(topic, 0, 0, max_wait_ms=20_000, min_bytes=1000)
    started = time.monotonic()
    probe.send(request, 12)
    with Probe(broker.address) as writer:
        writer.produce_values(topic, [b"too little"])
        writer.produce_values(topic, [b"x" * 1000])
    (data,) = probe.receive(12, FetchResponse).responses[0].partitions
    assert time.monotonic() - started < 10, "the second write should have ended the wait"
    assert data.records is not None
    assert len(data.records) > 1000
    assert data.high_watermark == 2


def test_a_fetch_waits_no_longer_than_it_said(probe: Probe, topic: str) -> None:
    started = time.monotonic()
    data = probe.fetch(topic, 0, 0, max_wait_ms=300, min_bytes=1)
    assert 0.25 < time.monotonic() - started < 5
    assert data.error_code == 0
    assert data.records == b"", "empty, not null: librdkafka cannot read a null there"


def test_an_error_in_a_partition_ends_the_wait(probe: Probe, topic: str) -> None:
    partitions = [
        FetchPartition(partition=number, fetch_offset=0, partition_max_bytes=1000)
        for number in (0, 7)
    ]
    request = FetchRequest(
        max_wait_ms=20_000, min_bytes=1, topics=[FetchTopic(topic=topic, partitions=partitions)]
    )
    started = time.monotonic()
    answered = probe.call(request, 12, FetchResponse).responses[0].partitions
    assert time.monotonic() - started < 10
    assert [each.error_code for each in answered] == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


def test_fetching_inside_of_a_batch_gives_the_whole_batch(probe: Probe, topic: str) -> None:
    probe.produce_values(topic, [b"%d" % number for number in range(10)])
    probe.produce_values(topic, [b"%d" % number for number in range(10, 20)])
    data = probe.fetch(topic, 0, 15)
    assert [record.offset for record in records_of(data)] == list(range(10, 20))


@pytest.mark.parametrize("offset", [-1, 21, 1 << 40])
def test_offsets_out_of_range_are_told(offset: int, probe: Probe, topic: str) -> None:
    probe.produce_values(topic, [b"x"] * 20)
    data = probe.fetch(topic, 0, offset)
    assert data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert probe.fetch(topic, 0, 20).error_code == 0, "the end is in range"


def test_one_batch_is_given_even_when_it_is_larger_than_the_limit(probe: Probe, topic: str) -> None:
    for _ in range(3):
        probe.produce_values(topic, [b"x" * 5000])
    data = probe.fetch(topic, 0, 0, max_bytes=100)
    assert len(records_of(data)) == 1
    assert data.records is not None
    assert 5000 < len(data.records) < 6000


def test_a_thousand_partitions_are_fetched_at_once(probe: Probe, topic_name: str) -> None:
    probe.create_topic(topic_name, partitions=1000)
    probe.produce_values(topic_name, [b"here"], partition=777)
    partitions = [
        FetchPartition(partition=number, fetch_offset=0, partition_max_bytes=1000)
        for number in range(1000)
    ]
    request = FetchRequest(
        max_wait_ms=0, topics=[FetchTopic(topic=topic_name, partitions=partitions)]
    )
    answered = probe.call(request, 12, FetchResponse).responses[0].partitions
    assert {each.error_code for each in answered} == {0}
    assert [each.partition_index for each in answered if each.records] == [777]


@pytest.mark.parametrize(
    ("batch", "code"),
    [
        (b"", ErrorCode.INVALID_RECORD),
        (batch_of([b"x"])[:-1], ErrorCode.INVALID_RECORD),
        (batch_of([b"x"])[:-1] + b"?", ErrorCode.CORRUPT_MESSAGE),
        (batch_of([b"x"]) * 2, ErrorCode.INVALID_RECORD),
        (batch_of([b"x" * 1_050_000]), ErrorCode.MESSAGE_TOO_LARGE),
        (bytes(assemble(EMPTY, b"")), ErrorCode.INVALID_RECORD),
    ],
    ids=["nothing", "cut", "damaged", "two at once", "too large", "no record"],
)
def test_what_is_no_good_batch_is_refused(
    batch: bytes, code: ErrorCode, probe: Probe, topic: str
) -> None:
    result = probe.produce(topic, batch)
    assert ErrorCode(result.error_code) is code, result.error_message
    assert probe.end_offset(topic) == 0
    assert probe.produce(topic, batch_of([b"good"])).base_offset == 0


def test_acknowledgements_must_be_none_one_or_all(probe: Probe, topic: str) -> None:
    result = probe.produce(topic, batch_of([b"x"]), acks=2)
    assert result.error_code == ErrorCode.INVALID_REQUIRED_ACKS


def test_an_unknown_version_of_api_versions_is_answered_with_version_0(probe: Probe) -> None:
    request = ApiVersionsRequest(client_software_name="t", client_software_version="1")
    parts = encode_request(request, 3, 1)
    frame = bytearray(b"".join(parts))  # type: ignore[arg-type]  # no part is a range of a file
    frame[4 + 2 : 4 + 4] = (99).to_bytes(2)
    probe.send_frame(bytes(frame))
    answer = probe.receive(0, ApiVersionsResponse)
    assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
    offered = {each.api_key: (each.min_version, each.max_version) for each in answer.api_keys}
    assert offered[18] == (0, 4)
    assert offered[0][0] == 0, "librdkafka before 2.11.1 compresses nothing otherwise"
    assert 10 in offered, "librdkafka sends lz4 uncompressed otherwise"
    assert 22 in offered, "idempotent producers need it"
    assert not {71, 72} & set(offered), "clients would push telemetry"


class TestUnknownTopic:
    """Answered by what it is, so that clients come back, or give up, as they should."""

    def test_is_not_created_by_who_does_not_want_it(self, probe: Probe, topic_name: str) -> None:
        (topic,) = _metadata(probe, topic_name, create=False)
        assert topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        (topic,) = _metadata(probe, topic_name, create=True)
        assert topic.error_code == 0
        assert [each.leader_id for each in topic.partitions] == [1]

    def test_is_not_created_where_that_is_switched_off(
        self, own_broker: Callable[..., BrokerProcess], topic_name: str
    ) -> None:
        broker = own_broker(broker__auto_create_topics="false")
        with Probe(broker.address) as probe:
            (topic,) = _metadata(probe, topic_name, create=True)
            assert topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def test_is_told_to_who_writes_and_reads(self, probe: Probe, topic_name: str) -> None:
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert probe.produce(topic_name, batch_of([b"x"])).error_code == unknown
        assert probe.fetch(topic_name, 0, 0).error_code == unknown

    def test_has_another_code_by_its_id(self, probe: Probe) -> None:
        partition = FetchPartition(partition=0, partition_max_bytes=100)
        topic = FetchTopic(topic_id=UUID(int=77), partitions=[partition])
        answer = probe.call(FetchRequest(topics=[topic]), 13, FetchResponse)
        assert answer.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID

    @pytest.mark.parametrize("name", ["a b", "x" * 250, ".", ""])
    def test_with_a_bad_name_is_told_apart(self, name: str, probe: Probe) -> None:
        for create in (False, True):
            (topic,) = _metadata(probe, name, create=create)
            assert topic.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


def _metadata(probe: Probe, name: str, create: bool) -> list[MetadataResponseTopic]:
    request = MetadataRequest(
        topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=create
    )
    return probe.call(request, 12, MetadataResponse).topics


def test_a_deleted_topics_partition_is_unknown(probe: Probe, topic: str) -> None:
    probe.produce_values(topic, [b"x"])
    request = DeleteTopicsRequest(topics=[DeleteTopicState(name=topic)], timeout_ms=10_000)
    (deleted,) = probe.call(request, 6, DeleteTopicsResponse).responses
    assert deleted.error_code == 0
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert probe.fetch(topic, 0, 0).error_code == code
    assert probe.produce(topic, batch_of([b"x"])).error_code == code
