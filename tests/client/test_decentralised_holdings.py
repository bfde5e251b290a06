"""A member's keys under one session: claims, commits and releases that meet lost answers.

Versions repeat here when a key is created again, as ZooKeeper's do.
"""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count
from uuid import UUID

import pytest
import trio
from tests.client.decentralised import repeat_versions

from odradek.client.backoff import Backoff
from odradek.client.decentralised.holdings import Holdings
from odradek.client.decentralised.keys import GroupKeys, Registration, offset_of
from odradek.client.membership import CommitFailed, CommittedOffset
from odradek.contracts.coordinator import (
    Absent,
    Conflict,
    Delete,
    Op,
    Put,
    Session,
    SessionLost,
    Uncertain,
    Version,
)
from odradek.memory.coordinator import MemoryCoordinator, memory_state
from odradek.types import PartitionKey

KEYS = GroupKeys("g")
P = PartitionKey(UUID(int=1), 0)
Q = PartitionKey(UUID(int=1), 1)
SOON = 1e9


class Losing(MemoryCoordinator):
    """Loses answers when told to: `losing` is what the next transactions come to.

    "applied": they are, and the caller does not learn it. "late": they are not, until
    `apply_late`, if they still can be.
    """

    def __init__(self, state) -> None:
        super().__init__(state)
        self.losing: list[str] = []
        self.late: list[tuple[Op, ...]] = []

    async def txn(self, *ops: Op) -> tuple[Version | Absent, ...]:
        fate = self.losing.pop(0) if self.losing else ""
        if fate == "late":
            self.late.append(ops)
        else:
            result = await super().txn(*ops)
            if not fate:
                return result
        raise Uncertain("the answer was lost")

    async def apply_late(self) -> list[str]:
        """Apply what was on its way all the time; say what came of it."""
        results = []
        for ops in self.late:
            try:
                await super().txn(*ops)
                results.append("applied")
            except (Conflict, SessionLost) as error:
                results.append(type(error).__name__)
        return results


class Believer(Session):
    """The session of a process that was stopped, and has not noticed that it ended."""

    alive = True

    def __init__(self, session: Session) -> None:
        self.id, self.ttl, self.lost = session.id, session.ttl, session.lost


class Group:
    def __init__(self, stack: AsyncExitStack) -> None:
        self.state = memory_state("holdings")
        repeat_versions(self.state)
        self._stack = stack

    async def member(self, name: str) -> tuple[Holdings, Losing]:
        coordinator = Losing(self.state)
        session = await self._stack.enter_async_context(coordinator.session(10))
        tokens = (f"{session.id}#{n}" for n in count())
        holdings = Holdings(coordinator, KEYS, name, session, lambda: Backoff(0.001, 0.01), tokens)
        await holdings.register(Registration(name))
        return holdings, coordinator

    def end(self, holdings: Holdings) -> None:
        """End the session on the coordinator's side only."""
        session, holdings.session = holdings.session, Believer(holdings.session)
        self.state.expire(session.id)

    def committed(self, partition: PartitionKey = P) -> int | None:
        entry = self.state.keyspace.get(KEYS.offset(partition))
        committed = offset_of(entry).committed if entry else None
        return committed.offset if committed else None

    def owner(self, partition: PartitionKey = P) -> str | None:
        entry = self.state.keyspace.get(KEYS.owner(partition))
        return entry.owner if entry else None


@pytest.fixture
async def group() -> AsyncIterator[Group]:
    @asynccontextmanager
    async def opened() -> AsyncIterator[Group]:
        async with AsyncExitStack() as stack:
            yield Group(stack)

    with trio.fail_after(30):
        async with opened() as group:
            yield group


async def commit(holdings: Holdings, offset: int, partition: PartitionKey = P) -> None:
    errors = await holdings.commit({partition: CommittedOffset(offset)}, SOON)
    for error in errors.values():
        raise error


async def test_claim_takes_what_is_free_and_says_what_is_not(group: Group) -> None:
    (one, _), (other, _) = await group.member("a"), await group.member("b")
    assert await one.claim({P: "t"}) == set()
    assert await other.claim({P: "t", Q: "t"}) == {P}
    assert (group.owner(P), group.owner(Q)) == (one.session.id, other.session.id)
    assert (set(one.held), set(other.held)) == ({P}, {Q})


async def test_claims_that_race_have_one_winner_each(group: Group) -> None:
    members = [await group.member(name) for name in "abcde"]
    wanted = {PartitionKey(UUID(int=1), n): "t" for n in range(100)}
    async with trio.open_nursery() as nursery:
        for holdings, _ in members:
            nursery.start_soon(holdings.claim, wanted)
    held = [partition for holdings, _ in members for partition in holdings.held]
    assert sorted(held) == sorted(wanted)
    for holdings, _ in members:
        assert all(group.owner(each) == holdings.session.id for each in holdings.held)


@pytest.mark.parametrize("fate", ["applied", "late"])
async def test_claim_whose_answer_was_lost_is_settled(group: Group, fate: str) -> None:
    one, coordinator = await group.member("a")
    await group.member("b")
    await (await group.member("c"))[0].claim({Q: "t"})  # the group is in the index by now
    coordinator.losing = [fate]
    assert await one.claim({P: "t"}) == set()
    assert group.owner() == one.session.id
    await commit(one, 5)
    await one.release([P])
    await coordinator.apply_late()
    assert group.owner() is None, "an old claim came back"
    assert group.committed() == 5


@pytest.mark.parametrize("fate", ["applied", "late"])
async def test_release_whose_answer_was_lost_cannot_hit_the_next_owner(
    group: Group, fate: str
) -> None:
    (one, coordinator), (other, _) = await group.member("a"), await group.member("b")
    await one.claim({P: "t"})
    coordinator.losing = [fate]
    await one.release([P])
    assert group.owner() is None
    await other.claim({P: "t"})
    assert await coordinator.apply_late() == ["Conflict"] * (fate == "late")
    assert group.owner() == other.session.id


@pytest.mark.parametrize("fate", ["applied", "late"])
async def test_commit_whose_answer_was_lost_is_settled_and_never_comes_after_a_later_one(
    group: Group, fate: str
) -> None:
    one, coordinator = await group.member("a")
    await one.claim({P: "t"})
    coordinator.losing = [fate]
    await commit(one, 5)
    assert group.committed() == 5
    await commit(one, 6)
    assert await coordinator.apply_late() == ["Conflict"] * (fate == "late")
    assert group.committed() == 6


async def test_commit_that_was_cancelled_never_comes_after_a_later_one(group: Group) -> None:
    one, coordinator = await group.member("a")
    await one.claim({P: "t"})
    coordinator.losing = ["late"]
    with trio.CancelScope() as scope:
        scope.cancel()
        await commit(one, 5)
    await commit(one, 6)
    assert await coordinator.apply_late() == ["Conflict"]
    assert group.committed() == 6


async def test_member_whose_session_ended_cannot_commit_though_nobody_claimed(
    group: Group,
) -> None:
    one, _ = await group.member("a")
    await one.claim({P: "t"})
    await commit(one, 5)
    group.end(one)
    with pytest.raises(CommitFailed):
        await commit(one, 6)
    assert group.committed() == 5


async def test_member_cannot_commit_though_its_name_is_back(group: Group) -> None:
    one, _ = await group.member("a")
    await one.claim({P: "t"})
    group.end(one)
    again, _ = await group.member("a")
    with pytest.raises(CommitFailed):
        await commit(one, 6)
    await again.claim({P: "t"})
    with pytest.raises(CommitFailed):
        await commit(one, 6)
    assert group.committed() is None
    await commit(again, 1)
    assert group.committed() == 1


async def test_member_cannot_commit_what_another_claimed_though_its_session_is_good(
    group: Group,
) -> None:
    (one, _), (other, _) = await group.member("a"), await group.member("b")
    await one.claim({P: "t"})
    await commit(one, 5)
    entry = group.state.keyspace.get(KEYS.owner(P))
    assert entry is not None
    await MemoryCoordinator(group.state).txn(Delete(entry.key, entry.version))  # by hand
    await other.claim({P: "t"})
    with pytest.raises(CommitFailed):
        await commit(one, 6)
    assert group.committed() == 5
    await commit(other, 7)


async def test_commit_of_a_member_by_its_clock_dead_is_not_even_sent(group: Group) -> None:
    one, coordinator = await group.member("a")
    await one.claim({P: "t"})
    coordinator.disconnect()
    one.session.deadline = trio.current_time()  # type: ignore[attr-defined]
    with pytest.raises(CommitFailed):
        await commit(one, 1)


async def test_release_that_fails_can_be_made_good_either_way(group: Group) -> None:
    one, coordinator = await group.member("a")
    await one.claim({P: "t", Q: "t"})
    coordinator.disconnect()
    with pytest.raises(Exception, match="cut off"):
        await one.release([P, Q])
    assert not one.held
    coordinator.reconnect()
    await one.release([P])
    assert await one.claim({Q: "t"}) == set()
    assert (group.owner(P), group.owner(Q)) == (None, one.session.id)
    await commit(one, 3, Q)


async def test_check_forgets_what_is_not_held_any_more(group: Group) -> None:
    one, _ = await group.member("a")
    await one.claim({P: "t", Q: "t"})
    entry = group.state.keyspace.get(KEYS.owner(P))
    assert entry is not None
    await MemoryCoordinator(group.state).txn(Delete(entry.key, entry.version))
    assert await one.check([P, Q]) == {P}
    assert set(one.held) == {Q}


@pytest.mark.parametrize("fate", ["applied", "late"])
async def test_registration_whose_answer_was_lost_is_settled(group: Group, fate: str) -> None:
    one, coordinator = await group.member("a")
    for n in range(2):
        coordinator.losing = [fate]
        await one.register(Registration("a", client_id=str(n)))
    await one.claim({P: "t"})
    await commit(one, 1)
    assert await coordinator.apply_late() == ["Conflict"] * len(coordinator.late)


async def test_offset_of_a_group_deleted_meanwhile_is_not_the_members_any_more(
    group: Group,
) -> None:
    one, _ = await group.member("a")
    await one.claim({P: "t"})
    entry = group.state.keyspace.get(KEYS.offset(P))
    assert entry is not None
    tool = MemoryCoordinator(group.state)
    await tool.txn(Delete(entry.key, entry.version))
    with pytest.raises(CommitFailed):
        await commit(one, 1)
    assert await one.check([P]) == {P}
    assert await one.claim({P: "t"}) == set()
    await tool.txn(Put(KEYS.members + "/x", b"x", (await tool.put(KEYS.members + "/x", b"y"))))
    await commit(one, 1)
    await one.release([P])
    assert group.owner() is None
