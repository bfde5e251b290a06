"""C1 to C7: keys, values, versions."""

from __future__ import annotations

import pytest

from odradek.contracts.coordinator import (
    ABSENT,
    MAX_KEY_PART,
    MAX_VALUE_BYTES,
    Check,
    Conflict,
    Delete,
    Put,
    Version,
)
from odradek.testing._coordinator_harness import CoordinatorHarness, refused, second_client

__all__ = ["KeyPromises"]

_LONGEST = "n" * MAX_KEY_PART
_EVERY_CHARACTER = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) != "/")
_BAD_PARTS = ("", ".", "..", "with space", "t\tb", "nul\0", "\x7f", "umläut", _LONGEST + "n")


class KeyPromises:
    """Tests of C1 to C7."""

    async def test_bad_keys_and_values_are_refused(self, harness: CoordinatorHarness) -> None:
        """C1: a bad key, directory or value is a ValueError."""
        bad_keys = ["flat", "a/b/c", "/", "a/", "/a", *(f"{part}/x" for part in _BAD_PARTS)]
        async with harness.open() as coordinator:
            for key in [*bad_keys, *(f"x/{part}" for part in _BAD_PARTS)]:
                with refused():
                    await coordinator.get(key)
                with refused():
                    await coordinator.put(key, b"v")
            for directory in [*_BAD_PARTS, "a/b"]:
                with refused():
                    await coordinator.list(directory)
                with refused():
                    async with coordinator.watch(directory):
                        pass
            for value in (b"", bytes(MAX_VALUE_BYTES + 1)):
                with refused():
                    await coordinator.put("x/key", value)
            assert await coordinator.list("x") == {}

    async def test_every_good_key_and_value_is_kept(self, harness: CoordinatorHarness) -> None:
        """C1: the longest key, every allowed character, the shortest and longest value."""
        values = {
            f"{_LONGEST}/{_LONGEST}": bytes(MAX_VALUE_BYTES),
            f"{_EVERY_CHARACTER}/{_EVERY_CHARACTER}": bytes(range(256)),
            "a/...": b"\0",
            "-/_": b"x",
        }
        async with harness.open() as coordinator:
            for key, value in values.items():
                await coordinator.put(key, value)
            for key, value in values.items():
                entry = await coordinator.get(key)
                assert entry is not None
                assert (entry.key, entry.value, entry.owner) == (key, value, None)
                assert await coordinator.list(key.partition("/")[0]) == {key: entry}

    async def test_get_sees_what_any_client_was_told_is_written(
        self, harness: CoordinatorHarness
    ) -> None:
        """C2: an acknowledged write, overwrite or deletion is seen by the next `get`."""
        async with harness.open() as one, second_client(harness, one) as other:
            assert await other.get("a/key") is None
            for number in range(50):
                writer, reader = (one, other) if number % 2 else (other, one)
                version = await writer.put("a/key", b"%d" % number)
                entry = await reader.get("a/key")
                assert entry is not None
                assert (entry.value, entry.version) == (b"%d" % number, version)
                if number % 7 == 0:
                    await writer.txn(Delete("a/key", version))
                    assert await reader.get("a/key") is None

    async def test_list_gives_one_directory(self, harness: CoordinatorHarness) -> None:
        """C3: the entries of the directory, no others, as new as `get` would have them."""
        async with harness.open() as one, second_client(harness, one) as other:
            assert await other.list("a") == {}
            for key in ("a/x", "a/y", "ab/x", "b/a", "b/x"):
                await one.put(key, key.encode())
            listed = await other.list("a")
            assert listed == {key: await one.get(key) for key in ("a/x", "a/y")}
            listed.clear()
            assert set(await other.list("a")) == {"a/x", "a/y"}
            for number in range(20):
                await one.put("c/key", b"%d" % number)
                assert (await other.list("c"))["c/key"].value == b"%d" % number
            await one.txn(Delete("a/x", (await one.list("a"))["a/x"].version))
            assert set(await other.list("a")) == {"a/y"}

    async def test_put_creates_and_overwrites(self, harness: CoordinatorHarness) -> None:
        """C4: `put` asks for nothing, and returns the version it made."""
        async with harness.open() as one, second_client(harness, one) as other:
            for writer in (one, other, other, one):
                version = await writer.put("a/key", b"v")
                entry = await one.get("a/key")
                assert entry is not None
                assert entry.version == version

    async def test_version_is_a_compare_and_set_token(self, harness: CoordinatorHarness) -> None:
        """C5: only the newest version is accepted, wherever it was learned."""
        async with harness.open() as coordinator:
            first = await coordinator.put("a/key", b"1")
            second = await coordinator.put("a/key", b"2")
            for stale in (Put("a/key", b"x", first), Delete("a/key", first), Check("a/key", first)):
                with pytest.raises(Conflict):
                    await coordinator.txn(stale)
            (third,) = await coordinator.txn(Put("a/key", b"3", second))
            with pytest.raises(Conflict):
                await coordinator.txn(Put("a/key", b"x", second))
            entry = await coordinator.get("a/key")
            assert entry is not None
            assert (entry.value, entry.version) == (b"3", third)
            listed = (await coordinator.list("a"))["a/key"]
            assert await coordinator.txn(Check("a/key", listed.version)) == (third,)
            assert await coordinator.txn(Delete("a/key", entry.version)) == (ABSENT,)
            assert await coordinator.get("a/key") is None

    async def test_revision_grows_with_every_write(self, harness: CoordinatorHarness) -> None:
        """C6: through overwrites by `put` and `txn`, and across a deletion."""
        revisions: list[int] = []
        async with harness.open() as coordinator:

            async def note() -> Version:
                entry = await coordinator.get("a/key")
                assert entry is not None
                revisions.append(entry.revision)
                return entry.version

            for _ in range(3):
                await coordinator.put("a/key", b"v")
                await note()
                await coordinator.put("a/key", b"v")
                version = await note()
                await coordinator.txn(Put("a/key", b"v", version))
                await coordinator.txn(Delete("a/key", await note()))
                await coordinator.txn(Put("a/key", b"v", ABSENT))
                await note()
        assert revisions == sorted(set(revisions))

    async def test_created_changes_exactly_when_re_created(
        self, harness: CoordinatorHarness
    ) -> None:
        """C7: one `created` for each life of a key."""
        lives: list[int] = []
        async with harness.open() as coordinator:
            for _ in range(3):
                await coordinator.txn(Put("a/key", b"v", ABSENT))
                born = await coordinator.get("a/key")
                assert born is not None
                await coordinator.txn(Put("a/key", b"w", born.version))
                await coordinator.put("a/key", b"x")
                entry = await coordinator.get("a/key")
                assert entry is not None
                assert entry.created == born.created
                lives.append(entry.created)
                await coordinator.txn(Delete("a/key", entry.version))
        assert len(set(lives)) == 3
