"""The file: blocking, for one thread at a time.

Each line is one transaction: a JSON object from keys to [value, revision, created], or to null
where a key was deleted. The first line says how often the journal was opened.
"""

import fcntl
import json
import os
from collections.abc import Mapping
from pathlib import Path

from odradek.contracts.coordinator import Entry, Unavailable, Version

REWRITE_BYTES = 1024 * 1024


class Journal:
    """`entries` is the state on the disk, `boot` the number of this opening, from 1 on."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._path = directory / "journal.jsonl"
        self._directory = os.open(directory, os.O_RDONLY)
        try:
            fcntl.flock(self._directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.boot, self.entries = _replay(self._path)
            self._rewrite()
        except BaseException as error:
            os.close(self._directory)
            if isinstance(error, BlockingIOError):
                raise Unavailable(f"{directory} is in use by another process") from None
            raise

    def write(self, changes: Mapping[str, Entry | None]) -> None:
        """Make a transaction durable. After an OSError nothing more may be written."""
        self._file.write(_line(changes))
        self._file.flush()
        os.fdatasync(self._file.fileno())
        _apply(self.entries, changes)
        if self._file.tell() > self._rewrite_at:
            self._file.close()
            self._rewrite()

    def close(self) -> None:
        """Give the directory free for the next one."""
        self._file.close()
        os.close(self._directory)

    def _rewrite(self) -> None:
        """Begin a new file with nothing obsolete in it; a crash leaves the old one or the new."""
        new = self._path.with_suffix(".new")
        self._file = open(new, "wb")  # noqa: SIM115  # stays open
        self._file.write(b'{"boot": %d}\n' % self.boot + _line(self.entries))
        self._file.flush()
        os.fsync(self._file.fileno())
        os.replace(new, self._path)
        os.fsync(self._directory)
        self._rewrite_at = REWRITE_BYTES + 2 * self._file.tell()


def _replay(path: Path) -> tuple[int, dict[str, Entry]]:
    boot, entries = 1, dict[str, Entry]()
    lines = path.read_bytes().splitlines() if path.exists() else []
    for number, line in enumerate(lines, 1):
        try:
            changes = json.loads(line)
        except ValueError:
            if number == len(lines):
                break  # torn by a crash, hence never acknowledged
            raise Unavailable(f"{path}: line {number} is damaged") from None
        boot = changes.pop("boot", boot - 1) + 1
        _apply(entries, {key: state and _entry(key, *state) for key, state in changes.items()})
    return boot, entries


def _apply(entries: dict[str, Entry], changes: Mapping[str, Entry | None]) -> None:
    for key, entry in changes.items():
        entries.pop(key, None)
        if entry is not None:
            entries[key] = entry


def _entry(key: str, value: str, revision: int, created: int) -> Entry:
    return Entry(key, value.encode("latin-1"), Version(revision), revision, created)


def _line(changes: Mapping[str, Entry | None]) -> bytes:
    states = {
        key: entry and (entry.value.decode("latin-1"), entry.revision, entry.created)
        for key, entry in changes.items()
    }
    return json.dumps(states).encode() + b"\n"
