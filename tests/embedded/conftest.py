"""A process that writes to an embedded coordinator, and what it said."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO

import pytest

from odradek.contracts.coordinator import Entry
from odradek.embedded.database import Database

WRITER = Path(__file__).with_name("writer.py")


class Writer:
    """The process, and the newest number acknowledged to each of its tasks."""

    def __init__(self, directory: Path, tasks: int, size: int, prefix: Sequence[str]) -> None:
        self.acknowledged: dict[int, int] = {}
        self.errors: list[str] = []
        self.process = subprocess.Popen(
            [*prefix, sys.executable, str(WRITER), str(directory), str(tasks), str(size)],
            stdout=subprocess.PIPE,
        )

    @property
    def output(self) -> IO[bytes]:
        assert self.process.stdout is not None
        return self.process.stdout

    def read(self, lines: int) -> None:
        """Take in so many lines, or all that there are."""
        for _ in range(lines):
            line = self.output.readline()
            if not line.endswith(b"\n"):
                return
            self._note(line)

    def kill(self) -> None:
        """Kill -9, and take in what it said before."""
        self.process.kill()
        self.finish()

    def finish(self) -> None:
        """Take in everything until the process ends."""
        for line in self.output:
            if line.endswith(b"\n"):
                self._note(line)
        self.process.wait()
        self.output.close()

    def _note(self, line: bytes) -> None:
        word, *rest = line.split()
        if word == b"error":
            self.errors.append(rest[0].decode())
        elif word != b"open":
            self.acknowledged[int(word)] = int(rest[0])

    def check(self, entries: dict[str, Entry]) -> None:
        """Assert that nothing acknowledged is missing, and no transaction torn."""
        found = {
            key: int(entry.value.split()[0])
            for key, entry in entries.items()
            if key.startswith(("left/", "right/"))
        }
        for task, number in self.acknowledged.items():
            assert found.get(f"left/{task}", 0) >= number, "acknowledged and lost"
        lefts = {key.partition("/")[2]: n for key, n in found.items() if key.startswith("left/")}
        rights = {key.partition("/")[2]: n for key, n in found.items() if key.startswith("right/")}
        assert lefts == rights, "a transaction was torn"


StartWriter = Callable[..., Writer]


@pytest.fixture
def start_writer() -> Iterator[StartWriter]:
    """Start writers; what still runs at the end of the test is killed."""
    writers: list[Writer] = []

    def start(
        directory: Path, *, tasks: int = 8, size: int = 100, prefix: Sequence[str] = ()
    ) -> Writer:
        writers.append(Writer(directory, tasks, size, prefix))
        return writers[-1]

    yield start
    for writer in writers:
        if writer.process.poll() is None:
            writer.kill()


def read_entries(directory: Path) -> dict[str, Entry]:
    """Open the database, return its entries and close it."""
    database = Database.open(directory)
    database.close()
    return database.entries


@pytest.fixture(name="read_entries")
def read_entries_fixture() -> Callable[[Path], dict[str, Entry]]:
    """Give `read_entries` to modules that cannot import this one."""
    return read_entries


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a disk of 1 MiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "odradek-test", str(disk)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("a small disk can be mounted only by root")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)
