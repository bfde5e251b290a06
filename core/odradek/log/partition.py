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
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import attrs
import trio

from odradek.config import TopicSettings
from odradek.contracts.storage import (
    Chunk,
    Claim,
    Corrupt,
    DataRef,
    Fenced,
    Full,
    Hint,
    LogEdit,
    LogSnapshot,
    Offline,
    OutOfRange,
    PartitionWriter,
    SegmentIndex,
    SegmentInfo,
    SegmentStore,
    StorageError,
    Ticket,
    Unavailable,
)
from odradek.errors import ErrorCode, KafkaError
from odradek.log.index_cache import IndexCache
from odradek.log.lookup import Headers, cut, position_of
from odradek.log.producers import DamagedSnapshot, Producers
from odradek.log.retention import roll_after_ms
from odradek.record import BatchMeta, assign
from odradek.record.batch import LOG_APPEND_TIME
from odradek.types import Buffer, PartitionKey

__all__ = ["Append", "PartitionLog", "ReadResult", "Watcher", "open_log"]

logger = logging.getLogger(__name__)

SNAPSHOT_INTERVAL = 64 * 1024 * 1024
"""Bytes after which the producers' state is saved again: bounds what opening has to read."""

MAX_RELATIVE_OFFSET = 2**31 - 1
"""Offsets in a segment's on-disk index are 32-bit and relative, as in Kafka."""

PRODUCERS_BLOB = "producers"
CURSORS_KEPT = 16

READ_ATTEMPTS = 3
"""A read that meets an edit of the log is tried again; more than one in a row is no accident."""


_new: Any = tuple.__new__
"""Builds a named tuple without its Python-level constructor: 0.15 instead of 0.5 microseconds,
and appending a batch builds four."""


class Spawn(Protocol):
    """Start a background task in the broker's nursery."""

    def __call__(self, async_fn: Callable[..., Any], *args: Any) -> object: ...


class Watcher(Protocol):
    """Somebody who waits for more to read in any of several partitions."""

    def advanced(self, log: PartitionLog) -> None:
        """Called, synchronously, when the log's high watermark moved or the log went away."""


class Append(NamedTuple):
    """Where an append went: first offset, and the offset whose commit acknowledges it.

    `timestamp` is the log append time in ms, or -1 under CreateTime.
    """

    base_offset: int
    end_offset: int
    timestamp: int
    duplicate: bool


class ReadResult(NamedTuple):
    """What a fetch gets: whole batches as one range of stored bytes (or None for nothing)."""

    data: DataRef | None
    high_watermark: int
    log_start_offset: int


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
        self._indexes = indexes
        self._spawn = spawn
        self._active_id = active.id
        self._active_base = active.base_offset
        self._active_size = active.size
        self._active_created_ms = active.created_ms
        self._active_first_timestamp = -1
        self._active_max_timestamp = active.max_timestamp
        self._active_index: SegmentIndex | None = None
        self._roll_after_ms = 0
        self._roll_settings: TopicSettings | None = None  # what that was worked out from
        self._watermark_segment = active.id
        self._watermark_position = active.size
        self._tail: _Tail | None = None
        self._committing = False
        self._committed = trio.lowlevel.ParkingLot()
        self._watchers: set[Watcher] = set()
        self._cursors: dict[int, tuple[int, int]] = {}
        self._snapshot_offset = snapshot.log_start
        self._bytes_since_snapshot = 0
        self._saving_producers = False
        self._editing = trio.Lock()
        self._held: frozenset[int] = frozenset()
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
        if self._active_size and self._must_roll(size, last, timestamp, now_ms):
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
        position = self._active_size
        index = self._active_index
        if (
            index is not None
            and position - index.positions[-1] >= self.settings.index_interval_bytes
        ):
            index.add(base, position, self._active_max_timestamp)
        if position == 0:
            self._active_first_timestamp = timestamp
        if timestamp > self._active_max_timestamp:
            self._active_max_timestamp = timestamp
        self._active_size = position + size
        self.log_end_offset = last + 1
        if meta.producer_id >= 0:
            self.producers.update(placed)
        self._tail = _new(_Tail, (ticket, last + 1, self._active_id, self._active_size))
        if not self._committing:
            self._committing = True
            self._spawn(self._commit_appends)
        self._bytes_since_snapshot += size
        if self._bytes_since_snapshot >= SNAPSHOT_INTERVAL:
            self._save_producers_soon()
        stamp = timestamp if meta.attributes & LOG_APPEND_TIME else -1
        appended: Append = _new(Append, (base, last + 1, stamp, False))
        return appended

    def _must_roll(self, size: int, last: int, timestamp: int, now_ms: int) -> bool:
        """Kafka's rule (`LogSegment.shouldRoll`): size, offset range, or age by record time."""
        if self._active_size + size > self.settings.segment_bytes:
            return True
        if last - self._active_base > MAX_RELATIVE_OFFSET:
            return True
        first = self._active_first_timestamp
        if first < 0:
            # Opened with data in the active segment: its first timestamp is not in memory, and
            # reading it back for this would be I/O on the append path. Creation time stands in,
            # unless it lies in the future: then the wall clock was wrong when it was taken.
            first = self._active_created_ms = min(self._active_created_ms, now_ms)
            timestamp = now_ms
        if self._roll_settings is not self.settings:
            self._roll_settings = self.settings
            self._roll_after_ms = roll_after_ms(self.settings, self.key, self._active_base)
        return timestamp - first > self._roll_after_ms

    def _roll(self) -> None:
        sealed = self._writer.roll()
        if self._active_index is not None and sealed.id == self._active_id:
            self._active_index = None
        active = self._writer.snapshot.segments[-1]
        self._active_id = active.id
        self._active_base = active.base_offset
        self._active_size = 0
        self._active_created_ms = active.created_ms
        self._active_first_timestamp = -1
        self._active_max_timestamp = -1
        self._roll_settings = None
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
        active = self._active_id
        if offset >= self._active_base and self._watermark_segment == active:
            held = self._watermark_position  # the usual case needs no snapshot
            segment_id = active
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
        cursor = self._cursors.get(offset)
        index = self._active_index
        if cursor is not None and cursor[0] == segment_id:
            held -= cursor[1]
        elif index is not None and segment_id == active:
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
        nothing = ReadResult(None, watermark, self.log_start_offset)
        if offset >= watermark or (max_bytes <= 0 and not at_least_one):
            return nothing
        missing: OutOfRange | None = None
        for _ in range(READ_ATTEMPTS):
            try:
                return await self._read_range(offset, max_bytes, at_least_one, nothing)
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

    async def _read_range(
        self, offset: int, max_bytes: int, at_least_one: bool, nothing: ReadResult
    ) -> ReadResult:
        # Taken together, before anything is waited for: a cursor that paired this watermark with a
        # later one's position would lead the next reader past what was committed in between.
        watermark = self.high_watermark
        watermark_segment, watermark_position = self._watermark_segment, self._watermark_position
        cursor = self._cursors.pop(offset, None)
        segment = self._segment(offset if cursor is None else None, cursor)
        if cursor is not None and cursor[1] >= segment.size and segment.sealed:
            cursor = None  # it was the end of the log, and a new segment has begun since
            segment = self._segment(offset, None)
        index = await self._index(segment)
        position = cursor[1] if cursor else await position_of(self._writer, segment, index, offset)
        end = segment.size
        end_offset = segment.end_offset
        if segment.id == watermark_segment:
            end = watermark_position
            end_offset = watermark
        if end - position > max_bytes:
            max_bytes = max(max_bytes, 0)
            end, end_offset = await cut(
                self._writer, segment, index, position, max_bytes, at_least_one
            )
        if end <= position:
            return nothing
        tail = segment.id == self._active_id
        hint = Hint.TAIL if tail else Hint.SCAN
        data = await self._writer.read(segment.id, position, end - position, hint)
        if not tail and end == segment.size:
            following = self._segment(end_offset, None)
            self._remember(end_offset, following.id, 0)
        else:
            self._remember(end_offset, segment.id, end)
        return ReadResult(data, watermark, self.log_start_offset)

    def _segment(self, offset: int | None, cursor: tuple[int, int] | None) -> SegmentInfo:
        """The segment that holds an offset, or the one a cursor points into."""
        segments = self._writer.snapshot.segments
        if cursor is not None:
            for segment in reversed(segments):
                if segment.id == cursor[0]:
                    return segment
            raise OutOfRange(f"segment {cursor[0]} is gone")
        assert offset is not None
        low, high = 0, len(segments)
        while high - low > 1:
            middle = (low + high) // 2
            if segments[middle].base_offset <= offset:
                low = middle
            else:
                high = middle
        # Compaction leaves gaps: the offset may lie behind the last batch of its segment.
        if offset >= segments[low].end_offset and low + 1 < len(segments):
            low += 1
        return segments[low]

    async def _index(self, segment: SegmentInfo) -> SegmentIndex:
        if segment.id != self._active_id:
            return await self._indexes.get(self.key, self._writer, segment.id)
        index = self._active_index
        if index is None:
            index = await self._writer.index(segment.id)
            if segment.id != self._active_id:
                return index  # rolled meanwhile
            if not len(index):
                index.add(segment.base_offset, 0, -1)
            self._active_index = index
        return index

    def _remember(self, offset: int, segment_id: int, position: int) -> None:
        """Keep where the next fetch of a consumer will start: it then needs no look-up at all."""
        cursors = self._cursors
        if len(cursors) >= CURSORS_KEPT:
            del cursors[next(iter(cursors))]
        cursors[offset] = (segment_id, position)

    # -- look-ups ----------------------------------------------------------------------------

    def check_epoch(self, epoch: int) -> None:
        """Fence a request by the leader epoch its sender knows, -1 for none (KIP-320).

        Raises KafkaError FENCED_LEADER_EPOCH or UNKNOWN_LEADER_EPOCH.
        """
        if epoch < 0 or epoch == self.leader_epoch:
            return
        raise KafkaError(
            ErrorCode.FENCED_LEADER_EPOCH
            if epoch < self.leader_epoch
            else ErrorCode.UNKNOWN_LEADER_EPOCH,
            f"the sender knows leader epoch {epoch}, this is {self.leader_epoch}",
        )

    def epoch_end(self, epoch: int) -> tuple[int, int]:
        """Return (epoch, end offset) of the largest epoch at or below `epoch` (KIP-101, KIP-279).

        (-1, -1) when nothing is known of it, as Kafka's OffsetForLeaderEpoch answers.
        """
        if epoch == self.leader_epoch:
            return epoch, self.log_end_offset
        if epoch > self.leader_epoch or epoch < 0:
            return -1, -1
        found = epoch  # as in Kafka, where nothing is known of it or of one before it
        for entry in self._writer.snapshot.epochs:
            if entry.epoch > epoch:
                return found, entry.start_offset
            found = entry.epoch
        return found, self.log_end_offset  # the present epoch has no record yet

    def epoch_of(self, offset: int) -> int:
        """Leader epoch under which `offset` was written, or -1."""
        found = -1
        for entry in self._writer.snapshot.epochs:
            if entry.start_offset > offset:
                break
            found = entry.epoch
        return found

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
        return await self._index(segment)

    # -- upkeep ------------------------------------------------------------------------------

    async def trim(self, offset: int) -> int:
        """Move the log start offset up to `offset` (-1: the high watermark); return where it is.

        DeleteRecords (KIP-107). Segments wholly below go, the active one too when nothing in it
        is left, unless the store is too full to begin another. Raises KafkaError
        OFFSET_OUT_OF_RANGE above the high watermark, StorageError.
        """
        target = self.high_watermark if offset == -1 else offset
        if target < 0 or target > self.high_watermark:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"cannot delete up to {target}: the high watermark is {self.high_watermark}",
            )

        def decide(snapshot: LogSnapshot) -> LogEdit | None:
            if target <= self.log_start_offset:
                return None
            if target == self.log_end_offset and self._active_size:
                try:
                    self._roll()
                except Full as error:
                    logger.warning(
                        "partition %s: the active segment's bytes are kept: %s", self.key, error
                    )
                snapshot = self._writer.snapshot
            gone = tuple(s.id for s in snapshot.segments if s.sealed and s.end_offset <= target)
            linger_ms = self.settings.file_delete_delay_ms
            return LogEdit(remove=gone, log_start=target, linger_ms=linger_ms)

        await self.edit(decide)
        return self.log_start_offset

    async def edit(
        self, decide: Callable[[LogSnapshot], LogEdit | None], *, holder: bool = False
    ) -> bool:
        """Change what the log is made of; return whether anything was changed.

        `decide` gets the newest snapshot and returns the edit, or None for nothing: no other edit
        comes in between. The log start offset in force moves before the store is asked, because
        the store lets readers see an edit before `commit` returns: a consumer would be given what
        follows the removed offsets instead of being told that they are gone. When the edit fails
        it moves back. Raises StorageError; cancelled: as `PartitionWriter.commit`.

        Segments that are held (`holding`) by another than the `holder` stay for now: they go
        later, wholly below the log start offset, as Kafka's do that are being compacted.

        The producers' state is saved before segments go that are not in it yet: what happened in
        them could not be read again after a crash, and producers would be refused.
        """
        async with self._editing:
            edit = decide(self._writer.snapshot)
            if edit is None:
                return False
            if self._held and not holder:
                remove = tuple(i for i in edit.remove if i not in self._held)
                edit = attrs.evolve(edit, remove=remove)
            if len(self.producers) and self._snapshot_offset < self._end_of(edit.remove):
                await self._save_producers()
            if edit.log_start is not None:
                self.log_start_offset = max(self.log_start_offset, edit.log_start)
            try:
                await self._writer.commit(edit)
            finally:
                self.log_start_offset = self._writer.snapshot.log_start
            for segment_id in edit.remove:
                self._indexes.forget(self.key, segment_id)
            return True

    def _end_of(self, segment_ids: tuple[int, ...]) -> int:
        """The end offset of the last of these segments, or -1."""
        gone = set(segment_ids)
        ends = (s.end_offset for s in self._writer.snapshot.segments if s.id in gone)
        return max(ends, default=-1)

    @contextmanager
    def holding(self, segment_ids: Iterable[int]) -> Iterator[None]:
        """Keep others from removing these segments while they are compacted. One at a time."""
        self._held = frozenset(segment_ids)
        try:
            yield
        finally:
            self._held = frozenset()

    def roll(self) -> None:
        """Begin a new segment, unless the active one is empty. Raises StorageError."""
        if self._active_size:
            self._roll()

    def roll_if_due(self, now_ms: int) -> bool:
        """Roll the active segment if it is too old, as the next append would; say whether it was.

        For compaction, which leaves the active segment alone: a topic that nobody writes to must
        be compacted as well. Raises StorageError.
        """
        if not self._active_size or not self._must_roll(0, self.log_end_offset - 1, now_ms, now_ms):
            return False
        self._roll()
        return True

    async def restore_producers(self) -> None:
        """Rebuild the producers' state: the newest snapshot, then the batch headers after it."""
        snapshot = self._writer.snapshot
        offset = snapshot.log_start
        blob = snapshot.blobs.get(PRODUCERS_BLOB)
        if blob is not None:
            try:
                offset = self.producers.restore(blob)
            except DamagedSnapshot as error:
                logger.warning("partition %s: %s; reading the log instead", self.key, error)
                offset = -1
            if not 0 <= offset <= self.log_end_offset:
                # Saved before a crash took the end of the log away (durability below `ack`). It
                # must not be found again once the log has grown past its offset with other data.
                self.producers = Producers()
                offset = snapshot.log_start
                await self._writer.commit(LogEdit(blobs={PRODUCERS_BLOB: None}))
        self._snapshot_offset = offset
        for segment in snapshot.segments:
            if segment.end_offset <= offset or segment.size == 0:
                continue
            index = await self._index(segment)
            start = index.positions[index.floor(offset)]
            walk = Headers(self._writer, segment.id, start)
            while await walk.more():
                for meta, _ in walk:
                    if meta.base_offset >= offset and meta.producer_id >= 0:
                        self.producers.update(meta)
        self._bytes_since_snapshot = 0

    def _save_producers_soon(self) -> None:
        self._bytes_since_snapshot = 0
        if not self._saving_producers:
            self._saving_producers = True
            self._spawn(self._save_producers)

    async def _save_producers(self) -> None:
        """Save the producers' state, once all that it speaks of is durable.

        Where there is no room for it the next opening reads more of the log; nothing is lost.
        """
        try:
            tail = self._tail
            offset = self.log_end_offset
            blob = self.producers.snapshot(offset)
            if tail is not None:
                await tail.ticket.wait()
            await self._writer.commit(LogEdit(blobs={PRODUCERS_BLOB: blob}))
            self._snapshot_offset = offset
        except (Full, Unavailable) as error:
            logger.warning("partition %s: the producers' state is not saved: %s", self.key, error)
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
                if self._snapshot_offset < self.high_watermark:
                    await self._save_producers()
        finally:
            self.fail(Offline("the partition was closed"))
            await self._writer.aclose()
            self._indexes.forget(self.key)


async def open_log(
    store: SegmentStore,
    key: PartitionKey,
    topic: str,
    settings: TopicSettings,
    claim: Claim,
    indexes: IndexCache,
    spawn: Spawn,
) -> PartitionLog:
    """Open, or create, the log of a partition under a claim, with its producers' state.

    `spawn` starts the log's background tasks; they end by themselves when nothing is left to
    do. Raises what `SegmentStore.open_writer` raises.
    """
    writer = await store.open_writer(key, claim)
    recovery = writer.recovery
    if recovery.detail:  # it may have been nothing but the name of a segment
        logger.warning(
            "partition %d of topic %s: cut %d bytes off the end that no write had completed: %s",
            key.partition,
            topic,
            recovery.cut_bytes,
            recovery.detail,
        )
    log = PartitionLog(key, topic, writer, settings, claim.epoch, indexes, spawn)
    try:
        await log.restore_producers()
    except BaseException:
        with trio.CancelScope(shield=True):
            await writer.aclose()
        raise
    return log
