"""The manifest of a repaired partition, made from what is good of its segments."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress

from odradek.contracts.storage import PartitionKey, crc32c
from odradek.contracts.storage_gaps import GAPS_BLOB, decode_gaps, encode_gaps
from odradek_storage_file import layout
from odradek_storage_file.indexes import IndexBuilder
from odradek_storage_file.layout import ActiveEntry, Manifest, SealedEntry
from odradek_storage_file.ops import Ops, write_atomically
from odradek_storage_file.saving import read_file
from odradek_storage_file.sifting import Kept

__all__ = ["make_manifest", "note_gaps"]


def make_manifest(
    ops: Ops,
    path: str,
    key: PartitionKey,
    old: Manifest | None,
    kept: Sequence[Kept],
    known: dict[int, SealedEntry],
    end: int,
) -> Manifest:
    """Return a manifest of the segments that were kept, without blobs; write their indexes.

    `old`: the one from before, if it could be read, and `known` its sealed segments. `end`: where
    the log goes on; above the end of the last segment, that is left out by the repair.
    Raises OSError.
    """
    new = Manifest(str(key))
    if old is not None:
        new.next_id, new.next_file = old.next_id, old.next_file
        new.log_start = old.log_start
    else:
        new.log_start = kept[0].base if kept else end
        new.next_file = _free_number(path)
    ids = {base: entry.id for base, entry in known.items()}
    if old is not None:
        ids[old.active.base] = old.active.id
    # Otherwise the active segment went, or ends too early, and a new one begins.
    goes_on = bool(kept) and kept[-1].base not in known and kept[-1].end == end
    now = time.time_ns() // 1_000_000
    for i, each in enumerate(kept):
        if each.base not in ids:
            ids[each.base] = 2 * new.next_id
            new.next_id += 1
        for start in each.epochs:
            if not new.epochs or start.epoch > new.epochs[-1].epoch:
                new.epochs.append(start)
        builder = each.index
        last = goes_on and i == len(kept) - 1
        if not last and each.base not in known:
            builder.seal()
            builder.flush(ops, f"{path}/{layout.stem(each.base)}")
        created = known[each.base].created_ms if each.base in known else now
        if last:
            new.active = ActiveEntry(
                ids[each.base], each.base, each.end, each.size, created, builder.state()
            )
        else:
            new.sealed.append(
                SealedEntry(
                    ids[each.base],
                    each.base,
                    each.end,
                    each.size,
                    builder.max_timestamp,
                    builder.max_timestamp_offset,
                    created,
                    builder.rows,
                    builder.crc,
                )
            )
    if not goes_on:
        if kept and kept[-1].end < end:
            kept[-1].gaps.append((kept[-1].end, end))
        state = IndexBuilder(end).state()
        new.active = ActiveEntry(2 * new.next_id, end, end, 0, now, state)
        new.next_id += 1
    return new


def _free_number(path: str) -> int:
    """Return a file number above all that are in use, by what is not known."""
    numbers = (name.partition(".")[0] for name in os.listdir(path) if name.endswith(".blob"))
    return max((int(n) for n in numbers if n.isdecimal() and len(n) < 20), default=-1) + 1


def note_gaps(ops: Ops, path: str, new: Manifest, kept: Sequence[Kept]) -> None:
    """Note which offsets were left out, or the log would look as if it had lost them."""
    gaps = [gap for each in kept for gap in each.gaps]
    if not gaps:
        return
    if GAPS_BLOB in new.blobs:
        number, _, _ = new.blobs[GAPS_BLOB]
        with suppress(ValueError):
            gaps += decode_gaps(read_file(ops, f"{path}/{layout.blob_name(number)}"))
    end = new.active.end
    data = encode_gaps((low, min(high, end)) for low, high in gaps if low < end)
    number = new.next_file
    new.next_file += 1
    write_atomically(ops, path, layout.blob_name(number), data)
    new.blobs[GAPS_BLOB] = (number, len(data), crc32c(data))
