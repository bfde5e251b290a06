"""What the data says about the machine, found while it is read back."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

__all__ = ["Insights", "sparkline"]

_BARS = "▁▂▃▄▅▆▇█"
_HOUR = re.compile(rb"(\d{4}-\d\d-\d\d)[ T](\d\d):\d\d")
_KEEP_KEYS = 50_000


def sparkline(values: list[float], highest: float | None = None) -> str:
    """Return values as a row of bars; `highest` is a full one, by default the largest."""
    top = highest if highest is not None else max(values, default=0.0)
    if top <= 0:
        return _BARS[0] * len(values)
    last = len(_BARS) - 1
    return "".join(_BARS[min(last, max(0, round(value / top * last)))] for value in values)


class _LogFacts:
    def __init__(self) -> None:
        self.hours: Counter[bytes] = Counter()
        self.keys: Counter[bytes] = Counter()
        self.newest = (b"", b"")  # the time, as far as it can be read, and the line


class Insights:
    """Collects as records pass; bounded memory."""

    def __init__(self) -> None:
        self._logs: dict[str, _LogFacts] = {}
        self._cpu: list[tuple[float, float]] = []
        self._memory: dict[str, Any] = {}
        self._top: list[Any] = []

    def add(self, topic: str, key: bytes | None, value: bytes) -> None:
        """Look at a record."""
        if topic == "metrics":
            self._metric(json.loads(value))
            return
        facts = self._logs.setdefault(topic, _LogFacts())
        found = _HOUR.search(value, 0, 64)
        if found is not None:
            facts.hours[found[1] + b" " + found[2] + b":00"] += 1
        if key is not None and (len(facts.keys) < _KEEP_KEYS or key in facts.keys):
            facts.keys[key] += 1
        time = value[:19] if found is not None else facts.newest[0]
        if time >= facts.newest[0]:
            facts.newest = time, value

    def _metric(self, document: dict[str, Any]) -> None:
        name, time = document["metric"], document["time"]
        if name == "cpu":
            self._cpu.append((time, document["percent"]))
        elif name == "memory":
            self._memory = document
        elif name == "processes":
            self._top.append(document["top"])

    def result(self) -> dict[str, Any]:
        """Return the facts, as JSON can hold them."""
        names: Counter[str] = Counter()
        for top in self._top:
            for process in top:
                names[process["name"]] += process["cpu"]
        return {
            "cpu": [percent for _, percent in sorted(self._cpu)],
            "memory": self._memory,
            "busiest_processes": [
                (name, round(total / max(len(self._top), 1), 1))
                for name, total in names.most_common(3)
                if total > 0
            ],
            "logs": {
                topic: {
                    "busiest_hour": _text(facts.hours.most_common(1)),
                    "first_hour": min(facts.hours, default=b"").decode(),
                    "last_hour": max(facts.hours, default=b"").decode(),
                    "busiest_key": _text(facts.keys.most_common(1)),
                    "keys": len(facts.keys),
                    "last_line": facts.newest[1][:400].decode("utf-8", "backslashreplace"),
                }
                for topic, facts in sorted(self._logs.items())
            },
        }


def _text(counted: list[tuple[bytes, int]]) -> tuple[str, int] | None:
    return (counted[0][0].decode("utf-8", "backslashreplace"), counted[0][1]) if counted else None
