"""What members keep is bounded, and each byte that is counted is given back."""

import pytest

from odradek.errors import ErrorCode
from odradek.group.consumer_protocol import ConsumerProtocolSubscription, encode_subscription
from odradek.group.effects import Request
from odradek.group.member_budget import MemberBudget
from odradek.group.settings import GroupSettings
from odradek.group.shard import GroupShard
from odradek.wire.api.a11_join_group import JoinGroupRequest, JoinGroupRequestProtocol
from odradek.wire.api.a13_leave_group import LeaveGroupRequest
from odradek.wire.api.a14_sync_group import SyncGroupRequest, SyncGroupRequestAssignment

FULL = ErrorCode.COORDINATOR_NOT_AVAILABLE


@pytest.fixture
def budget():
    return MemberBudget(40_000)


@pytest.fixture
def shard(budget):
    shard = GroupShard(GroupSettings(initial_rebalance_delay_ms=0), lambda: "id", budget)
    shard.start(0.0, 0)
    return shard


def ask(shard, message, version=3):
    effects = shard.handle(Request(1, message, version, "client", "/h"), 1.0, 1000)
    return [reply.message for reply in effects.replies], effects.writes


def join(shard, group="g", metadata=b"", names=("range",), member_id=""):
    message = JoinGroupRequest(
        group_id=group,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        member_id=member_id,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name=name, metadata=metadata) for name in names],
    )
    [answer], _ = ask(shard, message)
    return answer


def test_a_member_beyond_the_budget_is_refused_and_its_group_forgotten(shard, budget):
    assert join(shard, "a", bytes(30_000)).error_code == ErrorCode.NONE
    used = budget.used
    assert 30_000 < used < 40_000
    assert join(shard, "b", bytes(30_000)).error_code == FULL
    assert (budget.used, len(shard)) == (used, 1)


def test_a_member_may_grow_a_little_where_a_new_one_has_no_room(shard, budget):
    member_id = join(shard, "a", bytes(35_000)).member_id
    assert join(shard, "b", bytes(9_000)).error_code == FULL
    grown = join(shard, "a", bytes(44_000), member_id=member_id)
    assert grown.error_code == ErrorCode.NONE
    assert join(shard, "a", bytes(54_000), member_id=member_id).error_code == FULL
    assert join(shard, "a", bytes(10), member_id=member_id).error_code == ErrorCode.NONE
    assert budget.used < 5_000


def test_what_a_member_kept_is_given_back_when_it_leaves(shard, budget):
    member_id = join(shard, "a", bytes(30_000)).member_id
    ask(shard, LeaveGroupRequest(group_id="a", member_id=member_id), 1)
    assert budget.used == 0


def test_everything_is_given_back_by_a_shard_that_resigns(shard, budget):
    join(shard, "a", bytes(30_000))
    shard.resign(ErrorCode.NOT_COORDINATOR)
    assert budget.used == 0


def test_assignments_count(shard, budget):
    joined = join(shard, "a")
    used = budget.used

    def sync(size):
        given = SyncGroupRequestAssignment(member_id=joined.member_id, assignment=bytes(size))
        return ask(
            shard,
            SyncGroupRequest(
                group_id="a",
                generation_id=joined.generation_id,
                member_id=joined.member_id,
                assignments=[given],
            ),
        )

    [refused], writes = sync(60_000)
    assert (refused.error_code, tuple(writes)) == (FULL, ())
    replies, [write] = sync(10_000)
    assert replies == []
    shard.stored(write.id, 1.0, 1000)
    assert budget.used == used + 10_000


def test_topics_count_that_a_group_is_subscribed_to(shard, budget):
    topics = [f"t{number}" for number in range(1000)]
    metadata = encode_subscription(ConsumerProtocolSubscription(topics=topics))
    assert join(shard, "a", metadata).error_code == ErrorCode.NONE
    assert budget.used > len(metadata) + 100_000


def test_a_protocol_costs_more_than_its_name(shard, budget):
    join(shard, "a", names=[str(number) for number in range(100)])
    assert budget.used > 100 * 200


def test_a_member_with_too_many_protocols_is_refused(shard, budget):
    refused = join(shard, "a", names=[str(number) for number in range(101)])
    assert refused.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert (budget.used, len(shard)) == (0, 0)
