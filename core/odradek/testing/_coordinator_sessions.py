"""C16 to C19: sessions and ephemeral entries."""

from __future__ import annotations

import pytest
import trio

from odradek.contracts.coordinator import ABSENT, Put, SessionLost
from odradek.testing._coordinator_harness import (
    CoordinatorHarness,
    Trait,
    View,
    refused,
    second_client,
    until_served,
)

__all__ = ["SessionPromises"]


class SessionPromises:
    """Tests of C16 to C19."""

    async def test_ephemeral_entry_ends_with_its_session(self, harness: CoordinatorHarness) -> None:
        """C16: named owner, kept through overwrites, gone when the context was left."""
        async with (
            harness.open() as one,
            second_client(harness, one) as other,
            other.watch("a") as watch,
        ):
            view = View(harness, watch)
            async with one.session(harness.ttl) as session, one.session(harness.ttl) as second:
                assert session.id != second.id
                (version,) = await one.txn(Put("a/mine", b"1", ABSENT, session))
                await one.txn(Put("a/second", b"1", ABSENT, second))
                await one.put("a/lasting", b"1")
                await other.txn(Put("a/mine", b"2", version))
                for writer in (one, other):
                    await writer.put("a/mine", b"3")
                entries = await other.list("a")
                assert {key: entry.owner for key, entry in entries.items()} == {
                    "a/mine": session.id,
                    "a/second": second.id,
                    "a/lasting": None,
                }
            for client in (one, other):
                assert set(await client.list("a")) == {"a/lasting"}
            await view.until_values({"a/lasting": b"1"})

    async def test_session_serves_one_coordinator(self, harness: CoordinatorHarness) -> None:
        """C16: another client's session is a ValueError."""
        harness.need(Trait.SHARED)
        async with (
            harness.open() as one,
            harness.open() as other,
            one.session(harness.ttl) as session,
        ):
            with refused():
                await other.txn(Put("a/key", b"v", ABSENT, session))
            assert await one.get("a/key") is None

    async def test_session_that_was_left_is_lost(self, harness: CoordinatorHarness) -> None:
        """C17: it is lost, not alive, and good for nothing."""
        async with harness.open() as coordinator:
            async with coordinator.session(harness.ttl) as session:
                alive_inside = session.alive
                assert alive_inside
                assert not session.lost.is_set()
            assert session.lost.is_set()
            assert not session.alive
            with pytest.raises(SessionLost):
                await coordinator.txn(
                    Put("a/lasting", b"v", ABSENT), Put("a/mine", b"v", ABSENT, session)
                )
            assert await coordinator.list("a") == {}

    async def test_expired_session_never_comes_back(self, harness: CoordinatorHarness) -> None:
        """C17: ended by the server, its entries go, its client is told; a new one is as good."""
        harness.need(Trait.EXPIRE)
        async with (
            harness.open() as one,
            second_client(harness, one) as other,
            one.session(harness.ttl) as session,
            one.session(harness.ttl) as second,
        ):
            await one.txn(Put("a/mine", b"1", ABSENT, session))
            await one.txn(Put("a/second", b"1", ABSENT, second))
            await harness.expire(session)
            with trio.fail_after(harness.patience):
                await session.lost.wait()
            assert not session.alive
            async with other.watch("a") as watch:
                await View(harness, watch).until_values({"a/second": b"1"})
            with pytest.raises(SessionLost):
                await one.txn(Put("a/lasting", b"v", ABSENT), Put("a/mine", b"2", ABSENT, session))
            assert second.alive
            async with one.session(harness.ttl) as third:
                await one.txn(Put("a/mine", b"3", ABSENT, third))
                assert not session.alive
                assert set(await other.list("a")) == {"a/mine", "a/second"}

    async def test_cut_off_session_ends_by_its_own_clock(self, harness: CoordinatorHarness) -> None:
        """C18: not later than ttl after the cut, and for ever."""
        harness.need(Trait.SHARED, Trait.CUT)
        async with harness.open() as one, harness.open() as other, other.watch("a") as watch:
            view = View(harness, watch)
            async with one.session(harness.ttl) as session:
                await one.txn(Put("a/mine", b"1", ABSENT, session))
                await view.until_values({"a/mine": b"1"})
                await harness.cut(one)
                deadline = trio.current_time() + session.ttl
                await trio.sleep_until(deadline)  # the promise is about time passing
                assert not session.alive, "alive longer than ttl after the cut"
                await harness.heal(one)
                await until_served(harness, one)
                with trio.fail_after(harness.patience):
                    await session.lost.wait()
                assert not session.alive
                with pytest.raises(SessionLost):
                    await one.txn(Put("a/mine", b"2", ABSENT, session))

    async def test_client_knows_first_that_its_session_ended(
        self, harness: CoordinatorHarness
    ) -> None:
        """C18: at no moment does a cut-off client believe in an entry that was given away."""
        harness.need(Trait.SHARED, Trait.CUT)
        async with (
            harness.open() as one,
            harness.open() as other,
            other.watch("a") as watch,
            one.session(harness.ttl) as session,
        ):
            await one.txn(Put("a/mine", b"1", ABSENT, session))
            await View(harness, watch).until_values({"a/mine": b"1"})
            await harness.cut(one)
            view = View(harness, watch)
            view.entries = await other.list("a")
            with trio.fail_after(session.ttl + harness.patience):
                while "a/mine" in view.entries:
                    await view.step()
            assert not session.alive

    async def test_session_is_renewed(self, harness: CoordinatorHarness) -> None:
        """C19: it is alive after twice its ttl, and so are its entries."""
        async with harness.open() as coordinator, coordinator.session(harness.ttl) as session:
            assert session.ttl > 0
            await coordinator.txn(Put("a/mine", b"1", ABSENT, session))
            with trio.move_on_after(2 * session.ttl):  # the promise is about time passing
                await session.lost.wait()
            assert not session.lost.is_set()
            assert session.alive
            assert set(await coordinator.list("a")) == {"a/mine"}

    async def test_ttl_is_a_number_above_zero(self, harness: CoordinatorHarness) -> None:
        """C16: a session without a time to live is refused."""
        async with harness.open() as coordinator:
            for ttl in (0, -1, float("nan"), float("inf")):
                with refused():
                    async with coordinator.session(ttl):
                        pass
