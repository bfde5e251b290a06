"""One run of everything on a clock that jumps, repeatable by its seed.

    def test_nothing_is_lost(seed):
        simulate(seed, history)          # async def history(random: Random) -> None

Time passes only when everybody waits, so that an hour takes as long as what happens in it. The
order in which trio runs tasks that are ready depends on the seed too, which is what finds races.
What is simulated must take its clock from trio, its randomness from what it is given, and use no
threads.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any, TypeVar

import trio
import trio.testing

__all__ = ["FaultyNetwork", "repeatable", "simulate"]

from odradek.contracts.transport import ConnectFailed, Connection, Listener, Part, Transport
from odradek.memory.transport import MemoryTransport

T = TypeVar("T")


@contextmanager
def repeatable(seed: int) -> Iterator[None]:
    """Make trio's schedule depend on `seed` alone.

    By two private names of trio, which is why they stand here and nowhere else (trio 0.25 to
    0.35 has them; tests/simulation says when a new one has not).
    """
    run: Any = trio._core._run
    before = run._ALLOW_DETERMINISTIC_SCHEDULING
    run._ALLOW_DETERMINISTIC_SCHEDULING = True
    run._r.seed(seed)
    try:
        yield
    finally:
        run._ALLOW_DETERMINISTIC_SCHEDULING = before


def simulate(seed: int, history: Callable[[Random], Awaitable[T]], *, limit: float = 7200.0) -> T:
    """Run `history` with randomness from `seed`, for at most `limit` seconds of its own time.

    A failure says the seed. Raises trio.TooSlowError after `limit`, and whatever `history` does.
    """

    async def main() -> T:
        with trio.fail_after(limit):
            return await history(Random(seed))

    try:
        with repeatable(seed):
            return trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    except BaseException as error:
        error.add_note(f"seed {seed}")
        raise


class FaultyNetwork(Transport):
    """One party's way to the others, in memory: slow, and cut off on request.

    `latency` in seconds is the longest that a piece of data takes, either way. Data that are
    under way when the connection is cut are lost, and nobody learns how far they came.
    """

    def __init__(self, random: Random, latency: float = 0.01) -> None:
        self.latency = latency
        self.reachable = True
        self._random = random
        self._inner = MemoryTransport()
        self._connections: list[Connection] = []

    async def listen(self, url: str) -> Listener:
        """See `Transport.listen`."""
        return await self._inner.listen(url)

    async def connect(self, url: str) -> Connection:
        """See `Transport.connect`."""
        await trio.sleep(self._random.random() * self.latency)
        if not self.reachable:
            raise ConnectFailed(f"cannot connect to {url}: cut off")
        connection = _Slow(await self._inner.connect(url), self)
        self._connections.append(connection)
        return connection

    async def delay(self) -> None:
        """Take as long as data do."""
        await trio.sleep(self._random.random() * self.latency)

    def drop(self) -> None:
        """Break every connection there is."""
        for connection in self._connections:
            connection.abort()
        self._connections.clear()

    def cut(self) -> None:
        """Break every connection, and make no new ones."""
        self.reachable = False
        self.drop()

    def heal(self) -> None:
        """Let connections be made again."""
        self.reachable = True


class _Slow(Connection):
    def __init__(self, inner: Connection, network: FaultyNetwork) -> None:
        self._inner = inner
        self._network = network

    @property
    def peer(self) -> str:
        return self._inner.peer

    @property
    def local(self) -> str:
        return self._inner.local

    @property
    def principal(self) -> str | None:
        return self._inner.principal

    @property
    def plain_files(self) -> bool:
        return self._inner.plain_files

    async def receive_into(self, buffer: memoryview) -> int:
        await self._network.delay()
        return await self._inner.receive_into(buffer)

    async def send(self, parts: list[Part]) -> None:  # type: ignore[override]  # as it comes
        await self._network.delay()
        await self._inner.send(parts)

    async def send_eof(self) -> None:
        await self._inner.send_eof()

    async def aclose(self) -> None:
        await self._inner.aclose()

    def abort(self) -> None:
        self._inner.abort()
