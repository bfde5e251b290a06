"""Messages survive the way to bytes and back, and what does not fit is named."""

from __future__ import annotations

import struct
from random import Random
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odradek.errors import UnsupportedVersion
from odradek.wire import (
    API,
    NULL_UUID,
    Api,
    Message,
    decode,
    decode_correlation_id,
    decode_request,
    decode_request_header,
    decode_response,
    encode,
    encode_request,
    encode_response,
)
from odradek.wire.api.a00_produce import (
    LeaderIdAndEpoch,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from odradek.wire.api.a01_fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from odradek.wire.api.a03_metadata import MetadataRequest, MetadataRequestTopic
from odradek.wire.api.a18_api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from odradek.wire.api.a19_create_topics import CreateTopicsRequest
from odradek.wire.api.a32_describe_configs import DescribeConfigsRequest
from odradek.wire.api.a36_sasl_authenticate import SaslAuthenticateRequest
from odradek.wire.api.a47_offset_delete import OffsetDeleteResponse
from odradek.wire.api.a68_consumer_group_heartbeat import (
    Assignment,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from odradek.wire.api.a69_consumer_group_describe import ConsumerGroupDescribeResponse

APIS = pytest.mark.parametrize("api", API.values(), ids=lambda api: api.name)


def join(parts: list[Any]) -> memoryview:
    return memoryview(bytearray().join(parts))


@APIS
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_message_survives_encoding_and_decoding(api: Api, data: Any, make_message: Any) -> None:
    version = data.draw(st.integers(api.min, api.max), label="version")
    random = data.draw(st.randoms(use_true_random=False))
    request = make_message(api.request, version, random)
    frame = join(encode_request(request, version, 77, "client"))
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    header = decode_request_header(frame[4:])
    assert header[:4] == (api.key, version, 77, "client")
    assert decode_request(header, frame[4:]) == request

    response = make_message(api.response, version, random)
    frame = join(encode_response(api.key, version, 78, response))
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    assert decode_correlation_id(frame[4:]) == 78
    assert decode_response(api.key, version, frame[4:]) == response
    assert decode_response(api.response, version, frame[4:]) == response


def fetch_response(records: Any) -> FetchResponse:
    partition = PartitionData(partition_index=1, high_watermark=9, records=records)
    topics = [FetchableTopicResponse(topic="events", partitions=[partition])]
    return FetchResponse(responses=topics)


class FileRange:
    """Stands for records that are not in memory."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length


@pytest.mark.parametrize("version", [4, 11, 12])
class TestRecords:
    def test_are_handed_on_as_the_object_they_are(self, version: int) -> None:
        records = FileRange(3_000_000_000 // 2)
        parts = encode_response(1, version, 5, fetch_response(records))
        assert parts[1] is records
        assert int.from_bytes(bytes(parts[0])[:4], "big") == sum(map(len, parts)) - 4  # type: ignore[arg-type]

    def test_large_ones_in_memory_are_not_copied(self, version: int) -> None:
        records = memoryview(bytearray(512))
        assert encode(fetch_response(records), version)[1] is records

    def test_small_ones_in_memory_are_merged(self, version: int) -> None:
        message = fetch_response(memoryview(b"r" * 511))
        (part,) = encode(message, version)
        assert decode(FetchResponse, version, memoryview(bytes(part))) == message  # type: ignore[arg-type]

    def test_small_ones_in_files_are_not(self, version: int) -> None:
        records = FileRange(1)
        assert encode(fetch_response(records), version)[1] is records

    def test_an_empty_file_range_is_no_part(self, version: int) -> None:
        parts = encode(fetch_response(FileRange(0)), version)
        assert all(isinstance(part, bytearray) for part in parts)
        assert join(parts) == join(encode(fetch_response(b""), version))

    def test_parts_of_several_partitions_keep_their_order(self, version: int) -> None:
        values: list[Any] = [b"a" * 600, b"b", FileRange(7), b"", b"c" * 600]
        partitions = [PartitionData(partition_index=i, records=r) for i, r in enumerate(values)]
        message = FetchResponse(
            responses=[FetchableTopicResponse(topic="t", partitions=partitions)]
        )
        parts = encode_response(1, version, 1, message)
        assert [part for part in parts if not isinstance(part, bytearray)] == [
            values[0],
            values[2],
            values[4],
        ]
        wire = join([part if isinstance(part, bytes | bytearray) else b"?" * 7 for part in parts])
        decoded = decode_response(FetchResponse, version, wire[4:])
        got = [p.records for p in decoded.responses[0].partitions]
        assert got == [values[0], b"b", b"?" * 7, b"", values[4]]

    def test_are_empty_and_not_null_by_default(self, version: int) -> None:
        # librdkafka fails to parse a negative size.
        message = FetchResponse(
            responses=[FetchableTopicResponse(topic="t", partitions=[PartitionData()])]
        )
        decoded = decode(FetchResponse, version, join(encode(message, version)))
        records = decoded.responses[0].partitions[0].records
        assert records is not None
        assert len(records) == 0

    def test_are_decoded_as_a_writable_slice_of_the_buffer(self, version: int) -> None:
        buffer = bytearray().join(encode(fetch_response(b"r" * 600), version))  # type: ignore[arg-type]
        decoded = decode(FetchResponse, version, memoryview(buffer))
        records = decoded.responses[0].partitions[0].records
        assert isinstance(records, memoryview)
        at = buffer.index(b"rrr")
        records[0] = 0x21
        assert buffer[at] == 0x21


def test_null_records_of_a_produce_request_are_none() -> None:
    topic = TopicProduceData(name="t", partition_data=[PartitionProduceData(records=None)])
    for version in (3, 9):
        message = ProduceRequest(topic_data=[topic])
        assert decode(ProduceRequest, version, join(encode(message, version))) == message


class TestHeaders:
    @pytest.mark.parametrize(("version", "size"), [(8, 8), (9, 9)])
    def test_response_header_has_tagged_fields_in_flexible_versions(
        self, version: int, size: int
    ) -> None:
        body = join(encode(ProduceResponse(), version))
        frame = join(encode_response(0, version, -2, ProduceResponse()))
        assert frame[size:] == body
        assert bytes(frame[4:8]) == b"\xff\xff\xff\xfe"

    @pytest.mark.parametrize("version", range(5))
    def test_response_header_of_api_versions_is_always_version_0(self, version: int) -> None:
        message = ApiVersionsResponse(api_keys=[ApiVersion(api_key=18, max_version=4)])
        frame = join(encode_response(18, version, 3, message))
        assert frame[8:] == join(encode(message, version))
        assert decode_response(18, version, frame[4:]) == message

    @pytest.mark.parametrize(("version", "size"), [(2, 10), (3, 11)])
    @pytest.mark.parametrize("client_id", [None, "", "me", "größe", "x" * 32767])
    def test_request_header_is_followed_by_the_body(
        self, version: int, size: int, client_id: str | None
    ) -> None:
        message = ApiVersionsRequest()
        frame = join(encode_request(message, version, 1 << 30, client_id))
        header = decode_request_header(frame[4:])
        assert header[:4] == (18, version, 1 << 30, client_id)
        assert header.body_offset == size + len((client_id or "").encode())
        assert frame[4 + header.body_offset :] == join(encode(message, version))

    def test_unknown_tagged_fields_are_skipped(self) -> None:
        frame = bytes.fromhex("0003 000c 00000007 0002 6d65") + b"\2\0\3abc\x81\x01\0"
        body = join(encode(MetadataRequest(), 12))
        header = decode_request_header(memoryview(frame + bytes(body)))
        assert header.body_offset == len(frame)
        assert decode_request(header, memoryview(frame + bytes(body))) == MetadataRequest()
        response = b"\0\0\0\7" + b"\1\5\2zz" + join(encode(ProduceResponse(), 9))
        assert decode_response(0, 9, memoryview(response)) == ProduceResponse()

    @pytest.mark.parametrize("version", [-1, 5, 99])
    def test_request_of_an_unknown_version_is_told_apart(self, version: int) -> None:
        raw = (18).to_bytes(2, "big") + version.to_bytes(2, "big", signed=True)
        view = memoryview(raw + b"\0\0\0\7\0\1m" + (b"\0" if version > 0 else b""))
        header = decode_request_header(view)
        assert tuple(header) == (18, version, 7, "m", len(view))
        with pytest.raises(UnsupportedVersion) as caught:
            decode_request(header, view)
        assert (caught.value.api_key, caught.value.api_version) == (18, version)

    @pytest.mark.parametrize("key", [-1, 4, 71, 32767])
    def test_request_of_an_unknown_api_is_told_apart(self, key: int) -> None:
        view = memoryview(key.to_bytes(2, "big", signed=True) + b"\0\0\0\0\0\7\0\1m")
        header = decode_request_header(view)
        assert tuple(header) == (key, 0, 7, "m", 11)
        with pytest.raises(UnsupportedVersion):
            decode_request(header, view)
        with pytest.raises(UnsupportedVersion):
            decode_response(key, 0, view)


@APIS
def test_versions_outside_of_the_table_are_refused(api: Api) -> None:
    for version in (api.min - 1, api.max + 1):
        for cls in (api.request, api.response):
            with pytest.raises(UnsupportedVersion):
                encode(cls(), version)
            with pytest.raises(UnsupportedVersion):
                decode(cls, version, memoryview(b""))
        with pytest.raises(UnsupportedVersion):
            encode_response(api.key, version, 0, api.response())


def test_unknown_tagged_fields_of_bodies_are_skipped(
    messages: list[type[Message]], make_message: Any
) -> None:
    """Every flexible message ends with the count of its own tagged fields."""
    for cls in messages:
        version = cls.versions.last
        if cls.flexible.has(version):
            message = make_message(cls, version, Random(1))
            for name, field in cls.__fields__.items():
                if field.is_tagged(version):
                    setattr(message, name, field.fresh_default())
            raw = bytes(join(encode(message, version)))
            assert raw[-1] == 0
            more = raw[:-1] + b"\2\x64\0\xf0\x01\3new"
            assert decode(cls, version, memoryview(more)) == message, cls


class TestTaggedFields:
    def test_absent_ones_take_no_bytes(self) -> None:
        one = ProduceResponse(
            responses=[TopicProduceResponse(partition_responses=[PartitionProduceResponse()])]
        )
        assert len(join(encode(one, 10))) == len(join(encode(one, 9)))

    def test_present_ones_are_written_in_the_order_of_their_tags(self) -> None:
        message = FetchRequest(cluster_id="c")
        raw = bytes(join(encode(message, 12)))
        assert raw.endswith(b"\1\0\2\2c")
        assert decode(FetchRequest, 12, memoryview(raw)) == message

    def test_struct_is_none_when_absent(self) -> None:
        leader = LeaderIdAndEpoch(leader_id=4, leader_epoch=2)
        for value in (None, leader):
            partition = PartitionProduceResponse(current_leader=value)
            topic = TopicProduceResponse(partition_responses=[partition])
            raw = join(encode(ProduceResponse(responses=[topic]), 10))
            got = decode(ProduceResponse, 10, raw)
            assert got.responses[0].partition_responses[0].current_leader == value


def test_nullable_struct_is_none_when_null() -> None:
    partitions = [TopicPartitions(topic_id=UUID(int=5), partitions=[1, 2])]
    for value in (None, Assignment(topic_partitions=partitions)):
        message = ConsumerGroupHeartbeatResponse(assignment=value)
        raw = join(encode(message, 0))
        assert decode(ConsumerGroupHeartbeatResponse, 0, raw).assignment == value


class TestFieldThatTheVersionLacks:
    def test_is_an_error_when_it_says_something(self) -> None:
        with pytest.raises(ValueError, match=r"MetadataRequest v3 .*allow_auto_topic_creation"):
            encode(MetadataRequest(allow_auto_topic_creation=False), 3)

    def test_is_named_with_its_path(self) -> None:
        topics = [MetadataRequestTopic(name="a"), MetadataRequestTopic(topic_id=UUID(int=1))]
        fetch = FetchRequest(
            topics=[FetchTopic(topic="t", partitions=[FetchPartition(last_fetched_epoch=3)])],
            session_epoch=5,  # ignorable, and absent as well
        )
        with pytest.raises(ValueError, match=r"topics\[0\].partitions\[0\].last_fetched_epoch"):
            encode(fetch, 6)
        encode(MetadataRequest(topics=topics), 9)  # topic_id is ignorable

    def test_is_left_out_when_it_is_ignorable(self) -> None:
        message = ApiVersionsRequest(client_software_name="me")
        assert len(join(encode(message, 0))) == 0

    def test_has_its_default_after_decoding(self) -> None:
        assert decode(MetadataRequest, 0, memoryview(b"\0\0\0\0")).allow_auto_topic_creation
        assert decode(FetchRequest, 4, join(encode(FetchRequest(), 4))).session_epoch == -1


@pytest.mark.parametrize(
    ("message", "version", "problem"),
    [
        (ProduceRequest(acks=1 << 15), 9, "acks is 32768, not an integer of 16 bits"),
        (ProduceRequest(acks=None), 9, "acks is None"),  # type: ignore[arg-type]
        (ProduceRequest(transactional_id="x" * 40000), 9, "transactional_id is longer"),
        (ProduceRequest(transactional_id="x" * 40000), 3, "transactional_id is longer"),
        (
            ProduceRequest(transactional_id="\ud800"),
            3,
            "transactional_id is text with a lone surrogate",
        ),
        (ProduceRequest(topic_data=None), 9, "topic_data is None"),  # type: ignore[arg-type]
        (ProduceRequest(topic_data=[1]), 9, r"topic_data\[0\] is 1, not a Topic"),  # type: ignore[list-item]
        (MetadataRequest(topics=None), 0, "topics is None"),
        (MetadataRequest(topics=[MetadataRequestTopic(topic_id="x")]), 12, "not a UUID"),  # type: ignore[arg-type]
        (MetadataRequest(topics=[MetadataRequestTopic()]), 9, "name is None"),
        (CreateTopicsRequest(topics=5), 5, "topics is 5, not a list"),  # type: ignore[arg-type]
        (SaslAuthenticateRequest(auth_bytes="x"), 0, "auth_bytes is not bytes"),  # type: ignore[arg-type]
        (SaslAuthenticateRequest(auth_bytes="x"), 2, "auth_bytes is not bytes"),  # type: ignore[arg-type]
        (fetch_response(7), 12, "records has no length"),
        (fetch_response(FileRange(1 << 31)), 11, "records is longer than 2147483647 bytes"),
    ],
)
def test_value_that_does_not_fit_is_an_error_that_names_it(
    message: Message, version: int, problem: str
) -> None:
    if isinstance(message, MetadataRequest) and message.topics and version == 9:
        message.topics[0].name = None
    with pytest.raises(ValueError, match=problem):
        encode(message, version)


def test_response_of_another_api_is_refused() -> None:
    with pytest.raises(ValueError, match="ProduceResponse does not answer requests of API key 1"):
        encode_response(1, 9, 0, ProduceResponse())


def test_frame_whose_size_does_not_fit_is_refused() -> None:
    partitions = [PartitionData(records=FileRange(1 << 30)) for _ in range(2)]
    message = FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=partitions)])
    assert len(encode(message, 12)) == 5
    with pytest.raises(ValueError, match="FetchResponse v12 cannot be framed: 2147483"):
        encode_response(1, 12, 0, message)


@pytest.mark.parametrize("correlation_id", [1 << 31, None])
def test_correlation_id_that_does_not_fit_is_refused(correlation_id: Any) -> None:
    with pytest.raises(ValueError, match="correlation id"):
        encode_request(ApiVersionsRequest(), 0, correlation_id)
    with pytest.raises(ValueError, match="correlation id"):
        encode_response(18, 0, correlation_id, ApiVersionsResponse())


def test_client_id_that_is_too_long_is_refused() -> None:
    with pytest.raises(ValueError, match="client id"):
        encode_request(ApiVersionsRequest(), 0, 0, "x" * 32768)


class TestStruct:
    def test_defaults_are_kafkas_and_not_shared(self) -> None:
        one, other = FetchRequest(), FetchRequest()
        assert (one.replica_id, one.max_bytes, one.rack_id) == (-1, 0x7FFFFFFF, "")
        assert one.cluster_id is None
        assert one.topics is not other.topics
        assert TopicProduceData().topic_id == NULL_UUID
        first = ConsumerGroupDescribeResponse()
        assert first == ConsumerGroupDescribeResponse()

    def test_unknown_fields_are_refused(self) -> None:
        with pytest.raises(TypeError):
            FetchRequest(nonsense=1)  # type: ignore[call-arg]
        with pytest.raises(AttributeError):
            FetchRequest().nonsense = 1  # type: ignore[attr-defined]

    def test_instances_differ_by_value(self) -> None:
        assert DescribeConfigsRequest() == DescribeConfigsRequest()
        assert DescribeConfigsRequest() != DescribeConfigsRequest(include_synonyms=True)
        assert DescribeConfigsRequest() != FetchRequest()

    def test_repr_shows_no_byte_strings(self) -> None:
        shown = repr(SaslAuthenticateRequest(auth_bytes=b"secret"))
        assert shown == "SaslAuthenticateRequest(auth_bytes=<6 bytes>)"


def test_responses_of_apis_that_are_never_flexible_have_the_short_header() -> None:
    answer = OffsetDeleteResponse(error_code=69)
    frame = bytes(join(encode_response(47, 0, 1, answer)))
    assert frame == struct.pack("!iihii", 14, 1, 69, 0, 0)  # as Apache Kafka 4.3.1 sends it
    assert decode_response(47, 0, frame[4:]) == answer
