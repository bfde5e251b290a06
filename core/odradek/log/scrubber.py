"""Reading a segment to find damage, over any storage, at the pace that the caller allows."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

import trio

from odradek.contracts.storage import (
    Corrupt,
    DataRef,
    Hint,
    PartitionReader,
    SegmentInfo,
)
from odradek.log.scrub import Damage, SegmentCheck

__all__ = ["DAMAGE_SHOWN", "WINDOW", "Throttle", "scrub_segment"]

WINDOW = 128 * 1024
"""Bytes read at a time. Batches of one small record take 2 ms of Python to check then, and the
broker's event loop may have to wait for that."""

PATIENCE = 8
"""Rows of the index that are tried behind damage before every second, fourth, ... is passed over:
where gigabytes are gone, all of them would be read a window each."""

DAMAGE_SHOWN = 16
"""Damaged places that are looked for in one segment: a disk that is gone has no end of them."""


Throttle: TypeAlias = Callable[[int], Awaitable[None]]
"""Called after so many bytes were read; returns when more may be."""


async def scrub_segment(
    reader: PartitionReader, segment: SegmentInfo, throttle: Throttle
) -> list[Damage]:
    """Read a segment from end to end; return what is damaged, the first 16 places at most.

    Behind damage it goes on at the next batch that the index knows and whose CRC is right.
    Memory: one window. Raises OutOfRange when the segment goes away meanwhile, and Unavailable.
    """
    found: list[Damage] = []
    check = SegmentCheck(segment.base_offset, segment.size)
    while not check.done:
        text = await _feed(reader, segment, check, throttle)
        if text is None:
            continue
        found.append(Damage(segment.base_offset, check.position, text))
        following = await _resume(reader, segment, check, throttle)
        if following is None or len(found) == DAMAGE_SHOWN:
            break
        check = following
    return found


async def _feed(
    reader: PartitionReader, segment: SegmentInfo, check: SegmentCheck, throttle: Throttle
) -> str | None:
    wanted = min(segment.size - check.position, WINDOW)
    try:
        with await reader.read(segment.id, check.position, wanted, Hint.ONCE) as data:
            size = len(data)
            if data.file_range() is None:
                text = _check(data, check)  # in memory already: a thread would only cost time
            else:
                text = await trio.to_thread.run_sync(_check, data, check)
    except Corrupt as error:
        return str(error)
    await throttle(size)
    return text


def _check(data: DataRef, check: SegmentCheck) -> str | None:
    views = data.views()
    return check.feed(views[0] if len(views) == 1 else memoryview(b"".join(views)))


async def _resume(
    reader: PartitionReader, segment: SegmentInfo, failed: SegmentCheck, throttle: Throttle
) -> SegmentCheck | None:
    """Return a check that begins behind damage, at a batch that is right; None without one."""
    damaged = failed.position
    if damaged < failed.following < segment.size and await _is_batch(
        reader, segment, failed.following, throttle
    ):
        return SegmentCheck(0, segment.size, failed.following)
    try:
        index = await reader.index(segment.id)
    except Corrupt:
        return None
    row = index.floor_position(damaged) + 1
    tried = 0
    while row < len(index):
        position = index.positions[row]
        if await _is_batch(reader, segment, position, throttle):
            return SegmentCheck(0, segment.size, position)
        tried += 1
        row += 1 if tried < PATIENCE else 2 ** (tried - PATIENCE)
    return None


async def _is_batch(
    reader: PartitionReader, segment: SegmentInfo, position: int, throttle: Throttle
) -> bool:
    """Whether a batch whose CRC is right starts there; any offset will do behind damage."""
    check = SegmentCheck(0, segment.size, position)
    while not check.done and not check.batches:
        if await _feed(reader, segment, check, throttle) is not None:
            break
    return check.batches > 0
