"""One partition's log: offsets, epochs, producers and what consumers may see, over any storage.

    log start offset <= high watermark <= log end offset
    |--- may be read ----------|--- appended, not yet as safe as promised ---|

Appending is synchronous and never waits: validate (elsewhere), give the batch its offset and
leader epoch in place, hand it to the store. A task per busy partition waits for the store's
newest ticket, moves the high watermark, and wakes those who wait for it: producers for their
acknowledgement, consumers for something to read. An idle partition has no task.

Batches are never opened here. The two exceptions are asked for by name: a look-up by timestamp,
which must name a record.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import trio

from odradek.config import TopicSettings
from odradek.contracts.storage import (
    Chunk,
    Corrupt,
    Fenced,
    LogEdit,
    LogSnapshot,
    Offline,
    OutOfRange,
    PartitionWriter,
    SegmentIndex,
    SegmentInfo,
    StorageError,
    Ticket,
)
from odradek.errors import ErrorCode, KafkaError
from odradek.log import epochs
from odradek.log.active import ActiveSegment
from odradek.log.editing import Edits
from odradek.log.index_cache import IndexCache
from odradek.log.interface import Append, ReadResult, Spawn, Watcher
from odradek.log.positions import Positions
from odradek.log.producer_snapshots import ProducerSnapshots
from odradek.log.producers import Producers
from odradek.record import BatchMeta, assign
from odradek.record.batch import LOG_APPEND_TIME
from odradek.types import Buffer, PartitionKey

__all__ = ["Append", "PartitionLog", "ReadResult", "Spawn", "Watcher"]

logger = logging.getLogger(__name__)

SNAPSHOT_INTERVAL = 64 * 1024 * 1024
"""Bytes after which the producers' state is saved again: bounds what opening has to read."""

READ_ATTEMPTS = 3
"""A read that meets an edit of the log is tried again; more than one in a row is no accident."""


_new: Any = tuple.__new__
"""Builds a named tuple without its Python-level constructor: 0.15 instead of 0.5 microseconds,
and appending a batch builds four."""


class _Tail(NamedTuple):
    """The end of the log at one moment: where the high watermark lies once `ticket` is durable."""

    ticket: Ticket
    end_offset: int
    segment_id: int
    position: int


class PartitionLog:
    """A partition that this broker leads. Built by `open_log`; every method is single-threaded.

    Attributes: `log_start_offset`, `high_watermark`, `log_end_offset` (records, exclusive ends),
    `leader_epoch`, `failure` (why the log is offline, or None), `damage` (what was found wrong in
    stored bytes, or None: such a log is not compacted).
    """

    def __init__(
        self,
        key: PartitionKey,
        topic: str,
        writer: PartitionWriter,
        settings: TopicSettings,
        leader_epoch: int,
        indexes: IndexCache,
        spawn: Spawn,
    ) -> None:
        snapshot = writer.snapshot
        active = snapshot.segments[-1]
        self.key = key
        self.topic = topic
        self.settings = settings
        self.leader_epoch = leader_epoch
        self.producers = Producers()
        self.failure: StorageError | None = None
        self.damage: str | None = None
        self.log_start_offset = snapshot.log_start
        self.log_end_offset = active.end_offset
        self.high_watermark = active.end_offset
        self._writer = writer
        self._spawn = spawn
        self._active = ActiveSegment(key, active)
        self._positions = Positions(key, writer, indexes, self._active)
        self._snapshots = ProducerSnapshots(key, writer)
        self._edits = Edits(self, writer, self._positions, self._snapshots)
        self._watermark_segment = active.id
        self._watermark_position = active.size
        self._tail: _Tail | None = None
        self._committing = False
        self._committed = trio.lowlevel.ParkingLot()
        self._watchers: set[Watcher] = set()
        self._bytes_since_snapshot = 0
        self._saving_producers = False
        self._closed = False

    # -- appending ---------------------------------------------------------------------------

    def append(self, meta: BatchMeta, buffer: Buffer, now_ms: int) -> Append:
        """Append one validated batch; its bytes are changed in place (offset, leader epoch).

        Raises KafkaError for what the producer did (sequence), and StorageError: Full, Fenced,
        Offline. Nothing was appended then.
        """
        if self.failure is not None:
            raise self._offline()
        if meta.producer_id >= 0:
            seen = self.producers.check(meta)
            if seen is not None:
                stamp = seen.timestamp if meta.log_append_time else -1
                return Append(seen.base_offset, seen.last_offset + 1, stamp, True)
        base = self.log_end_offset
        last = base + meta.record_count - 1
        size = meta.size
        timestamp = meta.max_timestamp
        active = self._active
        if active.size and active.must_roll(self.settings, size, last, timestamp, now_ms):
            self._roll()
        assign(buffer, 0, base, self.leader_epoch)
        placed = _new(BatchMeta, (
            base, last, size, self.leader_epoch, meta.attributes, meta.base_timestamp, timestamp,
            meta.producer_id, meta.producer_epoch, meta.base_sequence, meta.record_count,
        ))  # fmt: skip
        try:
            ticket = self._writer.append(_new(Chunk, ((placed,), (buffer,))))
        except Offline as error:
            self.fail(error)
            raise
        position = active.size
        index = active.index
        if (
            index is not None
            and position - index.positions[-1] >= self.settings.index_interval_bytes
        ):
            index.add(base, position, active.max_timestamp)
        if position == 0:
            active.first_timestamp = timestamp
        if timestamp > active.max_timestamp:
            active.max_timestamp = timestamp
        active.size = position + size
        self.log_end_offset = last + 1
        if meta.producer_id >= 0:
            self.producers.update(placed)
        self._tail = _new(_Tail, (ticket, last + 1, active.id, active.size))
        if not self._committing:
            self._committing = True
            self._spawn(self._commit_appends)
        self._bytes_since_snapshot += size
        if self._bytes_since_snapshot >= SNAPSHOT_INTERVAL:
            self._save_producers_soon()
        stamp = timestamp if meta.attributes & LOG_APPEND_TIME else -1
        appended: Append = _new(Append, (base, last + 1, stamp, False))
        return appended

    def _roll(self) -> None:
        self._writer.roll()
        self._active.begin(self._writer.snapshot.segments[-1])
        self._save_producers_soon()

    async def _commit_appends(self) -> None:
        """Follow the store's tickets and move the high watermark, until all is committed."""
        try:
            while (tail := self._tail) is not None and tail.end_offset > self.high_watermark:
                try:
                    await tail.ticket.wait()
                except StorageError as error:
                    self.fail(error)
                    return
                self._commit(tail)
        finally:
            self._committing = False

    def _commit(self, tail: _Tail) -> None:
        self.high_watermark = tail.end_offset
        self._watermark_segment = tail.segment_id
        self._watermark_position = tail.position
        self._wake()

    def _wake(self) -> None:
        if self._committed:
            self._committed.unpark_all()
        if self._watchers:
            for watcher in tuple(self._watchers):
                watcher.advanced(self)

    def fail(self, error: StorageError) -> None:
        """Take the log offline: appends are refused from now on, those who wait are told.

        The first failure is the one that is told. Reads of what is committed go on.
        """
        if self.failure is None:
            self.failure = error
            if not self._closed:
                logger.error(
                    "partition %d of topic %s takes no more records: %s",
                    self.key.partition,
                    self.topic,
                    error,
                )
        self._wake()

    def _offline(self) -> StorageError:
        """The failure, to be raised once more.

        Without the traceback it has gathered: each raise adds to it, and keeps the frames of the
        requests before alive, so an offline partition would eat memory with every request.
        """
        assert self.failure is not None
        return self.failure.with_traceback(None)

    async def wait_committed(self, end_offset: int) -> None:
        """Return when every offset below `end_offset` is committed.

        Raises the StorageError that took the log offline: whether the batch survived is unknown.
        """
        while self.high_watermark < end_offset:
            if self.failure is not None:
                raise self._offline()
            await self._committed.park()

    async def room(self) -> None:
        """Return when the store takes appends again, after Full. Raises StorageError."""
        await self._writer.room()

    # -- reading -----------------------------------------------------------------------------

    def watch(self, watcher: Watcher) -> None:
        """Tell `watcher` of every advance until `unwatch`."""
        self._watchers.add(watcher)

    def unwatch(self, watcher: Watcher) -> None:
        """Stop telling. Idempotent."""
        self._watchers.discard(watcher)

    def available(self, offset: int) -> int:
        """Committed bytes from `offset` on, told without I/O: what `min_bytes` is held against.

        Never 0 when there is something to read; too much by the bytes of `offset`'s segment that
        lie before it, where neither a cursor nor the active segment's index tells how many.
        """
        watermark = self.high_watermark
        if offset >= watermark:
            return 0
        active = self._active
        if offset >= active.base_offset and self._watermark_segment == active.id:
            held = self._watermark_position  # the usual case needs no snapshot
            segment_id = active.id
        else:
            held = 0
            segment_id = -1
            for segment in reversed(self._writer.snapshot.segments):
                if segment.base_offset >= watermark:
                    continue
                segment_id = segment.id
                if segment_id == self._watermark_segment:
                    held += self._watermark_position
                else:
                    held += segment.size
                if segment.base_offset <= offset:
                    break
        cursor = self._positions.cursors.get(offset)
        index = active.index
        if cursor is not None and cursor[0] == segment_id:
            held -= cursor[1]
        elif index is not None and segment_id == active.id:
            held -= index.positions[index.floor(offset)]
        return held if held > 0 else 1

    async def read(self, offset: int, max_bytes: int, *, at_least_one: bool = True) -> ReadResult:
        """Return whole committed batches from the one that holds `offset`, `max_bytes` or less.

        With `at_least_one` the first batch is returned even when it alone is larger (KIP-74).
        Raises KafkaError OFFSET_OUT_OF_RANGE, StorageError. The caller closes the data.
        """
        watermark = self.high_watermark
        if not self.log_start_offset <= offset <= self.log_end_offset:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset} is not within [{self.log_start_offset}, {self.log_end_offset}]",
            )
        if offset >= watermark or (max_bytes <= 0 and not at_least_one):
            return ReadResult(None, watermark, self.log_start_offset)
        missing: OutOfRange | None = None
        for _ in range(READ_ATTEMPTS):
            try:
                watermark = self.high_watermark
                data = await self._positions.read(
                    offset, max_bytes, at_least_one, watermark,
                    self._watermark_segment, self._watermark_position,
                )  # fmt: skip
                return ReadResult(data, watermark, self.log_start_offset)
            except OutOfRange as error:
                # The segment went away between the snapshot and the read (an edit of the log):
                # look it up once more in the newest snapshot.
                if offset < self.log_start_offset:
                    raise KafkaError(
                        ErrorCode.OFFSET_OUT_OF_RANGE, f"offset {offset} was trimmed"
                    ) from None
                missing = error
        # Told apart from an offset that is gone, which would make consumers start elsewhere.
        raise Corrupt(f"{self.key} has no bytes at offset {offset}: {missing}") from missing

    # -- look-ups ----------------------------------------------------------------------------

    def check_epoch(self, epoch: int) -> None:
        """Fence a request by the leader epoch its sender knows, -1 for none (KIP-320).

        Raises KafkaError FENCED_LEADER_EPOCH or UNKNOWN_LEADER_EPOCH.
        """
        epochs.check(epoch, self.leader_epoch)

    def epoch_end(self, epoch: int) -> tuple[int, int]:
        """Return (epoch, end offset) of the largest epoch at or below `epoch` (KIP-101, KIP-279).

        (-1, -1) when nothing is known of it, as Kafka's OffsetForLeaderEpoch answers.
        """
        return epochs.end_of(
            epoch, self._writer.snapshot.epochs, self.leader_epoch, self.log_end_offset
        )

    def epoch_of(self, offset: int) -> int:
        """Leader epoch under which `offset` was written, or -1."""
        return epochs.epoch_of(offset, self._writer.snapshot.epochs)

    @property
    def segments(self) -> tuple[SegmentInfo, ...]:
        """The segments as they are now, the active one last."""
        return self._writer.snapshot.segments

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        return sum(segment.size for segment in self._writer.snapshot.segments)

    def reader(self) -> PartitionWriter:
        """Raw access for look-ups that open batches (`odradek.log.lookup`)."""
        return self._writer

    async def index_of(self, segment: SegmentInfo) -> SegmentIndex:
        """Return the index of a segment of this log, from memory where possible."""
        return await self._positions.index(segment)

    # -- upkeep ------------------------------------------------------------------------------

    async def trim(self, offset: int) -> int:
        """Move the log start offset up to `offset` (-1: the high watermark); return where it is.

        DeleteRecords (KIP-107). Segments wholly below go, the active one too when nothing in it
        is left, unless the store is too full to begin another. Raises KafkaError
        OFFSET_OUT_OF_RANGE above the high watermark, StorageError.
        """
        return await self._edits.trim(offset)

    async def edit(
        self, decide: Callable[[LogSnapshot], LogEdit | None], *, holder: bool = False
    ) -> bool:
        """Change what the log is made of; return whether anything was changed.

        `decide` gets the newest snapshot and returns the edit, or None for nothing: no other edit
        comes in between. Raises StorageError; cancelled: as `PartitionWriter.commit`.

        Segments that are held (`holding`) by another than the `holder` stay for now: they go
        later, wholly below the log start offset, as Kafka's do that are being compacted.
        """
        return await self._edits.edit(decide, holder)

    def holding(self, segment_ids: Iterable[int]) -> AbstractContextManager[None]:
        """Keep others from removing these segments while they are compacted. One at a time."""
        return self._edits.holding(segment_ids)

    def roll(self) -> None:
        """Begin a new segment, unless the active one is empty. Raises StorageError."""
        if self._active.size:
            self._roll()

    def roll_if_due(self, now_ms: int) -> bool:
        """Roll the active segment if it is too old, as the next append would; say whether it was.

        For compaction, which leaves the active segment alone: a topic that nobody writes to must
        be compacted as well. Raises StorageError.
        """
        active = self._active
        last = self.log_end_offset - 1
        if not active.size or not active.must_roll(self.settings, 0, last, now_ms, now_ms):
            return False
        self._roll()
        return True

    async def restore_producers(self) -> None:
        """Rebuild the producers' state: the newest snapshot, then the batch headers after it."""
        self.producers = await self._snapshots.restore(self._positions, self.log_end_offset)

    def _save_producers_soon(self) -> None:
        self._bytes_since_snapshot = 0
        if not self._saving_producers:
            self._saving_producers = True
            self._spawn(self.save_producers)

    async def save_producers(self) -> None:
        """Save the producers' state, once all that it speaks of is durable.

        Where there is no room for it nothing is saved. Another failure of the store takes the log
        offline, and is not raised.
        """
        tail = self._tail
        try:
            await self._snapshots.save(
                self.producers, self.log_end_offset, None if tail is None else tail.ticket
            )
        except StorageError as error:
            self.fail(error)
        finally:
            self._saving_producers = False

    async def aclose(self) -> None:
        """Commit what was appended, save the producers' state, close the store's writer.

        From then on appends raise Offline, as do those who still wait. Idempotent. Raises what
        the store does when it cannot make the end of the log durable; the log is closed then too.
        """
        if self._closed:
            return
        self._closed = True
        try:
            if self.failure is None:
                tail = self._tail
                try:
                    await self._writer.flush()
                except Fenced as error:
                    self.fail(error)  # the log is another writer's: nothing is left to do here
                    return
                if tail is not None and tail.end_offset > self.high_watermark:
                    self._commit(tail)
                self.fail(Offline("the partition was closed"))
                if self._snapshots.offset < self.high_watermark:
                    await self.save_producers()
        finally:
            self.fail(Offline("the partition was closed"))
            await self._writer.aclose()
            self._positions.forget()
