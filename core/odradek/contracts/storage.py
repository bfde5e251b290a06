"""The storage contract: segments of record batches, made durable and found again.

A store keeps, for each partition, a **log**: a sequence of **segments**, each a logical string of
whole record batches (Kafka's batch v2) back to back, in offset order. How segments lie on the
medium (files, objects, merged objects, memory) is the store's own affair. The core assigns
offsets and leader epochs and decides on rolling, retention and compaction; the store makes bytes
durable, keeps older leaders out, and finds the end of the log again after a crash.

Promises, each tried by `odradek.testing.storage`:

* **S1 order**: batches are read back byte for byte, in the order of `append`.
* **S2 durability**: once `Ticket.wait` returned, that append and every one before it on the same
  writer survive whatever `StoreTraits.durability` says they survive (`ack`: kill -9 and loss of
  power; `interval`: kill -9, and all but the last interval on loss of power; `none`: neither, but
  a clean close).
* **S3 consumption**: `append` has taken the bytes when it returns; the caller may overwrite its
  buffers at once.
* **S4 fencing**: after `open_writer(key, claim)` returned, every writer of the same partition
  opened before raises `Fenced` on append, roll, build, commit and truncate, and nothing that it
  still had in flight becomes visible later. A claim whose epoch is lower than that of a live
  writer, or of a batch in the log, is refused with `Fenced`; an equal one takes over.
* **S5 prefix**: after a crash, what is found is a prefix of what was appended, at least as long
  as what was acknowledged, cut at a batch boundary.
* **S6 damage**: bytes in the middle of the log that fail their CRC are reported by `Corrupt` and
  never removed by the store on its own.
* **S7 roll**: rolling changes no byte and no offset; positions in a segment never change while
  the segment exists.
* **S8 atomic edit**: `commit` is seen whole or not at all, by readers and after a crash.
* **S9 steady reads**: a `DataRef` stays readable until it is closed, whatever `commit`, `drop` or
  `truncate` do meanwhile.
* **S10 index**: `index` names a batch boundary at or below every offset of the segment, no
  further away than the store's index interval plus one batch.
* **S11 back-pressure**: a store that cannot take more says `Full`, loses nothing by it, and
  accepts again by itself once there is room; `room` returns then.
* **S12 drop**: `drop` removes the log for good and is idempotent; the same key can be opened
  afterwards and is empty.
* **S13 truncation** (where `traits.truncatable`): after `truncate(end)` no offset at or above `end`
  exists, durably, and appending goes on from `end`.
* **S14 failure is final**: after a write or a sync failed, nothing more is acknowledged by that
  writer (`Offline`); reads of what is durable go on.
* **S15 blobs**: blobs set by `commit` come back in the snapshot, unchanged, after every reopening.
  They are caches to the core: one that is damaged or missing is left out of the snapshot, opening
  goes on without it, and `Recovery.detail` names it.

A store finds the end of a log again by the batches themselves, so what it needs for that is
exported here: `parse_header`, `check_crc`, `scan` and `find_next_valid` of `odradek.record`.

All methods but `DataRef.views` are called from one trio thread. `async` methods may be cancelled
at any await: the effect has then happened wholly or not at all, unless a method says otherwise.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from bisect import bisect_right
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from enum import Enum
from types import MappingProxyType
from typing import NamedTuple, Protocol, Self

from attrs import field, frozen

from odradek.errors import OdradekError
from odradek.record import (
    HEADER_SIZE,
    BatchMeta,
    Scan,
    check_crc,
    crc32c,
    find_next_valid,
    parse_header,
    scan,
)
from odradek.types import Buffer, PartitionKey

__all__ = [
    "HEADER_SIZE",
    "MAX_BLOB_BYTES",
    "MAX_RELATIVE_OFFSET",
    "BatchMeta",
    "Chunk",
    "Claim",
    "Corrupt",
    "DataRef",
    "EpochStart",
    "Fenced",
    "Full",
    "Hint",
    "LogEdit",
    "LogSnapshot",
    "Offline",
    "OutOfRange",
    "PartitionKey",
    "PartitionReader",
    "PartitionWriter",
    "Recovery",
    "Scan",
    "SegmentIndex",
    "SegmentInfo",
    "SegmentStore",
    "StorageError",
    "StoreTraits",
    "StoreUsage",
    "Ticket",
    "Unavailable",
    "Unsafe",
    "check_crc",
    "crc32c",
    "find_next_valid",
    "parse_header",
    "scan",
]

MAX_BLOB_BYTES = 16 * 1024 * 1024
"""How much the blobs of one log may take together."""

MAX_RELATIVE_OFFSET = 2**31 - 1
"""How far an offset may lie above its segment's base (Kafka's indexes hold 32 bits)."""


class StorageError(OdradekError):
    """Base of what a store raises; never raised itself."""


class Fenced(StorageError):
    """A newer leader epoch has claimed the partition: this writer is finished for good."""


class OutOfRange(StorageError):
    """A segment, position or offset that the log does not have (any more)."""


class Corrupt(StorageError):
    """Stored bytes fail their checks and are not a torn tail; they were left as they are.

    The message says where, and what the operator can do. Raised by `open_writer`, `index` and
    `read`; the partition stays offline until it is repaired on purpose.
    """


class Unavailable(StorageError):
    """The back end does not answer at the moment; retrying later may help."""


class Full(StorageError):
    """No room: the disk below its soft limit, or buffers at their bound. Nothing was lost."""


class Offline(StorageError):
    """A write or sync failed, so what the medium holds is not known any more (S14).

    Linux marks pages clean after a failed fsync, so a second one would report success for bytes
    that are gone: nothing is retried. Closing and opening the store again recovers.
    """


class Unsafe(StorageError):
    """The back end cannot keep this contract (found by `probe`): refuse to start."""


class Hint(Enum):
    """How a reader goes about it, for caches and prefetching.

    `TAIL`: the newest bytes, expected to be in memory. `SCAN`: one range after another. `RANDOM`:
    anywhere. `ONCE`: read once by upkeep (compaction, scrubbing) and not needed again, so a store
    leaves its caches as it found them. A hint never changes what is read.
    """

    TAIL = "tail"
    SCAN = "scan"
    RANDOM = "random"
    ONCE = "once"


@frozen(slots=True)
class Claim:
    """Who wants to write: `epoch` is the leader epoch that the coordinator granted.

    `held` tells, without blocking, whether the claim still holds as far as the broker knows; a
    store that retries writes asks it before each retry.
    """

    epoch: int
    broker_id: int
    held: Callable[[], bool] = field(default=lambda: True, eq=False, repr=False)


class Chunk(NamedTuple):
    """Whole batches to append: `batches[i]` describes consecutive bytes of the joined buffers.

    Offsets and leader epoch are already written into the bytes and are in the metas. Offsets grow
    and the first is not below the end of the log; on a leader it equals it, on a replica of a
    compacted log there may be gaps. A named tuple because one is built per request.
    """

    batches: Sequence[BatchMeta]
    buffers: Sequence[Buffer]


@frozen(slots=True)
class SegmentInfo:
    """One segment: offsets [base_offset, end_offset), `size` bytes.

    `id` is unique within the partition for ever. `max_timestamp` is -1 when there is no record,
    `max_timestamp_offset` the last offset of the first batch that has it. `created_ms` is wall
    clock; of a segment that took the place of others, the latest of theirs. `sealed` segments
    never grow.
    """

    id: int
    base_offset: int
    end_offset: int
    size: int
    max_timestamp: int
    max_timestamp_offset: int
    created_ms: int
    sealed: bool


class EpochStart(NamedTuple):
    """The first offset written under a leader epoch (KIP-101)."""

    epoch: int
    start_offset: int


@frozen(slots=True)
class LogSnapshot:
    """A log at one moment: immutable, consistent in itself.

    `segments` in offset order, the last one is active; compaction may leave gaps between them.
    `log_start` is the first offset that may be read. `durable_end`: every offset below survives as
    S2 says. `epochs`: ascending. `blobs`: small named values of the core's.
    """

    segments: tuple[SegmentInfo, ...]
    log_start: int
    durable_end: int
    epochs: tuple[EpochStart, ...]
    blobs: Mapping[str, bytes] = MappingProxyType({})


@frozen(slots=True)
class LogEdit:
    """A change of the log's make-up, applied whole or not at all (S8).

    `remove`: ids of sealed segments to drop. `add`: segments from `build` that take their place
    (their offsets lie within the removed ones'), and are as old as the youngest of those: their
    `created_ms` becomes the latest of the removed ones', or retention of records without
    timestamps would begin anew. `log_start`: new log start offset, never lower
    than the present one. `blobs`: values to set (bytes) or delete (None); at most 16 MiB in all.
    `restart_at`: remove every segment, and let the log start and end, empty, at this offset: what
    a replica does that has nothing in common with its leader's log any more (Kafka's
    truncateFullyAndStartAt); only where `traits.truncatable`, and alone or with `blobs`.
    `linger_ms`: how long a store that keeps segments as files leaves the bytes of those in `remove`
    where an operator can still find them (Kafka's file.delete.delay.ms). They are out of the log
    at once all the same, and go earlier when their room is needed or the store is opened again; a
    store without files may ignore it.
    """

    remove: tuple[int, ...] = ()
    add: tuple[SegmentInfo, ...] = ()
    log_start: int | None = None
    blobs: Mapping[str, bytes | None] = MappingProxyType({})
    restart_at: int | None = None
    linger_ms: int = 0


@frozen(slots=True)
class Recovery:
    """What opening a log found: nothing is repaired in silence.

    `clean`: it had been closed in order, and nothing is lost. `scanned_bytes`: checked by CRC.
    `cut_bytes`: length of the torn tail that was removed. `detail`: the reason, and the blobs that
    were lost (S15).
    """

    clean: bool = True
    scanned_bytes: int = 0
    cut_bytes: int = 0
    detail: str = ""


@frozen(slots=True)
class StoreTraits:
    """What a store is like. Declared, and held against it by the conformance kit.

    `shared`: any broker may open any partition (object stores); otherwise replicas are needed.
    `truncatable`: offers `truncate`. `durability`: ack, interval or none, see S2.
    `flush_bytes`, `flush_interval` (seconds): how much gathers before it becomes durable.
    `segment_bytes`: the largest segment the store accepts. `index_bytes`: how far apart the rows
    of an index are at most, but for one batch (S10). `read_unit`: bytes per cheap read.
    """

    name: str
    shared: bool
    truncatable: bool
    durability: str
    segment_bytes: int
    flush_bytes: int = 0
    flush_interval: float = 0.0
    read_unit: int = 64 * 1024
    index_bytes: int = 4096


@frozen(slots=True)
class StoreUsage:
    """For DescribeLogDirs: `location` as an operator would write it, sizes in bytes or -1."""

    location: str
    total_bytes: int
    usable_bytes: int


class SegmentIndex:
    """A sparse index of one segment in three columns of 64-bit integers.

    Row i says: a batch starts at byte `positions[i]` with base offset `offsets[i]`, and the
    largest timestamp of all batches before that byte is `timestamps[i]` (-1 for none). The first
    row is byte 0. Columns, because a million rows of Python objects would cost 100 MB.
    """

    __slots__ = ("offsets", "positions", "timestamps")

    def __init__(self) -> None:
        self.offsets: array[int] = array("q")
        self.positions: array[int] = array("q")
        self.timestamps: array[int] = array("q")

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def nbytes(self) -> int:
        """Memory the columns take."""
        return 24 * len(self.offsets)

    def add(self, offset: int, position: int, max_timestamp_before: int) -> None:
        """Append a row; offsets and positions grow strictly."""
        self.offsets.append(offset)
        self.positions.append(position)
        self.timestamps.append(max_timestamp_before)

    def floor(self, offset: int) -> int:
        """Row of the last indexed batch whose base offset is at most `offset` (0 if none)."""
        return max(bisect_right(self.offsets, offset) - 1, 0)

    def floor_position(self, position: int) -> int:
        """Row of the last indexed batch that starts at or before byte `position`."""
        return max(bisect_right(self.positions, position) - 1, 0)

    def floor_timestamp(self, timestamp: int) -> int:
        """Last row before which every timestamp is below `timestamp`: scan from there."""
        low, high = 0, len(self.timestamps)
        while low < high:  # by hand: bisect wants `<`, and rows hold a running maximum
            middle = (low + high) // 2
            if self.timestamps[middle] < timestamp:
                low = middle + 1
            else:
                high = middle
        return max(low - 1, 0)


class Ticket(Protocol):
    """The receipt of one append."""

    @property
    def end_offset(self) -> int:
        """The offset after the last one of this append."""

    @property
    def durable(self) -> bool:
        """Whether `wait` would return at once."""

    async def wait(self) -> None:
        """Return when this append, and all before it on the writer, are durable (S2).

        May return without a checkpoint when that is so already. Tickets of one flush wake in any
        order. Any number of tasks may wait. Cancelling stops the waiting only. Raises Offline
        when the bytes will never be known to be durable, Fenced when a newer leader took over.
        """


class DataRef(ABC):
    """A range of stored bytes, held readable until closed (S9). `len()` is its length."""

    @abstractmethod
    def __len__(self) -> int:
        """Length in bytes: at most what was asked for, and fewer only at the segment's end."""

    @abstractmethod
    def file_range(self) -> tuple[int, int, int] | None:
        """Return (file descriptor, offset, count) for sendfile, or None where there is no file."""

    @abstractmethod
    def views(self) -> Sequence[memoryview]:
        """Return the bytes themselves. For a file this reads; Corrupt if bytes have vanished.

        The one method of this contract that may be called from another thread than trio's, so
        that a worker can wait for the disk; the caller keeps the reference open until it returned.
        """

    @abstractmethod
    def close(self) -> None:
        """Let go of the bytes. Idempotent, never raises."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class PartitionReader(ABC):
    """Read access to one partition's log; any number may be open beside a writer."""

    @property
    @abstractmethod
    def snapshot(self) -> LogSnapshot:
        """The newest state known, without I/O. For a writer: includes all that it appended."""

    @abstractmethod
    async def index(self, segment_id: int) -> SegmentIndex:
        """Return the sparse index of a segment (S10). The caller owns and caches the result.

        Raises OutOfRange for an unknown segment, Corrupt, Unavailable. A damaged index is no
        error: indexes are caches and are rebuilt from the segment's data.
        """

    @abstractmethod
    async def read(self, segment_id: int, position: int, max_bytes: int, hint: Hint) -> DataRef:
        """Return up to `max_bytes` (at least 1) bytes from byte `position` of a segment.

        `position` may be anywhere from 0 to the segment's size (then the result is empty); the
        caller closes the result. Raises OutOfRange, Corrupt, Unavailable.
        """

    @abstractmethod
    async def aclose(self) -> None:
        """Release the reader. DataRefs given out stay valid. Idempotent."""


class PartitionWriter(PartitionReader):
    """The one writer of a partition under its claim."""

    @property
    @abstractmethod
    def recovery(self) -> Recovery:
        """What opening found."""

    @abstractmethod
    def append(self, chunk: Chunk) -> Ticket:
        """Take whole batches at the end of the log. Never blocks, never waits (S1, S3).

        Readable through `read` when this returns; durable when the ticket says so. Raises Full
        (nothing was taken), Fenced, Offline; ValueError, a mistake of the caller, for a chunk
        that is empty, begins below the end of the log, does not have the bytes that its metas
        say, or would take the active segment beyond `traits.segment_bytes` or 2**31 offsets
        (nothing was taken: roll first).
        """

    @abstractmethod
    async def room(self) -> None:
        """Return when `append` would not raise Full for lack of room. Raises Offline, Fenced."""

    @abstractmethod
    async def flush(self) -> None:
        """Make everything appended so far durable now, whatever `durability` is in force."""

    @abstractmethod
    def roll(self) -> SegmentInfo:
        """Seal the active segment and start a new, empty one at its end offset (S7).

        Never blocks; durable with the next ticket or flush. An empty active segment is left as
        it is and returned. Raises Fenced, Full, Offline.
        """

    @abstractmethod
    async def build(self, chunks: AsyncIterator[Chunk]) -> SegmentInfo:
        """Write a detached, durable segment, invisible until `commit` adds it.

        For compaction: offsets grow but need not be dense. A detached segment that is never
        committed is removed at the next opening. Raises Full, also while there is still room for
        `append`, so that upkeep does not take the last of it; Fenced, Offline, Unavailable, and
        ValueError as `append` does, also when there are no chunks. When cancelled, or when
        `chunks` raises, what was written is removed.
        """

    @abstractmethod
    async def commit(self, edit: LogEdit) -> LogSnapshot:
        """Apply an edit atomically and durably (S8); only afterwards may replaced bytes go.

        Raises OutOfRange for ids that are unknown or not sealed, segments that were not built or
        lie outside of the removed ones, and a log start below the present one or beyond the end;
        ValueError for blobs over their bound; Full, Fenced, Offline, Unavailable. Nothing has
        changed then, except that after Unavailable the edit may or may not take effect, whole, as
        when cancelled.
        """

    @abstractmethod
    async def truncate(self, end_offset: int) -> None:
        """Remove every batch that reaches beyond `end_offset` (S13).

        The log then ends at `end_offset`, or before it where that lies inside a batch or in a
        gap; at or beyond the end of the log nothing happens. The segment that is cut keeps its
        id, and stays sealed if it was: a new active one follows. Epochs that started at or above
        the new end are forgotten. The caller neither appends nor rolls meanwhile (ValueError), nor
        during a restart. Raises OutOfRange below the log start, Full, Fenced, Offline;
        Unsafe where `traits.truncatable` is false.
        """

    @abstractmethod
    async def aclose(self) -> None:
        """Flush and release the writer, leaving the mark of a clean close. Idempotent.

        After Fenced or Offline there is nothing to flush, and nothing is raised. When cancelled
        the writer is released all the same; the next opening may have to recover. A closed
        writer raises Offline from every method that writes.
        """


class SegmentStore(ABC):
    """A place that holds the logs of many partitions."""

    @property
    @abstractmethod
    def traits(self) -> StoreTraits:
        """What this store is like."""

    @abstractmethod
    async def probe(self) -> None:
        """Check that the back end can keep the contract. Raises Unsafe, saying what it lacks."""

    @abstractmethod
    async def open_writer(self, key: PartitionKey, claim: Claim) -> PartitionWriter:
        """Open a partition for writing, creating it if absent; recovers (S5) and fences (S4).

        Raises Fenced, Corrupt (S6), Unavailable, Full, Offline.
        """

    @abstractmethod
    async def open_reader(self, key: PartitionKey) -> PartitionReader:
        """Open a partition for reading. Raises OutOfRange if there is none, Unavailable.

        The reader follows what a writer opened in the same store, earlier or later, does. After
        `drop` its snapshot stays what it was, and `index` and `read` raise OutOfRange.
        """

    @abstractmethod
    async def partitions(self) -> Sequence[PartitionKey]:
        """Return every partition that has a log here, in no particular order."""

    @abstractmethod
    async def drop(self, key: PartitionKey) -> None:
        """Remove a partition's log for good (S12). Its writer, if open, is fenced first."""

    @abstractmethod
    async def usage(self) -> StoreUsage:
        """Say where the bytes lie and how much room there is."""
