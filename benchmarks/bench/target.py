"""What is measured: a broker this harness starts, or one that runs somewhere already."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from attrs import field, frozen

__all__ = ["Other", "Started", "Target", "started"]

LOG = "broker.jsonl"
TICKS = os.sysconf("SC_CLK_TCK")


@frozen
class Target:
    """A broker: a name for the report, its bootstrap address, its process if it is known."""

    name: str
    bootstrap: str
    pid: int | None = None

    def cpu_seconds(self) -> float | None:
        """CPU time the broker has used, user and system, with its threads."""
        if self.pid is None:
            return None
        stat = Path(f"/proc/{self.pid}/stat").read_text(encoding="ascii")
        fields = stat.rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def resident_bytes(self) -> int | None:
        """Resident memory of the broker now."""
        if self.pid is None:
            return None
        for line in Path(f"/proc/{self.pid}/status").read_text(encoding="ascii").splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        return None


@frozen
class Other(Target):
    """A broker that somebody else runs."""

    @classmethod
    def parse(cls, text: str) -> Other:
        """Read `[name=]host:port[@pid]`."""
        name, _, address = text.rpartition("=")
        bootstrap, _, pid = address.partition("@")
        return cls(name or bootstrap, bootstrap, int(pid) if pid else None)


@frozen
class Started(Target):
    """An `odradek serve` of this harness; `to_ready` is how long its start took, in seconds."""

    directory: Path = field(kw_only=True)
    to_ready: float = field(kw_only=True)

    def forget_peak(self) -> None:
        """Begin anew to watch for the largest resident memory."""
        Path(f"/proc/{self.pid}/clear_refs").write_text("5", encoding="ascii")

    def peak_bytes(self) -> int:
        """Largest resident memory since the start, or since it was forgotten."""
        for line in Path(f"/proc/{self.pid}/status").read_text(encoding="ascii").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
        raise RuntimeError("the system does not tell the largest resident memory")

    def said(self) -> Iterator[str]:
        """Yield the messages of its log so far."""
        with (self.directory / LOG).open(encoding="utf-8") as lines:
            for line in lines:
                if line.startswith("{") and line.endswith("\n"):
                    yield json.loads(line)["message"]


@contextmanager
def started(
    name: str = "odradek",
    *,
    durability: str = "ack",
    directory: Path | None = None,
    settings: Sequence[str] = (),
) -> Iterator[Started]:
    """Run `odradek serve` on a fresh directory (or a given one, which is kept) and stop it.

    `settings`: more of them, `section.key=value` each.
    """
    root = directory or Path(tempfile.mkdtemp(prefix="odradek-bench-"))
    read, write = os.pipe()
    log = (root / LOG).open("ab")
    begun = time.perf_counter()
    process = subprocess.Popen(
        [
            str(Path(sys.executable).with_name("odradek")),
            "serve",
            "--listen=tcp://127.0.0.1:0",
            f"--storage=file://{root}/log",
            f"--coordinator=embedded:{root}/coordinator",
            f"--set=storage.durability={durability}",
            *(f"--set={each}" for each in settings),
            "--log-format=json",
            f"--ready-fd={write}",
        ],
        pass_fds=[write],
        # An installed package has its bytecode; a start that compiles every module again would
        # measure the compiler.
        env={k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"},
        stderr=log,
        stdout=log,
    )
    os.close(write)
    log.close()
    try:
        with os.fdopen(read) as ready:
            line = ready.readline()
        if not line:
            raise RuntimeError(f"odradek serve ended with status {process.wait()}")
        (bootstrap,) = json.loads(line)["addresses"].values()
        to_ready = time.perf_counter() - begun
        yield Started(name, bootstrap, process.pid, directory=root, to_ready=to_ready)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)
        if directory is None:
            shutil.rmtree(root, ignore_errors=True)
