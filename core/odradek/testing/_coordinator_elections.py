"""C24 to C26: elections."""

from __future__ import annotations

import pytest
import trio

from odradek.contracts.coordinator import ABSENT, Conflict, Coordinator, Put, Session
from odradek.contracts.election import ELECTIONS, Holder, Leader, elect, holder_of
from odradek.testing._coordinator_harness import (
    CoordinatorHarness,
    Trait,
    View,
    second_client,
    until_served,
)

__all__ = ["ElectionPromises"]


class ElectionPromises:
    """Tests of C24 to C26."""

    async def test_leader_is_followed_when_its_session_ends(
        self, harness: CoordinatorHarness
    ) -> None:
        """C24: one leads, the other does not, until the one has left."""
        async with (
            harness.open() as one,
            second_client(harness, one) as other,
            other.session(harness.ttl) as waiting,
            other.watch(ELECTIONS) as watch,
        ):
            view = View(harness, watch)
            async with one.session(harness.ttl) as session:
                leader = await elect(one, "x", session, "one")
                assert leader is not None
                assert await elect(one, "x", session, "one") == leader
                assert await elect(other, "x", waiting, "other") is None
                assert await elect(other, "y", waiting, "other") is not None
                await view.until(lambda view: f"{ELECTIONS}/x" in view.entries)
                holder = holder_of(view.entries[f"{ELECTIONS}/x"])
                assert holder == Holder("one", leader.epoch)
            await view.until(lambda view: f"{ELECTIONS}/x" not in view.entries)
            assert await elect(other, "x", waiting, "other") is not None

    async def test_one_of_many_candidates_leads(self, harness: CoordinatorHarness) -> None:
        """C24: candidates of several clients who try at the same time."""
        elected: list[Leader] = []

        async def stand(coordinator: Coordinator, session: Session, who: str) -> None:
            leader = await elect(coordinator, "x", session, who)
            if leader is not None:
                elected.append(leader)

        async with (
            harness.open() as one,
            second_client(harness, one) as other,
            one.session(harness.ttl) as first,
            other.session(harness.ttl) as second,
            trio.open_nursery() as nursery,
        ):
            for number in range(5):
                nursery.start_soon(stand, one, first, f"one-{number}")
                nursery.start_soon(stand, other, second, f"other-{number}")
        assert len(elected) == 1

    async def test_epoch_grows_with_each_leadership(self, harness: CoordinatorHarness) -> None:
        """C25: also when nobody led in between, and across a restart of a durable server."""
        epochs: list[int] = []

        async def lead() -> None:
            async with harness.open() as coordinator:
                await until_served(harness, coordinator)
                for _ in range(2):
                    async with coordinator.session(harness.ttl) as session:
                        leader = await elect(coordinator, "x", session, "me")
                        assert leader is not None
                        epochs.append(leader.epoch)

        await lead()
        if Trait.DURABLE in harness.traits:
            await harness.restart()
            await lead()
        assert epochs == sorted(set(epochs))

    async def test_fence_fails_once_there_is_a_later_leader(
        self, harness: CoordinatorHarness
    ) -> None:
        """C26: the old leader writes nothing any more, the new one does."""
        async with harness.open() as one, second_client(harness, one) as other:
            async with one.session(harness.ttl) as session:
                old = await elect(one, "x", session, "one")
                assert old is not None
                await one.txn(old.fence, Put("a/old", b"1", ABSENT))
            async with other.session(harness.ttl) as session:
                new = await elect(other, "x", session, "other")
                assert new is not None
                with pytest.raises(Conflict):
                    await one.txn(old.fence, Put("a/late", b"1", ABSENT))
                await other.txn(new.fence, Put("a/new", b"1", ABSENT))
                assert set(await one.list("a")) == {"a/old", "a/new"}
