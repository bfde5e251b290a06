"""A member as a test sees it: what it owns, what it processed, what it committed.

A member says what happens in lines of JSON on its standard output. Records are told before their
offsets are committed: a record that was told was processed, and one that was not will come again.
It commits the offsets of what it told, not its positions: these are without partitions that it
lost meanwhile.

    {"event": "assigned", "partitions": [[topic, partition], ...]}      everything owned now
    {"event": "records", "records": [[topic, partition, offset, value], ...]}
    {"event": "committed"}                                              the records told last
    {"event": "error", "text": ...}                                     goes on
    {"event": "left"}                                                   after `leave`
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["Member", "wait_until"]

TIMEOUT = 60.0


class Member:
    """A client that subscribes to topics in a group, processes what it gets, and commits."""

    def __init__(
        self,
        client: str,
        bootstrap: str,
        group: str,
        topics: Sequence[str],
        *,
        strategy: str = "range",
        instance: str | None = None,
        session_ms: int = 6000,
        settings: Mapping[str, str] | None = None,
        classpath: Path | None = None,
        log: Path | None = None,
    ) -> None:
        """`settings`: the client's own. `classpath`: of the Java client."""
        self.client = client
        self.assignment: frozenset[tuple[str, int]] = frozenset()
        self.assignments = 0
        """How many times it was told what it owns."""
        self.records: list[tuple[str, int, int, str]] = []
        self.committed = 0
        """How many of `records` were told before the last that were committed."""
        self.commits: dict[tuple[str, int], int] = {}
        """The next offset of each partition, as far as it was told that it is committed."""
        self._latest: list[tuple[str, int, int, str]] = []
        self.errors: list[str] = []
        self.left = False
        self._changed = threading.Condition()
        options = {
            "bootstrap": bootstrap,
            "group": group,
            "topics": list(topics),
            "strategy": strategy,
            "instance": instance,
            "session_ms": session_ms,
            "settings": dict(settings or {}),
        }
        command = (
            [sys.executable, "-m", f"tests.interop.members.{client.replace('-', '_')}"]
            if classpath is None
            # C1 alone: these JVMs live for seconds, and several start at once.
            else ["java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx128m",
                  "-cp", f"{classpath}:{classpath}/*", "Member"]
        )  # fmt: skip
        self._log = open(log or os.devnull, "ab")  # noqa: SIM115  # closed by `kill`
        self._process = subprocess.Popen(
            [*command, json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            cwd=Path(__file__).parents[3],
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if not line.endswith(b"\n"):
                break  # killed while it wrote: this was not told
            told = json.loads(line)
            with self._changed:
                self._take(told)
                self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()

    def _take(self, told: Mapping[str, Any]) -> None:
        match told["event"]:
            case "assigned":
                self.assignment = frozenset((topic, number) for topic, number in told["partitions"])
                self.assignments += 1
            case "records":
                self._latest = [tuple(each) for each in told["records"]]
                self.records += self._latest
            case "committed":
                self.committed = len(self.records)
                for topic, partition, offset, _ in self._latest:
                    self.commits[topic, partition] = offset + 1
            case "left":
                self.left = True
            case _:
                self.errors.append(told["text"])

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        """Of its process."""
        return self._process.pid

    def leave(self) -> None:
        """Let it commit, leave the group and end."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(TIMEOUT)
        self._reader.join(TIMEOUT)
        assert self.left, f"{self.client} ended without having left: {self.errors}"
        self._close()

    def send(self, number: signal.Signals) -> None:
        """Send a signal: SIGSTOP, SIGCONT."""
        self._process.send_signal(number)

    def kill(self) -> None:
        """End it with SIGKILL, if it runs."""
        self._process.kill()
        self._process.wait(TIMEOUT)
        self._reader.join(TIMEOUT)
        self._close()

    def _close(self) -> None:
        for stream in (self._process.stdin, self._process.stdout, self._log):
            if stream is not None:
                stream.close()


def wait_until(
    condition: Callable[[], bool], members: Sequence[Member], timeout: float = TIMEOUT
) -> float:
    """Return how many seconds it took until the condition held; asked when members say something.

    Raises AssertionError after `timeout`, with what the members say.
    """
    began = time.monotonic()
    while not condition():
        left = began + timeout - time.monotonic()
        assert left > 0, "\n".join(
            f"{member.client}: owns {sorted(member.assignment)}, {len(member.records)} records, "
            f"{member.committed} committed, "
            f"errors {member.errors[-3:]}, {'alive' if member.alive else 'ended'}"
            for member in members
        )
        # any member may be the one to tell; each wakes only its own condition
        with members[0]._changed:
            members[0]._changed.wait(min(left, 0.01))
    return time.monotonic() - began
