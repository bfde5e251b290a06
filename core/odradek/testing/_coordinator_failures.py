"""C20 to C23: restarts, cuts, cancellation, closing."""

from __future__ import annotations

import pytest
import trio

from odradek.contracts.coordinator import (
    ABSENT,
    Conflict,
    Coordinator,
    Delete,
    Put,
    Session,
    Unavailable,
    Uncertain,
)
from odradek.testing._coordinator_harness import (
    CoordinatorHarness,
    Trait,
    View,
    second_client,
    until_served,
)

__all__ = ["FailurePromises"]


class FailurePromises:
    """Tests of C20 to C23."""

    async def test_acknowledged_writes_survive_a_restart(self, harness: CoordinatorHarness) -> None:
        """C20: entries come back whole, deleted ones do not, versions stay good."""
        harness.need(Trait.DURABLE)
        async with harness.open() as coordinator:
            for number in range(20):
                await coordinator.put(f"a/{number}", b"1")
                await coordinator.put(f"a/{number}", b"2")
            for number in range(5):
                entry = await coordinator.get(f"a/{number}")
                assert entry is not None
                await coordinator.txn(Delete(entry.key, entry.version))
            before = await coordinator.list("a")
            assert len(before) == 15
        await harness.restart()
        async with harness.open() as coordinator:
            await until_served(harness, coordinator)
            assert await coordinator.list("a") == before
            for key, entry in before.items():
                await coordinator.txn(Put(key, b"3", entry.version))
                after = await coordinator.get(key)
                assert after is not None
                assert after.revision > entry.revision
                assert after.created == entry.created
            await coordinator.put("a/0", b"again")
            reborn = await coordinator.get("a/0")
            assert reborn is not None
            assert reborn.created not in {entry.created for entry in before.values()}

    async def test_entries_of_ended_sessions_stay_gone(self, harness: CoordinatorHarness) -> None:
        """C20: neither a restart nor closing brings an ephemeral entry back."""
        harness.need(Trait.DURABLE)
        async with harness.open() as coordinator:
            await coordinator.put("a/lasting", b"1")
            async with coordinator.session(harness.ttl) as session:
                await coordinator.txn(Put("a/mine", b"1", ABSENT, session))
        await harness.restart()
        async with harness.open() as coordinator:
            await until_served(harness, coordinator)
            assert set(await coordinator.list("a")) == {"a/lasting"}

    async def test_definite_error_leaves_nothing(self, harness: CoordinatorHarness) -> None:
        """C21: while cut off no call hangs or lies; afterwards the same client serves again."""
        harness.need(Trait.SHARED, Trait.CUT)
        definite: list[str] = []
        async with harness.open() as one, harness.open() as other:
            version = await one.put("a/key", b"1")
            await harness.cut(one)
            with pytest.raises(Unavailable):
                await one.get("a/key")
            with pytest.raises(Unavailable):
                await one.list("a")
            for number in range(3):
                try:
                    await one.txn(Put(f"a/{number}", b"x", ABSENT))
                except Unavailable:
                    definite.append(f"a/{number}")
                except Uncertain:
                    continue
                else:
                    pytest.fail("a write was acknowledged to a client that is cut off")
            await other.txn(Put("a/key", b"2", version))
            await harness.heal(one)
            await until_served(harness, one)
            with pytest.raises(Conflict):
                await one.txn(Put("a/key", b"3", version))
            assert await one.list("a") == await other.list("a")
            assert not set(definite) & set(await one.list("a"))
            await one.put("a/key", b"4")
            assert not set(definite) & set(await other.list("a"))

    async def test_cancelled_txn_is_whole_or_not_at_all(self, harness: CoordinatorHarness) -> None:
        """C22: cancelled at various moments, both of its keys are written or neither."""
        async with harness.open() as coordinator:
            for number in range(40):
                with trio.move_on_after(number * 0.0001):
                    await coordinator.txn(
                        Put(f"a/{number}", b"v", ABSENT), Put(f"b/{number}", b"v", ABSENT)
                    )
            # What was sent before its cancellation may still be on its way: wait behind it.
            await coordinator.put("a/last", b"v")
            await coordinator.put("b/last", b"v")
            left, right = [
                {key.partition("/")[2] for key in await coordinator.list(directory)}
                for directory in "ab"
            ]
            assert left == right

    async def test_cancelled_reading_loses_no_change(self, harness: CoordinatorHarness) -> None:
        """C22: a watch whose reader is cancelled again and again tells everything all the same."""
        async with (
            harness.open() as one,
            second_client(harness, one) as other,
            other.watch("a") as watch,
        ):
            view = View(harness, watch)
            for number in range(20):
                await one.put(f"a/{number}", b"v")
                with trio.move_on_after(number * 0.0001):
                    await view.step()
            await view.until_values({f"a/{number}": b"v" for number in range(20)})

    async def test_cancelled_session_and_watch_leave_nothing(
        self, harness: CoordinatorHarness
    ) -> None:
        """C22: leaving by cancellation ends the session like any other way of leaving."""
        async with harness.open() as one, second_client(harness, one) as other:
            with trio.CancelScope() as scope:
                async with one.watch("a") as watch, one.session(harness.ttl) as session:
                    await one.txn(Put("a/mine", b"v", ABSENT, session))
                    await View(harness, watch).until_values({"a/mine": b"v"})
                    scope.cancel()
                    await trio.sleep_forever()
            assert session.lost.is_set()
            async with other.watch("a") as watch:
                await View(harness, watch).until_values({})

    async def test_closed_coordinator_is_unavailable(self, harness: CoordinatorHarness) -> None:
        """C23: every call, and a watch and a session that outlived it."""
        sessions: list[Session] = []

        async def outlive(coordinator: Coordinator, task_status: trio.TaskStatus[None]) -> None:
            async with coordinator.session(harness.ttl) as session, coordinator.watch("a") as watch:
                await coordinator.txn(Put("a/mine", b"v", ABSENT, session))
                await View(harness, watch).until_values({"a/mine": b"v"})
                sessions.append(session)
                task_status.started()
                with pytest.raises(Unavailable):
                    await View(harness, watch).until(lambda _: False)

        async with trio.open_nursery() as nursery, harness.open() as coordinator:
            await nursery.start(outlive, coordinator)
        (session,) = sessions
        assert session.lost.is_set()
        assert not session.alive
        with pytest.raises(Unavailable):
            await coordinator.get("a/key")
        with pytest.raises(Unavailable):
            await coordinator.list("a")
        with pytest.raises(Unavailable):
            await coordinator.put("a/key", b"v")
        with pytest.raises(Unavailable):
            await coordinator.txn(Put("a/key", b"v", ABSENT))
        with pytest.raises(Unavailable):
            async with coordinator.watch("a"):
                pass
        with pytest.raises(Unavailable):
            async with coordinator.session(harness.ttl):
                pass
