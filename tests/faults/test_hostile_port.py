"""What an enemy may try at the port, attack by attack.

| attack | where it is tried |
|--|--|
| frame length over the limit, negative, zero | tests/broker/test_connections.py; memory: here |
| truncated frame, slow drip, silence, no reading | tests/broker/test_connections.py |
| TLS or HTTP on a plain port | tests/broker/test_connections.py |
| array counts, varints, tagged fields | here; every message: tests/wire/test_hostile.py |
| unknown API key or version | tests/broker/test_discovery.py |
| batches that break a rule | here and tests/broker/test_produce.py |
| decompression bombs | here |
| names that are paths | here |
| log injection | here |
| connection flood | here |
| memory | here and tests/broker/test_connections.py |
| absurd waits | here and tests/broker/test_fetch.py |
| a client sends a broker's request (CVE-2018-1288) | here |
| class names from the API (CVE-2023-25194) | here |
"""

from __future__ import annotations

import gc
import os
import struct
import sys
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from tests.broker.peer import (
    NOW,
    batch,
    code,
    connected,
    fetch_request,
    produce_request,
    records_of,
    running,
)

from odradek.broker import Broker
from odradek.contracts.transport import TransportError
from odradek.record import BatchMeta, CompressionType, assemble, compress, parse_header
from odradek.wire.api.a00_produce import ProduceResponse
from odradek.wire.api.a01_fetch import FetchResponse
from odradek.wire.api.a02_list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from odradek.wire.api.a18_api_versions import ApiVersionsRequest, ApiVersionsResponse
from odradek.wire.api.a19_create_topics import CreatableTopic, CreateTopicsRequest
from odradek.wire.api.a60_describe_cluster import DescribeClusterRequest, DescribeClusterResponse

pytestmark = pytest.mark.faults

MIB = 2**20


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with running() as broker:
        yield broker


@contextmanager
def costs_less_than(limit: int) -> Iterator[None]:
    """Fail if the peak of allocated memory rises by more than `limit` bytes."""
    gc.collect()
    tracemalloc.start()
    try:
        yield
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < limit, f"{peak} bytes at the peak"


def framed(key: int, version: int, body: bytes, flexible: bool) -> bytes:
    head = struct.pack("!hhih", key, version, 7, -1) + (b"\0" if flexible else b"")
    return struct.pack("!i", len(head) + len(body)) + head + body


async def refused(broker: Broker, data: bytes) -> None:
    """The broker ends a connection that sends this, and serves others."""
    async with connected(broker) as peer, connected(broker) as other:
        await peer.send_bytes(data)
        await peer.ended()
        await other.ask(ApiVersionsRequest(), 0, ApiVersionsResponse)


# -- frames ------------------------------------------------------------------------------------


async def test_length_that_is_only_claimed_costs_nothing(broker: Broker) -> None:
    async with AsyncExitStack() as stack:
        peers = [await stack.enter_async_context(connected(broker)) for _ in range(100)]
        with costs_less_than(8 * MIB):
            for peer in peers:
                await peer.send_bytes(struct.pack("!i", 32 * MIB) + bytes(100))
            await trio.testing.wait_all_tasks_blocked()


@pytest.mark.parametrize(("pieces", "size"), [(1, MIB), (100, 10), (20, 4000)])
async def test_memory_grows_with_what_arrives_and_not_with_what_is_claimed(
    broker: Broker, pieces: int, size: int
) -> None:
    async with connected(broker) as peer:
        data = bytes(size)
        with costs_less_than(MIB // 2 + 6 * pieces * size):
            await peer.send_bytes(struct.pack("!i", 32 * MIB))
            for _ in range(pieces):
                await peer.send_bytes(data)
                await trio.testing.wait_all_tasks_blocked()


# -- fields ------------------------------------------------------------------------------------

HUGE = b"\x7f\xff\xff\xff"
HUGE_VARINT = b"\xff\xff\xff\xff\x0f"


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(framed(3, 1, HUGE, False), id="Metadata: array of 2**31 - 1"),
        pytest.param(framed(3, 1, b"\xff\xff\xff\xfe", False), id="Metadata: array of -2"),
        pytest.param(framed(3, 9, HUGE_VARINT + bytes(3), True), id="Metadata: compact array"),
        pytest.param(framed(3, 9, b"\xff" * 11, True), id="Metadata: varint too long"),
        pytest.param(framed(3, 9, b"\x01\0\0\0\x02\x05\x01x\x01\x01x", True), id="tags unordered"),
        pytest.param(framed(3, 9, b"\x01\0\0\0\x01\x05" + HUGE_VARINT, True), id="tag too long"),
        pytest.param(framed(3, 9, b"\x01\0\0\0" + HUGE_VARINT, True), id="too many tags"),
        pytest.param(framed(18, 3, b"\x05ab", True), id="ApiVersions: string too long"),
        pytest.param(framed(18, 3, b"\x03\xff\xfe\x02x\0", True), id="ApiVersions: not UTF-8"),
        pytest.param(framed(0, 3, b"\xff\xff\0\1\0\0\0\0" + HUGE, False), id="Produce: topics"),
        pytest.param(framed(0, 3, b"\xff\xfe\0\1\0\0\0\0\0\0\0\0", False), id="Produce: null -2"),
        pytest.param(framed(19, 2, HUGE + bytes(5), False), id="CreateTopics: topics"),
        pytest.param(struct.pack("!ihhihi", 14, 3, 1, 7, 200, 0), id="header: client id too long"),
        pytest.param(struct.pack("!ihhihi", 14, 3, 1, 7, -9, 0), id="header: client id of -9"),
        pytest.param(framed(3, 9, b"", True)[:-1] + b"\xff", id="header: tags"),
    ],
)
async def test_field_that_breaks_a_rule_ends_the_connection_and_costs_nothing(
    broker: Broker, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with costs_less_than(2 * MIB):
        await refused(broker, data)
    (record,) = caplog.records
    assert record.levelname == "WARNING"


async def test_unknown_tagged_fields_are_ignored(broker: Broker) -> None:
    async with connected(broker) as peer:
        body = b"\x02x\x02y" + b"\x01\x63\x03abc"
        head = struct.pack("!hhih", 18, 3, 7, -1) + b"\x01\x63\x03abc"
        await peer.send_bytes(struct.pack("!i", len(head) + len(body)) + head + body)
        assert (await peer.receive_frame())[:6] == b"\0\0\0\x07\0\0"


# -- batches -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"base_offset": 5, "last_offset": 7}, "INVALID_RECORD"),
        ({"last_offset": 1}, "INVALID_RECORD"),
        ({"last_offset": 2**31 - 1, "record_count": -(2**31)}, "INVALID_RECORD"),
        ({"last_offset": -1, "record_count": 0}, "INVALID_RECORD"),
        ({"last_offset": 9_999_999, "record_count": 10_000_000}, "INVALID_RECORD"),
        ({"attributes": 7}, "UNSUPPORTED_COMPRESSION_TYPE"),
        ({"attributes": 8}, "INVALID_TIMESTAMP"),
        ({"attributes": 0x20}, "INVALID_RECORD"),
        ({"attributes": 0x40}, "INVALID_RECORD"),
        ({"attributes": 0x80}, "INVALID_RECORD"),
        ({"producer_id": 5, "producer_epoch": 0, "base_sequence": -1}, "INVALID_RECORD"),
        ({"producer_id": 5, "producer_epoch": -1, "base_sequence": 0}, "INVALID_RECORD"),
        ({"max_timestamp": 2**63 - 1}, "INVALID_TIMESTAMP"),
    ],
)
async def test_batch_whose_header_lies_is_refused(
    broker: Broker, change: dict[str, int], error: str
) -> None:
    honest = batch(3)
    meta: BatchMeta = parse_header(honest)._replace(**change)
    async with connected(broker) as peer:
        await peer.create("events")
        result = await peer.produce("events", assemble(meta, honest[61:]))
        assert code(result.error_code) == error
        assert broker.topic("events").log(0).log_end_offset == 0


# -- bombs -------------------------------------------------------------------------------------


def bomb(codec: CompressionType, size: int) -> bytearray:
    """A batch of a few kilobytes that decompresses to `size` bytes."""
    payload = compress(codec, bytes(size))
    meta = parse_header(batch(1))._replace(attributes=int(codec), size=61 + len(payload))
    return assemble(meta, payload)


CODECS = [codec for codec in CompressionType if codec is not CompressionType.NONE]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(
    "settings", [{"cleanup_policy": "compact"}, {"compression_type": "uncompressed"}]
)
async def test_bomb_is_stopped_where_records_are_looked_at(
    broker: Broker, codec: CompressionType, settings: dict[str, Any]
) -> None:
    data = bomb(codec, 20 * MIB)
    assert len(data) < 2 * MIB
    async with connected(broker) as peer:
        await peer.create("events", max_message_bytes=str(len(data)), **settings)
        data = bomb(codec, max(20 * MIB, 10 * len(data)))
        with costs_less_than(8 * len(data) + 6 * MIB):
            result = await peer.produce("events", data)
        assert code(result.error_code) in ("MESSAGE_TOO_LARGE", "INVALID_RECORD")


async def test_bomb_that_was_stored_is_not_opened_to_find_a_time(broker: Broker) -> None:
    data = bomb(CompressionType.GZIP, 60 * MIB)
    async with connected(broker) as peer:
        await peer.create("events")
        assert code((await peer.produce("events", data)).error_code) == "NONE"
        wanted = ListOffsetsPartition(partition_index=0, timestamp=NOW)
        request = ListOffsetsRequest(topics=[ListOffsetsTopic(name="events", partitions=[wanted])])
        with costs_less_than(24 * MIB):
            answer = await peer.ask(request, 7, ListOffsetsResponse)
        assert answer.topics[0].partitions[0].offset == 0


# -- names and logs ----------------------------------------------------------------------------

PATHS = ("..", "../up", "a/b", "/etc/passwd", "a\0b", "con\\..\\x", "%2e%2e", "~", "$HOME", "\n")


async def test_nothing_from_a_client_becomes_a_path(tmp_path: Path) -> None:
    pytest.importorskip("odradek_storage_file")
    storage, coordinator = f"file://{tmp_path}/logs", f"embedded:{tmp_path}/c"
    async with running(storage=storage, coordinator=coordinator) as broker:
        for name in PATHS:
            async with connected(broker) as peer:
                assert code((await peer.create(name)).error_code) == "INVALID_TOPIC_EXCEPTION"
                data = peer.encode(produce_request(name, transactional_id=name), 9, client_id=name)
                await peer.send_bytes(data)
                _, answer = await peer.receive()
                assert isinstance(answer, ProduceResponse)
        async with connected(broker) as peer:
            await peer.create("events")
            await peer.produce("events")
    found = [name for _, folders, files in os.walk(tmp_path) for name in folders + files]
    assert found
    for name in found:
        assert not any(part in name for part in ("up", "passwd", "events", "%", "~", "$", "\n"))
    assert sorted(entry.name for entry in os.scandir(tmp_path)) == ["c", "logs"]


EVIL = "x\r\nERROR fake line\x1b[2J\x1b]0;title\x07\x9b31m\u202e"


async def test_nothing_from_a_client_reaches_a_log_line_or_terminal_raw(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", "odradek")
    async with connected(broker) as peer:
        await peer.create(EVIL)
        await peer.send_bytes(peer.encode(produce_request(EVIL, acks=0), 9, client_id=EVIL))
        await peer.ended()
    async with connected(broker) as peer:
        strange: dict[str, Any] = {"no" + EVIL: "1"}
        await peer.create("events", **strange)
        await peer.create("events", retention_ms=EVIL)
        request = ApiVersionsRequest(client_software_name=EVIL, client_software_version=EVIL)
        await peer.ask(request, 3, ApiVersionsResponse)
        await peer.send_bytes(framed(3, 9, b"\x02" + b"\0" * 16 + b"\x03\x1b[", True))
        await peer.ended()
    assert caplog.records
    for record in caplog.records:
        assert record.getMessage().isprintable()
        assert len(record.getMessage()) < 500


# -- numbers -----------------------------------------------------------------------------------


async def test_flood_of_connections_leaves_room_for_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pytest.importorskip("odradek_transport_tcp")
    from odradek_transport_tcp import TcpSettings, TcpTransport

    limits = {"connections_per_address_max": 100, "connections_max": 150}
    async with running(listen="tcp://127.0.0.1:0", limits=limits) as broker:
        transport = TcpTransport(TcpSettings())
        (url,) = broker.urls.values()
        flood = []
        for _ in range(300):
            with suppress(TransportError):
                flood.append(await transport.connect(url))
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert broker.server.connections == 100
        for connection in flood:
            connection.abort()
        with trio.fail_after(30):
            await broker.server.quiet()
        async with connected(broker) as peer:
            assert code((await peer.create("events")).error_code) == "NONE"


async def test_idle_connections_cost_little(broker: Broker) -> None:
    async with AsyncExitStack() as stack:
        with costs_less_than(300 * 40 * 1024):
            for _ in range(300):
                peer = await stack.enter_async_context(connected(broker))
                await peer.connection.send([peer.encode(ApiVersionsRequest(), 0)])
            await trio.testing.wait_all_tasks_blocked()
            assert broker.server.connections == 300


async def test_request_of_many_things_lets_others_have_their_turn(broker: Broker) -> None:
    """Twenty thousand unknown topics in one Metadata request."""
    from odradek.wire.api.a03_metadata import (
        MetadataRequest,
        MetadataRequestTopic,
        MetadataResponse,
    )

    async with connected(broker) as peer, connected(broker) as other:
        request = MetadataRequest(
            topics=[MetadataRequestTopic(name=f"t{n}") for n in range(20_000)],
            allow_auto_topic_creation=False,
        )
        turns = 0
        answered = trio.Event()
        async with trio.open_nursery() as nursery:

            async def ask() -> None:
                await peer.ask(request, 9, MetadataResponse)
                answered.set()

            nursery.start_soon(ask)
            while not answered.is_set():
                await other.ask(ApiVersionsRequest(), 0, ApiVersionsResponse)
                turns += 1
        assert turns > 10


def test_absurd_timeouts_are_cut() -> None:
    async def main() -> None:
        async with running(limits={"wait_max_ms": 2000}) as broker, connected(broker) as peer:
            await peer.create("events")

            async def hangs(*_: object, **__: object) -> None:
                await trio.sleep_forever()

            broker.create_topic = hangs  # type: ignore[method-assign,assignment]  # for this test
            began = trio.current_time()
            topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1)
            await peer.send(CreateTopicsRequest(topics=[topic], timeout_ms=2**31 - 1), 7)
            _, answer = await peer.receive()
            assert code(answer.topics[0].error_code) == "REQUEST_TIMED_OUT"  # type: ignore[attr-defined]  # CreateTopics'
            assert trio.current_time() - began == pytest.approx(2, abs=0.1)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


# -- requests of others ------------------------------------------------------------------------

BROKERS_ONLY = {
    4: "LeaderAndIsr",
    5: "StopReplica",
    6: "UpdateMetadata",
    7: "ControlledShutdown",
    27: "WriteTxnMarkers",
    52: "Vote",
    53: "BeginQuorumEpoch",
    56: "AlterPartition",
    58: "Envelope",
    59: "FetchSnapshot",
    62: "BrokerRegistration",
    63: "BrokerHeartbeat",
    64: "UnregisterBroker",
    67: "AllocateProducerIds",
}


@pytest.mark.parametrize("key", BROKERS_ONLY, ids=BROKERS_ONLY.get)
async def test_requests_of_brokers_are_refused_to_clients(broker: Broker, key: int) -> None:
    await refused(broker, framed(key, 0, bytes(60), False))
    await refused(broker, framed(key, 3, bytes(60), True))


@pytest.mark.parametrize("version", [4, 12])
async def test_client_that_says_it_is_a_broker_reads_as_a_client(
    broker: Broker, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.broker.test_connections import HeldTicket

    from odradek.memory import storage

    released = trio.Event()
    async with connected(broker) as peer, connected(broker) as liar:
        await peer.create("events")
        await peer.produce("events", batch(2))
        monkeypatch.setattr(storage, "_Ticket", lambda end: HeldTicket(end, released))
        await peer.send(produce_request("events", batch(3)), 9)
        await trio.testing.wait_all_tasks_blocked()
        answer = await liar.ask(fetch_request("events", replica_id=1), version, FetchResponse)
        (found,) = answer.responses[0].partitions
        assert len(records_of(found)) == 2, "nothing above the high watermark"
        assert found.high_watermark == 2
        assert broker.image.partitions[next(iter(broker.image.partitions))].isr == (1,)
        released.set()
        await peer.receive()


async def test_no_request_makes_the_broker_import_what_it_names(broker: Broker) -> None:
    async with connected(broker) as peer:
        await peer.ask(DescribeClusterRequest(), 0, DescribeClusterResponse)
        before = set(sys.modules)
        for name, value in (
            ("interceptor.classes", "antigravity.Interceptor"),
            ("compression.type", "this"),
            ("follower.replication.throttled.replicas", "os.system"),
            ("sasl.jaas.config", "com.sun.security.auth.module.JndiLoginModule required;"),
        ):
            setting: dict[str, Any] = {name: value}
            result = await peer.create("events", **setting)
            assert code(result.error_code) == "INVALID_CONFIG"
        for key in (70, 74, -3, 2**15 - 1):
            async with connected(broker) as other:
                await other.send_bytes(framed(key, 0, b"antigravity", False))
                await other.ended()
        loaded = set(sys.modules) - before
        assert not loaded & {"antigravity", "this"}
        assert all(name.startswith("odradek.") for name in loaded)
