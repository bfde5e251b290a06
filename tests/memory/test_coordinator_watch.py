"""The level-triggered buffer beneath every watch."""

from __future__ import annotations

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from odradek.contracts.coordinator import Change, Entry, Unavailable, Version
from odradek.contracts.watching import ChangeBuffer


def entry(key: str, revision: int) -> Entry:
    return Entry(key, b"v", Version(revision), revision, revision)


async def test_newest_state_is_told_once() -> None:
    buffer = ChangeBuffer({})
    for revision in (1, 2, 3, 3, 2):
        buffer.tell(Change("a/x", entry("a/x", revision)))
    assert await anext(buffer) == Change("a/x", entry("a/x", 3))
    assert not buffer._pending


async def test_key_that_came_and_went_unread_is_not_told() -> None:
    buffer = ChangeBuffer({"a/old": entry("a/old", 1)})
    buffer.tell(Change("a/new", entry("a/new", 2)))
    buffer.tell(Change("a/new", None))
    buffer.tell(Change("a/never", None))
    buffer.tell(Change("a/old", None))
    assert await anext(buffer) == Change("a/old", None)
    assert not buffer._pending


async def test_key_that_goes_while_its_reader_wakes_up_is_not_told() -> None:
    buffer = ChangeBuffer({})
    told: list[Change] = []

    async def read() -> None:
        told.append(await anext(buffer))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await trio.testing.wait_all_tasks_blocked()
        buffer.tell(Change("a/x", entry("a/x", 1)))
        buffer.tell(Change("a/x", None))
        await trio.testing.wait_all_tasks_blocked()
        assert told == []
        buffer.tell(Change("a/y", entry("a/y", 2)))
    assert told == [Change("a/y", entry("a/y", 2))]


async def test_second_reader_is_refused() -> None:
    buffer = ChangeBuffer({})
    async with trio.open_nursery() as nursery:
        nursery.start_soon(anext, buffer)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(trio.BusyResourceError):
            await anext(buffer)
        nursery.cancel_scope.cancel()


async def test_failure_is_raised_at_once_and_again() -> None:
    buffer = ChangeBuffer({})
    buffer.tell(Change("a/x", entry("a/x", 1)))
    buffer.fail(Unavailable("closed"))
    for _ in range(2):
        with pytest.raises(Unavailable, match="closed"):
            await anext(buffer)


KEYS = st.sampled_from(["a/x", "a/y", "a/z"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), KEYS),
        st.tuples(st.just("delete"), KEYS),
        st.tuples(st.sampled_from(["read", "cut", "heal"]), st.just("")),
    ),
    max_size=60,
)


@given(STEPS)
def test_reader_always_ends_with_the_directory_as_it_is(steps: list[tuple[str, str]]) -> None:
    """Whatever is written, read, missed and resynced in between, and in bounded memory."""

    async def main() -> None:
        state = {"a/x": entry("a/x", 1)}
        buffer = ChangeBuffer(state)
        seen = dict(buffer.snapshot)
        connected = True

        async def read_one() -> None:
            change = await anext(buffer)
            assert change.entry is not None or change.key in seen, "deletion of what never was"
            if change.entry is None:
                del seen[change.key]
            else:
                seen[change.key] = change.entry

        for revision, (step, key) in enumerate(steps, 2):
            if step == "write":
                state[key] = entry(key, revision)
            elif step == "delete":
                state.pop(key, None)
            elif step == "read" and buffer._pending:
                await read_one()
            elif step == "cut":
                connected = False
            elif step == "heal":
                connected = True
                buffer.resync(state)
            if connected and key:
                buffer.tell(Change(key, state.get(key)))
            assert len(buffer._pending) <= len(state.keys() | seen.keys() | buffer._newest.keys())
        buffer.resync(state)
        while buffer._pending:
            await read_one()
        assert seen == state

    trio.run(main)
