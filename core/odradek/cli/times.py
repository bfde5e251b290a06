"""Where to start reading, as people write it."""

from __future__ import annotations

import re
from datetime import datetime

import click

__all__ = ["SpanType", "StartType", "TimeType", "parse_span", "parse_start"]

_EARLIEST = -2
_LATEST = -1
_UNITS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_SPAN = re.compile(r"(\d+)(ms|s|m|h|d|w)")
_ISO_SPAN = re.compile(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)S)?)?")


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
    ago = _SPAN.fullmatch(word[1:]) if word.startswith("-") else None
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


def parse_span(text: str) -> int:
    """Return a span of time in ms: `90s`, `2h` (ms, s, m, h, d, w) or ISO 8601, `P1DT12H`.

    Raises ValueError.
    """
    word = text.strip()
    span = _SPAN.fullmatch(word)
    if span is not None:
        return int(span[1]) * _UNITS[span[2]]
    iso = _ISO_SPAN.fullmatch(word)
    if iso is None or not any(iso.groups()):
        raise ValueError(f"{text!r} is no span of time, such as 90s, 2h, 7d or P1DT12H")
    numbers = zip(iso.groups(), "dhms", strict=True)
    return sum(int(number) * _UNITS[unit] for number, unit in numbers if number)


class SpanType(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.4 only
    """A parameter that is read by `parse_span`."""

    name = "span"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        """Return what `parse_span` returns."""
        try:
            return parse_span(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


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


class TimeType(StartType):
    """A time, as `parse_start` reads it; neither an offset nor an end of the log."""

    name = "time"

    def convert(  # type: ignore[override]  # narrower than what it is made of
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        """Return ms since 1970."""
        offset, time_ms = super().convert(value, param, ctx)
        if time_ms is None:
            self.fail(f"{offset} is an offset; a time in ms is @{offset}", param, ctx)
        if time_ms < 0:
            self.fail(f"{value!r} is an end of the log, not a time", param, ctx)
        return time_ms
