"""How clients find their way: ApiVersions, Metadata, FindCoordinator, DescribeCluster, ids."""

from __future__ import annotations

import struct
from uuid import UUID

import pytest
from tests.broker.peer import Peer, code, connected, running

from odradek.broker import Broker
from odradek.broker.dispatch import OFFERED
from odradek.errors import ErrorCode
from odradek.wire import API, NULL_UUID, Message, decode_response
from odradek.wire.api.a00_produce import ProduceRequest
from odradek.wire.api.a03_metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)
from odradek.wire.api.a10_find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from odradek.wire.api.a18_api_versions import ApiVersionsRequest, ApiVersionsResponse
from odradek.wire.api.a22_init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from odradek.wire.api.a60_describe_cluster import DescribeClusterRequest, DescribeClusterResponse


def named(version: int) -> ApiVersionsRequest:
    if version < 3:
        return ApiVersionsRequest()
    return ApiVersionsRequest(client_software_name="peer", client_software_version="1.0")


# -- ApiVersions -------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(5))
async def test_api_versions_lists_what_is_offered(peer: Peer, version: int) -> None:
    answer = await peer.ask(named(version), version, ApiVersionsResponse)
    assert code(answer.error_code) == "NONE"
    offered = {api.api_key: (api.min_version, api.max_version) for api in answer.api_keys}
    assert offered[0][0] == 0, "librdkafka before 2.11.1 compresses only if Produce 0 is offered"
    assert 10 in offered, "librdkafka sends no lz4 without FindCoordinator"
    assert 22 in offered, "idempotent producers fail without InitProducerId"
    assert offered[18] == (0, 4)
    assert not {71, 72} & offered.keys(), "telemetry would be pushed"
    assert all(API[key].max >= last >= first for key, (first, last) in offered.items())


@pytest.mark.parametrize("version", [5, 99, 32767, -1])
async def test_api_versions_of_an_unknown_version_is_answered_as_version_0(
    peer: Peer, version: int
) -> None:
    body = struct.pack("!hhih", 18, version, 4711, -1) + b"\x00\x02x\x02y\x00"
    await peer.send_bytes(struct.pack("!i", len(body)) + body)
    frame = await peer.receive_frame()
    assert struct.unpack_from("!i", frame) == (4711,)
    answer = decode_response(ApiVersionsResponse, 0, frame)
    assert code(answer.error_code) == "UNSUPPORTED_VERSION"
    assert {api.api_key for api in answer.api_keys} == set(OFFERED)
    await peer.ask(named(3), 3, ApiVersionsResponse)  # and the connection goes on


@pytest.mark.parametrize("software", ["", "bad name", "-x", "x\n", "é"])
async def test_software_name_that_breaks_the_rule_is_refused(peer: Peer, software: str) -> None:
    request = ApiVersionsRequest(client_software_name=software, client_software_version="1")
    answer = await peer.ask(request, 3, ApiVersionsResponse)
    assert code(answer.error_code) == "INVALID_REQUEST"


UNSERVED = [
    (0, 2),  # Produce from before Kafka 0.11: advertised, for librdkafka, and refused
    (0, 14),
    (1, 3),
    (1, 18),
    (3, 14),
    (2, 0),
    (4, 0),  # LeaderAndIsr: a broker's request
    (17, 0),
    (71, 0),
    (-1, 0),
    (32767, 0),
    (3, -1),
]


@pytest.mark.parametrize(("key", "version"), UNSERVED)
async def test_unknown_api_or_version_closes_the_connection_with_one_line(
    broker: Broker, key: int, version: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with connected(broker) as peer:
        body = struct.pack("!hhih", key, version, 1, -1) + bytes(20)
        await peer.send_bytes(struct.pack("!i", len(body)) + body)
        await peer.ended()
    (record,) = caplog.records
    assert record.levelname == "WARNING"


@pytest.mark.parametrize("key", sorted(OFFERED))
async def test_every_offered_api_answers_an_empty_request(peer: Peer, key: int) -> None:
    """At its lowest and highest version: no handler chokes on empty arrays."""
    offer = OFFERED[key]
    for version in {offer.served_from, offer.max}:
        request: Message = named(version) if key == 18 else API[key].request()
        if isinstance(request, ProduceRequest):
            request.acks = 1  # or there is no answer
        await peer.ask(request, version, API[key].response)


# -- Metadata ----------------------------------------------------------------------------------


async def metadata(
    peer: Peer, *names: str, version: int = 12, create: bool = False
) -> list[MetadataResponseTopic]:
    request = MetadataRequest(
        topics=[MetadataRequestTopic(name=name) for name in names],
        allow_auto_topic_creation=create,
    )
    answer = await peer.ask(request, version, MetadataResponse)
    return answer.topics


@pytest.mark.parametrize("version", range(14))
async def test_metadata_names_brokers_topics_and_leaders(
    peer: Peer, broker: Broker, version: int
) -> None:
    topic_id = (await peer.create("events", 2)).topic_id
    everything = MetadataRequest(topics=[] if version == 0 else None)
    answer = await peer.ask(everything, version, MetadataResponse)
    (only,) = answer.brokers
    name = broker.addresses["memory"]
    assert (only.node_id, f"{only.host}:{only.port}") == (1, name)
    (topic,) = answer.topics
    assert topic.name == "events"
    assert code(topic.error_code) == "NONE"
    assert [p.partition_index for p in topic.partitions] == [0, 1]
    for partition in topic.partitions:
        assert (partition.leader_id, partition.replica_nodes, partition.isr_nodes) == (1, [1], [1])
        assert partition.leader_epoch == (0 if version >= 7 else -1)
    if version >= 1:
        assert answer.controller_id == 1
    if version >= 2:
        assert answer.cluster_id == broker.image.cluster_id
    assert topic.topic_id == (topic_id if version >= 10 else NULL_UUID)


async def test_metadata_of_no_topics_names_the_brokers_alone(peer: Peer) -> None:
    await peer.create("events")
    answer = await peer.ask(MetadataRequest(topics=[]), 1, MetadataResponse)
    assert answer.topics == []
    assert len(answer.brokers) == 1


async def test_topic_is_found_by_its_id(peer: Peer) -> None:
    topic_id = (await peer.create("events")).topic_id
    for wanted, error in ((topic_id, "NONE"), (UUID(int=5), "UNKNOWN_TOPIC_ID")):
        asked = MetadataRequestTopic(name=None, topic_id=wanted)
        answer = await peer.ask(MetadataRequest(topics=[asked]), 12, MetadataResponse)
        (topic,) = answer.topics
        assert code(topic.error_code) == error
        assert topic.topic_id == wanted
        assert topic.name == ("events" if error == "NONE" else None)


@pytest.mark.parametrize("version", [10, 11])
async def test_ids_are_refused_where_the_answer_needs_a_name(peer: Peer, version: int) -> None:
    for asked in (MetadataRequestTopic(name=None), MetadataRequestTopic(topic_id=UUID(int=5))):
        answer = await peer.ask(MetadataRequest(topics=[asked]), version, MetadataResponse)
        assert code(answer.topics[0].error_code) == "INVALID_REQUEST"


@pytest.mark.parametrize("version", [3, 4, 12])
async def test_missing_topic_is_created_when_the_client_allows_it(peer: Peer, version: int) -> None:
    (topic,) = await metadata(peer, "fresh", version=version, create=True)
    assert code(topic.error_code) == "NONE"
    assert [p.leader_id for p in topic.partitions] == [1]
    assert code((await peer.produce("fresh")).error_code) == "NONE"


async def test_missing_topic_is_not_created_when_the_client_forbids_it(peer: Peer) -> None:
    (topic,) = await metadata(peer, "fresh")
    assert code(topic.error_code) == "UNKNOWN_TOPIC_OR_PARTITION"
    assert (await peer.ask(MetadataRequest(topics=None), 12, MetadataResponse)).topics == []


async def test_missing_topic_is_not_created_when_the_broker_forbids_it() -> None:
    async with running(broker={"auto_create_topics": False}) as broker, connected(broker) as peer:
        (topic,) = await metadata(peer, "fresh", create=True)
        assert code(topic.error_code) == "UNKNOWN_TOPIC_OR_PARTITION"


async def test_created_topic_has_the_brokers_defaults() -> None:
    settings = {"default_partitions": 3}
    async with running(broker=settings) as broker, connected(broker) as peer:
        (topic,) = await metadata(peer, "fresh", create=True)
        assert len(topic.partitions) == 3


@pytest.mark.parametrize("create", [True, False])
@pytest.mark.parametrize("name", ["", ".", "a/b", "x" * 250, "a\n", "ä"])
async def test_bad_names_are_invalid_and_not_unknown(peer: Peer, name: str, create: bool) -> None:
    (topic,) = await metadata(peer, name, create=create)
    assert code(topic.error_code) == "INVALID_TOPIC_EXCEPTION"
    assert topic.name == name


async def test_internal_topics_are_marked(peer: Peer) -> None:
    await peer.create("__consumer_offsets")
    (topic,) = await metadata(peer, "__consumer_offsets")
    assert topic.is_internal


async def test_broker_that_cannot_host_a_default_topic_tells_why(caplog: object) -> None:
    settings = {"default_replication_factor": 3}
    async with running(broker=settings) as broker, connected(broker) as peer:
        (topic,) = await metadata(peer, "fresh", create=True)
        assert code(topic.error_code) == "INVALID_REPLICATION_FACTOR"


# -- FindCoordinator ---------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(7))
async def test_this_broker_coordinates_every_group(
    peer: Peer, broker: Broker, version: int
) -> None:
    if version >= 4:
        request = FindCoordinatorRequest(coordinator_keys=["a", "b"], key_type=0)
        answer = await peer.ask(request, version, FindCoordinatorResponse)
        found = [(c.key, c.node_id, f"{c.host}:{c.port}") for c in answer.coordinators]
        address = broker.addresses["memory"]
        assert found == [("a", 1, address), ("b", 1, address)]
    else:
        answer = await peer.ask(FindCoordinatorRequest(key="a"), version, FindCoordinatorResponse)
        assert (answer.node_id, f"{answer.host}:{answer.port}") == (1, broker.addresses["memory"])
        assert code(answer.error_code) == "NONE"


@pytest.mark.parametrize("key_type", [1, 2, 99, -1])
async def test_other_coordinators_are_refused_for_good(peer: Peer, key_type: int) -> None:
    answer = await peer.ask(
        FindCoordinatorRequest(key="t", key_type=key_type), 2, FindCoordinatorResponse
    )
    assert code(answer.error_code) == "INVALID_REQUEST"
    assert not ErrorCode.of(answer.error_code).retriable
    assert answer.node_id == -1


# -- DescribeCluster ---------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(3))
async def test_cluster_is_described(peer: Peer, broker: Broker, version: int) -> None:
    answer = await peer.ask(DescribeClusterRequest(), version, DescribeClusterResponse)
    assert (answer.cluster_id, answer.controller_id) == (broker.image.cluster_id, 1)
    assert [b.broker_id for b in answer.brokers] == [1]


@pytest.mark.parametrize(
    ("kind", "error"), [(2, "MISMATCHED_ENDPOINT_TYPE"), (9, "UNSUPPORTED_ENDPOINT_TYPE")]
)
async def test_there_are_no_controllers_to_describe(peer: Peer, kind: int, error: str) -> None:
    request = DescribeClusterRequest(endpoint_type=kind)
    answer = await peer.ask(request, 1, DescribeClusterResponse)
    assert code(answer.error_code) == error


# -- InitProducerId ----------------------------------------------------------------------------


async def new_id(peer: Peer, version: int = 4, **more: object) -> InitProducerIdResponse:
    request = InitProducerIdRequest(transaction_timeout_ms=1000, **more)  # type: ignore[arg-type]  # as given
    return await peer.ask(request, version, InitProducerIdResponse)


@pytest.mark.parametrize("version", range(6))
async def test_producer_ids_are_never_given_twice(peer: Peer, version: int) -> None:
    seen = set()
    for _ in range(10):
        answer = await new_id(peer, version, transactional_id=None)
        assert (code(answer.error_code), answer.producer_epoch) == ("NONE", 0)
        seen.add(answer.producer_id)
    assert len(seen) == 10


async def test_producer_ids_go_on_beyond_a_block(broker: Broker) -> None:
    taken = [await broker.producer_ids.take() for _ in range(2500)]
    assert len(set(taken)) == 2500


async def test_producer_that_brings_an_id_gets_one_that_is_surely_its_own(peer: Peer) -> None:
    first = await new_id(peer, transactional_id=None)
    again = await new_id(
        peer, transactional_id=None, producer_id=first.producer_id, producer_epoch=0
    )
    assert again.producer_id != first.producer_id
    assert again.producer_epoch == 0


async def test_transactional_ids_are_refused_for_good(peer: Peer) -> None:
    answer = await new_id(peer, transactional_id="t")
    assert code(answer.error_code) == "INVALID_REQUEST"
    assert answer.producer_id == -1
