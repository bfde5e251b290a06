"""The embedded coordinator's ballast: it writes, and opens, without a byte left on the disk."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest

from odradek.contracts.coordinator import Entry, Version
from odradek.embedded.ballast import NAME
from odradek.embedded.database import Database, DiskFull

pytestmark = pytest.mark.faults

BALLAST = 128 * 1024


def fill(disk: Path) -> None:
    """Take all the room there is, and what comes free later when called again."""
    with (disk / "filler").open("ab", buffering=0) as file:
        while True:
            try:
                file.write(bytes(4096))
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                return


def ballast(disk: Path) -> int:
    """Bytes that are set aside."""
    return (disk / "data" / NAME).stat().st_blocks * 512


def put(database: Database, number: int, *, key: str = "a/key", size: int = 3000) -> None:
    value = (b"%d " % number).ljust(size, b".")
    database.write({key: Entry(key, value, Version(number), number, 1)})


def write_until_refused(database: Database, disk: Path) -> int:
    """Write entry after entry on a disk that somebody else fills; return how many there are."""
    for number in range(1, 1000):
        try:
            put(database, number, key=f"a/{number}")
        except DiskFull:
            return number - 1
        fill(disk)
    raise AssertionError("the ballast never ends")


def opened(disk: Path) -> Database:
    return Database.open(disk / "data", BALLAST)


def test_entries_change_again_and_again_without_a_byte_left(small_disk: Path) -> None:
    """Something takes every byte that comes free in between, and the log of writes begins anew."""
    database = opened(small_disk)
    put(database, 1)
    for number in range(2, 400):
        fill(small_disk)
        put(database, number)
        assert ballast(small_disk) > 0
    database.close()
    again = opened(small_disk)
    assert again.entries["a/key"].value.split()[0] == b"399"
    again.close()


@pytest.mark.parametrize("killed", [False, True])
def test_a_database_is_opened_without_a_byte_left(small_disk: Path, killed: bool) -> None:
    database = opened(small_disk)
    for number in range(1, 20):
        put(database, number)
    if killed:  # what is in the log alone comes back with the copy
        shutil.copytree(small_disk / "data", small_disk / "copy")
    database.close()
    if killed:
        shutil.rmtree(small_disk / "data")
        (small_disk / "copy").rename(small_disk / "data")
        assert (small_disk / "data" / "coordinator.db-wal").stat().st_size
        with (small_disk / "data" / NAME).open("r+b") as file:
            file.write(bytes(BALLAST))  # a copy is sparse
    boots = []
    for _ in range(5):
        fill(small_disk)
        again = opened(small_disk)
        boots.append(again.boot)
        assert again.entries["a/key"].value.split()[0] == b"19"
        fill(small_disk)
        again.close()
    assert boots == list(range(boots[0], boots[0] + 5))
    last = opened(small_disk)
    put(last, 20)
    last.close()


def test_a_ballast_that_is_used_up_is_set_aside_again_when_there_is_room(
    small_disk: Path,
) -> None:
    database = opened(small_disk)
    fill(small_disk)
    written = write_until_refused(database, small_disk)
    assert written > 10
    with pytest.raises(DiskFull):
        put(database, 1000, size=BALLAST)
    (small_disk / "filler").unlink()
    put(database, 1001)
    assert ballast(small_disk) == BALLAST
    database.close()
    again = opened(small_disk)
    assert set(again.entries) == {"a/key", *(f"a/{n}" for n in range(1, written + 1))}
    again.close()


def test_a_write_that_is_too_large_for_the_ballast_leaves_it_as_it_was(small_disk: Path) -> None:
    database = opened(small_disk)
    put(database, 1)
    fill(small_disk)
    with pytest.raises(DiskFull):
        put(database, 2, size=2 * BALLAST)
    assert ballast(small_disk) >= BALLAST // 2
    put(database, 3)
    database.close()


def test_a_ballast_that_was_copied_without_its_blocks_is_set_aside_again(
    small_disk: Path,
) -> None:
    opened(small_disk).close()
    (small_disk / "data" / NAME).write_bytes(b"")
    with (small_disk / "data" / NAME).open("r+b") as file:
        file.truncate(BALLAST)
    assert ballast(small_disk) == 0
    opened(small_disk).close()
    assert ballast(small_disk) == BALLAST


def test_no_ballast_is_set_aside_where_there_is_little_room(small_disk: Path) -> None:
    for size in (0, 1024 * 1024):
        database = Database.open(small_disk / "data", size)
        put(database, 1)
        database.close()
        assert not (small_disk / "data" / NAME).exists()
