"""C12 to C15: watches."""

from __future__ import annotations

import random

import trio

from odradek.contracts.coordinator import ABSENT, Delete, Put, Version
from odradek.testing._coordinator_harness import (
    CoordinatorHarness,
    Trait,
    View,
    second_client,
    until_served,
)

__all__ = ["WatchPromises"]


class WatchPromises:
    """Tests of C12 to C15."""

    async def test_snapshot_holds_what_was_acknowledged(self, harness: CoordinatorHarness) -> None:
        """C12: writes and deletions by any client, up to the moment of asking."""
        async with harness.open() as one, second_client(harness, one) as other:
            async with other.watch("a") as watch:
                assert watch.snapshot == {}
            versions: list[Version] = []
            for number in range(20):
                versions.append(await one.put("a/key", b"%d" % number))
                async with other.watch("a") as watch:
                    assert watch.snapshot == {"a/key": await one.get("a/key")}
            await one.txn(Delete("a/key", versions[-1]))
            async with other.watch("a") as watch:
                assert watch.snapshot == {}

    async def test_changes_of_the_directory_are_told(self, harness: CoordinatorHarness) -> None:
        """C13: creation, overwriting, deletion, re-creation; nothing of other directories."""
        async with harness.open() as one, second_client(harness, one) as other:
            await one.put("a/old", b"1")
            async with other.watch("a") as watch:
                view = View(harness, watch)
                await one.put("ab/key", b"elsewhere")
                await one.put("b/a", b"elsewhere")
                version = await one.put("a/new", b"1")
                await view.until_values({"a/old": b"1", "a/new": b"1"})
                await other.txn(Put("a/new", b"2", version))
                await view.until_values({"a/old": b"1", "a/new": b"2"})
                assert view.entries == await one.list("a")
                await one.txn(Delete("a/old", view.entries["a/old"].version))
                await view.until_values({"a/new": b"2"})
                await one.txn(Put("a/old", b"3", ABSENT))
                await view.until_values({"a/old": b"3", "a/new": b"2"})
                assert view.entries == await one.list("a")
                assert {key for key, _ in view.told} == {"a/old", "a/new"}

    async def test_watch_never_goes_back(self, harness: CoordinatorHarness) -> None:
        """C13: read along with many writes, every key's revision only grows, to the newest."""
        script = random.Random(13)
        async with (
            harness.open() as one,
            second_client(harness, one) as other,
            other.watch("a") as watch,
            trio.open_nursery() as nursery,
        ):
            view = View(harness, watch)

            async def write() -> None:
                for number in range(100):
                    key = f"a/{script.randrange(3)}"
                    entry = await one.get(key)
                    if entry is not None and script.random() < 0.3:
                        await one.txn(Delete(key, entry.version))
                    else:
                        await one.put(key, b"%d" % number)
                await one.put("a/last", b"last")

            nursery.start_soon(write)
            await view.until(lambda view: "a/last" in view.entries)
            newest = await one.list("a")
            await view.until(lambda view: view.entries == newest)
            revisions: dict[str, int] = {}
            for key, entry in view.told:
                if entry is not None:
                    assert entry.revision >= revisions.get(key, 0)
                    revisions[key] = entry.revision

    async def test_changes_in_one_directory_reach_every_watch(
        self, harness: CoordinatorHarness
    ) -> None:
        """C13: watches on one directory, by one client, do not take from one another."""
        async with harness.open() as coordinator:
            async with coordinator.watch("a") as watch1, coordinator.watch("a") as watch2:
                for value in (b"1", b"2"):
                    await coordinator.put("a/key", value)
                    await View(harness, watch1).until_values({"a/key": value})
                    await View(harness, watch2).until_values({"a/key": value})
            async with coordinator.watch("a") as watch3:
                await coordinator.put("a/key", b"3")
                await View(harness, watch3).until_values({"a/key": b"3"})

    async def test_late_reader_is_told_the_newest_state(self, harness: CoordinatorHarness) -> None:
        """C14: of 300 writes to a key that nobody read, hardly any is told."""
        async with (
            harness.open() as one,
            second_client(harness, one) as other,
            other.watch("a") as watch,
        ):
            for number in range(300):
                await one.put("a/key", b"%d" % number)
            view = View(harness, watch)
            await view.until_values({"a/key": b"299"})
            # More than one is told only where the last writes are still on their way here.
            assert len(view.told) <= 30

    async def test_cut_off_watch_catches_up(self, harness: CoordinatorHarness) -> None:
        """C15: what was created, changed and deleted meanwhile is told after reconnecting."""
        harness.need(Trait.SHARED, Trait.CUT)
        async with harness.open() as one, harness.open() as other:
            for key in ("a/kept", "a/changed", "a/deleted", "a/reborn"):
                await one.put(key, b"1")
            async with other.watch("a") as watch:
                view = View(harness, watch)
                await harness.cut(other)
                await one.put("a/changed", b"2")
                for key in ("a/deleted", "a/reborn"):
                    await one.txn(Delete(key, view.entries[key].version))
                await one.put("a/reborn", b"2")
                await one.put("a/created", b"2")
                await harness.heal(other)
                expected = await one.list("a")
                await view.until(lambda view: view.entries == expected)
                await one.put("a/changed", b"3")
                await view.until(lambda view: view.values["a/changed"] == b"3")

    async def test_watch_outlives_a_restart(self, harness: CoordinatorHarness) -> None:
        """C15: the server restarts beneath the watch, which goes on."""
        harness.need(Trait.RESTART)
        async with harness.open() as coordinator:
            version = await coordinator.put("a/old", b"1")
            async with coordinator.watch("a") as watch:
                view = View(harness, watch)
                await harness.restart()
                await until_served(harness, coordinator)
                await coordinator.txn(Delete("a/old", version))
                await coordinator.put("a/new", b"2")
                await view.until_values({"a/new": b"2"})
