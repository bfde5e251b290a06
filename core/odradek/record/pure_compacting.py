"""Compaction's work on windows in pure Python: what is in force where the compiled module is not.

Also the reference: `_accelerated_compacting.pxi` gives the same results.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from hashlib import blake2b
from typing import Final

from odradek.errors import CorruptBatch, KafkaError
from odradek.record.batch import (
    DELETE_HORIZON,
    HEADER_SIZE,
    LOG_APPEND_TIME,
    NO_TIMESTAMP,
    BatchMeta,
    assemble,
    check_crc,
    parse_header,
)
from odradek.record.compression import CompressionType, compress, decompress
from odradek.record.layout import RawRecord, parse_records, shift_timestamp
from odradek.record.windows import BREATH, Cleaned, CorruptWindow, Noted, cost, no_breath
from odradek.types import Buffer

__all__ = ["OffsetMap", "clean_window", "note_window", "read_batch"]

SLOT_SIZE: Final = 16
_HASH_SIZE: Final = 11
_LOAD_PERCENT: Final = 85
"""Of linear probing, a key that is absent costs 23 slots at this load, and 51 at 90 percent."""
_MIN_SLOTS: Final = 2
_MAX_SLOTS: Final = 2**32 - 1
_SEED_SIZE: Final = 16
_OFFSETS: Final = 2**40 - 1
"""How many offsets a map tells apart: 40 bits, less the number that marks an empty slot."""
_EMPTY: Final = bytes(SLOT_SIZE - _HASH_SIZE)

_MIN_INT64: Final = -(2**63)
_MAX_INT64: Final = 2**63 - 1


class OffsetMap:
    """The newest offset of each key, by 88 bits of a hash of it; one thread at a time.

    Memory: 16 bytes a slot, taken at once, at most `max_bytes`, and no more than `expected` keys
    need where that is given. A map never grows: `capacity` keys fit, 85 percent of the slots. Two
    keys are taken for one with a chance of 2**-88 for each pair: once in 10**12 maps of 10**7 keys.

    `seed`: 16 bytes, random and secret, so that nobody can choose keys that collide.
    `base_offset`: offsets below it are not noted; up to 2**40 - 2 above it are. An empty map that
    meets a batch further on takes its base from it.

    Raises ValueError for a seed of another length, a negative base offset, and less room than two
    slots, MemoryError.
    """

    __slots__ = ("_seed", "_slots", "_table", "_used", "base_offset", "capacity")

    def __init__(
        self, max_bytes: int, base_offset: int, seed: bytes, *, expected: int | None = None
    ) -> None:
        slots = min(max_bytes // SLOT_SIZE, _MAX_SLOTS)
        if expected is not None:
            slots = min(slots, max(expected * 100 // _LOAD_PERCENT + 2, _MIN_SLOTS))
        if slots < _MIN_SLOTS:
            raise ValueError(f"a map takes at least {_MIN_SLOTS * SLOT_SIZE} bytes")
        if len(seed) != _SEED_SIZE:
            raise ValueError(f"a seed has {_SEED_SIZE} bytes, not {len(seed)}")
        if not 0 <= base_offset <= _MAX_INT64:
            raise ValueError(f"{base_offset} is no offset")
        self.base_offset = base_offset
        self.capacity = slots * _LOAD_PERCENT // 100
        self._slots = slots
        self._seed = bytes(seed)
        self._table = bytearray(slots * SLOT_SIZE)
        self._used = 0

    def __len__(self) -> int:
        return self._used

    @property
    def nbytes(self) -> int:
        """Memory of the slots, in bytes."""
        return self._slots * SLOT_SIZE

    def get(self, key: bytes) -> int | None:
        """Return the newest offset noted for `key`, or None."""
        at, known = self._find(blake2b(key, digest_size=16, key=self._seed).digest())
        if not known:
            return None
        number = int.from_bytes(self._table[at + _HASH_SIZE : at + SLOT_SIZE], "little")
        return self.base_offset + number - 1

    def put(self, key: bytes, offset: int) -> bool:
        """Note that `key` has a record at `offset`; a higher one noted before stays.

        False when the map is full and the key not in it. Offsets below `base_offset` are left
        out. Raises OverflowError for one too far above it.
        """
        number = offset - self.base_offset + 1
        if number < 1:
            return True
        if number > _OFFSETS:
            raise OverflowError(f"offset {offset} is too far from {self.base_offset}")
        digest = blake2b(key, digest_size=16, key=self._seed).digest()
        at, known = self._find(digest)
        table = self._table
        if known:
            if number > int.from_bytes(table[at + _HASH_SIZE : at + SLOT_SIZE], "little"):
                table[at + _HASH_SIZE : at + SLOT_SIZE] = number.to_bytes(5, "little")
            return True
        if self._used >= self.capacity:
            return False
        table[at : at + _HASH_SIZE] = digest[:_HASH_SIZE]
        table[at + _HASH_SIZE : at + SLOT_SIZE] = number.to_bytes(5, "little")
        self._used += 1
        return True

    def _find(self, digest: bytes) -> tuple[int, bool]:
        """Return the byte of the slot that a hash has or would get, and whether it has it."""
        table = self._table
        wanted = digest[:_HASH_SIZE]
        slots = self._slots
        slot = int.from_bytes(digest[_HASH_SIZE : _HASH_SIZE + 4], "little") * slots >> 32
        while True:
            at = slot * SLOT_SIZE
            if table[at + _HASH_SIZE : at + SLOT_SIZE] == _EMPTY:
                return at, False
            if table[at : at + _HASH_SIZE] == wanted:
                return at, True
            slot = slot + 1 if slot + 1 < slots else 0


def note_window(
    view: memoryview,
    offsets: OffsetMap,
    end_offset: int,
    *,
    limit: int,
    breathe: Callable[[], None] = no_breath,
) -> Noted:
    """See `odradek.record.compacting.note_window`."""
    position = keyless = passed_over = worked = 0
    next_offset = -1
    full = False
    while (meta := read_batch(view, position, next_offset, end_offset)) is not None:
        if worked >= BREATH:
            breathe()
            worked = 0
        worked += cost(meta.size)
        records = _open(meta, view, position, limit)
        nulls = 0
        if records is None:
            passed_over += not meta.control
        else:
            payload, raws = records
            nulls = sum(raw.key_size < 0 for raw in raws)
            if len(offsets) == 0 and meta.last_offset - offsets.base_offset >= _OFFSETS:
                offsets.base_offset = meta.base_offset
            least = offsets.base_offset - meta.base_offset
            keyed = [raw for raw in raws if raw.key_size >= 0 and raw.offset_delta >= least]
            if len(keyed) > offsets.capacity:
                passed_over += 1
            elif keyed and (
                len(offsets) + len(keyed) > offsets.capacity
                or meta.last_offset - offsets.base_offset >= _OFFSETS
            ):
                full = True
                break
            else:
                for raw in keyed:
                    key = bytes(payload[raw.key_at : raw.key_at + raw.key_size])
                    offsets.put(key, meta.base_offset + raw.offset_delta)
        keyless += nulls
        position += meta.size
        next_offset = meta.last_offset + 1
    if next_offset < 0 and len(view) >= HEADER_SIZE:
        next_offset = parse_header(view).base_offset
    return Noted(position, next_offset, full, keyless, passed_over)


def clean_window(
    view: memoryview,
    offsets: OffsetMap,
    *,
    end_offset: int,
    now_ms: int,
    delete_retention_ms: int,
    last_of_producers: Set[int],
    limit: int,
    expire: bool = True,
    breathe: Callable[[], None] = no_breath,
) -> Cleaned:
    """See `odradek.record.compacting.clean_window`."""
    output = _Output(view)
    position = records_in = records_out = tombstones = opaque = worked = 0
    next_offset = -1
    earliest: int | None = None
    new_horizon = min(now_ms + delete_retention_ms, _MAX_INT64)
    while (meta := read_batch(view, position, next_offset, end_offset)) is not None:
        if worked >= BREATH:
            breathe()
            worked = 0
        worked += cost(meta.size)
        records = _open(meta, view, position, limit)
        next_offset = meta.last_offset + 1
        start, position = position, position + meta.size
        if records is None:
            output.keep(meta, start)
            if not meta.control:
                opaque += 1
                expire = False
            continue
        payload, raws = records
        horizon = meta.delete_horizon
        expired = expire and horizon is not None and now_ms >= horizon
        kept, empty_values, fresh = _survivors(meta, payload, raws, offsets, expired)
        records_in += len(raws)
        records_out += len(kept)
        tombstones += empty_values
        if not kept:
            if meta.last_offset not in last_of_producers:
                output.changed = True
            elif not raws:
                output.keep(meta, start)
            else:
                output.add(_emptied(meta), b"")
            continue
        if horizon is None and fresh and expire and _can_shift(meta, kept, new_horizon):
            horizon = new_horizon
            output.add(*_shifted(meta, payload, kept, horizon))
        elif len(kept) == len(raws):
            output.keep(meta, start)
        else:
            body = b"".join([payload[raw.start : raw.end] for raw in kept])
            output.add(_thinned(meta, kept), body)
        if empty_values and horizon is not None:
            earliest = horizon if earliest is None else min(earliest, horizon)
    output.flush()
    return Cleaned(
        position,
        output.metas,
        output.buffers,
        output.changed,
        records_in,
        records_out,
        tombstones,
        sum(map(len, output.buffers)),
        earliest,
        opaque,
        next_offset,
    )


class _Output:
    """Batches that stay: slices of the window, and new ones."""

    def __init__(self, view: memoryview) -> None:
        self.metas: list[BatchMeta] = []
        self.buffers: list[Buffer] = []
        self.changed = False
        self._view = view
        self._start = self._end = 0

    def keep(self, meta: BatchMeta, position: int) -> None:
        if position != self._end:
            self.flush()
            self._start = position
        self._end = position + meta.size
        self.metas.append(meta)

    def add(self, meta: BatchMeta, body: Buffer) -> None:
        self.flush()
        batch = assemble(meta, compress(CompressionType(meta.compression), body) if body else b"")
        self.metas.append(meta._replace(size=len(batch)))
        self.buffers.append(batch)
        self.changed = True

    def flush(self) -> None:
        if self._end > self._start:
            self.buffers.append(self._view[self._start : self._end])
        self._start = self._end


def read_batch(
    view: memoryview, position: int, least_offset: int, end_offset: int
) -> BatchMeta | None:
    """Return the header of the batch to deal with next, or None: cut off, or beyond the end."""
    if len(view) - position < HEADER_SIZE:
        return None
    try:
        meta = parse_header(view, position)
    except CorruptBatch as error:
        raise CorruptWindow(error.detail, position) from None
    if not max(least_offset, 0) <= meta.base_offset <= meta.last_offset < _MAX_INT64:
        raise CorruptWindow(
            f"offsets {meta.base_offset} to {meta.last_offset} do not follow {least_offset - 1}",
            position,
        )
    if position + meta.size > len(view) or meta.last_offset >= end_offset:
        return None
    if not check_crc(view, position, meta.size):
        raise CorruptWindow("the CRC of the batch is wrong", position)
    return meta


def _open(
    meta: BatchMeta, view: memoryview, position: int, limit: int
) -> tuple[memoryview, list[RawRecord]] | None:
    """Return payload and records of a batch, or None where it must be left as it is."""
    if meta.control or meta.transactional:
        return None
    payload = view[position + HEADER_SIZE : position + meta.size]
    try:
        if meta.compression != CompressionType.NONE and len(payload):
            payload = decompress(meta.compression, payload, limit)
        raws = list(parse_records(payload, meta.record_count))
    except KafkaError:
        return None
    previous = -1
    last = meta.last_offset - meta.base_offset
    for raw in raws:
        timestamp = meta.base_timestamp + raw.timestamp_delta
        if not (previous < raw.offset_delta <= last and _MIN_INT64 <= timestamp <= _MAX_INT64):
            return None
        previous = raw.offset_delta
    return payload, raws


def _survivors(
    meta: BatchMeta, payload: memoryview, raws: list[RawRecord], offsets: OffsetMap, expired: bool
) -> tuple[list[RawRecord], int, bool]:
    """Return the records that stay, how many are tombstones, and whether the map has one of them.

    A tombstone in the map has no older record of its key left below it. Of one in a batch that was
    passed over that cannot be said, and without it an older record would count again.
    """
    kept: list[RawRecord] = []
    tombstones = 0
    fresh = False
    for raw in raws:
        if raw.key_size < 0:
            continue
        newest = offsets.get(bytes(payload[raw.key_at : raw.key_at + raw.key_size]))
        offset = meta.base_offset + raw.offset_delta
        if newest is not None and newest > offset:
            continue
        if raw.value_size < 0:
            if expired:
                continue
            tombstones += 1
            fresh = fresh or newest == offset
        kept.append(raw)
    return kept, tombstones, fresh


def _emptied(meta: BatchMeta) -> BatchMeta:
    """Return what stays of a batch for its producer's sake, as Kafka writes it."""
    return meta._replace(
        attributes=meta.attributes & LOG_APPEND_TIME, base_timestamp=NO_TIMESTAMP, record_count=0
    )


def _thinned(meta: BatchMeta, kept: list[RawRecord]) -> BatchMeta:
    """Return the header around the records that stay."""
    max_timestamp = meta.max_timestamp
    if not meta.log_append_time:
        max_timestamp = meta.base_timestamp + max(raw.timestamp_delta for raw in kept)
    return meta._replace(max_timestamp=max_timestamp, record_count=len(kept))


def _can_shift(meta: BatchMeta, kept: list[RawRecord], horizon: int) -> bool:
    """Whether the timestamps can be told from the horizon on; of senseless ones it may not be."""
    shift = meta.base_timestamp - horizon
    return all(_MIN_INT64 <= raw.timestamp_delta + shift <= _MAX_INT64 for raw in kept)


def _shifted(
    meta: BatchMeta, payload: memoryview, kept: list[RawRecord], horizon: int
) -> tuple[BatchMeta, bytes]:
    """Return header and body with the delete horizon in place of the base timestamp."""
    shift = meta.base_timestamp - horizon
    body = b"".join([shift_timestamp(payload, raw, shift) for raw in kept])
    thinned = _thinned(meta, kept)
    return (
        thinned._replace(base_timestamp=horizon, attributes=meta.attributes | DELETE_HORIZON),
        body,
    )
