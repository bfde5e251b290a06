"""The count of bytes in memory."""

from __future__ import annotations

import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

from odradek.broker.budget import Budget


async def test_bytes_are_counted_and_given_back() -> None:
    budget = Budget(100)
    await budget.take(60)
    await budget.take(40)
    assert budget.used == 100
    budget.give(60)
    budget.give(40)
    assert budget.used == 0


async def test_who_wants_more_than_is_left_waits_first_come_first_served() -> None:
    budget = Budget(100)
    await budget.take(80)
    order: list[str] = []

    async def take(name: str, count: int) -> None:
        await budget.take(count)
        order.append(name)

    async with trio.open_nursery() as nursery:
        for name, count in (("large", 90), ("small", 20)):
            nursery.start_soon(take, name, count)
            await wait_all_tasks_blocked()
        assert order == [], "the small one does not overtake the large one"
        assert budget.contended
        budget.give(80)
        await wait_all_tasks_blocked()
        assert order == ["large"]
        budget.give(90)
    assert order == ["large", "small"]


async def test_more_than_the_limit_counts_as_all() -> None:
    budget = Budget(100)
    await budget.take(1000)
    assert budget.used == 100
    budget.give(1000)
    assert budget.used == 0


async def test_cancelled_wait_takes_nothing_and_lets_the_next_one_go() -> None:
    budget = Budget(100)
    await budget.take(50)
    async with trio.open_nursery() as nursery:
        scope = trio.CancelScope()

        async def waits() -> None:
            with scope:
                await budget.take(90)

        nursery.start_soon(waits)
        await wait_all_tasks_blocked()
        nursery.start_soon(budget.take, 20)
        await wait_all_tasks_blocked()
        assert budget.used == 50
        scope.cancel()
    assert budget.used == 70


async def test_wait_granted_as_it_was_cancelled_gives_back() -> None:
    budget = Budget(100)
    await budget.take(100)
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(budget.take, 30)
            await wait_all_tasks_blocked()
            scope.cancel()
            budget.give(100)
    assert budget.used == 0


@given(st.lists(st.tuples(st.integers(0, 120), st.booleans(), st.booleans()), max_size=30))
def test_budget_is_never_exceeded_and_comes_back_whole(plan: list[tuple[int, bool, bool]]) -> None:
    async def one(budget: Budget, count: int, cancelled: bool, quick: bool) -> None:
        with trio.move_on_after(0.001 if cancelled else 100):
            await budget.take(count)
            try:
                assert budget.used <= budget.limit
                if not quick:
                    await trio.sleep(0.5)
            finally:
                budget.give(count)

    async def main() -> None:
        budget = Budget(100)
        async with trio.open_nursery() as nursery:
            for step in plan:
                nursery.start_soon(one, budget, *step)
        assert budget.used == 0
        assert not budget.contended

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
