"""A broker for the client's tests, in this process, and a connection to a peer under control."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib.util import find_spec
from itertools import count
from typing import TypeAlias

import pytest
import trio

from odradek.broker import Broker, open_broker
from odradek.client import ClientSettings, Cluster, open_cluster
from odradek.config import config_from_options

OpenCluster: TypeAlias = Callable[..., AbstractAsyncContextManager[Cluster]]

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
