"""Decentralised groups under faults, as long as one likes: each seed is another history.

The coordinator answers late, refuses, loses answers, and applies late what it lost; watches are
slow; sessions expire; clients are cut off for longer and shorter than their sessions last; members
join, leave and die; partitions are added. All the while no partition may have two live owners, no
committed offset may go back, and what was acknowledged is found by the next owner. After quiet,
every partition has one owner.
"""

import os

import pytest
import trio
from tests.client.decentralised import TTL, World, open_world

from odradek.testing.simulation import simulate

SEEDS = range(int(os.environ.get("ODRADEK_SEEDS", "12")))


async def one_fault(world: World) -> str:
    """Let one thing happen."""
    random = world.random
    workers = sorted(world.workers.values(), key=lambda worker: worker.name)
    kind = random.choice(
        ("join", "join", "leave", "kill", "expire", "cut", "cut", "grow", "topics")
    )
    if kind == "join" and len(workers) < 8:
        await world.join(*random.choice((("t",), ("t", "u"), ("u",))), working=True)
    elif kind == "grow" and world.topics.counts["t"] < 12:
        world.topics.counts["t"] += 1
    elif workers:
        worker = random.choice(workers)
        if kind == "leave":
            world.tasks.start_soon(worker.leave)
        elif kind == "kill":
            await worker.kill()
        elif kind == "expire" and worker.coordinator.inner.connected:
            # One that is cut off cannot be expired before its time: that would break C18.
            for session in worker.coordinator.sessions:
                world.observer.state.expire(session.id)
        elif kind == "cut":
            world.tasks.start_soon(cut, worker, random.random() * 2 * TTL)
        elif kind == "topics":
            worker.topics = frozenset(random.choice((("t",), ("t", "u"), ("u",))))
            worker.membership.subscription_changed()
    return kind


async def cut(worker, seconds: float) -> None:
    worker.coordinator.inner.disconnect()
    await trio.sleep(seconds)
    if not worker.gone.is_set():
        worker.coordinator.inner.reconnect()


async def history(seed: int) -> dict[str, int]:
    """Live through one history; return what can be counted of it."""
    async with open_world(seed, rate=0.1) as world:
        world.topics.counts.update(t=5, u=3)
        assigned = 0
        for _ in range(40):
            await one_fault(world)
            await trio.sleep(world.random.random() * 4)
        world.rate = 0
        for worker in world.workers.values():
            worker.coordinator.rate = 0
            worker.coordinator.inner.reconnect()
        await world.join("t", "u", working=True)
        for worker in world.workers.values():
            worker.coordinator.rate = 0
        await world.until_settled(10 * TTL)
        await trio.sleep(5)
        assert world.settled(), "it stays settled"
        for worker in world.workers.values():
            assigned += sum(what == "assigned" for what, _ in worker.log)
        return {
            "assigned": assigned,
            "committed": sum(world.acknowledged.values()),
            "members": len(world.workers),
            "faults": world.faults,
        }


@pytest.mark.parametrize("seed", SEEDS)
def test_group_keeps_its_promises_whatever_happens(seed: int) -> None:
    counted = simulate(seed, lambda _: history(seed))
    assert counted["committed"] > 50, "a history in which nothing was processed shows nothing"
    assert counted["faults"] > 0
