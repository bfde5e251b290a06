"""Faults on purpose, as a client sees them on the wire."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

import pytest
import trio
from tests.broker.peer import Peer, code, connected, produce_request, running

from odradek.broker import Broker, dispatch
from odradek.broker.faults import Faults
from odradek.contracts.transport import ConnectionLost
from odradek.errors import ErrorCode
from odradek.wire import Message
from odradek.wire.api.a00_produce import ProduceRequest, ProduceResponse
from odradek.wire.api.a10_find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from odradek.wire.api.a18_api_versions import ApiVersionsRequest, ApiVersionsResponse
from odradek.wire.api.a60_describe_cluster import DescribeClusterRequest, DescribeClusterResponse


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with running() as broker:
        await broker.create_topic("t", partitions=1)
        yield broker


@pytest.fixture
def faults(broker: Broker) -> Faults:
    faults = Faults()
    faults.attach(broker)
    return faults


@pytest.fixture
async def peer(broker: Broker) -> AsyncIterator[Peer]:
    async with connected(broker) as peer:
        yield peer


async def described(peer: Peer) -> str:
    answer = await peer.ask(DescribeClusterRequest(), 0, DescribeClusterResponse)
    return code(answer.error_code)


def high_watermark(broker: Broker) -> int:
    (log,) = broker.topic("t").logs
    assert log is not None
    return log.high_watermark


async def test_failure_meets_so_many_requests_and_no_more(faults: Faults, peer: Peer) -> None:
    faults.fail("DescribeCluster", ErrorCode.CLUSTER_AUTHORIZATION_FAILED, times=2)
    found = [await described(peer) for _ in range(3)]
    assert found == ["CLUSTER_AUTHORIZATION_FAILED"] * 2 + ["NONE"]


async def test_failure_meets_connections_that_were_open_before(broker: Broker, peer: Peer) -> None:
    assert await described(peer) == "NONE"
    faults = Faults()
    faults.attach(broker)
    faults.fail(60, "request_timed_out")
    assert await described(peer) == "REQUEST_TIMED_OUT"


async def test_failed_request_is_not_handled(broker: Broker, faults: Faults, peer: Peer) -> None:
    faults.fail("Produce", ErrorCode.NOT_LEADER_OR_FOLLOWER)
    result = await peer.produce("t")
    assert code(result.error_code) == "NOT_LEADER_OR_FOLLOWER"
    assert result.base_offset == -1
    assert (await peer.produce("t")).base_offset == 0


async def test_failed_produce_without_acknowledgement_is_lost(faults: Faults, peer: Peer) -> None:
    faults.fail("Produce", ErrorCode.NOT_LEADER_OR_FOLLOWER)
    await peer.send(produce_request("t", acks=0), 9)
    assert (await peer.produce("t")).base_offset == 0


async def test_failure_meets_only_what_it_is_meant_for(faults: Faults, peer: Peer) -> None:
    def meant(request: Message) -> bool:
        assert isinstance(request, FindCoordinatorRequest)
        return request.coordinator_keys == ["mine"]

    faults.fail("FindCoordinator", ErrorCode.NOT_COORDINATOR, when=meant)

    async def find(group: str) -> str:
        request = FindCoordinatorRequest(coordinator_keys=[group])
        answer = await peer.ask(request, 4, FindCoordinatorResponse)
        return code(answer.coordinators[0].error_code)

    assert [await find("other"), await find("mine"), await find("mine")] == [
        "NONE",
        "NOT_COORDINATOR",
        "NONE",
    ]


async def test_rules_of_one_api_follow_one_another(faults: Faults, peer: Peer) -> None:
    faults.fail("DescribeCluster", ErrorCode.REQUEST_TIMED_OUT)
    faults.fail("DescribeCluster", ErrorCode.UNKNOWN_SERVER_ERROR)
    assert faults.pending == 2
    found = [await described(peer) for _ in range(3)]
    assert found == ["REQUEST_TIMED_OUT", "UNKNOWN_SERVER_ERROR", "NONE"]
    assert faults.pending == 0


async def test_failure_without_end_ends_by_clear(faults: Faults, peer: Peer) -> None:
    faults.fail("DescribeCluster", ErrorCode.REQUEST_TIMED_OUT, times=None)
    assert {await described(peer) for _ in range(5)} == {"REQUEST_TIMED_OUT"}
    faults.clear()
    assert await described(peer) == "NONE"


async def test_unsupported_version_of_api_versions_is_said_at_version_0(
    faults: Faults, peer: Peer
) -> None:
    faults.fail("ApiVersions", ErrorCode.UNSUPPORTED_VERSION)
    sent = await peer.send(ApiVersionsRequest(), 3)
    peer._asked[sent] = (18, 0)  # the version that the answer has to be read at (KIP-511)
    _, answer = await peer.receive()
    assert isinstance(answer, ApiVersionsResponse)
    assert code(answer.error_code) == "UNSUPPORTED_VERSION"
    assert answer.api_keys


async def test_disconnected_request_is_not_handled(
    broker: Broker, faults: Faults, peer: Peer
) -> None:
    faults.disconnect("Produce")
    await peer.send(produce_request("t"), 9)
    await peer.ended()
    assert high_watermark(broker) == 0
    async with connected(broker) as other:
        assert (await other.produce("t")).base_offset == 0


async def test_request_disconnected_after_it_was_handled_has_lost_its_answer_only(
    broker: Broker, faults: Faults, peer: Peer
) -> None:
    faults.disconnect("Produce", after=True)
    await peer.send(produce_request("t"), 9)
    await peer.ended()
    assert high_watermark(broker) == 1


async def test_requests_before_a_disconnected_one_are_answered(faults: Faults, peer: Peer) -> None:
    def second(request: Message) -> bool:
        assert isinstance(request, ProduceRequest)
        return request.timeout_ms == 2

    faults.disconnect("Produce", when=second)
    data = peer.encode(produce_request("t", timeout_ms=1), 9)
    data += peer.encode(produce_request("t", timeout_ms=2), 9)
    await peer.send_bytes(data)
    _, answer = await peer.receive()
    assert isinstance(answer, ProduceResponse)
    await peer.ended()


async def test_delayed_request_and_those_behind_it_wait_and_are_handled_in_order(
    broker: Broker, faults: Faults, peer: Peer
) -> None:
    faults.delay("Produce", 3600)
    first = await peer.send(produce_request("t"), 9)
    second = await peer.send(DescribeClusterRequest(), 0)
    await faults.wait_seen("Produce")
    async with connected(broker) as other:  # other connections do not wait
        assert await described(other) == "NONE"
    assert high_watermark(broker) == 0
    faults.release()
    assert [(await peer.receive())[0], (await peer.receive())[0]] == [first, second]
    assert high_watermark(broker) == 1


def test_delay_ends_by_itself(mock_time, host) -> None:
    async def main() -> None:
        async with running(host=host) as broker, connected(broker) as peer:
            faults = Faults()
            faults.attach(broker)
            faults.delay("DescribeCluster", 7)
            began = trio.current_time()
            assert await described(peer) == "NONE"
            assert trio.current_time() - began == pytest.approx(7)

    mock_time(main)


async def test_delay_and_failure_add_up(faults: Faults, peer: Peer) -> None:
    faults.delay("DescribeCluster", 3600)
    faults.fail("DescribeCluster", ErrorCode.REQUEST_TIMED_OUT)
    sent = await peer.send(DescribeClusterRequest(), 0)
    await faults.wait_seen("DescribeCluster")
    faults.release()
    received, answer = await peer.receive()
    assert received == sent
    assert isinstance(answer, DescribeClusterResponse)
    assert code(answer.error_code) == "REQUEST_TIMED_OUT"


async def test_every_request_is_counted_whatever_becomes_of_it(faults: Faults, peer: Peer) -> None:
    faults.fail("DescribeCluster", ErrorCode.REQUEST_TIMED_OUT)
    await described(peer)
    await described(peer)
    await peer.produce("t")
    assert faults.seen("DescribeCluster") == 2
    assert faults.requests() == {"Produce": 1, "DescribeCluster": 2}
    faults.forget()
    assert faults.requests() == {}


async def test_exempt_listener_meets_no_fault(broker: Broker, peer: Peer) -> None:
    faults = Faults(exempt=frozenset(broker.urls))
    faults.attach(broker)
    faults.fail("DescribeCluster", ErrorCode.REQUEST_TIMED_OUT)
    assert await described(peer) == "NONE"
    assert faults.requests() == {}


async def test_version_that_is_not_offered_is_refused_as_ever(faults: Faults, peer: Peer) -> None:
    faults.fail("DescribeCluster", ErrorCode.REQUEST_TIMED_OUT)
    data = bytearray(peer.encode(DescribeClusterRequest(), 0))
    data[7] = 99  # the version
    await peer.send_bytes(data)
    with pytest.raises(ConnectionLost):
        await peer.receive_frame()
    assert faults.pending == 1


async def test_detached_faults_cost_nothing(broker: Broker, faults: Faults, peer: Peer) -> None:
    faults.fail("DescribeCluster", ErrorCode.REQUEST_TIMED_OUT)
    faults.detach(broker)
    assert await described(peer) == "NONE"
    (session,) = broker.server._sessions
    assert session.answer is dispatch.answer


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("Prodcue", "REQUEST_TIMED_OUT"), "no API 'Prodcue'; did you mean \"Produce\""),
        ((71, "REQUEST_TIMED_OUT"), "no API 71"),
        (("Produce", "REQUEST_TIMEOUT"), 'did you mean "REQUEST_TIMED_OUT"'),
        (("Produce", 12345), "12345 is no error code"),
        (("Produce", 7, 0), "0 times"),
    ],
)
def test_mistakes_are_named(arguments, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        Faults().fail(*arguments)


@pytest.mark.parametrize("seconds", [-1, float("inf"), float("nan")])
def test_delay_has_an_end(seconds: float) -> None:
    with pytest.raises(ValueError, match="a delay of"):
        Faults().delay("Fetch", seconds)
