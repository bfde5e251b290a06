"""What the demo publishes: this machine's log files, and its metrics. All of it is real."""

from __future__ import annotations

import gzip
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from attrs import frozen

__all__ = ["LONGEST_LINE", "LogSource", "find_logs", "from_paths"]

MOST_BYTES = 16 * 1024 * 1024
"""Read of one source at most; of a larger file the end."""
MOST_SOURCES = 12
LONGEST_LINE = 512 * 1024
"""Published of a line at most: with its key and headers it must fit into a request of 1 MiB."""
LONGEST_KEY = 1024
PARTITIONS = 3

# Where package managers and system loggers of Linux and macOS write, with what rotation leaves.
_KNOWN = (
    "/var/log/dpkg.log",
    "/var/log/apt/history.log",
    "/var/log/apt/term.log",
    "/var/log/syslog",
    "/var/log/messages",
    "/var/log/auth.log",
    "/var/log/kern.log",
    "/var/log/pacman.log",
    "/var/log/dnf.log",
    "/var/log/dnf.rpm.log",
    "/var/log/yum.log",
    "/var/log/zypp/history",
    "/var/log/apk.log",
    "/var/log/alternatives.log",
    "/var/log/cloud-init.log",
    "/var/log/bootstrap.log",
    "/var/log/system.log",
    "/var/log/install.log",
    "~/Library/Logs/Homebrew/*/*.log",
    "~/.cache/pip/log/*.log",
)

Line = tuple[bytes | None, bytes]
"""Key and value."""

_PACKAGE = re.compile(rb" ([a-z0-9][a-z0-9.+-]*):(?:amd64|arm64|all|i386|armhf|riscv64|<none>)")
_PROGRAM = re.compile(
    rb"^(?:\w{3} [ \d]\d [\d:]{8}|\d{4}-\d\d-\d\dT[\d:.,+Z-]+) \S+ ([\w./@-]+?)(?:\[\d+\])?:"
)
_STARTED = re.compile(rb"^(?:Start-Date|Log started): +(.*)")
_ALTERNATIVE = re.compile(
    rb"^update-alternatives .*?"
    rb"(?:run with (?:--quiet )?--\S+ (?:/\S+ )?([^\s/-]\S*)|link group (\S+))"
)


@frozen
class LogSource:
    """A log and the topic its lines go to. `paths` in the order of time; `note` says what it is."""

    topic: str
    paths: tuple[Path, ...]
    note: str
    command: tuple[str, ...] = ()

    def lines(self) -> Iterator[Line]:
        """Yield the lines, oldest first, each with its key, which may be cut. Raises OSError."""
        key_of = _key_function(self.topic)
        left = MOST_BYTES
        chosen: list[bytes] = []
        for path in reversed(self.paths):
            data = _read(path, left)
            chosen.append(data)
            left -= len(data)
            if left <= 0:
                break
        if self.command:
            chosen.append(_run(self.command)[-left:])
        for data in reversed(chosen):
            for line in data.splitlines():
                if line.strip():
                    key = key_of(line)
                    yield None if key is None else key[:LONGEST_KEY], line


def find_logs() -> list[LogSource]:
    """Return the machine's logs that are readable and not empty."""
    found: list[LogSource] = []
    for pattern in _KNOWN:
        expanded = Path(pattern).expanduser()
        matches = (
            sorted(Path(expanded.anchor).glob(str(expanded.relative_to(expanded.anchor))))
            if "*" in pattern
            else [expanded]
        )
        for path in matches[-3:]:
            paths = _rotations(path)
            if paths:
                found.append(LogSource(_topic(path, found), paths, str(path)))
    if not any(each.topic in ("logs.syslog", "logs.messages") for each in found):
        journal = ("journalctl", "--no-pager", "--quiet", "-o", "short-iso", "-n", "20000")
        if shutil.which("journalctl") and len(_run(journal)) > 200:
            found.append(LogSource("logs.journal", (), "journalctl", journal))
    return found[:MOST_SOURCES]


def from_paths(paths: Sequence[Path]) -> list[LogSource]:
    """Return sources for files, and for the files right inside of directories.

    Raises OSError for what cannot be read.
    """
    found: list[LogSource] = []
    for path in paths:
        files = sorted(path.iterdir()) if path.is_dir() else [path]
        for file in files:
            if path.is_dir() and not (file.is_file() and os.access(file, os.R_OK)):
                continue
            with file.open("rb"):
                found.append(LogSource(_topic(file, found), (file,), str(file)))
    return found[:MOST_SOURCES]


def _rotations(path: Path) -> tuple[Path, ...]:
    """The log with its two youngest rotations (`.1`, `.2.gz`), oldest first; readable ones."""
    candidates = [path.with_name(f"{path.name}{suffix}") for suffix in (".2.gz", ".1.gz", ".1", "")]
    return tuple(
        each
        for each in candidates
        if each.is_file() and os.access(each, os.R_OK) and each.stat().st_size > 0
    )


def _topic(path: Path, others: Sequence[LogSource]) -> str:
    stem = path.name.removesuffix(".gz").removesuffix(".log") or path.name
    parent = path.parent.name
    if path.parts[:3] == ("/", "var", "log") and len(path.parts) > 4:
        stem = f"{parent}.{stem}"
    name = "logs." + re.sub(r"[^a-zA-Z0-9._-]+", "-", stem).strip("-.")[:200]
    taken = {each.topic for each in others}
    unique, number = name, 2
    while unique in taken:
        unique, number = f"{name}-{number}", number + 1
    return unique


def _read(path: Path, limit: int) -> bytes:
    """The last `limit` bytes of a file, from a beginning of a line on."""
    if path.suffix == ".gz":
        with gzip.open(path, "rb") as packed:
            data = packed.read(4 * MOST_BYTES)
            cut = len(data) > limit
            data = data[-limit:]
    else:
        with path.open("rb") as file:
            cut = path.stat().st_size > limit
            if cut:
                file.seek(-limit, os.SEEK_END)
            data = file.read(limit)
    return data.partition(b"\n")[2] if cut else data


def _run(command: Sequence[str]) -> bytes:
    try:
        done = subprocess.run(command, capture_output=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return b""
    return done.stdout


def _key_function(topic: str) -> Callable[[bytes], bytes | None]:
    """How to key a log's lines: what belongs together stays together, in one partition.

    dpkg by package, apt by its run, system logs by program; without any of these, no key.
    """
    if topic.startswith("logs.apt."):
        run: list[bytes | None] = [None]

        def by_run(line: bytes) -> bytes | None:
            started = _STARTED.match(line)
            if started is not None:
                run[0] = started[1].strip()
            return run[0]

        return by_run

    def by_content(line: bytes) -> bytes | None:
        for pattern in (_PACKAGE, _PROGRAM, _ALTERNATIVE):
            found = pattern.search(line)
            if found is not None and found.lastindex is not None:
                return found[found.lastindex].strip()
        return None

    return by_content
