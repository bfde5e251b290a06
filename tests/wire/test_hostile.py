"""Bytes that are not a message raise MalformedMessage, nothing else, and cost little memory."""

from __future__ import annotations

import tracemalloc
from contextlib import suppress
from random import Random
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odradek.errors import MalformedMessage, UnsupportedVersion
from odradek.wire import (
    API,
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
from odradek.wire.api.a00_produce import ProduceRequest
from odradek.wire.api.a03_metadata import MetadataRequest
from odradek.wire.api.a11_join_group import JoinGroupRequest, JoinGroupRequestProtocol
from odradek.wire.api.a18_api_versions import ApiVersionsRequest, ApiVersionsResponse
from odradek.wire.api.a42_delete_groups import DeleteGroupsRequest
from odradek.wire.api.a68_consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from odradek.wire.decoder import MAX_ELEMENTS

BIG = b"\x7f\xff\xff\xff"
BIG_VARINT = b"\xff\xff\xff\xff\x07"  # 2**31 - 1


def raw(message: Message, version: int) -> bytes:
    return b"".join(cast("list[bytes]", encode(message, version)))


def refuse(cls: type[Message], version: int, body: bytes, why: str) -> None:
    with pytest.raises(MalformedMessage, match=why):
        decode(cls, version, memoryview(body))


@pytest.mark.parametrize("api", API.values(), ids=lambda api: api.name)
def test_every_prefix_of_a_message_is_refused(api: Api, make_message: Any) -> None:
    for version in range(api.min, api.max + 1):
        for cls in (api.request, api.response):
            body = raw(make_message(cls, version, Random(version)), version)
            for end in range(0, len(body), 1 + len(body) // 40):
                with pytest.raises(MalformedMessage):
                    decode(cls, version, memoryview(body[:end]))
            refuse(cls, version, body + b"\0", r"1 bytes follow its end")


@pytest.mark.parametrize("version", range(11, 14))
def test_librdkafkas_question_for_all_topics_is_understood(version: int) -> None:
    """As version 2.16 sends it: a null array of four bytes, three too many (its issue 5049)."""
    body = bytes.fromhex("00 00 00 00  01 00 00")
    assert decode(MetadataRequest, version, memoryview(body)).topics is None
    refuse(MetadataRequest, version, body[:-1], "2 bytes follow its end")
    refuse(MetadataRequest, version, body + b"\0", "4 bytes follow its end")


def mutate(body: bytes, random: Random) -> bytes:
    out = bytearray(body)
    for _ in range(random.randint(1, 4)):
        at = random.randrange(len(out) + 1)
        kind = random.randrange(6)
        if kind == 0 and at < len(out):
            out[at] ^= 1 << random.randrange(8)
        elif kind == 1 and at < len(out):
            out[at] = random.choice((0, 1, 0x7F, 0x80, 0xFF))
        elif kind == 2:
            out[at : at + 4] = random.choice((BIG, b"\xff" * 4, b"\x80\0\0\0", b"\0\0\0\0"))
        elif kind == 3:
            out[at:at] = random.choice((BIG_VARINT, b"\xff" * 6, b"\x80\x80\0"))
        elif kind == 4:
            del out[at : at + random.randint(1, 8)]
        else:
            out[at:at] = random.randbytes(random.randint(1, 8))
    return bytes(out)


@pytest.mark.parametrize("api", API.values(), ids=lambda api: api.name)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_mutated_bodies_decode_or_are_refused(api: Api, data: Any, make_message: Any) -> None:
    version = data.draw(st.integers(api.min, api.max), label="version")
    random = data.draw(st.randoms(use_true_random=False))
    for cls in (api.request, api.response):
        body = mutate(raw(make_message(cls, version, random), version), random)
        with suppress(MalformedMessage):
            decode(cls, version, memoryview(body))


@pytest.mark.parametrize("api", API.values(), ids=lambda api: api.name)
def test_many_mutated_frames_decode_or_are_refused(api: Api, make_message: Any) -> None:
    random = Random(api.key)
    for version in range(api.min, api.max + 1):
        request = encode_request(make_message(api.request, version, random), version, 1, "me")
        answer = encode_response(api.key, version, 1, make_message(api.response, version, random))
        frame = b"".join(cast("list[bytes]", request))[4:]
        reply = b"".join(cast("list[bytes]", answer))[4:]
        for _ in range(60):
            with suppress(MalformedMessage, UnsupportedVersion):
                view = memoryview(mutate(frame, random))
                decode_request(decode_request_header(view), view)
            with suppress(MalformedMessage):
                decode_response(api.key, version, memoryview(mutate(reply, random)))


@given(junk=st.binary(max_size=64))
def test_junk_is_no_request_header_or_a_whole_one(junk: bytes) -> None:
    try:
        header = decode_request_header(memoryview(junk))
    except MalformedMessage:
        return
    assert header.body_offset <= len(junk)


class TestCounts:
    @pytest.mark.parametrize("count", [BIG, b"\0\0\0\2", b"\xff\xff\xff\xfe", b"\x80\0\0\0"])
    def test_of_an_array_beyond_the_bytes_or_negative(self, count: bytes) -> None:
        refuse(DeleteGroupsRequest, 0, count, "groups_names: (count|length) -?[0-9]+ is out")

    def test_of_an_array_that_is_null_and_may_not_be(self) -> None:
        refuse(DeleteGroupsRequest, 0, b"\xff\xff\xff\xff", "groups_names: length -1")
        refuse(DeleteGroupsRequest, 2, b"\0\0", "groups_names: length -1")
        refuse(MetadataRequest, 0, b"\xff\xff\xff\xff", "topics: length -1")
        assert decode(MetadataRequest, 1, memoryview(b"\xff\xff\xff\xff")).topics is None
        refuse(MetadataRequest, 1, b"\xff\xff\xff\xfe", "topics: length -2")

    def test_of_a_compact_array_beyond_the_bytes(self) -> None:
        refuse(DeleteGroupsRequest, 2, BIG_VARINT + b"\0", "groups_names: count 2147483646")
        refuse(DeleteGroupsRequest, 2, b"\3\1", "groups_names: count 2")

    def test_must_leave_room_for_the_smallest_elements(self) -> None:
        # A member's protocol takes 2 bytes for an empty name and 4 for empty metadata.
        protocols = [JoinGroupRequestProtocol() for _ in range(9)]
        body = raw(JoinGroupRequest(protocols=protocols), 0)
        assert body.endswith(b"\0\0\0\x09" + bytes(54))
        for claimed in (10, 53, 1 << 20):
            forged = body[:-58] + claimed.to_bytes(4, "big") + bytes(54)
            refuse(JoinGroupRequest, 0, forged, f"protocols: count {claimed}")

    def test_of_all_elements_of_a_request_are_limited(self) -> None:
        def names(count: int) -> bytes:
            return count.to_bytes(4, "big") + bytes(2 * count)

        allowed = decode(DeleteGroupsRequest, 0, memoryview(names(MAX_ELEMENTS)))
        assert len(allowed.groups_names) == MAX_ELEMENTS
        refuse(DeleteGroupsRequest, 0, names(MAX_ELEMENTS + 1), "count 1048577")

    def test_of_the_elements_of_a_response_are_not(self) -> None:
        # 200,000 partitions with three replicas each are too many for a request, and allowed.
        count = MAX_ELEMENTS + 1
        body = b"\0\0" + count.to_bytes(4, "big") + bytes(6 * count)
        assert len(decode(ApiVersionsResponse, 0, memoryview(body)).api_keys) == count


class TestVarints:
    def test_longer_than_five_bytes(self) -> None:
        refuse(DeleteGroupsRequest, 2, b"\x80\x80\x80\x80\x80\1", "longer than 5 bytes")

    def test_over_31_bits(self) -> None:
        refuse(DeleteGroupsRequest, 2, b"\xff\xff\xff\xff\x0f", "31 bits")

    def test_in_more_bytes_than_needed_are_read(self) -> None:
        body = b"\x81\x80\0\x80\0"
        assert decode(DeleteGroupsRequest, 2, memoryview(body)) == DeleteGroupsRequest()


class TestStrings:
    def test_beyond_the_bytes(self) -> None:
        refuse(DeleteGroupsRequest, 0, b"\0\0\0\1\0\5abc", "2 bytes are missing")
        refuse(DeleteGroupsRequest, 2, b"\2\6abc\0", "ends early|are missing")

    @pytest.mark.parametrize("length", [b"\xff\xff", b"\x80\0"])
    def test_of_negative_length(self, length: bytes) -> None:
        refuse(DeleteGroupsRequest, 0, b"\0\0\0\1" + length, "groups_names: length -")

    def test_longer_than_kafka_allows(self) -> None:
        text = b"\x81\x80\x02" + b"x" * 32768  # a compact length of 32768
        refuse(DeleteGroupsRequest, 2, b"\2" + text + b"\0", "groups_names: length 32768")

    @pytest.mark.parametrize("text", [b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xc0\x80"])
    def test_that_are_not_utf8(self, text: bytes) -> None:
        size = len(text)
        refuse(DeleteGroupsRequest, 0, b"\0\0\0\1\0" + bytes((size,)) + text, "not UTF-8")
        refuse(DeleteGroupsRequest, 2, b"\2" + bytes((size + 1,)) + text + b"\0", "not UTF-8")


@pytest.mark.parametrize("length", [BIG, b"\0\0\0\5", b"\xff\xff\xff\xfe"])
def test_records_beyond_the_bytes_or_negative_are_refused(length: bytes) -> None:
    head = b"\xff\xff\0\1\0\0\0\0\0\0\0\1\0\1t\0\0\0\1\0\0\0\0"
    refuse(ProduceRequest, 3, head + length + b"abcd", "missing|records: length")


class TestTaggedFields:
    """ApiVersionsResponse v3 has the tags 0 to 3, ApiVersionsRequest v3 has none."""

    HEAD = bytes.fromhex("0000 01 00000000")

    def test_out_of_order(self) -> None:
        for cls, head in ((ApiVersionsResponse, self.HEAD), (ApiVersionsRequest, b"\1\1")):
            refuse(cls, 3, head + b"\2\x65\0\x64\0", "tagged field 100 follows tagged field 101")

    def test_twice(self) -> None:
        twice = b"\2\1\x08" + bytes(8) + b"\1\x08" + bytes(8)
        refuse(ApiVersionsResponse, 3, self.HEAD + twice, "tagged field 1 follows tagged field 1")
        refuse(ApiVersionsRequest, 3, b"\1\1\2\7\0\7\0", "tagged field 7 follows tagged field 7")

    def test_oversized(self) -> None:
        for size in (b"\x05", BIG_VARINT):
            for cls, head in ((ApiVersionsResponse, self.HEAD), (ApiVersionsRequest, b"\1\1")):
                refuse(cls, 3, head + b"\1\x64" + size + b"abcd", "tagged field 100 is oversized")

    @pytest.mark.parametrize("size", [7, 9])
    def test_whose_size_is_not_that_of_the_content(self, size: int) -> None:
        body = self.HEAD + b"\1\1" + bytes((size,)) + bytes(9)
        refuse(ApiVersionsResponse, 3, body, "finalized_features_epoch: tag size")

    def test_more_than_the_bytes(self) -> None:
        for count in (b"\x05", BIG_VARINT):
            refuse(ApiVersionsResponse, 3, self.HEAD + count + b"\x64\0\x65\0", "tagged fields")
            refuse(ApiVersionsRequest, 3, b"\1\1" + count + b"\x64\0\x65\0", "ends early")

    def test_of_a_request_header(self) -> None:
        head = b"\0\x12\0\3\0\0\0\1\0\0"
        for tags in (b"\2\5\0\5\0", b"\1\5\x09", b"\x7f", BIG_VARINT, b"\1\5" + BIG_VARINT, b""):
            with pytest.raises(MalformedMessage):
                decode_request_header(memoryview(head + tags))

    def test_of_a_response_header(self) -> None:
        for tags in (b"\2\5\0\5\0", b"\1\5\x09", BIG_VARINT, b""):
            with pytest.raises(MalformedMessage):
                decode_response(0, 9, memoryview(b"\0\0\0\1" + tags))


@pytest.mark.parametrize(
    ("head", "why"),
    [
        (b"", "ends early"),
        (b"\0\x12\0\0\0\0\0\1\0", "ends early"),
        (b"\0\x12\0\0\0\0\0\1\0\3ab", "ends early"),
        (b"\0\x12\0\3\0\0\0\1\0\3ab", "ends early"),
        (b"\0\x12\0\0\0\0\0\1\xff\xfe", "length -2"),
        (b"\0\x12\0\0\0\0\0\1\0\1\xff", "not UTF-8"),
    ],
)
def test_request_header_that_is_damaged_is_refused(head: bytes, why: str) -> None:
    with pytest.raises(MalformedMessage, match=why):
        decode_request_header(memoryview(head))


def test_response_header_that_is_cut_is_refused() -> None:
    with pytest.raises(MalformedMessage):
        decode_correlation_id(memoryview(b"\0\0\0"))
    with pytest.raises(MalformedMessage):
        decode_response(18, 0, memoryview(b"\0\0\0"))


def test_presence_of_a_nullable_struct_is_minus_one_or_one() -> None:
    body = raw(ConsumerGroupHeartbeatResponse(), 0)
    assert body[-2:] == b"\xff\0"
    for presence in (0, 2, 0x80):
        refuse(ConsumerGroupHeartbeatResponse, 0, body[:-2] + bytes((presence, 0)), "presence")


@pytest.mark.parametrize(
    ("cls", "version", "body"),
    [
        (DeleteGroupsRequest, 0, BIG),
        (DeleteGroupsRequest, 2, BIG_VARINT),
        (ProduceRequest, 9, b"\0" + bytes(6) + BIG_VARINT),
        (ProduceRequest, 3, bytes(8) + BIG + bytes(100)),
        (ApiVersionsRequest, 3, BIG_VARINT),
        (ConsumerGroupHeartbeatRequest, 0, b"\1\1" + bytes(10) + BIG_VARINT * 4),
    ],
)
def test_nothing_is_allocated_for_what_a_length_claims(
    cls: type[Message], version: int, body: bytes
) -> None:
    with pytest.raises(MalformedMessage):
        decode(cls, version, memoryview(body))  # compiles
    tracemalloc.start()
    try:
        with pytest.raises(MalformedMessage):
            decode(cls, version, memoryview(body))
        assert tracemalloc.get_traced_memory()[1] < 64 * 1024
    finally:
        tracemalloc.stop()
