"""Is a log what it should be? Every batch held against the log's own description. Sans-IO.

    verifier = LogVerifier(snapshot)
    for segment in snapshot.segments:
        verifier.begin(segment, index)
        verifier.batch(position, meta, view)   # or verifier.damage(position, end, text), in order
        verifier.end()
    verifier.finish()

Offsets are dense in a log that was only appended to. Three things make gaps, and each is known
by what it leaves behind: compaction by its blob (`CleanerState.touched_to`), a repair by its own
(`odradek.contracts.storage_gaps`), removal of old records by the log start offset. Any other gap
means that records were lost.
"""

from __future__ import annotations

from bisect import bisect_right

from odradek.contracts.storage import LogSnapshot, SegmentIndex, SegmentInfo
from odradek.contracts.storage_gaps import GAPS_BLOB, decode_gaps
from odradek.errors import ErrorCode, KafkaError
from odradek.log.compaction import CLEANER_BLOB, CleanerState
from odradek.log.producers import DamagedSnapshot, Producers
from odradek.log.scrub import SCRUB_BLOB, ScrubState
from odradek.record import BatchMeta, decode_records

__all__ = ["LogVerifier"]

PRODUCERS_BLOB = "producers"

SHOWN = 100
"""Problems that are kept of one log: more of them tell no more."""


class LogVerifier:
    """Checks one log. Memory: the problems found, and one segment's index.

    `problems` is what must not be; `notes` is what is worth knowing and mends itself. `batches`,
    `empty_batches`, `records` and `size` (bytes) count what is right.
    """

    def __init__(self, snapshot: LogSnapshot) -> None:
        self.problems: list[str] = []
        self.notes: list[str] = []
        self.batches = 0
        self.empty_batches = 0
        self.records = 0
        self.size = 0
        self.end_offset = snapshot.segments[0].base_offset if snapshot.segments else 0
        self._snapshot = snapshot
        self._more = 0
        self._where = ""
        self._segment: SegmentInfo | None = None
        self._index: SegmentIndex | None = None
        self._row = 0
        self._damaged = False  # right before this place
        self._lacking = False  # anywhere before it in this segment
        self._newest = -1
        self._epoch = -1
        self._epoch_starts = [entry.start_offset for entry in snapshot.epochs]
        self._gaps_below = 0
        self._gaps: tuple[tuple[int, int], ...] = ()
        self._blobs()

    # -- blobs -------------------------------------------------------------------------------

    def _blobs(self) -> None:
        blobs = self._snapshot.blobs
        end = self._snapshot.segments[-1].end_offset if self._snapshot.segments else 0
        if PRODUCERS_BLOB in blobs:
            try:
                offset = Producers().restore(blobs[PRODUCERS_BLOB])
            except DamagedSnapshot as error:
                self.notes.append(f"{error}: it is made again from the log")
            else:
                if not 0 <= offset <= end:
                    self.notes.append(
                        f"the producers' state is of offset {offset}, and the log ends at {end}: "
                        "it is made again from the log"
                    )
        cleaner = blobs.get(CLEANER_BLOB)
        if cleaner is not None:
            state = CleanerState.load(cleaner)
            if state == CleanerState() and cleaner != state.dump():
                # How far it was compacted cannot be known, so no gap can be held against it.
                self._gaps_below = end
                self.notes.append(
                    "the cleaner's state cannot be read: the log is compacted anew, and gaps in "
                    "its offsets are not judged"
                )
            else:
                self._gaps_below = max(state.cleaned_to, state.touched_to)
        if GAPS_BLOB in blobs:
            try:
                self._gaps = decode_gaps(blobs[GAPS_BLOB])
            except ValueError as error:
                self.problems.append(f"what a repair left out is not known: {error}")
        if SCRUB_BLOB in blobs:
            try:
                ScrubState.load(blobs[SCRUB_BLOB])
            except ValueError as error:
                self.notes.append(f"scrubbing begins anew: {error}")

    # -- segments ----------------------------------------------------------------------------

    def begin(self, segment: SegmentInfo, index: SegmentIndex | None) -> None:
        """Start on a segment; without its index that is not checked."""
        self._segment = segment
        self._where = f"segment {segment.base_offset}"
        self._index = index
        self._row = 0
        self._newest = -1
        self._damaged = self._lacking = False
        if segment.base_offset < self.end_offset:
            self._problem(f"starts below {self.end_offset}, the end of the one before")
            self.end_offset = segment.base_offset
        self._reach(segment.base_offset)

    def damage(self, position: int, end: int, text: str) -> None:
        """Bytes that are no valid batch."""
        self._problem(f"bytes {position} to {end}: {text}")
        self._damaged = self._lacking = True

    def batch(self, position: int, meta: BatchMeta, view: memoryview | None = None) -> None:
        """A batch whose CRC is right; with its bytes, its records are looked at too."""
        placed = self._order(position, meta)
        self._indexed(position, meta)
        self._under(position, meta)
        if placed:
            self._damaged = False
            self.end_offset = meta.last_offset + 1
        else:
            self._damaged = self._lacking = True
        if meta.max_timestamp > self._newest:
            self._newest = meta.max_timestamp
        if view is not None:
            self._records(position, meta, view)
        self.batches += 1
        self.empty_batches += not meta.record_count
        self.records += max(meta.record_count, 0)
        self.size += meta.size

    def end(self) -> None:
        """The segment is read."""
        segment = self._segment
        assert segment is not None
        self._reach(segment.end_offset)
        if self._lacking:
            return
        if self._newest != segment.max_timestamp:
            self._problem(
                f"its newest timestamp is {self._newest}, and its description says "
                f"{segment.max_timestamp}"
            )
        index = self._index
        if index is not None and segment.size and self._row < len(index):
            self._problem(
                f"its index has a row for byte {index.positions[self._row]}, where no batch starts"
            )

    def finish(self) -> None:
        """The log is read."""
        start, segments = self._snapshot.log_start, self._snapshot.segments
        if segments and start > segments[-1].end_offset:
            self._where = "the log"
            self._problem(f"starts at offset {start}, and ends at {segments[-1].end_offset}")
        if self._more:
            self.problems.append(f"and {self._more} more")
        for name in self._snapshot.blobs.keys() - {
            PRODUCERS_BLOB,
            CLEANER_BLOB,
            GAPS_BLOB,
            SCRUB_BLOB,
        }:
            self.notes.append(f"blob {name!r} is not known to this version, and was not looked at")

    # -- one batch ---------------------------------------------------------------------------

    def _problem(self, text: str) -> None:
        if len(self.problems) < SHOWN:
            self.problems.append(f"{self._where}: {text}")
        else:
            self._more += 1

    def _reach(self, offset: int) -> None:
        """The next thing begins at this offset: is anything missing before it?"""
        start = max(self.end_offset, self._snapshot.log_start, self._gaps_below)
        if offset > start and not self._damaged and not self._repaired(start, offset):
            self._problem(f"offsets {start} to {offset - 1} are missing")
        self.end_offset = max(self.end_offset, offset)

    def _repaired(self, start: int, end: int) -> bool:
        return any(low <= start and end <= high for low, high in self._gaps)

    def _order(self, position: int, meta: BatchMeta) -> bool:
        """Check the offsets of a batch; return whether they can be what they should be."""
        segment = self._segment
        assert segment is not None
        last = segment.end_offset - 1
        if not self.end_offset <= meta.base_offset <= meta.last_offset <= last:
            self._problem(
                f"the batch at byte {position} has offsets {meta.base_offset} to "
                f"{meta.last_offset}, and {self.end_offset} to {last} are due"
            )
            return False
        self._reach(meta.base_offset)
        count = meta.last_offset - meta.base_offset + 1
        compacted = meta.base_offset < self._gaps_below
        if meta.record_count > count or (meta.record_count < count and not compacted):
            self._problem(
                f"the batch at byte {position} has {meta.record_count} records for offsets "
                f"{meta.base_offset} to {meta.last_offset}"
            )
        return True

    def _indexed(self, position: int, meta: BatchMeta) -> None:
        index = self._index
        if index is None:
            return
        while self._row < len(index) and index.positions[self._row] < position:
            if not self._damaged:
                self._problem(
                    f"its index has a row for byte {index.positions[self._row]}, where no batch "
                    "starts"
                )
            self._row += 1
        if self._row == len(index) or index.positions[self._row] != position:
            return
        offset, newest = index.offsets[self._row], index.timestamps[self._row]
        self._row += 1
        # Row 0 is the segment's own base offset, where compaction or a repair took what was there.
        begins = not position and offset <= meta.base_offset
        if offset != meta.base_offset and not begins:
            self._problem(
                f"its index has offset {offset} for byte {position}, where {meta.base_offset} is"
            )
        if newest != self._newest and not self._lacking:
            self._problem(
                f"its index says that {newest} is the newest timestamp before byte {position}, "
                f"and it is {self._newest}"
            )

    def _under(self, position: int, meta: BatchMeta) -> None:
        """Check the leader epoch, which lies outside of the CRC as the base offset does."""
        if meta.leader_epoch < self._epoch:
            self._problem(
                f"the batch at byte {position} is of leader epoch {meta.leader_epoch}, after "
                f"{self._epoch}"
            )
            return
        self._epoch = meta.leader_epoch
        at = bisect_right(self._epoch_starts, meta.base_offset) - 1
        known = self._snapshot.epochs[at].epoch if at >= 0 else -1
        if known != meta.leader_epoch and meta.base_offset >= self._snapshot.log_start:
            self._problem(
                f"the batch at byte {position} is of leader epoch {meta.leader_epoch}, and the "
                f"log says that {known} was in force at offset {meta.base_offset}"
            )

    def _records(self, position: int, meta: BatchMeta, view: memoryview) -> None:
        if meta.control and not meta.record_count:
            return
        try:
            records = decode_records(view, verify=False)
        except KafkaError as error:
            if error.code == ErrorCode.MESSAGE_TOO_LARGE:
                self.notes.append(
                    f"{self._where}: the batch at byte {position} is not looked into: {error}"
                )
            else:
                self._problem(f"the batch at byte {position} cannot be read: {error}")
            return
        expected = meta.base_offset
        for record in records:
            if not expected <= record.offset <= meta.last_offset:
                self._problem(
                    f"the batch at byte {position} has a record of offset {record.offset}, where "
                    f"{expected} to {meta.last_offset} are due"
                )
                return
            expected = record.offset + 1
