"""A broker as users run it: `odradek serve` in a process of its own."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.interop.probe import Probe

from odradek.record import BatchMeta, scan

__all__ = ["BrokerProcess"]

START_TIMEOUT = 30.0
STOP_TIMEOUT = 30.0


class BrokerProcess:
    """One broker with its directory; started again, it has the same port and the same logs."""

    def __init__(
        self,
        directory: Path,
        settings: Mapping[str, object] | None = None,
        *,
        under: Sequence[str] = (),
    ) -> None:
        """`under`: a command that becomes the broker, such as `prlimit --nofile=64`."""
        self.directory = directory
        self.data = directory / "data"
        self.log_file = directory / "log.jsonl"
        self.port = 0
        self._settings: Mapping[str, object] = settings or {}
        self._under = under
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """`host:port` for a client's bootstrap list."""
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """Process id of the running broker."""
        assert self._process is not None, "the broker does not run"
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """How it ended by itself, None while it runs."""
        assert self._process is not None, "the broker does not run"
        return self._process.poll()

    def start(self) -> BrokerProcess:
        """Start it and return when it serves."""
        ours, theirs = os.pipe()
        command: Sequence[str] = (
            *self._under, sys.executable, "-m", "odradek.cli", "serve",
            "--listen", f"tcp://127.0.0.1:{self.port}",
            "--storage", f"file://{self.data}",
            "--coordinator", f"embedded:{self.directory}/coordinator",
            "--log-format", "json",
            "--ready-fd", str(theirs),
            *(f"--set={key}={value}" for key, value in self._settings.items()),
        )  # fmt: skip
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=[theirs],
            )
        os.close(theirs)
        try:
            ready = json.loads(self._first_line(ours))
        finally:
            os.close(ours)
        self.port = int(ready["addresses"]["tcp"].rpartition(":")[2])
        return self

    def _first_line(self, fd: int) -> bytes:
        deadline = time.monotonic() + START_TIMEOUT
        line = b""
        while not line.endswith(b"\n"):
            readable, _, _ = select.select([fd], [], [], max(deadline - time.monotonic(), 0))
            more = os.read(fd, 4096) if readable else b""
            if not more:
                self.kill()
                raise RuntimeError(f"the broker did not start:\n{self.log_file.read_text()}")
            line += more
        return line

    def stop(self) -> None:
        """End it in good order (SIGTERM)."""
        process = self._process
        assert process is not None
        process.send_signal(signal.SIGTERM)
        try:
            code = process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            self.kill()
            raise RuntimeError("the broker did not stop") from None
        self._process = None
        if code:
            raise RuntimeError(f"the broker ended with code {code}:\n{self.log_file.read_text()}")

    def kill(self) -> None:
        """End it with SIGKILL, if it runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(STOP_TIMEOUT)
            self._process = None

    def problems(self, since: int = 0) -> list[str]:
        """What the log says at level error, or not in JSON (a traceback), from a byte on."""
        found = []
        with self.log_file.open("rb") as log:
            log.seek(since)
            for line in log:
                if line.startswith(b"{"):
                    entry: dict[str, Any] = json.loads(line)
                    if entry["level"] in ("error", "critical"):
                        found.append(f"{entry['message']}\n{entry.get('exception', '')}")
                elif b"Traceback" in line or b"Error" in line:
                    found.append(line.decode(errors="replace"))
        return found

    # -- what was stored ---------------------------------------------------------------------

    def segments(self, topic: str, partition: int = 0) -> list[Path]:
        """The segment files of a partition, oldest first."""
        with Probe(self.address) as probe:
            topic_id = probe.topic_id(topic)
        found = sorted(self.data.glob(f"**/{topic_id}-{partition}/*.log"))
        assert found, f"no segment of {topic}-{partition} under {self.data}"
        return found

    def batches(self, topic: str, partition: int = 0) -> list[BatchMeta]:
        """The headers of the batches in the segment files of a partition, CRCs checked."""
        found: list[BatchMeta] = []
        for path in self.segments(topic, partition):
            held = scan(memoryview(path.read_bytes()))
            assert held.problem is None, f"{path}: {held.problem}"
            found += held.metas
        return found
