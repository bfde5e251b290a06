"""A connection's requests, against a peer that answers by hand."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from odradek.client.connection import BrokerConnection, Pending
from odradek.client.errors import ClientClosed, Disconnected, NotOffered, RequestTimedOut
from odradek.client.frames import FrameReader
from odradek.client.settings import ClientSettings
from odradek.contracts.transport import Connection
from odradek.errors import ErrorCode, KafkaError
from odradek.memory.transport import MemoryNetwork, MemoryTransport
from odradek.wire import (
    Message,
    RequestHeader,
    decode_request,
    decode_request_header,
    encode_response,
)
from odradek.wire.api.a00_produce import ProduceRequest, ProduceResponse
from odradek.wire.api.a03_metadata import MetadataRequest, MetadataResponse
from odradek.wire.api.a18_api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse

SETTINGS = ClientSettings(request_timeout=5.0, connect_timeout=5.0, max_in_flight=3)
OFFERED = [
    ApiVersion(api_key=0, min_version=0, max_version=9),
    ApiVersion(api_key=3, min_version=0, max_version=9),
    ApiVersion(api_key=18, min_version=0, max_version=3),
]


class Peer:
    """A broker by hand: reads requests, and sends what it is told to."""

    def __init__(self, stream: Connection) -> None:
        self.stream = stream
        self._frames = FrameReader(stream, 1 << 20)

    async def request(self) -> tuple[RequestHeader, Message]:
        frame = await self._frames.next()
        assert frame is not None
        header = decode_request_header(frame)
        return header, decode_request(header, frame)

    async def answer(self, header: RequestHeader, response: Message, **changed: int) -> None:
        correlation_id = changed.get("correlation_id", header.correlation_id)
        version = changed.get("version", header.api_version)
        parts = encode_response(header.api_key, version, correlation_id, response)
        await self.stream.send(parts)  # type: ignore[arg-type]  # bytes, every one

    async def agree(self) -> None:
        header, request = await self.request()
        assert isinstance(request, ApiVersionsRequest)
        if header.api_version > 3:
            refusal = ApiVersionsResponse(
                error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=OFFERED
            )
            await self.answer(header, refusal, version=0)
            header, request = await self.request()
            assert header.api_version == 3
        await self.answer(header, ApiVersionsResponse(api_keys=OFFERED))


@asynccontextmanager
async def connected(
    settings: ClientSettings = SETTINGS,
) -> AsyncIterator[tuple[BrokerConnection, Peer]]:
    transport = MemoryTransport(MemoryNetwork())
    listener = await transport.listen("memory://peer")
    with trio.fail_after(10):
        connection = BrokerConnection(await transport.connect(listener.address), settings)
        peer = Peer(await listener.accept())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(peer.agree)
            await nursery.start(connection.run)
            yield connection, peer
            nursery.cancel_scope.cancel()
    await listener.aclose()


async def metadata(connection: BrokerConnection, into: dict[int, str | None], key: int) -> None:
    answer = await connection.call(MetadataRequest(), MetadataResponse)
    into[key] = answer.cluster_id


async def test_connection_falls_back_to_the_version_of_api_versions_the_broker_names() -> None:
    async with connected() as (connection, _):
        assert connection.version_of(MetadataRequest) == 9
        assert connection.version_of(ProduceRequest, highest=7) == 7


async def test_connection_refuses_an_api_that_is_not_offered_and_lives_on() -> None:
    from odradek.wire.api.a60_describe_cluster import (
        DescribeClusterRequest,
        DescribeClusterResponse,
    )

    async with connected() as (connection, _):
        with pytest.raises(NotOffered, match="offers nothing of API 60"):
            await connection.call(DescribeClusterRequest(), DescribeClusterResponse)
        assert connection.alive


async def test_connection_pipelines_requests_and_pairs_answers_in_order() -> None:
    async with connected() as (connection, peer), trio.open_nursery() as nursery:
        got: dict[int, str | None] = {}
        headers = []
        for key in range(3):
            nursery.start_soon(metadata, connection, got, key)
            headers.append((await peer.request())[0])  # before any answer
        for header in headers:
            name = str(header.correlation_id)
            await peer.answer(header, MetadataResponse(cluster_id=name))
        for key, header in enumerate(headers):
            while key not in got:
                await trio.lowlevel.checkpoint()
            assert got[key] == str(header.correlation_id)


async def test_connection_survives_a_cancelled_request_and_drops_its_answer() -> None:
    async with connected() as (connection, peer):
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(metadata, connection, {}, 0)
                forgotten, _ = await peer.request()
                scope.cancel()
        got: dict[int, str | None] = {}
        async with trio.open_nursery() as nursery:
            nursery.start_soon(metadata, connection, got, 1)
            header, _ = await peer.request()
            await peer.answer(forgotten, MetadataResponse(cluster_id="late"))
            await peer.answer(header, MetadataResponse(cluster_id="mine"))
        assert got == {1: "mine"}
        assert connection.unanswered == 0


async def test_connection_holds_back_requests_beyond_its_limit_until_answers_come() -> None:
    async with connected() as (connection, peer), trio.open_nursery() as nursery:
        got: dict[int, str | None] = {}
        for key in range(4):
            nursery.start_soon(metadata, connection, got, key)
        headers = [(await peer.request())[0] for _ in range(3)]
        with trio.move_on_after(0.02) as waited:
            await peer.request()
        assert waited.cancelled_caught
        assert connection.unanswered == 3
        await peer.answer(headers[0], MetadataResponse())
        headers.append((await peer.request())[0])
        for header in headers[1:]:
            await peer.answer(header, MetadataResponse())


async def test_connection_is_given_up_when_an_answer_is_overdue() -> None:
    async with connected() as (connection, peer):
        with pytest.raises(RequestTimedOut, match="no answer from memory://peer") as caught:
            await connection.call(MetadataRequest(), MetadataResponse, timeout=0.02)
        assert caught.value.sent
        assert not connection.alive
        with pytest.raises(Disconnected) as later:
            await connection.call(MetadataRequest(), MetadataResponse)
        assert not later.value.sent
        await peer.request()


async def test_connection_that_the_peer_ends_fails_what_waits_and_says_it_was_sent() -> None:
    async with connected() as (connection, peer):
        async with trio.open_nursery() as nursery:

            async def call() -> None:
                with pytest.raises(Disconnected) as caught:
                    await connection.call(MetadataRequest(), MetadataResponse)
                assert caught.value.sent

            nursery.start_soon(call)
            await peer.request()
            await peer.stream.aclose()
        assert not connection.alive


@pytest.mark.parametrize("harm", ["correlation", "size", "garbage", "unasked"])
async def test_connection_ends_at_an_answer_that_makes_no_sense(harm: str) -> None:
    async with connected() as (connection, peer), trio.open_nursery() as nursery:

        async def call() -> None:
            with pytest.raises(Disconnected, match="broke"):
                await connection.call(MetadataRequest(), MetadataResponse)

        nursery.start_soon(call)
        header, _ = await peer.request()
        if harm == "correlation":
            await peer.answer(header, MetadataResponse(), correlation_id=4711)
        elif harm == "size":
            await peer.stream.send([b"HTTP/1.1 400 Bad Request\r\n"])
        elif harm == "garbage":
            size = (12).to_bytes(4, "big") + header.correlation_id.to_bytes(4, "big")
            await peer.stream.send([size + b"\xff" * 8])
        else:
            await peer.answer(header, MetadataResponse(), correlation_id=header.correlation_id + 1)


async def test_connection_returns_from_left_when_a_request_without_answer_has_gone() -> None:
    async with connected() as (connection, peer):
        for _ in range(5):  # more than may be unanswered
            pending: Pending[ProduceResponse] = await connection.submit(
                ProduceRequest(acks=0), None
            )
            await pending.left()
        for _ in range(5):
            _, request = await peer.request()
            assert isinstance(request, ProduceRequest)


async def test_connection_keeps_the_order_of_submitted_requests() -> None:
    async with connected() as (connection, peer):
        pending = [
            await connection.submit(ProduceRequest(acks=1, timeout_ms=n), ProduceResponse)
            for n in range(3)
        ]
        for n in range(3):
            header, request = await peer.request()
            assert isinstance(request, ProduceRequest)
            assert request.timeout_ms == n
            await peer.answer(header, ProduceResponse())
        for each in pending:
            await each.answer(1.0)


async def test_connection_that_is_closed_says_so() -> None:
    async with connected() as (connection, _):
        connection.close()
        with pytest.raises(ClientClosed):
            await connection.call(MetadataRequest(), MetadataResponse)


async def test_connection_refuses_to_start_when_the_peer_refuses_it() -> None:
    transport = MemoryTransport(MemoryNetwork())
    listener = await transport.listen("memory://peer")
    connection = BrokerConnection(await transport.connect(listener.address), SETTINGS)
    peer = Peer(await listener.accept())

    async def refuse() -> None:
        header, _ = await peer.request()
        code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        await peer.answer(header, ApiVersionsResponse(error_code=code))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(refuse)
        with pytest.raises(KafkaError, match="CLUSTER_AUTHORIZATION_FAILED"):
            await nursery.start(connection.run)
    await listener.aclose()
