"""Values as text: escaped for terminals, sizes and times for people."""

from __future__ import annotations

import re

__all__ = [
    "count",
    "duration",
    "escape",
    "escape_bytes",
    "plural",
    "shown",
    "shown_url",
    "size",
]

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def escape(text: str, *, keep: str = "") -> str:
    """Return `text` without characters that a terminal would act on: `\\n`, `\\x1b`, `\\u202e`.

    `keep` names those to leave as they are. A backslash is doubled nowhere: what people read
    most is text without any, and this is for reading, not for parsing.
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each in keep else _code(each) for each in text)


def _code(character: str) -> str:
    return {"\n": "\\n", "\r": "\\r", "\t": "\\t"}.get(character) or (
        f"\\x{ord(character):02x}"
        if ord(character) < 0x100
        else f"\\u{ord(character):04x}"
        if ord(character) < 0x10000
        else f"\\U{ord(character):08x}"
    )


def escape_bytes(data: bytes, *, keep: str = "") -> str:
    """Return bytes as text for a terminal; what is not UTF-8 as `\\xNN`."""
    return escape(data.decode("utf-8", "backslashreplace"), keep=keep)


def shown(text: str, limit: int = 1000) -> str:
    """Return text that came from elsewhere, for a log or message: escaped, and cut at `limit`."""
    text = escape(text, keep="\n")
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def shown_url(url: str) -> str:
    """Return a URL without the password that may stand in it."""
    return re.sub(r"(://[^/@:]*):[^/@]*@", r"\1:***@", url)


def size(value: float) -> str:
    """Return a number of bytes for people: `0 B`, `1.4 MiB`."""
    if value < 0:
        return "?"
    power = 0
    while value >= 1024 and power < len(_UNITS) - 1:
        value /= 1024
        power += 1
    return f"{value:.0f} {_UNITS[power]}" if power == 0 else f"{value:.1f} {_UNITS[power]}"


def count(value: float) -> str:
    """Return a number with separators: `1,234,567`."""
    return f"{value:,.0f}"


def plural(number: int, noun: str) -> str:
    """Return a number with its noun: `1 member`, `1,000 members`."""
    return f"{count(number)} {noun}{'' if number == 1 else 's'}"


def duration(seconds: float) -> str:
    """Return a span of time for people: `87 µs`, `1.2 ms`, `3.4 s`, `2 min 5 s`."""
    if seconds < 0.001:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 1:
        return f"{seconds * 1e3:.1f} ms"
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 120:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"
