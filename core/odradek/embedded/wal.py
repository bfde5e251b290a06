"""Damage in SQLite's write-ahead log, which SQLite itself cannot tell from a crash.

SQLite recovers the log up to the first frame that fails its checksum, and takes the rest for the
remains of an interrupted write. That is right after a crash, but a single flipped bit in the
middle makes it drop every transaction from there on without a word. Since each transaction here
is synced before the next begins, a crash spoils the last one only: where the ends of two
transactions lie at or behind the first bad frame, it was no crash.

The format: https://www.sqlite.org/fileformat2.html#walformat
"""

from __future__ import annotations

import struct
import sys
from typing import Final

__all__ = ["transactions_after_damage"]

_HEADER: Final = struct.Struct(">8I")  # magic, format, page size, sequence, 2 salts, 2 checksums
_FRAME: Final = struct.Struct(">6I")  # page, database size if a commit, 2 salts, 2 checksums
_NATIVE: Final = "<" if sys.byteorder == "little" else ">"
_MAGIC: Final = 0x377F0682  # the lowest bit says that checksums are over big-endian words
_DEFAULT_PAGE: Final = 4096


def transactions_after_damage(log: bytes) -> int:
    """Return how many transactions end at or behind the first bad frame of a write-ahead log.

    0 means undamaged, 1 may be the transaction that a crash interrupted, more is damage. A header
    that is bad counts as a bad frame. About 0.1 ms per frame.
    """
    if len(log) < _HEADER.size + _FRAME.size:
        return 0
    magic, _, page_size, _, *salts, sum0, sum1 = _HEADER.unpack_from(log)
    order = ">" if magic & 1 else "<"
    damaged = magic & ~1 != _MAGIC or _checksum(order, (0, 0), log[:24]) != (sum0, sum1)
    if damaged:  # what it should have said is known from the first frame, and of this program
        order, page_size = _NATIVE, _DEFAULT_PAGE
        salts = list(_FRAME.unpack_from(log, _HEADER.size)[2:4])
    # The checksum of a frame begins with that of the frame before. Where that one is bad, either
    # its contents or its checksum may be: both are tried.
    seeds = {(sum0, sum1)}
    ends = 0
    frame_size = _FRAME.size + page_size
    for start in range(_HEADER.size, len(log) - frame_size + 1, frame_size):
        _, commit, *frame_salts, sum0, sum1 = _FRAME.unpack_from(log, start)
        salted = frame_salts == salts  # else left over from before the log was last begun anew
        if damaged and not salted:
            continue
        content = log[start : start + 8] + log[start + _FRAME.size : start + frame_size]
        computed = {_checksum(order, seed, content) for seed in seeds}
        summed = (sum0, sum1) in computed
        first_bad = not damaged and not (summed and salted)
        damaged = damaged or first_bad
        if damaged and commit and ((summed and salted) or (first_bad and (summed or salted))):
            ends += 1
        seeds = {(sum0, sum1), *computed} if first_bad else {(sum0, sum1)}
    return ends


def _checksum(order: str, seed: tuple[int, int], data: bytes) -> tuple[int, int]:
    sum0, sum1 = seed
    for word0, word1 in struct.iter_unpack(f"{order}II", data):
        sum0 = (sum0 + word0 + sum1) & 0xFFFFFFFF
        sum1 = (sum1 + word1 + sum0) & 0xFFFFFFFF
    return sum0, sum1
