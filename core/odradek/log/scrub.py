"""Reading a log again to find damage: what is checked, and what is remembered. Sans-IO."""

from __future__ import annotations

import json
from contextlib import suppress
from struct import Struct
from typing import NamedTuple

from attrs import frozen

from odradek.errors import CorruptBatch
from odradek.record import HEADER_SIZE, BatchMeta, crc32c, parse_header, scan
from odradek.record.batch import ATTRIBUTES_POSITION, CRC_POSITION

__all__ = ["SCRUB_BLOB", "Damage", "ScrubState", "SegmentCheck"]

SCRUB_BLOB = "scrub"

MAX_DAMAGE = 100
"""Damaged places that are remembered of a log: the first ones tell what is wrong."""

WRONG_CRC = "the CRC of the batch is wrong"

_FORMAT = 1
_unpack_crc = Struct(">I").unpack_from


class Damage(NamedTuple):
    """A place that is damaged: base offset of the segment, byte in it, and what is wrong."""

    segment: int
    position: int
    text: str

    def __str__(self) -> str:
        return f"segment {self.segment}, byte {self.position}: {self.text}"


class SegmentCheck:
    """Checks the CRC and the offsets of consecutive batches, whose bytes come in pieces.

        check = SegmentCheck(segment.base_offset, segment.size)
        while not check.done:
            problem = check.feed(bytes from check.position on)

    Memory: nothing but numbers, however large a batch is or claims to be. `position` is the next
    byte that is wanted; after a problem it is where the damaged batch starts, and `following`
    where that says it ends, or -1. `batches` counts those that are right.
    """

    __slots__ = (
        "_crc",
        "_end_offset",
        "_left",
        "_next_offset",
        "_size",
        "_start",
        "_stored",
        "batches",
        "following",
        "position",
    )

    def __init__(
        self, base_offset: int, size: int, position: int = 0, end_offset: int = 2**63 - 1
    ) -> None:
        self.position = position
        self.following = -1
        self.batches = 0
        self._size = size
        self._next_offset = base_offset
        self._end_offset = end_offset
        self._left = 0  # bytes of the batch at `_start` that are still to come
        self._start = 0
        self._crc = 0
        self._stored = 0

    @property
    def done(self) -> bool:
        """Whether the segment was read to its end."""
        return self.position >= self._size

    def feed(self, view: memoryview) -> str | None:
        """Check bytes from `position` on; return what is wrong with the next batch, or None.

        Give at least as many as a header has, 61, unless the segment ends before: none, or too
        few, means that they are not there.
        """
        at = 0
        if self._left:
            part = view[: self._left]
            self._crc = crc32c(part, self._crc)
            self._left -= len(part)
            at = len(part)
            if self._left:
                if not at:
                    return self._stop(self._start, "the end of the batch is missing", -1)
                self.position += at
                return None
            if self._crc != self._stored:
                return self._stop(self._start, WRONG_CRC, self.position + at)
            self.batches += 1
        base = self.position
        found = scan(view, position=at)
        for meta, position in zip(found.metas, found.positions, strict=True):
            text = self._misplaced(meta)
            if text is not None:
                return self._stop(base + position, text, base + position + meta.size)
            self._next_offset = meta.last_offset + 1
            self.batches += 1
        self.position = base + found.end
        if found.problem is None:
            return None if view else "these bytes are missing"
        if found.problem.kind == "corrupt":
            with suppress(CorruptBatch):
                self.following = self.position + parse_header(view, found.end).size
            return found.problem.text
        if len(view) - found.end < HEADER_SIZE:
            return None if found.end else "the batch is cut short"
        return self._begin(view[found.end :])

    def _begin(self, view: memoryview) -> str | None:
        """Start on a batch of which more than the header, but not all is there."""
        start = self.position
        meta = parse_header(view)
        if start + meta.size > self._size:
            return (
                f"the batch says that it has {meta.size} bytes, and {self._size - start} are left"
            )
        text = self._misplaced(meta)
        if text is not None:
            return self._stop(start, text, start + meta.size)
        self._next_offset = meta.last_offset + 1
        self._start = start
        self._left = meta.size - len(view)
        (self._stored,) = _unpack_crc(view, CRC_POSITION)
        self._crc = crc32c(view[ATTRIBUTES_POSITION:])
        self.position = start + len(view)
        return None

    def _misplaced(self, meta: BatchMeta) -> str | None:
        if self._next_offset <= meta.base_offset <= meta.last_offset < self._end_offset:
            return None
        return (
            f"the batch has offsets {meta.base_offset} to {meta.last_offset}, and they are to lie "
            f"from {self._next_offset} on, before {self._end_offset}"
        )

    def _stop(self, position: int, text: str, following: int) -> str:
        self.position = position
        self.following = following
        self._left = 0
        return text


@frozen
class ScrubState:
    """What is remembered of a log between two readings, as a blob of the log.

    `read_ms`: wall clock when the last whole reading began, -1 for never. `next_offset`: where a
    reading that was interrupted goes on, at a segment's base offset; -1 for none, and then
    `began_ms` says when that one began. `damage`: what was found.
    """

    read_ms: int = -1
    began_ms: int = -1
    next_offset: int = -1
    damage: tuple[Damage, ...] = ()

    def due_ms(self, interval_ms: int, now_ms: int) -> int:
        """Return when the log is to be read again; never, 0, also for a time that is to come."""
        if self.next_offset >= 0 or not 0 <= self.read_ms <= now_ms:
            return 0
        return self.read_ms + interval_ms

    def dump(self) -> bytes:
        """Return the blob."""
        body = {
            "version": _FORMAT,
            "read_ms": self.read_ms,
            "began_ms": self.began_ms,
            "next_offset": self.next_offset,
            "damage": self.damage[:MAX_DAMAGE],
        }
        return json.dumps(body).encode()

    @classmethod
    def load(cls, data: bytes) -> ScrubState:
        """Read what `dump` wrote. Raises ValueError where it is damaged or of another version."""
        body = json.loads(data)
        if not isinstance(body, dict) or body.get("version") != _FORMAT:
            raise ValueError(f"no state of scrubbing of version {_FORMAT}")
        try:
            damage = tuple(Damage(int(s), int(p), str(t)) for s, p, t in body["damage"])
            return cls(
                int(body["read_ms"]), int(body["began_ms"]), int(body["next_offset"]), damage
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"a state of scrubbing without {error}") from None
