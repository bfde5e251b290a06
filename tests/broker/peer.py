"""A broker in this process, and the other end of a connection to it, frame by frame."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import cache
from itertools import count
from typing import Any, TypeVar, cast

import trio

from odradek import plugins
from odradek.broker import Broker, Host, open_broker
from odradek.broker.host import Boot
from odradek.config import config_from_table
from odradek.contracts.transport import Connection, ConnectionLost
from odradek.errors import ErrorCode
from odradek.memory.transport import MemoryTransport
from odradek.record import BatchBuilder, BatchMeta, Record, iter_records, scan
from odradek.wire import API, Message, decode_correlation_id, decode_response, encode_request
from odradek.wire.api.a00_produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from odradek.wire.api.a01_fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from odradek.wire.api.a19_create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)

M = TypeVar("M", bound=Message)

NOW = 1_700_000_000_000
PATIENCE = 10.0
"""Seconds after which a test that waits has failed."""

_names = count()


class FixedHost(Host):
    """A machine whose wall clock shows what the test says."""

    def __init__(self) -> None:
        self.now = NOW
        self.up = 0

    def now_ms(self) -> int:
        return self.now

    def boot(self) -> Boot:
        return Boot("the only one", self.up)


@cache
def installed() -> plugins.Plugins:
    return plugins.load()


@asynccontextmanager
async def running(
    *,
    listen: str | None = None,
    storage: str = "memory:",
    coordinator: str = "memory:",
    host: Host | None = None,
    **sections: Mapping[str, Any],
) -> AsyncIterator[Broker]:
    """Run a broker; `sections` are those of the configuration (`limits={...}`)."""
    number = next(_names)
    if coordinator == "memory:":
        coordinator = f"memory:{number}"
    table: dict[str, Any] = {
        "listeners": [{"url": listen or f"memory://broker-{number}"}],
        "storage": {"url": storage},
        "coordinator": {"url": coordinator},
        **{name: dict(section) for name, section in sections.items()},
    }
    config = config_from_table(table)
    async with open_broker(config, installed=installed(), host=host or FixedHost()) as broker:
        yield broker


class Peer:
    """A client that knows nothing but frames."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._ids = count(1)
        self._asked: dict[int, tuple[int, int]] = {}
        self._received = bytearray()

    async def send_bytes(self, data: bytes | bytearray) -> None:
        with trio.fail_after(PATIENCE):
            await self.connection.send([data])

    def encode(self, request: Message, version: int, client_id: str | None = "peer") -> bytes:
        correlation_id = next(self._ids)
        self._asked[correlation_id] = (request.api_key, version)
        parts = encode_request(
            request, version=version, correlation_id=correlation_id, client_id=client_id
        )
        return b"".join(cast("list[bytes]", parts))

    async def send(self, request: Message, version: int) -> int:
        """Send a request without waiting for its response; return its correlation id."""
        data = self.encode(request, version)
        await self.send_bytes(data)
        return max(self._asked)

    async def receive_frame(self) -> bytes:
        """Return the next frame without its size. Raises ConnectionLost at the end."""
        with trio.fail_after(PATIENCE):
            return await self._frame()

    async def _frame(self) -> bytes:
        chunk = bytearray(64 * 1024)
        while True:
            if len(self._received) >= 4:
                size = int.from_bytes(self._received[:4], "big")
                if len(self._received) >= 4 + size:
                    frame = bytes(self._received[4 : 4 + size])
                    del self._received[: 4 + size]
                    return frame
            received = await self.connection.receive_into(memoryview(chunk))
            if not received:
                raise ConnectionLost("the broker ended the stream")
            self._received += chunk[:received]

    async def receive(self) -> tuple[int, Message]:
        """Return the correlation id and the message of the next response."""
        frame = await self.receive_frame()
        correlation_id = decode_correlation_id(frame)
        key, version = self._asked.pop(correlation_id)
        return correlation_id, decode_response(API[key].response, version, frame)

    async def ask(self, request: Message, version: int, answer: type[M]) -> M:
        """Send a request and return its response, which has to be the next one."""
        sent = await self.send(request, version)
        received, message = await self.receive()
        assert received == sent
        assert isinstance(message, answer)
        return message

    async def ended(self) -> None:
        """Return when the broker has ended the connection; fail if it sends anything before."""
        buffer = memoryview(bytearray(1000))
        with trio.fail_after(PATIENCE):
            try:
                received = await self.connection.receive_into(buffer)
            except ConnectionLost:
                return
        assert not received, bytes(buffer[:received])

    # -- what most tests need ------------------------------------------------------------------

    async def create(
        self, name: str, partitions: int = 1, version: int = 7, **configs: str
    ) -> CreatableTopicResult:
        wanted = CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=1,
            configs=[
                CreatableTopicConfig(name=key.replace("_", "."), value=value)
                for key, value in configs.items()
            ],
        )
        request = CreateTopicsRequest(topics=[wanted], timeout_ms=5000)
        answer = await self.ask(request, version, CreateTopicsResponse)
        (result,) = answer.topics
        return result

    async def produce(
        self, topic: str, data: bytes | bytearray | None = None, **more: Any
    ) -> PartitionProduceResponse:
        version = more.pop("version", 9)
        request = produce_request(topic, data, **more)
        answer = await self.ask(request, version, ProduceResponse)
        (only,) = answer.responses
        (result,) = only.partition_responses
        return result

    async def fetch(self, topic: str, offset: int = 0, **more: Any) -> PartitionData:
        version = more.pop("version", 12)
        answer = await self.ask(fetch_request(topic, offset, **more), version, FetchResponse)
        assert answer.error_code == 0
        (only,) = answer.responses
        (result,) = only.partitions
        return result


def batch(count: int = 1, size: int = 10, timestamp: int = NOW, **options: Any) -> bytearray:
    """A batch of `count` records with values of `size` bytes and timestamps one ms apart."""
    keys = options.pop("keys", [None] * count)
    builder = BatchBuilder(64 * 1024 * 1024, **options)
    for number, key in enumerate(keys):
        assert builder.append(timestamp + number, key, b"v" * size)
    return builder.build()


def produce_request(
    topic: str,
    data: bytes | bytearray | None = None,
    *,
    partition: int = 0,
    acks: int = -1,
    timeout_ms: int = 5000,
    **more: Any,
) -> ProduceRequest:
    records = batch() if data is None else data
    return ProduceRequest(
        acks=acks,
        timeout_ms=timeout_ms,
        topic_data=[
            TopicProduceData(
                name=topic,
                partition_data=[PartitionProduceData(index=partition, records=records)],
                **{key: more.pop(key) for key in ("topic_id",) if key in more},
            )
        ],
        **more,
    )


def fetch_request(topic: str, offset: int = 0, **more: Any) -> FetchRequest:
    wanted = FetchPartition(
        partition=more.pop("partition", 0),
        fetch_offset=offset,
        partition_max_bytes=more.pop("partition_max_bytes", 2**20),
        **{
            key: more.pop(key)
            for key in ("current_leader_epoch", "last_fetched_epoch")
            if key in more
        },
    )
    named = {"topic_id": more.pop("topic_id")} if "topic_id" in more else {"topic": topic}
    more = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 2**25, **more}
    return FetchRequest(topics=[FetchTopic(partitions=[wanted], **named)], **more)


def records_of(data: PartitionData) -> list[Record]:
    assert data.records is not None
    return list(iter_records(data.records))  # type: ignore[arg-type]  # decoded: bytes-like


def metas_of(data: PartitionData) -> list[BatchMeta]:
    found = scan(memoryview(data.records))  # type: ignore[arg-type]  # decoded: bytes-like
    assert found.problem is None
    return found.metas


def code(value: int) -> str:
    """An error code by its name: what a failed test should print."""
    return ErrorCode.of(value).name


@asynccontextmanager
async def connected(broker: Broker) -> AsyncIterator[Peer]:
    """A connection to the broker's first listener."""
    url = next(iter(broker.urls.values()))
    if url.startswith("memory:"):
        connection: Connection = await MemoryTransport().connect(url)
    else:
        from odradek_transport_tcp import TcpSettings, TcpTransport

        connection = await TcpTransport(TcpSettings()).connect(url)
    peer = Peer(connection)
    try:
        yield peer
    finally:
        connection.abort()
