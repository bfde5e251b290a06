"""The embedded coordinator never serves damaged data."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from odradek.contracts.coordinator import Entry, Unavailable, Version
from odradek.embedded.coordinator import open_embedded_coordinator
from odradek.embedded.database import DATABASE_NAME, LOG_NAME, Damaged, Database
from odradek.embedded.wal import transactions_after_damage
from odradek.errors import OdradekError

ReadEntries = Callable[[Path], dict[str, Entry]]
COMMITS = 4


def entry(number: int, size: int = 300) -> Entry:
    return Entry(f"a/{number}", b"%d" % number * size, Version(number + 1), number + 1, number + 1)


def copy(source: Path, target: Path) -> Path:
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)
    return target


@pytest.fixture
def closed(tmp_path: Path) -> Path:
    """Make a database of some pages that was closed in order."""
    database = Database.open(tmp_path / "closed")
    database.write({f"a/{number}": entry(number) for number in range(40)})
    database.write({"a/7": None})
    database.close()
    return tmp_path / "closed"


@pytest.fixture
def crashed(tmp_path: Path) -> Path:
    """Make a database whose last transactions are in the log only, as after kill -9."""
    database = Database.open(tmp_path / "running")
    for number in range(COMMITS):
        database.write({f"a/{number}": entry(number)})
    copy(tmp_path / "running", tmp_path / "crashed")
    database.close()
    return tmp_path / "crashed"


def flip(path: Path, position: int, bit: int) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        (byte,) = file.read(1)
        file.seek(position)
        file.write(bytes([byte ^ 1 << bit]))


def test_flipped_bit_in_the_database_is_refused_or_harmless(
    closed: Path, tmp_path: Path, read_entries: ReadEntries
) -> None:
    expected = read_entries(closed)
    assert len(expected) == 39
    refused = 0
    positions = [*range(100), *range(100, (closed / DATABASE_NAME).stat().st_size, 41)]
    for position in positions:
        directory = copy(closed, tmp_path / "copy")
        flip(directory / DATABASE_NAME, position, position % 8)
        before = (directory / DATABASE_NAME).read_bytes()
        try:
            found = read_entries(directory)
        except (Damaged, Unavailable):
            refused += 1
            assert (directory / DATABASE_NAME).read_bytes() == before, "not left as it was"
        else:
            assert found == expected, f"bit {position % 8} of byte {position} changed the entries"
    assert refused > len(positions) // 3


def test_flipped_bit_in_the_log_costs_the_last_transaction_at_most(
    crashed: Path, tmp_path: Path, read_entries: ReadEntries
) -> None:
    refused = 0
    log_bytes = (crashed / LOG_NAME).stat().st_size
    whole = read_entries(copy(crashed, tmp_path / "copy"))
    assert set(whole) == {f"a/{number}" for number in range(COMMITS)}
    positions = [*range(60), *range(60, log_bytes, 97)]
    for position in positions:
        directory = copy(crashed, tmp_path / "copy")
        flip(directory / LOG_NAME, position, position % 8)
        try:
            found = read_entries(directory)
        except Damaged:
            refused += 1
            assert (directory / LOG_NAME).stat().st_size == log_bytes, "not left as it was"
        else:
            missing = whole.keys() - found.keys()
            assert missing <= {f"a/{COMMITS - 1}", f"a/{COMMITS - 2}"}, f"byte {position}"
            assert all(found[key] == whole[key] for key in found)
    assert refused > len(positions) // 3


def test_log_cut_anywhere_opens_with_a_prefix_of_the_transactions(
    crashed: Path, tmp_path: Path, read_entries: ReadEntries
) -> None:
    log = (crashed / LOG_NAME).read_bytes()
    counts: list[int] = []
    for length in range(0, len(log) + 1, 509):
        directory = copy(crashed, tmp_path / "copy")
        (directory / LOG_NAME).write_bytes(log[:length])
        found = read_entries(directory)
        assert set(found) == {f"a/{number}" for number in range(len(found))}
        counts.append(len(found))
    assert counts == sorted(counts)
    assert counts[-1] >= COMMITS - 1


def test_whole_log_has_no_damage(crashed: Path) -> None:
    log = (crashed / LOG_NAME).read_bytes()
    assert transactions_after_damage(log) == 0
    assert transactions_after_damage(b"") == 0
    assert transactions_after_damage(bytes(len(log))) == 0
    assert transactions_after_damage(log[:32] + bytes(100) + log[132:]) >= COMMITS - 1


@pytest.mark.parametrize("content", [b"", b"not a database at all, but long enough" * 100])
async def test_file_that_is_no_database_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / DATABASE_NAME
    path.write_bytes(content)
    with pytest.raises(Damaged, match=rf"{path} is damaged"):
        async with open_embedded_coordinator(tmp_path):
            pass
    assert path.read_bytes() == content


def test_missing_database_with_a_log_is_refused(crashed: Path) -> None:
    (crashed / DATABASE_NAME).unlink()
    with pytest.raises(Damaged, match="missing"):
        Database.open(crashed)
    assert (crashed / LOG_NAME).stat().st_size


def test_database_of_another_program_is_refused_untouched(tmp_path: Path) -> None:
    path = tmp_path / DATABASE_NAME
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE theirs (x)")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(Damaged, match="not a database of Odradek's"):
        Database.open(tmp_path)
    assert path.read_bytes() == before


def test_database_of_a_newer_version_is_refused(closed: Path) -> None:
    connection = sqlite3.connect(closed / DATABASE_NAME)
    connection.execute("PRAGMA user_version = 2")
    connection.close()
    with pytest.raises(Damaged, match="format 2, this version reads 1"):
        Database.open(closed)


def test_database_open_in_another_program_is_reported(closed: Path) -> None:
    connection = sqlite3.connect(closed / DATABASE_NAME, isolation_level=None)
    connection.execute("PRAGMA locking_mode = EXCLUSIVE")
    connection.execute("BEGIN EXCLUSIVE")
    try:
        with pytest.raises(OdradekError, match="open in another program"):
            Database.open(closed)
    finally:
        connection.close()


def test_refused_database_leaves_the_directory_unlocked(closed: Path, tmp_path: Path) -> None:
    good = copy(closed, tmp_path / "good")
    (closed / DATABASE_NAME).write_bytes(b"")
    for _ in range(2):
        with pytest.raises(Damaged):
            Database.open(closed)
    shutil.copy(good / DATABASE_NAME, closed / DATABASE_NAME)
    Database.open(closed).close()
