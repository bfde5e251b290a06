"""Administration of groups against a broker in this process."""

from collections.abc import AsyncIterator, Callable

import pytest
import trio
from tests.client.conftest import QUICK, FlakyTransport, run_broker

from odradek.broker import Broker
from odradek.broker.faults import Faults
from odradek.client import (
    EARLIEST,
    Admin,
    Cluster,
    Disconnected,
    GroupDescription,
    NewTopic,
    NotOffered,
    ResetImpossible,
    ShiftBy,
    TopicPartition,
    ToTime,
    open_cluster,
)
from odradek.client.connection import BrokerConnection
from odradek.client.membership import CommittedOffset
from odradek.errors import ErrorCode, KafkaError
from odradek.group.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    encode_assignment,
    encode_subscription,
)
from odradek.wire import Message
from odradek.wire.api.a08_offset_commit import OffsetCommitRequest
from odradek.wire.api.a09_offset_fetch import OffsetFetchRequest
from odradek.wire.api.a10_find_coordinator import FindCoordinatorRequest
from odradek.wire.api.a11_join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
)
from odradek.wire.api.a14_sync_group import (
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from odradek.wire.api.a15_describe_groups import DescribeGroupsRequest
from odradek.wire.api.a16_list_groups import ListGroupsRequest

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    """A broker whose groups do not wait for a first member's companions."""
    async with run_broker("memory", "groups.initial_rebalance_delay_ms=0") as broker:
        yield broker


@pytest.fixture
async def admin(cluster: Cluster) -> Admin:
    admin = Admin(cluster, timeout=10.0)
    await admin.create_topic(NewTopic(name="t", partitions=2))
    return admin


async def join(
    cluster: Cluster, group: str, *, protocol_type: str, metadata: bytes, assignment: bytes
) -> str:
    """Become the one member of a group, with whatever bytes; return the member's id."""

    async def ask(member_id: str) -> JoinGroupResponse:
        request = JoinGroupRequest(
            group_id=group,
            session_timeout_ms=30_000,
            rebalance_timeout_ms=30_000,
            member_id=member_id,
            protocol_type=protocol_type,
            protocols=[JoinGroupRequestProtocol(name="p", metadata=metadata)],
        )
        return await cluster.call_coordinator(group, request, JoinGroupResponse)

    joined = await ask("")
    assert joined.error_code == ErrorCode.MEMBER_ID_REQUIRED
    joined = await ask(joined.member_id)
    assert joined.error_code == 0
    request = SyncGroupRequest(
        group_id=group,
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        protocol_type=protocol_type,
        protocol_name="p",
        assignments=[SyncGroupRequestAssignment(member_id=joined.member_id, assignment=assignment)],
    )
    synced = await cluster.call_coordinator(group, request, SyncGroupResponse)
    assert synced.error_code == 0
    return joined.member_id


def codes(results: dict[str, object]) -> dict[str, ErrorCode]:
    return {name: each.code for name, each in results.items() if isinstance(each, KafkaError)}


async def test_offsets_of_a_group_are_committed_found_and_deleted(admin: Admin) -> None:
    committed = {T0: CommittedOffset(3, 0, "note"), T1: CommittedOffset(5)}
    assert await admin.alter_group_offsets("g", committed) == {T0: None, T1: None}
    assert await admin.group_offsets("g") == committed
    assert await admin.group_offsets("g", [T1, TopicPartition("t", 7)]) == {T1: committed[T1]}
    assert await admin.group_offsets("g", []) == {}
    assert await admin.alter_group_offsets("g", {T1: 9, TopicPartition("t", 0): 8}) == {
        T0: None,
        T1: None,
    }
    assert await admin.group_offsets("g") == {T0: CommittedOffset(8), T1: CommittedOffset(9)}
    assert await admin.delete_group_offsets("g", [T0]) == {T0: None}
    assert await admin.group_offsets("g") == {T1: CommittedOffset(9)}
    assert await admin.alter_group_offsets("g", {}) == {}
    assert await admin.delete_group_offsets("g", []) == {}


async def test_refusals_are_told_for_each_partition(admin: Admin) -> None:
    unknown = TopicPartition("nope", 0)
    with trio.fail_after(5):  # it is no reason to try again: a coordinator's answer is final
        results = await admin.alter_group_offsets(
            "g", {T0: 1, unknown: 1, T1: CommittedOffset(1, -1, "x" * 5000)}
        )
    assert results[T0] is None
    assert codes({str(each): error for each, error in results.items()}) == {
        "nope-0": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        "t-1": ErrorCode.OFFSET_METADATA_TOO_LARGE,
    }


async def test_groups_are_listed_described_and_deleted_many_at_once(admin: Admin) -> None:
    names = [f"group {n}" for n in range(30)]
    for name in names:
        await admin.alter_group_offsets(name, {T0: 1})
    assert [each.group_id for each in await admin.list_groups()] == sorted(names)
    assert await admin.list_groups(states=["Stable"]) == []
    found = await admin.describe_groups([*names, "nope"])
    assert list(found) == [*names, "nope"]
    assert codes({**found}) == {"nope": ErrorCode.GROUP_ID_NOT_FOUND}
    first = found[names[0]]
    assert isinstance(first, GroupDescription)
    assert (first.state, first.members, first.active) == ("Empty", (), False)
    assert first.coordinator.node_id == 1
    deleted = await admin.delete_groups([*names, "nope"])
    assert codes({**deleted}) == {"nope": ErrorCode.GROUP_ID_NOT_FOUND}
    assert await admin.list_groups() == []
    assert await admin.describe_groups([]) == {}


async def test_members_of_consumers_are_described_with_topics_and_partitions(
    admin: Admin,
) -> None:
    member_id = await join(
        admin.cluster,
        "g",
        protocol_type="consumer",
        metadata=encode_subscription(ConsumerProtocolSubscription(topics=("t", "u"))),
        assignment=encode_assignment(ConsumerProtocolAssignment(partitions={"t": [1, 0]})),
    )
    found = (await admin.describe_groups(["g"]))["g"]
    assert isinstance(found, GroupDescription)
    assert (found.state, found.protocol_type, found.protocol) == ("Stable", "consumer", "p")
    (member,) = found.members
    assert (member.member_id, member.client_id) == (member_id, "odradek")
    assert (member.topics, member.partitions) == (("t", "u"), (T0, T1))
    refused = await admin.alter_group_offsets("g", {T0: 1})
    assert codes({"": refused[T0]}) == {"": ErrorCode.UNKNOWN_MEMBER_ID}
    assert "has members" in str(refused[T0])
    assert codes({**await admin.delete_groups(["g"])}) == {"g": ErrorCode.NON_EMPTY_GROUP}


@pytest.mark.parametrize("protocol_type", ["connect", "consumer"])
async def test_members_whose_bytes_mean_something_else_are_described_by_them(
    admin: Admin, protocol_type: str
) -> None:
    await join(
        admin.cluster, "g", protocol_type=protocol_type, metadata=b"\xff", assignment=b"\x00\x09"
    )
    found = (await admin.describe_groups(["g"]))["g"]
    assert isinstance(found, GroupDescription)
    (member,) = found.members
    assert (member.topics, member.partitions) == (None, None)
    assert (member.metadata, member.assignment) == (b"\xff", b"\x00\x09")


async def test_reset_is_planned_and_changes_nothing(admin: Admin) -> None:
    await admin.alter_group_offsets("g", {T0: 0})
    (change,) = await admin.plan_group_reset("g", [T0], ShiftBy(4))
    assert (change.old, change.wanted, change.new, change.clamped) == (0, 4, 0, True)
    (change,) = await admin.plan_group_reset("other", [T1], ToTime(EARLIEST))
    assert (change.old, change.new) == (None, 0)
    with pytest.raises(ResetImpossible):
        await admin.plan_group_reset("g", [T0, T1], ShiftBy(1))
    with pytest.raises(KafkaError):
        await Admin(admin.cluster, timeout=0.1).plan_group_reset(
            "g", [TopicPartition("t", 9)], ToTime(EARLIEST)
        )
    assert await admin.group_offsets("g") == {T0: CommittedOffset(0)}


Limit = Callable[[type[Message], int], None]


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> Limit:
    """Make the broker one that offers a request up to a version only."""
    limits: dict[type[Message], int] = {}
    version_of = BrokerConnection.version_of

    def limited(self: BrokerConnection, request: type[Message], highest: int | None = None) -> int:
        last = min(limits.get(request, 99), 99 if highest is None else highest)
        return version_of(self, request, last)

    monkeypatch.setattr(BrokerConnection, "version_of", limited)

    def limit(request: type[Message], highest: int) -> None:
        limits[request] = highest

    return limit


async def test_old_brokers_are_asked_in_their_way(admin: Admin, limit: Limit) -> None:
    await admin.alter_group_offsets("known", {T1: 7})
    limit(FindCoordinatorRequest, 1)
    limit(OffsetFetchRequest, 2)
    limit(OffsetCommitRequest, 2)
    limit(DescribeGroupsRequest, 1)
    limit(ListGroupsRequest, 2)
    assert await admin.alter_group_offsets("g", {T0: 5}) == {T0: None}
    assert await admin.group_offsets("g") == {T0: CommittedOffset(5)}
    assert await admin.group_offsets("g", [T1]) == {}
    found = await admin.describe_groups(["g", "known", "nope"])
    assert codes({**found}) == {"nope": ErrorCode.GROUP_ID_NOT_FOUND}
    assert [each.group_id for each in await admin.list_groups()] == ["g", "known"]
    with pytest.raises(NotOffered, match="filter"):
        await admin.list_groups(states=["Empty"])


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ],
)
async def test_coordinator_that_moved_or_loads_is_asked_again(
    broker: Broker, admin: Admin, error: ErrorCode
) -> None:
    await admin.alter_group_offsets("g", {T0: 1, T1: 1})
    faults = Faults()
    faults.attach(broker)
    for api in (
        "OffsetCommit", "OffsetFetch", "OffsetDelete", "DescribeGroups", "ListGroups",
        "DeleteGroups",
    ):  # fmt: skip
        faults.fail(api, error, times=2)
    faults.fail("FindCoordinator", ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert await admin.alter_group_offsets("g", {T0: 2}) == {T0: None}
    assert await admin.group_offsets("g") == {T0: CommittedOffset(2), T1: CommittedOffset(1)}
    assert await admin.delete_group_offsets("g", [T0]) == {T0: None}
    assert isinstance((await admin.describe_groups(["g"]))["g"], GroupDescription)
    assert [each.group_id for each in await admin.list_groups()] == ["g"]
    assert await admin.delete_groups(["g"]) == {"g": None}
    assert faults.pending == 0


async def test_coordinator_that_does_not_come_is_told_of_in_time(
    broker: Broker, admin: Admin
) -> None:
    await admin.alter_group_offsets("g", {T0: 1})
    faults = Faults()
    faults.attach(broker)
    error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    for api in ("OffsetCommit", "DescribeGroups", "DeleteGroups"):
        faults.fail(api, error, times=None)
    impatient = Admin(admin.cluster, timeout=0.1)
    with trio.fail_after(5):
        with pytest.raises(KafkaError) as refused:
            await impatient.alter_group_offsets("g", {T0: 2})
        assert refused.value.code == error
        assert codes({**await impatient.describe_groups(["g"])}) == {"g": error}
        assert codes({**await impatient.delete_groups(["g"])}) == {"g": error}
    faults.clear()


@pytest.fixture
async def flaky(broker: Broker, network: FlakyTransport) -> AsyncIterator[Admin]:
    """Over a network that loses answers when told to."""
    (url,) = broker.urls.values()
    with trio.fail_after(30):
        async with open_cluster(url, QUICK, transport=network) as cluster:
            admin = Admin(cluster, timeout=10.0)
            await admin.create_topic(NewTopic(name="t", partitions=2))
            await admin.alter_group_offsets("g", {T0: 1, T1: 1})
            yield admin


def lose_the_next(network: FlakyTransport) -> None:
    lost = network.lost
    network.lose = lambda _: network.lost == lost


async def test_what_may_be_repeated_survives_a_lost_answer(
    flaky: Admin, network: FlakyTransport
) -> None:
    lose_the_next(network)
    assert await flaky.alter_group_offsets("g", {T0: 2}) == {T0: None}
    lose_the_next(network)
    assert await flaky.group_offsets("g", [T0]) == {T0: CommittedOffset(2)}
    lose_the_next(network)
    assert len(await flaky.list_groups()) == 1
    lose_the_next(network)
    assert isinstance((await flaky.describe_groups(["g"]))["g"], GroupDescription)
    lose_the_next(network)
    assert await flaky.delete_group_offsets("g", [T0]) == {T0: None}
    assert network.lost == 5


async def test_deletion_of_a_group_is_not_repeated_after_a_lost_answer(
    flaky: Admin, network: FlakyTransport
) -> None:
    lose_the_next(network)
    with pytest.raises(Disconnected):
        await flaky.delete_groups(["g"])
    assert await flaky.list_groups() == []
