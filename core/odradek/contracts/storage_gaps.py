"""Offsets that a repair left out of a log: a blob, by which they are told from lost ones.

A repair writes it where it keeps what follows damage. A log is otherwise dense, but for what
compaction removed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

__all__ = ["GAPS_BLOB", "decode_gaps", "encode_gaps", "join_gaps"]

GAPS_BLOB = "repaired"

MAX_GAPS = 1000
"""A blob is held in memory with the log."""

_FORMAT = 1


def join_gaps(gaps: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Return ranges of offsets [from, to) in order, those that touch as one.

    More than 1,000 become one range from the first to the last.
    """
    joined: list[tuple[int, int]] = []
    for start, end in sorted(gaps):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    if len(joined) > MAX_GAPS:
        joined = [(joined[0][0], joined[-1][1])]
    return tuple(joined)


def encode_gaps(gaps: Iterable[tuple[int, int]]) -> bytes:
    """Return the blob for ranges of offsets [from, to)."""
    return json.dumps({"version": _FORMAT, "gaps": join_gaps(gaps)}).encode()


def decode_gaps(data: bytes) -> tuple[tuple[int, int], ...]:
    """Return the ranges of a blob. Raises ValueError where it is damaged or of another version."""
    body = json.loads(data)
    if not isinstance(body, dict) or body.get("version") != _FORMAT:
        raise ValueError(f"not a list of gaps of version {_FORMAT}")
    try:
        return join_gaps((int(start), int(end)) for start, end in body["gaps"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"a list of gaps without {error}") from None
