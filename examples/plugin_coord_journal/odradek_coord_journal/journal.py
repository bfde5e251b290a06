"""The file. Everything here blocks: `LocalCoordinator` calls it in a thread.

Each line is what one write changed: a JSON object from keys to [value, revision, created], or to
null where a key was deleted. "boot", in the first line, says how often the journal was opened.
"""

import errno
import fcntl
import json
import os
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from odradek.contracts.coordinator import Entry, Unavailable, Version
from odradek.contracts.local import LocalStore

REWRITE_BYTES = 1024 * 1024


class Journal(LocalStore):
    def __init__(self, directory: Path) -> None:
        self.path = directory / "journal.jsonl"
        with ExitStack() as undo:
            missing = [path for path in (directory, *directory.parents) if not path.exists()]
            directory.mkdir(parents=True, exist_ok=True)
            for made in missing:
                _sync_directory(made.parent)
            self._directory = os.open(directory, os.O_RDONLY)
            undo.callback(os.close, self._directory)
            try:
                fcntl.flock(self._directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise Unavailable(f"{directory} is in use by another process") from None
            self._states = _replay(self.path)
            self.boot = self._states.pop("boot", 0) + 1
            self.entries = {key: _entry(key, *state) for key, state in self._states.items()}
            self._file = self._rewrite()
            undo.pop_all()

    def write(self, changes: Mapping[str, Entry | None]) -> None:
        states = {
            key: entry and (entry.value.decode("latin-1"), entry.revision, entry.created)
            for key, entry in changes.items()
        }
        line = _line(states)
        if os.write(self._file, line) < len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fdatasync(self._file)
        _apply(self._states, states)
        if os.fstat(self._file).st_size > self._rewrite_at:
            old, self._file = self._file, self._rewrite()
            os.close(old)

    def close(self) -> None:
        os.close(self._file)
        os.close(self._directory)

    def _rewrite(self) -> int:
        """Put a file with nothing obsolete in place; a crash leaves the old one or the new."""
        new = self.path.with_suffix(".new")
        with open(new, "wb") as file:
            file.write(_line({"boot": self.boot, **self._states}))
            file.flush()
            os.fsync(file.fileno())
            self._rewrite_at = REWRITE_BYTES + 2 * file.tell()
        os.replace(new, self.path)
        _sync_directory(self.path.parent)
        return os.open(self.path, os.O_WRONLY | os.O_APPEND)


def _replay(path: Path) -> dict[str, Any]:
    states: dict[str, Any] = {}
    lines = path.read_bytes().splitlines() if path.exists() else []
    for number, line in enumerate(lines, 1):
        try:
            _apply(states, json.loads(line))
        except ValueError:
            if number < len(lines):
                raise Unavailable(f"{path}: line {number} is damaged") from None
            # Torn by a crash, hence never acknowledged.
    return states


def _apply(states: dict[str, Any], changes: Mapping[str, Any]) -> None:
    for key, state in changes.items():
        states[key] = state
        if state is None:
            del states[key]


def _entry(key: str, value: str, revision: int, created: int) -> Entry:
    return Entry(key, value.encode("latin-1"), Version(revision), revision, created)


def _line(states: Mapping[str, Any]) -> bytes:
    return json.dumps(states).encode() + b"\n"


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)
