"""A broker with everything in memory, and a connection to it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeAlias

import pytest
import trio
import trio.testing
from tests.broker.peer import FixedHost, Peer, connected, running

from odradek.broker import Broker

MockTime: TypeAlias = Callable[[Callable[[], Awaitable[None]]], None]


@pytest.fixture
def mock_time() -> MockTime:
    """Run a coroutine function on a clock that jumps to the next deadline when all wait."""

    def run(main: Callable[[], Awaitable[None]]) -> None:
        trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))

    return run


@pytest.fixture
def host() -> FixedHost:
    return FixedHost()


@pytest.fixture
async def broker(host: FixedHost) -> AsyncIterator[Broker]:
    async with running(host=host) as broker:
        yield broker


@pytest.fixture
async def peer(broker: Broker) -> AsyncIterator[Peer]:
    async with connected(broker) as peer:
        yield peer
