"""What to compact of a log, and when. Sans-IO; the rules are those of Kafka's `LogCleanerManager`.

    | clean: compacted before | dirty | too young, or not committed | active segment |
    ^ log start               ^ cleaned_to                          ^ never compacted
                                      ^ first uncleanable segment

A pass takes note of the newest offset of each key in the dirty part, and then goes through both
parts from the log start on and drops the records that have a newer one. A log is due when

- dirty / (clean + dirty) bytes reach min.cleanable.dirty.ratio: a pass is worth its reading;
- a dirty segment begins with a record older than max.compaction.lag.ms: that was promised;
- the pass before it ended early, because it had no room for all keys;
- delete horizons of tombstones have passed, and there was no pass for delete.retention.ms: they
  would stay for ever in a log that nobody writes to. (Kafka keeps them there.)
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from attrs import frozen

from odradek.config import TopicSettings
from odradek.contracts.storage import MAX_RELATIVE_OFFSET, LogSnapshot, SegmentInfo

__all__ = ["CLEANER_BLOB", "CleanerState", "Plan", "dirty_segments", "groups", "plan"]

CLEANER_BLOB = "cleaner"
"""The name of the blob in which a log remembers how far it was compacted."""

_VERSION = 1


@frozen(slots=True)
class CleanerState:
    """How far a log is compacted; kept in the log itself, changed together with its segments.

    `cleaned_to`: every record below was held against all that follow it, up to here.
    `next_horizon_ms`: the earliest time at which tombstones that were kept may go, None without
    any. `at_ms`: when the last pass began; -1 before the first. `touched_to`: records may be
    missing below it, for a pass that was interrupted leaves gaps beyond `cleaned_to`. `due_to`: up
    to here a pass was due that had no room for all keys; it is gone on with at once.
    """

    cleaned_to: int = 0
    next_horizon_ms: int | None = None
    at_ms: int = -1
    touched_to: int = 0
    due_to: int = 0

    def dump(self) -> bytes:
        """Return the blob."""
        return json.dumps(
            {
                "version": _VERSION,
                "cleaned_to": self.cleaned_to,
                "next_horizon_ms": self.next_horizon_ms,
                "at_ms": self.at_ms,
                "touched_to": self.touched_to,
                "due_to": self.due_to,
            }
        ).encode()

    @classmethod
    def load(cls, data: bytes | None) -> CleanerState:
        """Read the blob. One that is damaged, or unknown, means: nothing is compacted yet.

        Compacting again what was compacted before costs time and changes nothing.
        """
        try:
            value = json.loads(data or b"")
        except ValueError:
            return cls()
        if not isinstance(value, dict) or value.get("version") != _VERSION:
            return cls()
        numbers = [
            value.get("cleaned_to"),
            value.get("at_ms"),
            value.get("touched_to", 0),
            value.get("due_to", 0),
            value.get("next_horizon_ms") or 0,
        ]
        if any(type(number) is not int for number in numbers) or numbers[0] < 0:
            return cls()
        return cls(numbers[0], value.get("next_horizon_ms"), *numbers[1:4])


@frozen(slots=True)
class Plan:
    """One pass: note the keys of offsets [dirty_from, dirty_to), then rewrite `segments`.

    `segments`: oldest first, all sealed, and the last one ends at or beyond `dirty_to`. When only
    tombstones are to go, the dirty range is empty and lies at its end. `why`: for the broker's log.
    """

    segments: tuple[SegmentInfo, ...]
    dirty_from: int
    dirty_to: int
    clean_bytes: int
    dirty_bytes: int
    why: str

    @property
    def ratio(self) -> float:
        """The dirty share of the bytes: what is due longest comes first."""
        return self.dirty_bytes / max(self.clean_bytes + self.dirty_bytes, 1)


def dirty_segments(
    snapshot: LogSnapshot,
    high_watermark: int,
    settings: TopicSettings,
    state: CleanerState,
    now_ms: int,
) -> tuple[SegmentInfo, ...]:
    """Return the segments that may be compacted and are not yet, oldest first.

    Never the active one, nor one above the high watermark, nor one that has a record younger than
    min.compaction.lag.ms, nor any behind such a one: order must not depend on what is skipped.
    """
    cleaned_to = min(state.cleaned_to, snapshot.segments[-1].end_offset)
    start = max(cleaned_to, snapshot.log_start)
    lag = settings.min_compaction_lag_ms
    found = []
    for segment in snapshot.segments:
        if not segment.sealed or segment.end_offset > high_watermark:
            break
        if lag > 0 and _age_from(segment) > now_ms - lag:
            break
        if segment.end_offset > start and segment.size:
            found.append(segment)
    return tuple(found)


def _age_from(segment: SegmentInfo) -> int:
    """The time, in ms, by which a segment's youngest record is judged."""
    return segment.max_timestamp if segment.max_timestamp >= 0 else segment.created_ms


def plan(
    snapshot: LogSnapshot,
    high_watermark: int,
    settings: TopicSettings,
    state: CleanerState,
    now_ms: int,
    first_timestamps: Mapping[int, int],
    passed_ms: int | None = None,
) -> Plan | None:
    """Return the pass that is due, or None.

    `first_timestamps`: the timestamp in ms of the first batch of dirty segments, by segment id;
    only needed where max.compaction.lag.ms is set, and one that is missing makes nothing due.
    `now_ms`: the time that upkeep goes by. `passed_ms`: the time by which delete horizons have
    passed, `now_ms` if not given.
    """
    if not settings.compacted:
        return None
    dirty = dirty_segments(snapshot, high_watermark, settings, state, now_ms)
    end = snapshot.segments[-1].end_offset
    cleaned_to = min(state.cleaned_to, end)
    start = max(cleaned_to, snapshot.log_start)
    before = tuple(
        segment
        for segment in snapshot.segments
        if segment.sealed
        and segment.size
        and segment.end_offset > snapshot.log_start
        and segment.base_offset < start
    )
    clean = before[:-1] if dirty and before and before[-1].id == dirty[0].id else before
    clean_bytes = sum(segment.size for segment in clean)
    dirty_bytes = sum(segment.size for segment in dirty)
    why = None
    if dirty:
        if dirty_bytes >= settings.min_cleanable_dirty_ratio * (clean_bytes + dirty_bytes):
            why = "enough of it is not compacted yet"
        elif start < min(state.due_to, end):
            why = "there was no room for all keys before"
        elif _overdue(dirty, settings, now_ms, first_timestamps):
            why = "max.compaction.lag.ms has passed"
    if why is not None:
        return Plan(clean + dirty, start, dirty[-1].end_offset, clean_bytes, dirty_bytes, why)
    if before and _horizon_passed(settings, state, now_ms if passed_ms is None else passed_ms):
        return Plan(before, start, start, clean_bytes, 0, "tombstones may go")
    return None


def _overdue(
    dirty: Sequence[SegmentInfo],
    settings: TopicSettings,
    now_ms: int,
    first_timestamps: Mapping[int, int],
) -> bool:
    """As Kafka's `maxCompactionDelay`, which passes over segments without a timestamp."""
    until = now_ms - settings.max_compaction_lag_ms
    return any(0 < first_timestamps.get(segment.id, -1) < until for segment in dirty)


def _horizon_passed(settings: TopicSettings, state: CleanerState, now_ms: int) -> bool:
    """Whether a pass only for tombstones is due.

    Not before delete.retention.ms after the last pass: a log that is written to is compacted by
    then for other reasons, which takes the tombstones along.
    """
    horizon = state.next_horizon_ms
    if horizon is None or now_ms <= state.at_ms:
        return False
    return now_ms >= max(horizon, state.at_ms + settings.delete_retention_ms)


def groups(
    segments: Sequence[SegmentInfo], end_offset: int, segment_bytes: int
) -> list[tuple[SegmentInfo, ...]]:
    """Divide the segments below `end_offset` into runs that become one segment each.

    A run takes at most `segment_bytes` before it is compacted, and 2**31 offsets, but for a
    segment that alone has more. Otherwise a log would gather ever smaller segments.
    """
    found: list[tuple[SegmentInfo, ...]] = []
    run: list[SegmentInfo] = []
    size = 0
    for segment in segments:
        if segment.base_offset >= end_offset:
            break
        if run and (
            size + segment.size > segment_bytes
            or segment.end_offset - 1 - run[0].base_offset > MAX_RELATIVE_OFFSET
        ):
            found.append(tuple(run))
            run, size = [], 0
        run.append(segment)
        size += segment.size
    if run:
        found.append(tuple(run))
    return found
