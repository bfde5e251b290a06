"""Connections: pipelining, order, limits, timeouts, back-pressure."""

from __future__ import annotations

import logging
import ssl
import struct
from collections.abc import Iterator
from contextlib import suppress

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
    produce_request,
    records_of,
    running,
)
from trio.testing import wait_all_tasks_blocked

from odradek.broker import Broker
from odradek.broker.serve import QUEUE_BYTES, QUEUE_LIMIT
from odradek.contracts.transport import ConnectFailed, ConnectionLost
from odradek.memory import storage
from odradek.wire import API, Message
from odradek.wire.api.a00_produce import ProduceResponse
from odradek.wire.api.a01_fetch import FetchResponse
from odradek.wire.api.a03_metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from odradek.wire.api.a18_api_versions import ApiVersionsRequest, ApiVersionsResponse

HELLO = ApiVersionsRequest()


class HeldTicket:
    """Durable once the test says so."""

    def __init__(self, end_offset: int, released: trio.Event) -> None:
        self.end_offset = end_offset
        self.released = released

    @property
    def durable(self) -> bool:
        return self.released.is_set()

    async def wait(self) -> None:
        await self.released.wait()


@pytest.fixture
def durable(monkeypatch: pytest.MonkeyPatch) -> Iterator[trio.Event]:
    """Nothing in memory becomes durable until this event is set."""
    released = trio.Event()
    monkeypatch.setattr(storage, "_Ticket", lambda end: HeldTicket(end, released))
    yield released
    released.set()


async def order(peer: Peer, count: int) -> list[type[Message]]:
    return [type((await peer.receive())[1]) for _ in range(count)]


# -- pipelining --------------------------------------------------------------------------------


async def test_responses_come_in_the_order_of_requests_though_the_first_waits(
    peer: Peer, durable: trio.Event
) -> None:
    await peer.create("events")
    await peer.send(produce_request("events"), 9)
    await peer.send(MetadataRequest(topics=None), 9)
    await peer.send(produce_request("events"), 9)
    await peer.send(HELLO, 0)
    await wait_all_tasks_blocked()
    with trio.move_on_after(0) as scope:
        await peer.receive()
    assert scope.cancelled_caught, "nothing overtakes a produce that waits for its sync"
    durable.set()
    assert await order(peer, 4) == [
        ProduceResponse,
        MetadataResponse,
        ProduceResponse,
        ApiVersionsResponse,
    ]


async def test_pipelined_batches_are_appended_before_the_first_is_durable(
    broker: Broker, durable: trio.Event
) -> None:
    async with connected(broker) as peer:
        await peer.create("events")
        await peer.send_bytes(
            b"".join(peer.encode(produce_request("events"), 9) for _ in range(200))
        )
        await wait_all_tasks_blocked()
        assert broker.topic("events").log(0).log_end_offset == 200, "they share one sync"
        durable.set()
        for offset in range(200):
            _, answer = await peer.receive()
            assert isinstance(answer, ProduceResponse)
            assert answer.responses[0].partition_responses[0].base_offset == offset


async def test_fetch_that_waits_is_answered_before_what_follows_it(peer: Peer) -> None:
    await peer.create("events", 2)
    await peer.send(fetch_request("events", max_wait_ms=60_000), 12)
    await peer.send(produce_request("events", partition=1), 9)
    await peer.send(HELLO, 0)
    await wait_all_tasks_blocked()
    await peer.send(produce_request("events", batch(3)), 9)
    _, first = await peer.receive()
    assert isinstance(first, FetchResponse)
    assert len(records_of(first.responses[0].partitions[0])) == 3
    assert await order(peer, 3) == [ProduceResponse, ApiVersionsResponse, ProduceResponse]


async def test_many_requests_in_one_write_are_all_answered_in_order(peer: Peer) -> None:
    await peer.create("events")
    count = 3 * QUEUE_LIMIT
    requests = [HELLO if n % 3 else MetadataRequest(topics=[]) for n in range(count)]
    async with trio.open_nursery() as nursery:
        data = b"".join(peer.encode(r, 0 if r is HELLO else 1) for r in requests)
        nursery.start_soon(peer.send_bytes, data)
        last = 0
        for _ in range(count):
            correlation_id, _ = await peer.receive()
            assert correlation_id > last
            last = correlation_id


async def test_request_may_arrive_byte_by_byte(peer: Peer) -> None:
    data = peer.encode(HELLO, 0) + peer.encode(HELLO, 0)
    for at in range(len(data)):
        await peer.send_bytes(data[at : at + 1])
    assert await order(peer, 2) == [ApiVersionsResponse] * 2


async def test_frames_of_all_sizes_mix_on_one_connection(peer: Peer, broker: Broker) -> None:
    await peer.create("events", max_message_bytes="10000000")
    sizes = [10, 100_000, 1_000, 3_000_000, 10, 70_000, 9_000_000, 10, 65_536, 8_192, 10] * 2
    async with trio.open_nursery() as nursery:

        async def send() -> None:
            for size in sizes:
                await peer.send(produce_request("events", batch(1, size)), 9)

        nursery.start_soon(send)
        for offset in range(len(sizes)):
            _, answer = await peer.receive()
            assert isinstance(answer, ProduceResponse)
            (result,) = answer.responses[0].partition_responses
            assert (code(result.error_code), result.base_offset) == ("NONE", offset)
    found: list[int] = []
    while len(found) < len(sizes):
        found += [len(r.value or b"") for r in records_of(await peer.fetch("events", len(found)))]
    assert found == sizes


async def test_memory_of_large_requests_is_given_back(broker: Broker) -> None:
    async with connected(broker) as peer:
        await peer.create("events", max_message_bytes="10000000")
        await peer.produce("events", batch(1, 5_000_000))
        assert broker.request_budget.used >= 5_000_000
    with trio.fail_after(5):
        await broker.server.quiet()
    assert broker.request_budget.used == broker.response_budget.used == 0


def test_large_buffer_is_given_up_when_its_client_pauses(mock_time: MockTime) -> None:
    async def main() -> None:
        async with running() as broker, connected(broker) as peer:
            await peer.create("events", max_message_bytes="10000000")
            await peer.produce("events", batch(1, 5_000_000))
            assert broker.request_budget.used > 0
            await trio.sleep(2)
            assert broker.request_budget.used == 0
            assert code((await peer.produce("events", batch(1, 5_000_000))).error_code) == "NONE"

    mock_time(main)


# -- frames that break a rule ------------------------------------------------------------------


def tls_hello() -> bytes:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname="broker")
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


@pytest.mark.parametrize(
    ("data", "hint"),
    [
        pytest.param(struct.pack("!i", 32 * 2**20 + 1), "over the limit", id="over the limit"),
        pytest.param(b"\x7f\xff\xff\xff", "over the limit", id="the largest"),
        pytest.param(b"\x00\x00\x00\x00", "0 bytes", id="zero"),
        pytest.param(b"\xff\xff\xff\xff", "-1 bytes", id="negative"),
        pytest.param(b"\x80\x00\x00\x00", "bytes", id="the most negative"),
        pytest.param(tls_hello(), "TLS", id="TLS"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP", id="HTTP"),
        pytest.param(b"\x00\x00\x00\x01\x00", "request header", id="shorter than a header"),
        pytest.param(b"SSH-2.0-OpenSSH_9.6\r\n", "over the limit", id="SSH"),
    ],
)
async def test_frame_that_breaks_a_rule_closes_the_connection_with_one_line(
    broker: Broker, data: bytes, hint: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with connected(broker) as peer:
        await peer.send_bytes(data)
        await peer.ended()
    (record,) = caplog.records
    assert hint in record.getMessage()
    assert record.levelname == "WARNING"
    assert record.getMessage().isprintable()


async def test_limit_of_frames_is_a_setting() -> None:
    async with running(limits={"frame_max_bytes": 65536}) as broker, connected(broker) as peer:
        await peer.create("events")
        data = peer.encode(produce_request("events", batch(1, 65536 - 200)), 9)
        assert len(data) < 65536 + 4
        await peer.send_bytes(data)
        await peer.receive()
        await peer.send_bytes(peer.encode(produce_request("events", batch(1, 65536)), 9))
        await peer.ended()


async def test_bytes_behind_a_request_close_the_connection(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    async with connected(broker) as peer:
        data = peer.encode(produce_request("events"), 9) + b"xyz"
        await peer.send_bytes(struct.pack("!i", len(data) - 4) + data[4:])
        await peer.ended()
    assert len(caplog.records) == 1


async def test_defect_in_one_request_closes_its_connection_alone(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from odradek.broker import dispatch

    def defect(*_: object) -> None:
        raise ZeroDivisionError("a defect")

    monkeypatch.setitem(dispatch._handlers, 60, (0, 2, False, defect))
    async with connected(broker) as victim, connected(broker) as other:
        await victim.send(API[60].request(), 0)
        await victim.ended()
        assert "a defect" in caplog.text
        assert code((await other.create("events")).error_code) == "NONE"
        assert code((await other.produce("events")).error_code) == "NONE"


async def test_connection_lost_under_reader_and_writer_is_no_defect(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    async with connected(broker) as peer:
        await peer.create("events", max_message_bytes="3000000")
        for _ in range(4):
            await peer.produce("events", batch(1, 1_000_000))
        await peer.send(fetch_request("events", partition_max_bytes=2**24), 12)
        await wait_all_tasks_blocked()  # the writer waits for this side, the reader too
        peer.connection.abort()
    with trio.fail_after(5):
        await broker.server.quiet()
    assert [r for r in caplog.records if r.levelno >= logging.WARNING] == []


# -- numbers of connections --------------------------------------------------------------------


async def test_connections_are_limited_in_all(caplog: pytest.LogCaptureFixture) -> None:
    async with (
        running(limits={"connections_max": 3}) as broker,
        connected(broker) as one,
        connected(broker) as two,
    ):
        async with connected(broker) as three:
            for peer in (one, two, three):
                await peer.ask(HELLO, 0, ApiVersionsResponse)
            async with connected(broker) as four:
                await four.ended()
            assert "connections_max" in caplog.text
            for peer in (one, two, three):
                await peer.ask(HELLO, 0, ApiVersionsResponse)
        with trio.fail_after(5):
            while broker.server.connections > 2:
                await wait_all_tasks_blocked()
        async with connected(broker) as again:
            await again.ask(HELLO, 0, ApiVersionsResponse)


async def test_connections_are_limited_per_address(caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("odradek_transport_tcp")
    limits = {"connections_per_address_max": 2}
    async with running(listen="tcp://127.0.0.1:0", limits=limits) as broker:
        async with connected(broker) as one, connected(broker) as two:
            for peer in (one, two):
                await peer.ask(HELLO, 0, ApiVersionsResponse)
            with suppress(ConnectFailed):  # the reset may come before connect returns
                async with connected(broker) as three:
                    await three.ended()
            await wait_all_tasks_blocked(0.01)
            assert "connections_per_address_max" in caplog.text
            for peer in (one, two):
                await peer.ask(HELLO, 0, ApiVersionsResponse)
        with trio.fail_after(5):
            await broker.server.quiet()
        assert not broker.server._by_address, "nothing is kept of addresses that are gone"


# -- times -------------------------------------------------------------------------------------

LIMITS = {
    "handshake_timeout_s": 10.0,
    "request_timeout_s": 30.0,
    "idle_timeout_s": 600.0,
    "write_timeout_s": 20.0,
}


def test_connection_that_says_nothing_is_closed(mock_time: MockTime) -> None:
    async def main() -> None:
        async with running(limits=LIMITS) as broker, connected(broker) as peer:
            began = trio.current_time()
            with pytest.raises(ConnectionLost):
                await peer._frame()
            assert trio.current_time() - began == pytest.approx(10, abs=0.1)

    mock_time(main)


NAMES = [MetadataRequestTopic(name=f"{number:0200}") for number in range(3000)]
LARGE = MetadataRequest(topics=NAMES, allow_auto_topic_creation=False)
"""Its response is larger than what lies between the broker and a client that does not read."""


def test_client_that_does_not_take_its_only_response_is_sent_away(mock_time: MockTime) -> None:
    async def main() -> None:
        async with running(limits=LIMITS) as broker, connected(broker) as peer:
            await peer.send(LARGE, 4)
            await wait_all_tasks_blocked()
            began = trio.current_time()
            await broker.server.quiet()
            assert trio.current_time() - began == pytest.approx(20, abs=0.1)

    mock_time(main)


def test_broker_that_ends_finishes_the_response_it_is_sending(mock_time: MockTime) -> None:
    async def main() -> None:
        async with running(limits=LIMITS) as broker, connected(broker) as peer:
            await peer.send(LARGE, 4)
            await wait_all_tasks_blocked()
            broker.server.drain()
            await trio.sleep(1)
            _, answer = await peer.receive()
            assert isinstance(answer, MetadataResponse)
            assert len(answer.topics) == 3000
            await peer.ended()

    mock_time(main)


def test_request_that_drips_is_closed_after_its_time_from_the_first_byte(
    mock_time: MockTime,
) -> None:
    async def main() -> None:
        async with running(limits=LIMITS) as broker, connected(broker) as peer:
            await peer.ask(HELLO, 0, ApiVersionsResponse)
            await trio.sleep(100)
            began = trio.current_time()
            data = peer.encode(HELLO, 0)
            with suppress(ConnectionLost):
                for at in range(len(data) - 1):
                    await peer.connection.send([data[at : at + 1]])
                    await trio.sleep(7)
            assert broker.server.connections == 0
            assert 30 <= trio.current_time() - began <= 37

    mock_time(main)


def test_idle_connection_is_closed_after_its_time(mock_time: MockTime) -> None:
    async def main() -> None:
        async with running(limits=LIMITS) as broker, connected(broker) as peer:
            for _ in range(3):
                await peer.ask(HELLO, 0, ApiVersionsResponse)
                await trio.sleep(599)
            await peer.ask(HELLO, 0, ApiVersionsResponse)
            began = trio.current_time()
            with pytest.raises(ConnectionLost):
                await peer._frame()
            assert trio.current_time() - began == pytest.approx(600, abs=0.1)

    mock_time(main)


@pytest.mark.parametrize("idle", [0.4, 600.0], ids=["shorter than it lingers", "usual"])
@pytest.mark.parametrize("contended", [True, False])
def test_large_buffer_given_back_leaves_the_connection_its_idle_time(
    mock_time: MockTime, contended: bool, idle: float
) -> None:
    async def main() -> None:
        limits = LIMITS | {"in_flight_bytes": (2 if contended else 64) * 2**20}
        limits["idle_timeout_s"] = idle
        async with running(limits=limits) as broker, connected(broker) as peer:
            await peer.create("events")
            for pause in (0.9 * idle, 0.99 * idle):
                assert code((await peer.produce("events", batch(1, 900_000))).error_code) == "NONE"
                budget = broker.request_budget
                assert bool(budget.used) != contended, "only a buffer that others want goes at once"
                await trio.sleep(pause)
                assert broker.server.connections == 1
            assert code((await peer.produce("events", batch(1, 900_000))).error_code) == "NONE"
            began = trio.current_time()
            with pytest.raises(ConnectionLost):
                await peer._frame()
            assert trio.current_time() - began == pytest.approx(idle, abs=0.1)
            assert broker.request_budget.used == 0

    mock_time(main)


def test_connection_that_waits_for_a_response_is_not_idle(mock_time: MockTime) -> None:
    async def main() -> None:
        limits = LIMITS | {"idle_timeout_s": 5.0}
        async with running(limits=limits) as broker, connected(broker) as peer:
            await peer.create("events")
            await peer.send(fetch_request("events", max_wait_ms=60_000), 12)
            began = trio.current_time()
            frame = await peer._frame()
            assert frame
            assert trio.current_time() - began == pytest.approx(60, abs=0.1)

    mock_time(main)


def test_client_that_never_stops_sending_is_not_taken_for_a_slow_one(mock_time: MockTime) -> None:
    """The buffer need never be empty between two requests: each has its own time."""

    async def main() -> None:
        async with running(limits=LIMITS) as broker, connected(broker) as peer:
            ahead = peer.encode(HELLO, 0)
            await peer.connection.send([ahead[:5]])
            for _ in range(20):
                following = peer.encode(HELLO, 0)
                await trio.sleep(9)
                await peer.connection.send([ahead[5:] + following[:5]])
                await peer._frame()
                ahead = following

    mock_time(main)


def test_handler_may_take_longer_than_a_request_to_arrive(mock_time: MockTime) -> None:
    async def main() -> None:
        async with running(limits=LIMITS) as broker, connected(broker) as peer:
            real = broker.create_topic

            async def slow(*args: object, **more: object) -> object:
                await trio.sleep(50)
                return await real(*args, **more)  # type: ignore[arg-type]  # passed on

            broker.create_topic = slow  # type: ignore[method-assign,assignment]  # for this test
            request = MetadataRequest(topics=[MetadataRequestTopic(name="fresh")])
            sent = peer.encode(request, 4)
            await peer.connection.send([sent[:9]])
            await trio.sleep(5)
            # The first request of the connection; auto-creation gives up after 10 seconds.
            await peer.connection.send([sent[9:]])
            frame = await peer._frame()
            assert frame
            await peer.ask(HELLO, 0, ApiVersionsResponse)

    mock_time(main)


def test_client_that_takes_no_response_is_closed(mock_time: MockTime) -> None:
    async def main() -> None:
        async with running(limits=LIMITS) as broker, connected(broker) as peer:
            await peer.create("events", max_message_bytes="3000000")
            await peer.produce("events", batch(1, 2_000_000))
            await peer.send(fetch_request("events", partition_max_bytes=2**24), 12)
            await trio.sleep(19)
            assert broker.server.connections == 1
            await trio.sleep(2)
            assert broker.server.connections == 0
            assert broker.response_budget.used == 0

    mock_time(main)


# -- back-pressure -----------------------------------------------------------------------------


async def test_client_that_does_not_read_costs_a_bounded_amount_of_memory(
    broker: Broker,
) -> None:
    async with connected(broker) as peer, connected(broker) as healthy:
        await healthy.create("events", 2000)
        everything = peer.encode(MetadataRequest(topics=None), 9)
        sent = 0
        with trio.move_on_after(5):
            while sent < 100_000:
                await peer.connection.send([everything * 100])
                sent += 100
                await wait_all_tasks_blocked()
                if len(peer.connection._outgoing.data) > 50_000:  # type: ignore[attr-defined]  # of the memory transport
                    break
        (session,) = [s for s in broker.server._sessions if s._queue]
        response = 2000 * 30
        assert session._held <= QUEUE_BYTES + 3 * response
        assert code((await healthy.produce("events")).error_code) == "NONE"


async def test_requests_that_wait_are_bounded_by_what_they_weigh(broker: Broker) -> None:
    async with connected(broker) as peer, connected(broker) as healthy:
        await healthy.create("events")
        request = fetch_request("events", max_wait_ms=300_000)
        request.topics[0].partitions *= 1000
        data = peer.encode(request, 12)
        with trio.move_on_after(2):
            for _ in range(200):
                await peer.connection.send([data])
        (session,) = [s for s in broker.server._sessions if s._queue]
        assert len(session._queue) < 20
        assert session._held <= QUEUE_BYTES + 1000 * 300
        assert code((await healthy.produce("events")).error_code) == "NONE"


async def test_full_budget_stops_reading_and_goes_on_when_there_is_room() -> None:
    async with running(limits={"in_flight_bytes": 4 * 2**20}) as broker:
        async with connected(broker) as writer:
            await writer.create("events", max_message_bytes="3000000")
        async with trio.open_nursery() as nursery:

            async def produce(done: list[str]) -> None:
                async with connected(broker) as peer:
                    for _ in range(3):
                        result = await peer.produce("events", batch(1, 1_500_000))
                        done.append(code(result.error_code))

            done: list[str] = []
            for _ in range(6):
                nursery.start_soon(produce, done)
        assert done == ["NONE"] * 18
        with trio.fail_after(5):
            await broker.server.quiet()
        assert broker.request_budget.used == 0


async def test_many_large_responses_share_the_budget_without_a_deadlock() -> None:
    async with running(limits={"in_flight_bytes": 2 * 2**20}) as broker:
        async with connected(broker) as writer:
            await writer.create("events", 4, max_message_bytes="3000000")
            for partition in range(4):
                await writer.produce("events", batch(1, 700_000), partition=partition)
        async with trio.open_nursery() as nursery:

            async def read() -> None:
                async with connected(broker) as peer:
                    request = fetch_request("events", partition_max_bytes=2**20)
                    template = request.topics[0].partitions[0]
                    request.topics[0].partitions = [
                        type(template)(partition=n, fetch_offset=0, partition_max_bytes=2**20)
                        for n in range(4)
                    ]
                    answer = await peer.ask(request, 12, FetchResponse)
                    sizes = [len(p.records or b"") for p in answer.responses[0].partitions]
                    assert min(sizes) > 700_000

            for _ in range(8):
                nursery.start_soon(read)
        assert broker.response_budget.used == 0
