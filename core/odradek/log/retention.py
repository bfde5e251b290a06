"""Which segments of a log are due, by the rules of Apache Kafka (`UnifiedLog.deleteOldSegments`).

    log start   segments wholly below the log start offset, whatever the policy
    size        the oldest, while the log without it still has retention.bytes or more
    time        the oldest, while its newest record is older than retention.ms

Each takes segments from the old end on and stops at the first that stays, so that the log never
gets a hole. What no consumer may read yet is never due. When nothing is left, a new segment is
begun first: a log always has one.

Nothing here reads a clock: `now_ms` comes from `odradek.log.clock`.
"""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

from attrs import frozen

from odradek.config import TopicSettings
from odradek.contracts.storage import LogSnapshot, SegmentInfo
from odradek.log.clock import Spell, written_ms
from odradek.types import PartitionKey

__all__ = ["Retention", "plan", "roll_after_ms"]


@frozen(slots=True)
class Retention:
    """What is due in one log.

    `remove`: ids of segments, the oldest first. `log_start`: where the log begins afterwards.
    `roll`: the active segment is among them, and has to be rolled before it can go. `below_start`,
    `by_size`, `by_time`: how many go for which reason. `size`: their bytes.
    """

    remove: tuple[int, ...]
    log_start: int
    roll: bool
    below_start: int
    by_size: int
    by_time: int
    size: int

    @property
    def reason(self) -> str:
        """Why they go, for the broker's log."""
        reasons = (
            (self.below_start, "below the log start offset"),
            (self.by_size, "by retention.bytes"),
            (self.by_time, "by retention.ms"),
        )
        return ", ".join(f"{count} {reason}" for count, reason in reasons if count)


def plan(
    snapshot: LogSnapshot,
    high_watermark: int,
    settings: TopicSettings,
    now_ms: int,
    *,
    spells: Sequence[Spell] = (),
    may_roll: bool = True,
) -> Retention | None:
    """Return what is due, None for nothing.

    `spells` are when the wall clock was behind: what was written then is not as old as it looks.
    `may_roll`: whether the active segment may go, like any other.
    """
    segments = snapshot.segments
    # The active segment goes only with all before it, and an empty one is what would follow it.
    last = len(segments) - 1
    removable = last + 1 if may_roll and segments[last].size else last
    while removable and _end(segments, removable - 1) > high_watermark:
        removable -= 1
    below = 0
    while below < min(removable, last) and segments[below + 1].base_offset <= snapshot.log_start:
        below += 1
    sized = timed = below
    if "delete" in settings.cleanup_policy:
        if settings.retention_bytes >= 0:
            excess = sum(segment.size for segment in segments) - settings.retention_bytes
            excess -= sum(segment.size for segment in segments[:below])
            while sized < removable and excess >= segments[sized].size:
                excess -= segments[sized].size
                sized += 1
        timed = sized
        if settings.retention_ms >= 0:
            oldest = now_ms - settings.retention_ms
            while timed < removable and _newest_ms(segments[timed], spells) < oldest:
                timed += 1
    if timed == 0:
        return None
    return Retention(
        remove=tuple(segment.id for segment in segments[:timed]),
        log_start=max(_end(segments, timed - 1), snapshot.log_start),
        roll=timed > last,
        below_start=below,
        by_size=sized - below,
        by_time=timed - sized,
        size=sum(segment.size for segment in segments[:timed]),
    )


def _end(segments: Sequence[SegmentInfo], index: int) -> int:
    """The first offset that is behind a segment and the gap that compaction left after it."""
    if index + 1 < len(segments):
        return segments[index + 1].base_offset
    return segments[index].end_offset


def _newest_ms(segment: SegmentInfo, spells: Sequence[Spell]) -> int:
    """When the newest record was written; a segment without a timestamp is as old as itself."""
    timestamp = segment.max_timestamp if segment.max_timestamp >= 0 else segment.created_ms
    return written_ms(timestamp, spells) if spells else timestamp


def roll_after_ms(settings: TopicSettings, key: PartitionKey, base_offset: int) -> int:
    """Return the age in ms beyond which the segment of `base_offset` is to be rolled.

    segment.ms less the segment's part of segment.jitter.ms, which is the same whenever it is
    asked for. A log that is compacted is rolled by max.compaction.lag.ms at the latest, because
    the active segment is not compacted (Kafka's `LogConfig.maxSegmentMs`).
    """
    age = settings.segment_ms
    if settings.compacted:
        age = min(age, settings.max_compaction_lag_ms)
    jitter = min(settings.segment_jitter_ms, age)
    if not jitter:
        return age
    name = key.topic_id.bytes + key.partition.to_bytes(4, "big") + base_offset.to_bytes(8, "big")
    return age - (crc32(name) * jitter >> 32)
