"""Finding a group's coordinator, remembering it, and asking again when it proves wrong."""

from typing import Any

import pytest
import trio

from odradek.client import ClientSettings, Cluster, open_cluster
from odradek.client.connection import BrokerConnection
from odradek.client.errors import Disconnected
from odradek.errors import ErrorCode
from odradek.wire.api.a10_find_coordinator import FindCoordinatorRequest
from odradek.wire.api.a12_heartbeat import HeartbeatRequest, HeartbeatResponse

QUICK = ClientSettings(retry_backoff=0.01, retry_backoff_max=0.05, request_timeout=10.0)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The groups of each FindCoordinator request that was sent."""
    requests: list[list[str]] = []
    submit = BrokerConnection.submit

    async def watched(self: BrokerConnection, request: Any, *args: Any, **kw: Any) -> Any:
        if isinstance(request, FindCoordinatorRequest):
            requests.append(request.coordinator_keys or [request.key])
        return await submit(self, request, *args, **kw)

    monkeypatch.setattr(BrokerConnection, "submit", watched)
    return requests


async def test_coordinator_is_asked_for_once_and_remembered(
    cluster: Cluster, asked: list[list[str]]
) -> None:
    first = await cluster.coordinator_of("g")
    assert first.node_id == 1
    assert await cluster.coordinator_of("g") == first
    assert asked == [["g"]]


async def test_coordinators_of_many_groups_are_found_by_one_request(
    cluster: Cluster, asked: list[list[str]]
) -> None:
    await cluster.coordinator_of("a")
    found = await cluster.coordinators_of(["a", "b", "c"])
    assert set(found) == {"a", "b", "c"}
    assert asked == [["a"], ["b", "c"]]


async def test_coordinators_are_asked_for_one_by_one_of_brokers_before_kip_699(
    cluster: Cluster, asked: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    version_of = BrokerConnection.version_of

    def older(self: BrokerConnection, request: type, highest: int | None = None) -> int:
        return version_of(self, request, 3 if request is FindCoordinatorRequest else highest)

    monkeypatch.setattr(BrokerConnection, "version_of", older)
    found = await cluster.coordinators_of(["a", "b"])
    assert set(found) == {"a", "b"}
    assert asked == [["a"], ["b"]]


async def test_coordinator_is_asked_for_again_once_forgotten(
    cluster: Cluster, asked: list[list[str]]
) -> None:
    await cluster.coordinator_of("g")
    cluster.forget_coordinator("g")
    await cluster.coordinator_of("g")
    assert asked == [["g"], ["g"]]


@pytest.mark.parametrize(
    ("code", "again"),
    [(ErrorCode.NOT_COORDINATOR, True), (ErrorCode.UNKNOWN_MEMBER_ID, False)],
)
async def test_coordinator_is_asked_for_again_when_it_denies_to_be_one(
    cluster: Cluster,
    asked: list[list[str]],
    monkeypatch: pytest.MonkeyPatch,
    code: ErrorCode,
    again: bool,
) -> None:
    await cluster.connection_to(await cluster.coordinator_of("g"), "group")

    async def denied(*_: object, **__: object) -> HeartbeatResponse:
        return HeartbeatResponse(error_code=code)

    with monkeypatch.context() as patched:
        patched.setattr(BrokerConnection, "call", denied)
        answer = await cluster.call_coordinator("g", HeartbeatRequest(), HeartbeatResponse)
    assert answer.error_code == code
    await cluster.coordinator_of("g")
    assert len(asked) == (2 if again else 1)


async def test_coordinator_that_cannot_be_reached_is_asked_for_again(
    cluster: Cluster, asked: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster.coordinator_of("a")
    await cluster.connection_to(await cluster.coordinator_of("b"), "group")
    call = BrokerConnection.call

    async def gone(self: BrokerConnection, request: Any, *args: Any, **kw: Any) -> Any:
        if isinstance(request, HeartbeatRequest):
            raise Disconnected("gone")
        return await call(self, request, *args, **kw)

    monkeypatch.setattr(BrokerConnection, "call", gone)
    with pytest.raises(Disconnected):
        await cluster.call_coordinator("a", HeartbeatRequest(), HeartbeatResponse)
    await cluster.coordinator_of("b")
    assert asked == [["a"], ["b"], ["b"]]


async def test_disconnect_ends_the_connections_of_one_purpose_alone(cluster: Cluster) -> None:
    broker = await cluster.coordinator_of("g")
    mine = await cluster.connection_to(broker, "mine")
    shared = await cluster.any_connection()
    cluster.disconnect("mine")
    assert not mine.alive
    assert shared.alive
    assert await cluster.connection_to(broker, "mine") is not mine


async def test_coordinator_is_named_within_the_timeout_or_the_last_error_told() -> None:
    async with open_cluster("memory://nobody", QUICK) as cluster:
        with trio.fail_after(5), pytest.raises(Exception, match="nobody"):
            await cluster.coordinator_of("g", timeout=0.05)
