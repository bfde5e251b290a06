"""What the broker takes from the machine besides its plugins: clock, randomness, limits.

Handed in, so that a simulation can run the same broker on a clock and a seed of its own. Timeouts
are not here: they use trio's clock, which a simulation replaces as well.
"""

from __future__ import annotations

import resource
import time
import uuid
from functools import cache
from pathlib import Path
from typing import NamedTuple

from odradek.log.worker import ThreadWorker, Worker

__all__ = ["Boot", "Host"]

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_UP = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # Linux has a clock that counts sleep


class Boot(NamedTuple):
    """How long the machine is up: `ms` counts real time, sleep included, and never jumps.

    Comparable while `id` is the same and not "": between two processes too.
    """

    id: str
    ms: int


@cache
def _boot_id() -> str:
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""


class Host:
    """The real machine."""

    def now_ms(self) -> int:
        """Wall clock, milliseconds since 1970: for timestamps of records, never for timeouts."""
        return time.time_ns() // 1_000_000

    def boot(self) -> Boot:
        """Return for how long the machine has been up, as far as the system tells."""
        return Boot(_boot_id(), time.clock_gettime_ns(_UP) // 1_000_000)

    def new_id(self) -> uuid.UUID:
        """Return a random id: of a topic, of a cluster."""
        return uuid.uuid4()

    def cpu_s(self) -> float:
        """CPU seconds that the calling thread has used: how busy the event loop is."""
        return time.thread_time()

    def worker(self, name: str) -> Worker:
        """Return somewhere to work beside the event loop; a simulation works in it."""
        return ThreadWorker(name)

    def files_max(self) -> int | None:
        """How many files and sockets this process may have open, None without a limit."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return None if soft == resource.RLIM_INFINITY else soft
