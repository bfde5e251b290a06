"""Offsets and epochs of batches whose CRC is right: both lie outside of it, so they may be wrong.

Pure: headers in, headers out.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Sequence

from odradek.contracts.storage import MAX_RELATIVE_OFFSET, BatchMeta

__all__ = ["mend"]


def mend(
    metas: Sequence[BatchMeta],
    base: int,
    start: int,
    end: int | None,
    holes: Collection[int],
    epoch_at: Callable[[int], int | None],
) -> list[BatchMeta | None]:
    """Return each batch as it should be, None for one that has no place.

    `base`: the segment's base offset. Offsets have to lie within [`start`, `end`), where the end
    is known, and to ascend. Of those that do not, the fewest are taken for wrong; the offset of
    one that just fills the gap between its neighbours is known all the same. `holes`: numbers of
    batches before which bytes are missing. `epoch_at`: the leader epoch in force at an offset,
    None where only the batch itself tells.
    """
    limit = base + MAX_RELATIVE_OFFSET + 1
    top = limit if end is None else min(end, limit)
    fits = _ascending(metas, start, top)
    found: list[BatchMeta | None] = []
    after = start
    for number, meta in enumerate(metas):
        if fits[number]:
            placed: BatchMeta | None = meta
        else:
            last = number + 1 == len(metas)
            following = end if last else metas[number + 1].base_offset if fits[number + 1] else None
            whole = number not in holes and number + 1 not in holes
            size = meta.last_offset - meta.base_offset + 1
            fills = whole and following == after + size
            placed = meta.assigned(after, meta.leader_epoch) if fills else None
        if placed is not None:
            epoch = epoch_at(placed.base_offset)
            if epoch is not None and epoch != placed.leader_epoch:
                placed = placed.assigned(placed.base_offset, epoch)
            after = placed.last_offset + 1
        found.append(placed)
    return found


def _ascending(metas: Sequence[BatchMeta], start: int, end: int) -> list[bool]:
    """Say which batches belong to the longest sequence whose offsets ascend within bounds."""
    inside = [
        start <= meta.base_offset <= meta.last_offset < end and meta.record_count >= 0
        for meta in metas
    ]
    after = start
    for meta, fits in zip(metas, inside, strict=True):
        if not fits or meta.base_offset < after:
            break
        after = meta.last_offset + 1
    else:
        return inside
    ends: list[int] = []  # lowest end of a sequence of length i + 1
    tails: list[int] = []  # and the batch it ends with
    before = [-1] * len(metas)
    for number, meta in enumerate(metas):
        if not inside[number]:
            continue
        # The longest sequence that ends at or below this batch's base offset.
        length = bisect_left(ends, meta.base_offset + 1)
        before[number] = tails[length - 1] if length else -1
        if length == len(ends):
            ends.append(meta.last_offset + 1)
            tails.append(number)
        elif meta.last_offset + 1 < ends[length]:
            ends[length] = meta.last_offset + 1
            tails[length] = number
    chosen = [False] * len(metas)
    number = tails[-1] if tails else -1
    while number >= 0:
        chosen[number] = True
        number = before[number]
    return chosen
