"""A broker for the client's tests, in this process, and a connection to a peer under control."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from importlib.util import find_spec
from itertools import count

import pytest
import trio

from odradek.broker import Broker, open_broker
from odradek.client import ClientSettings, Cluster, open_cluster
from odradek.config import config_from_options
from odradek.contracts.transport import Connection, ConnectionLost, Listener, Part, Transport
from odradek.memory.transport import MemoryTransport

_numbers = count()

QUICK = ClientSettings(
    retry_backoff=0.01, retry_backoff_max=0.05, request_timeout=10.0, connect_timeout=5.0
)


@asynccontextmanager
async def run_broker(scheme: str = "memory", *overrides: str) -> AsyncIterator[Broker]:
    """Run a broker with everything in memory; its transport is `scheme`."""
    name = f"client-tests-{next(_numbers)}"
    config = config_from_options(
        listen=["tcp://127.0.0.1:0" if scheme == "tcp" else f"memory://{name}"],
        storage=f"memory://{name}",
        coordinator=f"memory:{name}",
        overrides=overrides,
    )
    async with open_broker(config) as broker:
        yield broker


def url_of(broker: Broker) -> str:
    """The URL of a broker's one listener."""
    (url,) = broker.urls.values()
    return url


@pytest.fixture(
    params=[
        "memory",
        pytest.param(
            "tcp",
            marks=pytest.mark.skipif(
                find_spec("odradek_transport_tcp") is None,
                reason="the tcp transport is not installed",
            ),
        ),
    ]
)
async def broker(request: pytest.FixtureRequest) -> AsyncIterator[Broker]:
    """A broker over each transport."""
    async with run_broker(request.param) as broker:
        yield broker


@pytest.fixture
async def cluster(broker: Broker) -> AsyncIterator[Cluster]:
    """The client's view of that broker."""
    with trio.fail_after(30):
        async with open_cluster(url_of(broker), QUICK) as cluster:
            yield cluster


Rule = Callable[[int], bool]
"""Told how many answers the connection has received; True: this one does not arrive."""


class FlakyTransport(Transport):
    """Connects as the memory transport does; `lose` decides when an answer gets lost.

    The request was sent, and the broker acts on it: only the client cannot know.
    """

    def __init__(self, lose: Rule) -> None:
        self.lose = lose
        self.lost = 0
        self.received = 0
        self._memory = MemoryTransport()

    async def listen(self, url: str) -> Listener:
        return await self._memory.listen(url)

    async def connect(self, url: str) -> Connection:
        return _Flaky(await self._memory.connect(url), self)


class _Flaky(Connection):
    __slots__ = ("_network", "_stream")

    def __init__(self, stream: Connection, network: FlakyTransport) -> None:
        self._stream = stream
        self._network = network

    @property
    def peer(self) -> str:
        return self._stream.peer

    @property
    def local(self) -> str:
        return self._stream.local

    @property
    def principal(self) -> str | None:
        return None

    @property
    def plain_files(self) -> bool:
        return False

    async def receive_into(self, buffer: memoryview) -> int:
        received = await self._stream.receive_into(buffer)
        if received:
            self._network.received += 1
            if self._network.lose(self._network.received):
                self._network.lost += 1
                self._stream.abort()
                raise ConnectionLost("the cable was pulled")
        return received

    async def send(self, parts: Sequence[Part]) -> None:
        await self._stream.send(parts)

    async def send_eof(self) -> None:
        await self._stream.send_eof()

    async def aclose(self) -> None:
        await self._stream.aclose()

    def abort(self) -> None:
        self._stream.abort()


@pytest.fixture
def network(broker: Broker) -> FlakyTransport:
    """A network that loses answers when told to, to a broker in memory."""
    if "memory" not in broker.urls:
        pytest.skip("the network fails in memory")
    return FlakyTransport(lambda _: False)
