"""A refusal says its error at every version of every API, wherever the response has room for it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest
from tests.broker.peer import running

from odradek.broker import Broker
from odradek.broker.dispatch import OFFERED
from odradek.broker.refusal import KEYS, refusal
from odradek.broker.serve import Caller
from odradek.errors import ErrorCode
from odradek.wire import API, Message, Struct, decode_response, encode_response
from odradek.wire.api.a00_produce import ProduceRequest
from odradek.wire.api.a01_fetch import FetchResponse
from odradek.wire.api.a03_metadata import MetadataRequest, MetadataResponse

EACH = pytest.mark.parametrize(
    ("key", "version"),
    [
        pytest.param(offer.key, version, id=f"{offer.name}-{version}")
        for offer in OFFERED.values()
        for version in range(offer.served_from, offer.max + 1)
    ],
)
SOME_ID = UUID(int=7)

PLAIN: dict[str, Any] = {
    "bool": False,
    "int8": 2,
    "int16": 2,
    "int32": 2,
    "int64": 2,
    "uuid": SOME_ID,
    "string": "name",
    "bytes": b"",
    "records": b"",
}


def filled(cls: type[Struct], version: int) -> Any:
    """A struct with something in each of its fields, and two elements in each array."""
    made = cls()
    for name, field in cls.__fields__.items():
        if not field.present(version) or field.is_tagged(version):
            continue
        if field.kind == "struct":
            setattr(made, name, filled(cast("type[Struct]", field.of), version))
        elif field.kind != "array":
            setattr(made, name, PLAIN[field.kind])
        elif isinstance(field.of, type):
            setattr(made, name, [filled(field.of, version), filled(field.of, version)])
        else:
            setattr(made, name, [PLAIN[str(field.of)]])
    return made


def codes(response: Struct, version: int) -> Iterator[int]:
    """Every error code of a response."""
    for name, field in response.__fields__.items():
        if not field.present(version):
            continue
        value = getattr(response, name)
        if name == "error_code":
            yield value
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, Struct):
                yield from codes(each, version)


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with running() as broker:
        yield broker


def caller_of(broker: Broker) -> Caller:
    return cast("Caller", SimpleNamespace(broker=broker, listener="memory"))


@EACH
async def test_error_is_decoded_as_it_was_asked_for(broker: Broker, key: int, version: int) -> None:
    request = cast("Message", filled(API[key].request, version))
    error = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    response = await refusal(caller_of(broker), request, version, error)
    assert response is not None
    frame = b"".join(cast("list[bytes]", encode_response(key, version, 1, response)))[4:]
    decoded = decode_response(key, version, frame)
    found = list(codes(decoded, version))
    assert found
    assert set(found) <= ({error, 0} if API[key].name in {"Fetch", "Metadata"} else {error})
    assert error in found


@EACH
async def test_everything_the_request_names_has_its_error(
    broker: Broker, key: int, version: int
) -> None:
    """Two topics of two partitions, or two groups, or two resources."""
    request = cast("Message", filled(API[key].request, version))
    response = await refusal(caller_of(broker), request, version, ErrorCode.UNKNOWN_SERVER_ERROR)
    if API[key].name in {"Metadata", "JoinGroup", "SyncGroup", "ListGroups", "DescribeLogDirs"}:
        return  # of Metadata below; what the others name is nothing an error could be about
    asked = lists(request, version)
    answered = [each for each in lists(response, version) if each]
    assert max(map(len, answered), default=0) == max(map(len, asked), default=0)
    for elements in answered:
        for element in elements:
            known = {
                name: getattr(element, name)
                for name, field in element.__fields__.items()
                if name in KEYS and field.present(version) and field.kind == "string"
            }
            ids = [getattr(element, "topic_id", None), getattr(element, "resource_type", None)]
            assert set(known.values()) == {"name"} or SOME_ID in ids


def lists(message: object, version: int) -> list[list[Any]]:
    assert isinstance(message, Message)
    return [
        getattr(message, name)
        for name, field in message.__fields__.items()
        if field.kind == "array" and field.present(version)
    ]


async def test_fetch_says_errors_of_sessions_at_the_top_and_others_by_partition(
    broker: Broker,
) -> None:
    request = filled(API[1].request, 12)
    response = await refusal(caller_of(broker), request, 12, ErrorCode.OFFSET_OUT_OF_RANGE)
    assert isinstance(response, FetchResponse)
    assert response.error_code == ErrorCode.NONE
    (first, _) = response.responses[0].partitions
    assert (first.partition_index, first.error_code) == (2, ErrorCode.OFFSET_OUT_OF_RANGE)
    response = await refusal(caller_of(broker), request, 12, ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
    assert isinstance(response, FetchResponse)
    assert response.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert response.responses == []


@pytest.mark.parametrize("version", [0, 1, 9, 13])
async def test_metadata_names_the_brokers_beside_the_errors(broker: Broker, version: int) -> None:
    await broker.create_topic("there", partitions=1)
    request = MetadataRequest(topics=None if version else [])
    response = await refusal(caller_of(broker), request, version, ErrorCode.LEADER_NOT_AVAILABLE)
    assert isinstance(response, MetadataResponse)
    assert [each.node_id for each in response.brokers] == [broker.id]
    assert [(each.name, each.error_code) for each in response.topics] == [
        ("there", ErrorCode.LEADER_NOT_AVAILABLE)
    ]


async def test_produce_without_acknowledgement_gets_no_response(broker: Broker) -> None:
    request = ProduceRequest(acks=0)
    error = ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert await refusal(caller_of(broker), request, 9, error) is None
