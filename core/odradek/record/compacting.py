"""Compaction's work on the batches of a log: note the newest offset of each key, then clean.

    offsets = OffsetMap(64 * 1024 * 1024, dirty_start, secrets.token_bytes(16))
    noted = note_window(view, offsets, end_offset, limit=limit)      # the dirty part, until full
    cleaned = clean_window(view, offsets, end_offset=end, ...)       # from the log's start

A window is bytes of a segment from the beginning of a batch on, as many as the caller likes; its
end may cut a batch, which is then not looked at. Both functions read every record, in a thread
beside the event loop: the compiled implementation lets go of the GIL for that.

What stays is Kafka's to say (`LogCleaner.java`, `Cleaner.java`; KIP-534): a record stays unless
the map has a higher offset for its key. A tombstone, a record without a value, goes when the batch
has a delete horizon and its time has come; a batch that keeps one and has no horizon is given one.
Records without a key go. A batch without records goes, unless it is the last of its producer.
Offsets never change.
"""

from __future__ import annotations

from collections.abc import Callable, Set

from odradek.record import kernel
from odradek.record.records import DECOMPRESSED_LIMIT
from odradek.record.windows import Cleaned, CorruptWindow, Noted, no_breath

__all__ = ["Cleaned", "CorruptWindow", "Noted", "OffsetMap", "clean_window", "note_window"]

OffsetMap = kernel.active.OffsetMap


def note_window(
    view: memoryview,
    offsets: OffsetMap,
    end_offset: int,
    *,
    limit: int = DECOMPRESSED_LIMIT,
    breathe: Callable[[], None] = no_breath,
) -> Noted:
    """Note the keys of every whole batch whose last offset is below `end_offset`.

    All keys of a batch are noted, or none: `full` says that the map has no room for all records of
    the next one, should each have a key of its own. Passed over, for they will stay as they are:
    batches that an empty map could not take, that take more than `limit` bytes uncompressed, that
    no codec opens, whose records are malformed, and those of transactions. Control batches hold
    no keys.

    `breathe` is called whenever some 0.3 ms were worked with the GIL, which happens where batches
    are compressed. A thread that waits for the GIL is not woken in time for the microseconds
    for which it is free in between: it takes a sleep.

    Raises CorruptWindow for a batch whose magic, length or CRC is wrong, and where offsets do not
    grow; what came before it is in the map then.
    """
    return kernel.active.note_window(view, offsets, end_offset, limit=limit, breathe=breathe)


def clean_window(
    view: memoryview,
    offsets: OffsetMap,
    *,
    end_offset: int,
    now_ms: int,
    delete_retention_ms: int,
    last_of_producers: Set[int],
    limit: int = DECOMPRESSED_LIMIT,
    expire: bool = True,
    breathe: Callable[[], None] = no_breath,
) -> Cleaned:
    """Return what stays of every whole batch whose last offset is below `end_offset`.

    `last_of_producers`: the last offsets of the batches that must stay, empty if need be, so that
    the state of their producers can be read from the log. An emptied batch keeps offsets, leader
    epoch, producer, sequence and max timestamp. Of any other batch that loses records the max
    timestamp becomes that of those left (under LogAppendTime it stays); offsets, leader epoch,
    producer, sequence and codec never change, nor do key, value and headers of a record.

    A delete horizon, `now_ms + delete_retention_ms`, is given only for tombstones that are in the
    map: of others nobody knows whether older records of their keys are gone.

    Control batches stay as they are. So do batches whose records cannot be told: those of
    transactions, more than `limit` bytes uncompressed, no such codec, malformed records. These are
    counted as `opaque`. One may hold a record that a later tombstone deletes, so behind it no
    tombstone expires or is given a horizon: `expire=False` says that a window before this one had
    an opaque batch.

    `breathe`: see `note_window`; here also between the headers of batches that stay.

    Raises CorruptWindow as `note_window` does; nothing is returned then of the batches before it.
    """
    return kernel.active.clean_window(
        view,
        offsets,
        end_offset=end_offset,
        now_ms=now_ms,
        delete_retention_ms=delete_retention_ms,
        last_of_producers=last_of_producers,
        limit=limit,
        expire=expire,
        breathe=breathe,
    )
