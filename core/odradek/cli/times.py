"""Where to start reading, as people write it."""

from __future__ import annotations

import re
from datetime import datetime

import click

__all__ = ["StartType", "parse_start"]

_EARLIEST = -2
_LATEST = -1
_UNITS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_AGO = re.compile(r"-(\d+)(ms|s|m|h|d|w)")


def parse_start(text: str, now_ms: int) -> tuple[int | None, int | None]:
    """Return (offset, None) or (None, time in ms; -2 earliest, -1 latest).

    `earliest`, `latest`, an offset, `-10m` (ms, s, m, h, d, w ago), `@1700000000000` (ms since
    1970) or ISO 8601, local time unless it says otherwise. Raises ValueError.
    """
    word = text.strip()
    if word in ("earliest", "beginning"):
        return None, _EARLIEST
    if word in ("latest", "end"):
        return None, _LATEST
    if word.isascii() and word.isdigit():
        return int(word), None
    ago = _AGO.fullmatch(word)
    if ago is not None:
        return None, max(now_ms - int(ago[1]) * _UNITS[ago[2]], 0)
    if word.startswith("@") and word[1:].isascii() and word[1:].isdigit():
        return None, int(word[1:])
    try:
        at = datetime.fromisoformat(word)
    except ValueError:
        raise ValueError(
            f"{text!r} is neither earliest, latest, an offset, a time ago (-10m), a time in ms "
            "(@1700000000000) nor a time as in 2026-01-31T12:00:00"
        ) from None
    return None, int(at.timestamp() * 1000)


class StartType(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.4 only
    """A parameter that is read by `parse_start`."""

    name = "start"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int | None, int | None]:
        """Return what `parse_start` returns."""
        import time

        if isinstance(value, tuple):
            return value
        try:
            return parse_start(str(value), time.time_ns() // 1_000_000)
        except ValueError as error:
            self.fail(str(error), param, ctx)
