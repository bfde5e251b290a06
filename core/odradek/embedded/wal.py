"""Damage in SQLite's write-ahead log, which SQLite itself cannot tell from a crash.

SQLite recovers the log up to the first frame that fails its checksum, and takes the rest for the
remains of an interrupted write. That is right after a crash, but a single flipped bit in the
middle makes it drop every transaction from there on without a word. Since each transaction here
is synced before the next begins, a crash spoils the last one only: where two or more whole
commits follow a bad frame, it was no crash.

The format: https://www.sqlite.org/fileformat2.html#walformat
"""

from __future__ import annotations

import struct
import sys
from typing import Final

__all__ = ["commits_after_damage"]

_HEADER: Final = struct.Struct(">8I")  # magic, format, page size, sequence, 2 salts, 2 checksums
_FRAME: Final = struct.Struct(">6I")  # page, database size if a commit, 2 salts, 2 checksums
_NATIVE: Final = "<" if sys.byteorder == "little" else ">"
_MAGIC: Final = 0x377F0682  # the lowest bit says that checksums are over big-endian words


def commits_after_damage(log: bytes) -> int:
    """Return how many whole commits follow the first bad frame of a write-ahead log.

    0 means undamaged, 1 may be the transaction that a crash interrupted, more is damage. A header
    that is bad counts as a bad frame. About 0.1 ms per frame that has to be checked.
    """
    if len(log) < _HEADER.size + _FRAME.size:
        return 0
    magic, _, page_size, _, *salts, sum0, sum1 = _HEADER.unpack_from(log)
    order = ">" if magic & 1 else "<"
    damaged = magic & ~1 != _MAGIC or _checksum(order, (0, 0), log[:24]) != (sum0, sum1)
    if damaged:  # what it should have said can be had from the first frame, and our page size
        order, page_size = _NATIVE, 4096
        salts = list(_FRAME.unpack_from(log, _HEADER.size)[2:4])
    chain = (sum0, sum1)
    commits = 0
    frame_size = _FRAME.size + page_size
    for start in range(_HEADER.size, len(log) - frame_size + 1, frame_size):
        _, commit, *frame_salts, sum0, sum1 = _FRAME.unpack_from(log, start)
        page = start + _FRAME.size
        # Frames with other salts are left over from before the log was last begun anew.
        whole = frame_salts == salts and (sum0, sum1) == _checksum(
            order, chain, log[start : start + 8] + log[page : page + page_size]
        )
        damaged = damaged or not whole
        commits += damaged and whole and commit != 0
        chain = (sum0, sum1)  # as stored, so that frames behind a bad one can be checked too
    return commits


def _checksum(order: str, seed: tuple[int, int], data: bytes) -> tuple[int, int]:
    sum0, sum1 = seed
    for word0, word1 in struct.iter_unpack(f"{order}II", data):
        sum0 = (sum0 + word0 + sum1) & 0xFFFFFFFF
        sum1 = (sum1 + word1 + sum0) & 0xFFFFFFFF
    return sum0, sum1
