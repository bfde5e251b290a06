"""The machine's own metrics, as JSON records."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from typing import Any

import psutil  # type: ignore[import-untyped]  # it ships no types

__all__ = ["Sampler"]


class Sampler:
    """Samples what psutil can see; each sample is a record for each core, disk, ... of its own.

    The key names the thing measured (`cpu.0`, `disk./`), so that its history is in order in one
    partition.
    """

    def __init__(self) -> None:
        self._processes: dict[int, psutil.Process] = {}
        psutil.cpu_percent(percpu=True)
        self.top()

    def sample(self, *, processes: bool) -> list[tuple[bytes, bytes]]:
        """Return (key, JSON) of one sample; with the busiest processes, which costs most."""
        now = time.time()
        found: list[tuple[bytes, bytes]] = []
        for name, values in self._measure(processes):
            document = {"time": round(now, 3), "metric": name, **values}
            found.append((name.encode(), json.dumps(document, separators=(",", ":")).encode()))
        return found

    def _measure(self, processes: bool) -> Iterator[tuple[str, dict[str, Any]]]:
        cores = psutil.cpu_percent(percpu=True)
        yield "cpu", {"percent": round(sum(cores) / max(len(cores), 1), 1), "cores": len(cores)}
        for number, percent in enumerate(cores):
            yield f"cpu.{number}", {"percent": percent}
        memory = psutil.virtual_memory()
        yield (
            "memory",
            {"total": memory.total, "available": memory.available, "percent": memory.percent},
        )
        yield "load", dict(zip(("1m", "5m", "15m"), os.getloadavg(), strict=True))
        try:
            usage = psutil.disk_usage("/")
            yield "disk./", {"total": usage.total, "used": usage.used, "percent": usage.percent}
            io = psutil.disk_io_counters()
            if io is not None:
                yield "disk.io", {"read_bytes": io.read_bytes, "write_bytes": io.write_bytes}
            for name, card in psutil.net_io_counters(pernic=True).items():
                yield f"net.{name}", {"sent": card.bytes_sent, "received": card.bytes_recv}
        except (OSError, RuntimeError):
            pass  # containers hide some of it, and the rest is worth having
        if processes:
            yield "processes", {"top": self.top()}

    def top(self, number: int = 5) -> list[dict[str, Any]]:
        """Return the processes that used most CPU since the last call."""
        alive: dict[int, psutil.Process] = {}
        rows = []
        for found in psutil.process_iter():
            process = alive[found.pid] = self._processes.get(found.pid, found)
            try:
                with process.oneshot():
                    rows.append(
                        {
                            "pid": process.pid,
                            "name": process.name(),
                            "cpu": process.cpu_percent(),
                            "rss": process.memory_info().rss,
                        }
                    )
            except psutil.Error:
                continue
        self._processes = alive
        return sorted(rows, key=lambda row: -float(row["cpu"]))[:number]
