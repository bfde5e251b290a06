"""Is there a valid batch behind damage? For worker threads: everything here blocks."""

from __future__ import annotations

import os

from odradek.contracts.storage import find_next_valid
from odradek_storage_file import layout
from odradek_storage_file.ops import Ops
from odradek_storage_file.saving import check_kind, read_range

__all__ = ["WINDOW", "next_valid", "valid_later"]

WINDOW = 4 * 1024 * 1024


def valid_later(ops: Ops, path: str, later: list[int], min_offset: int) -> str | None:
    """Say where the first valid batch of the segments is, None if there is none."""
    for base in later:
        where = f"{path}/{layout.stem(base)}.log"
        check_kind(where)
        fd = ops.open(where, os.O_RDONLY | os.O_CLOEXEC)
        try:
            found = next_valid(ops, fd, 0, os.fstat(fd).st_size, min_offset)
        finally:
            ops.close(fd)
        if found is not None:
            return f"byte {found} of {where}"
    return None


def next_valid(ops: Ops, fd: int, position: int, size: int, min_offset: int) -> int | None:
    """Return the first byte of [position, size) where a valid batch starts, or None.

    Windows overlap by half, so that a batch of up to half of one is always whole in one; a larger
    batch behind damage is found when it fits into what is read at once.
    """
    step = 2 * 16 * WINDOW
    while position < size:
        data = read_range(ops, fd, position, min(step, size - position))
        found = find_next_valid(memoryview(data), 0, min_offset=min_offset)
        if found is not None:
            return position + found
        if len(data) < step:
            return None
        position += step // 2
    return None
