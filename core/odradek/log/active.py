"""The segment that a log appends to: how far it goes, and when the next one has to begin."""

from __future__ import annotations

from odradek.config import TopicSettings
from odradek.contracts.storage import MAX_RELATIVE_OFFSET, SegmentIndex, SegmentInfo
from odradek.log.retention import roll_after_ms
from odradek.types import PartitionKey

__all__ = ["ActiveSegment"]


class ActiveSegment:
    """What appending knows of the active segment, without asking the store.

    `size`, `first_timestamp` and `max_timestamp` (ms, -1 for none or unknown) are kept up to date
    by who appends. `index`: the segment's index, from when it was first asked for; appending adds
    to it then.
    """

    __slots__ = (
        "_created_ms",
        "_key",
        "_roll_after_ms",
        "_roll_settings",
        "base_offset",
        "first_timestamp",
        "id",
        "index",
        "max_timestamp",
        "size",
    )

    def __init__(self, key: PartitionKey, segment: SegmentInfo) -> None:
        self._key = key
        self.begin(segment)

    def begin(self, segment: SegmentInfo) -> None:
        """Go on with another segment: one that was opened, or that has just begun."""
        self.id = segment.id
        self.base_offset = segment.base_offset
        self.size = segment.size
        self.first_timestamp = -1
        self.max_timestamp = segment.max_timestamp
        self.index: SegmentIndex | None = None
        self._created_ms = segment.created_ms
        self._roll_after_ms = 0
        self._roll_settings: TopicSettings | None = None  # what that was worked out from

    def must_roll(
        self, settings: TopicSettings, size: int, last: int, timestamp: int, now_ms: int
    ) -> bool:
        """Kafka's rule (`LogSegment.shouldRoll`): size, offset range, or age by record time."""
        if self.size + size > settings.segment_bytes:
            return True
        if last - self.base_offset > MAX_RELATIVE_OFFSET:
            return True
        first = self.first_timestamp
        if first < 0:
            # Opened with data in the active segment: its first timestamp is not in memory, and
            # reading it back for this would be I/O on the append path. Creation time stands in,
            # unless it lies in the future: then the wall clock was wrong when it was taken.
            first = self._created_ms = min(self._created_ms, now_ms)
            timestamp = now_ms
        if self._roll_settings is not settings:
            self._roll_settings = settings
            self._roll_after_ms = roll_after_ms(settings, self._key, self.base_offset)
        return timestamp - first > self._roll_after_ms
