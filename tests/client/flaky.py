"""A transport whose connections break on request: the network's part in the client's tests."""

from collections.abc import Callable, Sequence

from odradek.contracts.transport import Connection, ConnectionLost, Listener, Part, Transport
from odradek.memory.transport import MemoryTransport

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
