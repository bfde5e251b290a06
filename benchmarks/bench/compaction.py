"""Compaction's kernel alone: keys noted and windows cleaned in memory, compiled against pure."""

from __future__ import annotations

import random
import time
from importlib import import_module
from typing import Any

from bench.report import table
from odradek.record import CompressionType, assign, kernel, pure

__all__ = ["report"]

VALUE = 184
"""With a key of 16 bytes: records of 200."""
NOW = 1_700_000_000_000
WINDOW = 1 << 20
SEED = bytes(range(16))

Figures = dict[str, float]
Log = tuple[memoryview, int]


def report(rounds: int) -> str:
    """Measure and return Markdown: megabytes of log a second, both passes together."""
    implementations: dict[str, Any] = {"compiled": None, "pure Python": pure}
    try:
        implementations["compiled"] = import_module("odradek.record._accelerated")
    except ModuleNotFoundError:
        del implementations["compiled"]
    found: dict[str, list[Figures]] = {each: [] for each in implementations}
    for name, log in _logs():
        for number in range(rounds):
            for each, module in implementations.items():
                if number == len(found[each]):
                    found[each].append({})
                found[each][number] |= _measure(name, log, module)
    title = "compaction, noting and cleaning: MB of log/s"
    return f"keys of 16 bytes, values of {VALUE}\n\n{table(title, found)}"


def _logs() -> list[tuple[str, Log]]:
    size = 32 << 20
    none, lz4 = CompressionType.NONE, CompressionType.LZ4
    return [
        ("16 KiB, 20,000 keys", _log(size, 16_384, 20_000, none)),
        ("16 KiB, each key once", _log(size, 16_384, None, none)),
        ("1 MiB, 20,000 keys", _log(size, 1 << 20, 20_000, none)),
        ("1 MiB, each key once", _log(size, 1 << 20, None, none)),
        ("16 KiB, 20,000 keys, lz4", _log(size // 4, 16_384, 20_000, lz4)),
        ("one record, 20,000 keys", _log(size // 4, 1, 20_000, none)),
        ("one record, each key once", _log(size // 4, 1, None, none)),
    ]


def _log(size: int, batch_bytes: int, keys: int | None, codec: CompressionType) -> Log:
    """Return a log of at least `size` bytes, and its end offset."""
    chance = random.Random(11)
    values = [chance.randbytes(VALUE // 2) + bytes(VALUE - VALUE // 2) for _ in range(64)]
    log = bytearray()
    offset = 0
    while len(log) < size:
        builder = kernel.active.BatchBuilder(max(batch_bytes, 1024), compression=codec)
        number = offset
        while builder.append(
            NOW + number,
            b"%016d" % (number if keys is None else chance.randrange(keys)),
            values[number % 64],
        ):
            number += 1
            if batch_bytes == 1:
                break
        batch = builder.build()
        assign(batch, 0, offset, 1)
        log += batch
        offset = number
    return memoryview(bytes(log)), offset


def _measure(name: str, log: Log, module: Any) -> Figures:
    """Return MB of log a second of each pass over a part that pure Python can do in seconds."""
    data, end = log
    part = data if module is not pure else data[: 2 << 20]
    offsets = module.OffsetMap(16 << 20, 0, SEED)
    start = time.perf_counter()
    position = 0
    while done := module.note_window(
        part[position : position + WINDOW], offsets, end, limit=WINDOW * 8
    ).position:
        position += done
    noted = time.perf_counter()
    cleaned = 0
    while done := module.clean_window(
        part[cleaned : cleaned + WINDOW],
        offsets,
        end_offset=end,
        now_ms=NOW,
        delete_retention_ms=1000,
        last_of_producers={end - 1},
        limit=WINDOW * 8,
    ).position:
        cleaned += done
    finished = time.perf_counter()
    size = position / 1e6
    return {
        f"{name}: note": size / (noted - start),
        f"{name}: clean": cleaned / 1e6 / (finished - noted),
        f"{name}: both": size / (finished - start),
    }
