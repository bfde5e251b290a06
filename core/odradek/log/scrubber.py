"""Reading a segment to find damage, over any storage, at the pace that the caller allows."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from attrs import define

from odradek.contracts.storage import (
    Corrupt,
    DataRef,
    Hint,
    PartitionReader,
    SegmentInfo,
)
from odradek.log.scrub import Damage, SegmentCheck
from odradek.log.worker import Worker

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
    reader: PartitionReader, segment: SegmentInfo, throttle: Throttle, worker: Worker
) -> list[Damage]:
    """Read a segment from end to end; return what is damaged, the first 16 places at most.

    Behind damage it goes on at the next batch that the index knows and whose CRC is right.
    Memory: one window. Raises OutOfRange when the segment goes away meanwhile, and Unavailable.
    """
    return await _Scrub(reader, segment, throttle, worker).run()


@define
class _Scrub:
    reader: PartitionReader
    segment: SegmentInfo
    throttle: Throttle
    worker: Worker

    async def run(self) -> list[Damage]:
        found: list[Damage] = []
        check = self.check(0, self.segment.base_offset)
        while not check.done:
            text = await self.feed(check)
            if text is None:
                continue
            found.append(Damage(self.segment.base_offset, check.position, text))
            following = await self.resume(check)
            if following is None or len(found) == DAMAGE_SHOWN:
                break
            check = following
        return found

    def check(self, position: int, base_offset: int = 0) -> SegmentCheck:
        """Begin at a byte; behind damage any offset will do for the first batch."""
        segment = self.segment
        return SegmentCheck(base_offset, segment.size, position, segment.end_offset)

    async def feed(self, check: SegmentCheck) -> str | None:
        """Read and check a window; return what is wrong."""
        segment = self.segment
        wanted = min(segment.size - check.position, WINDOW)
        try:
            with await self.reader.read(segment.id, check.position, wanted, Hint.ONCE) as data:
                size = len(data)
                text = await self.worker.run(_check, data, check)
        except Corrupt as error:
            return str(error)
        await self.throttle(size)
        return text

    async def resume(self, failed: SegmentCheck) -> SegmentCheck | None:
        """Return a check that begins behind damage, at a batch that is right; None without one."""
        size = self.segment.size
        if failed.position < failed.following < size and await self.is_batch(failed.following):
            return self.check(failed.following)
        try:
            index = await self.reader.index(self.segment.id)
        except Corrupt:
            return None
        row = index.floor_position(failed.position) + 1
        tried = 0
        while row < len(index):
            position = index.positions[row]
            if await self.is_batch(position):
                return self.check(position)
            tried += 1
            row += 1 if tried < PATIENCE else 2 ** (tried - PATIENCE)
        return None

    async def is_batch(self, position: int) -> bool:
        """Whether a batch whose CRC is right starts there."""
        check = self.check(position)
        while not check.done and not check.batches:
            if await self.feed(check) is not None:
                break
        return check.batches > 0


def _check(data: DataRef, check: SegmentCheck) -> str | None:
    views = data.views()
    return check.feed(views[0] if len(views) == 1 else memoryview(b"".join(views)))
