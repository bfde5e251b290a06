"""The coordinator in memory: sharing by name, being cut off, expiring."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from odradek.contracts.coordinator import ABSENT, Put, Session, SessionLost, Unavailable
from odradek.contracts.election import elect
from odradek.memory.coordinator import memory_state, open_memory_coordinator


def alive(session: Session) -> bool:
    """Ask by a function: mypy takes a property to stay as it was asserted."""
    return session.alive


async def test_clients_of_one_name_share_a_state() -> None:
    async with open_memory_coordinator("x") as one, open_memory_coordinator("x") as other:
        await one.put("a/key", b"v")
        assert await other.get("a/key") == await one.get("a/key")
        async with open_memory_coordinator("y") as stranger:
            assert await stranger.get("a/key") is None


async def test_state_goes_with_its_last_client_unless_held() -> None:
    async with open_memory_coordinator("x") as coordinator:
        await coordinator.put("a/key", b"v")
        del coordinator
    async with open_memory_coordinator("x") as coordinator:
        assert await coordinator.get("a/key") is None
        await coordinator.put("a/key", b"v")
        held = memory_state("x")
        del coordinator
    async with open_memory_coordinator("x") as coordinator:
        assert coordinator.state is held
        assert await coordinator.get("a/key") is not None


def test_trio_runs_share_nothing() -> None:
    async def keys() -> set[str]:
        async with open_memory_coordinator("x") as coordinator:
            found = set(await coordinator.list("a"))
            await coordinator.put("a/key", b"v")
            return found

    assert trio.run(keys) == set()
    assert trio.run(keys) == set()


def test_cut_off_session_expires_at_its_deadline_on_the_runs_clock() -> None:
    async def main() -> None:
        async with (
            open_memory_coordinator() as one,
            open_memory_coordinator() as other,
            one.session(10) as session,
            other.watch("a") as watch,
        ):
            await one.txn(Put("a/mine", b"v", ABSENT, session))
            assert (await anext(watch)).key == "a/mine"
            await trio.sleep(100)
            assert alive(session), "a connected session needs no renewal"
            begin = trio.current_time()
            one.disconnect()
            await trio.sleep(9.9)
            assert alive(session)
            assert (await anext(watch)).entry is None
            assert trio.current_time() - begin == pytest.approx(10)
            assert not alive(session)
            assert session.lost.is_set()
            one.reconnect()
            assert not alive(session)
            with pytest.raises(SessionLost):
                await one.txn(Put("a/mine", b"v", ABSENT, session))

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_session_that_is_joined_again_in_time_lives_on() -> None:
    async def main() -> None:
        async with open_memory_coordinator() as coordinator, coordinator.session(10) as session:
            await coordinator.txn(Put("a/mine", b"v", ABSENT, session))
            for _ in range(5):
                coordinator.disconnect()
                await trio.sleep(9)
                with pytest.raises(Unavailable):
                    await coordinator.get("a/mine")
                coordinator.reconnect()
            await trio.sleep(100)
            assert alive(session)
            assert await coordinator.get("a/mine") is not None

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_entries_of_a_client_that_died_cut_off_go_at_the_deadline() -> None:
    async def main() -> None:
        async with open_memory_coordinator() as other, other.watch("a") as watch:
            async with open_memory_coordinator() as one, one.session(10) as session:
                await one.txn(Put("a/mine", b"v", ABSENT, session))
                one.disconnect()
            assert session.lost.is_set()
            assert await other.get("a/mine") is not None
            begin = trio.current_time()
            while (await anext(watch)).entry is not None:
                pass
            assert trio.current_time() - begin == pytest.approx(10)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


async def test_client_expired_behind_its_back_believes_until_it_is_joined_again() -> None:
    async with (
        open_memory_coordinator() as one,
        open_memory_coordinator() as other,
        one.session(60) as session,
        other.session(60) as heir,
    ):
        old = await elect(one, "x", session, "one")
        assert old is not None
        one.disconnect()
        one.state.expire(session.id)
        assert alive(session), "nobody could tell it"
        assert await elect(other, "x", heir, "other") is not None
        one.reconnect()
        assert not alive(session)
        assert session.lost.is_set()


async def test_error_in_the_callers_code_arrives_as_it_is() -> None:
    with pytest.raises(KeyError, match="mine"):
        async with open_memory_coordinator():
            raise KeyError("mine")
