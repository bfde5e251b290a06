"""C8 to C11: transactions."""

from __future__ import annotations

import pytest
import trio

from odradek.contracts.coordinator import (
    ABSENT,
    MAX_TXN_BYTES,
    MAX_TXN_OPS,
    MAX_VALUE_BYTES,
    Absent,
    Check,
    Conflict,
    Coordinator,
    Delete,
    Op,
    Put,
    Version,
)
from odradek.testing._coordinator_harness import CoordinatorHarness, refused, second_client

__all__ = ["TransactionPromises"]


class TransactionPromises:
    """Tests of C8 to C11."""

    async def test_txn_applies_all_of_its_operations(self, harness: CoordinatorHarness) -> None:
        """C8: every operation takes effect, and the result says each key's version."""
        async with harness.open() as coordinator:
            old, checked, doomed = [
                await coordinator.put(key, b"old") for key in ("a/old", "b/checked", "a/doomed")
            ]
            versions = await coordinator.txn(
                Check("b/checked", checked),
                Put("a/new", b"new", ABSENT),
                Delete("a/doomed", doomed),
                Put("a/old", b"newer", old),
            )
            found = [
                await coordinator.get(key) for key in ("b/checked", "a/new", "a/doomed", "a/old")
            ]
            assert versions == tuple(ABSENT if e is None else e.version for e in found)
            assert [e and e.value for e in found] == [b"old", b"new", None, b"newer"]

    async def test_txn_that_fails_applies_nothing(self, harness: CoordinatorHarness) -> None:
        """C8: wherever the operation stands whose expectation is not met."""
        async with harness.open() as coordinator:
            old = await coordinator.put("a/old", b"old")
            doomed = await coordinator.put("a/doomed", b"doomed")
            before = await coordinator.list("a")
            good: list[Op] = [
                Put("a/new", b"new", ABSENT),
                Put("a/old", b"newer", old),
                Delete("a/doomed", doomed),
            ]
            for place in range(len(good) + 1):
                with pytest.raises(Conflict):
                    await coordinator.txn(*good[:place], Check("b/absent", old), *good[place:])
                assert await coordinator.list("a") == before

    async def test_each_operation_has_its_expectation(self, harness: CoordinatorHarness) -> None:
        """C9: each kind of operation, on an entry that is absent, present, or newer."""
        async with harness.open() as coordinator:
            stale = await coordinator.put("a/key", b"1")
            await coordinator.put("a/key", b"2")
            before = await coordinator.list("a")
            unmet: list[Op] = [
                Put("a/key", b"x", ABSENT),
                Put("a/key", b"x", stale),
                Delete("a/key", stale),
                Check("a/key", stale),
                Put("a/none", b"x", stale),
                Delete("a/none", stale),
                Check("a/none", stale),
            ]
            for op in unmet:
                with pytest.raises(Conflict):
                    await coordinator.txn(op)
                assert await coordinator.list("a") == before, f"{op} was applied"

    async def test_txn_within_the_limits_is_applied(self, harness: CoordinatorHarness) -> None:
        """C10: 64 operations, and 524,288 bytes."""
        async with harness.open() as coordinator:
            await coordinator.txn(
                *(Put(f"many/{number}", b"v", ABSENT) for number in range(MAX_TXN_OPS))
            )
            assert len(await coordinator.list("many")) == MAX_TXN_OPS
            await coordinator.txn(*_large(MAX_TXN_BYTES))
            assert (
                sum(
                    len(key) + len(entry.value)
                    for key, entry in (await coordinator.list("large")).items()
                )
                == MAX_TXN_BYTES
            )

    async def test_txn_beyond_the_limits_is_refused(self, harness: CoordinatorHarness) -> None:
        """C10: none, 65 operations, a key twice, one byte too many: nothing is applied."""
        async with harness.open() as coordinator:
            for ops in (
                (),
                [Put(f"many/{number}", b"v", ABSENT) for number in range(MAX_TXN_OPS + 1)],
                [Put("many/twice", b"1", ABSENT), Put("many/twice", b"2", ABSENT)],
                _large(MAX_TXN_BYTES + 1),
            ):
                with refused():
                    await coordinator.txn(*ops)
            assert await coordinator.list("many") == {}
            assert await coordinator.list("large") == {}

    async def test_one_of_racing_transactions_wins(self, harness: CoordinatorHarness) -> None:
        """C11: transactions of several tasks and clients that expect the same version."""
        wins: list[int] = []

        async def race(coordinator: Coordinator, number: int, op: Op) -> None:
            try:
                await coordinator.txn(op)
            except Conflict:
                return
            wins.append(number)

        async with harness.open() as one, second_client(harness, one) as other:
            expected: Version | Absent = ABSENT
            for round_ in range(5):
                wins.clear()
                async with trio.open_nursery() as nursery:
                    for number in range(16):
                        op = Put("a/key", b"%d" % number, expected)
                        nursery.start_soon(race, (one, other)[number % 2], number, op)
                entry = await one.get("a/key")
                assert entry is not None
                assert [b"%d" % number for number in wins] == [entry.value], f"round {round_}"
                expected = entry.version


def _large(size: int) -> list[Op]:
    """Return operations of `size` bytes in all, none with a value beyond its own limit."""
    ops: list[Op] = []
    while size:
        key = f"large/{len(ops)}"
        value = bytes(min(size - len(key), MAX_VALUE_BYTES - 100))
        ops.append(Put(key, value, ABSENT))
        size -= len(key) + len(value)
    return ops
