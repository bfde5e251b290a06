"""What comes of a window: consecutive batches of a segment, as compaction reads them."""

from __future__ import annotations

from typing import Final

from attrs import frozen

from odradek.errors import CorruptBatch
from odradek.record.batch import BatchMeta
from odradek.types import Buffer

__all__ = ["BREATH", "Cleaned", "CorruptWindow", "Noted", "cost", "no_breath"]

BREATH: Final = 32
"""How much is done between two breaths, in the units of `cost`: some 0.3 ms."""


def cost(size: int) -> int:
    """How long a batch that is compressed, of so many bytes uncompressed, may keep the GIL.

    In units of some 10 us: that takes one small batch, to open or to make, or LZ4 of 16 KiB.
    """
    return 1 + (size >> 14)


def no_breath() -> None:
    """Go on at once."""


class CorruptWindow(CorruptBatch):
    """A batch of a window is damaged; `position` is the byte of the window where it starts."""

    def __init__(self, detail: str, position: int) -> None:
        super().__init__(f"{detail} (at byte {position})")
        self.position = position


@frozen(slots=True)
class Noted:
    """How far the keys of a window are in the map.

    `position`: the byte behind the last batch that was dealt with. `next_offset`: the first offset
    that was not; where not one batch was, the base offset of the first, or -1 if not even a header
    is there. `full`: the map cannot take the batch at `position`, and nothing of it was noted.
    `keyless`: records without a key, which compaction removes. `passed_over`: batches that cannot
    be noted and stay as they are.
    """

    position: int
    next_offset: int
    full: bool
    keyless: int
    passed_over: int


@frozen(slots=True)
class Cleaned:
    """A window as compaction leaves it.

    `position`: the byte behind the last batch that was dealt with. `metas[i]` describes consecutive
    bytes of the joined `buffers`, as a `Chunk` has it; batches that follow one another unchanged
    are one slice of the window, which must stay as it is until the buffers are written. `changed`:
    whether any batch was changed or removed.

    `records_in` and `records_out` count the records of the batches that were opened, `tombstones`
    those of them that stay without a value, `bytes_out` the bytes of `buffers`. `horizon`: the
    earliest delete horizon, in ms, of a batch that still has tombstones, or None.
    `opaque`: how many batches stay whole because their records cannot be told. `next_offset`: the
    offset behind the last batch that was dealt with, also where it does not stay; -1 if none was.
    """

    position: int
    metas: list[BatchMeta]
    buffers: list[Buffer]
    changed: bool
    records_in: int
    records_out: int
    tombstones: int
    bytes_out: int
    horizon: int | None
    opaque: int
    next_offset: int
