"""The record codec alone: no broker, no network; compiled against pure Python, in alternation."""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

from bench.report import table
from odradek.record import CompressionType, decode_columns, decode_records, kernel, pure

__all__ = ["report"]

VALUE = 200
SECONDS = 0.15
"""How long a figure is measured in each round; the best pass counts, as in `timeit`."""

Figures = dict[str, float]
Work = Callable[[], object]


def report(rounds: int) -> str:
    """Measure and return Markdown: millions of records a second."""
    implementations: dict[str, Any] = {"compiled": None, "pure Python": pure}
    try:
        implementations["compiled"] = import_module("odradek.record._accelerated")
    except ModuleNotFoundError:
        del implementations["compiled"]
    tables = []
    for size, name in ((1 << 20, "1 MiB"), (16_384, "16 KiB")):
        found: dict[str, list[Figures]] = {each: [] for each in implementations}
        for _ in range(rounds):
            for each, module in implementations.items():
                found[each].append(_measure(module, size))
        tables.append(table(f"codec, batches of {name}: million records/s", found))
    return f"{VALUE}-byte values without keys\n\n" + "\n\n".join(tables)


def _measure(module: Any, batch_bytes: int) -> Figures:
    before, kernel.active = kernel.active, module
    try:
        return {
            name: _rate(*work) for name, work in _works(module.BatchBuilder, batch_bytes).items()
        }
    finally:
        kernel.active = before


def _works(new_builder: Any, batch_bytes: int) -> dict[str, tuple[int, Work]]:
    """Return what is measured: how many records one pass handles, and the pass."""
    now = 1_700_000_000_000
    values = [bytes([i & 255]) * VALUE for i in range(batch_bytes // VALUE)]

    def extend(codec: CompressionType = CompressionType.NONE) -> bytearray:
        builder = new_builder(batch_bytes, compression=codec)
        builder.extend(now, values)
        batch: bytearray = builder.build()
        return batch

    def append() -> bytearray:
        builder = new_builder(batch_bytes)
        add = builder.append
        for value in values:
            if not add(now, None, value):
                break
        batch: bytearray = builder.build()
        return batch

    def append_whole() -> bytearray:
        builder = new_builder(batch_bytes)
        add = builder.append
        headers = [("trace", b"0123456789abcdef")]
        for number, value in enumerate(values):
            if not add(now + number, value[:16], value, headers):
                break
        batch: bytearray = builder.build()
        return batch

    plain, whole = extend(), append_whole()
    count, whole_count = len(decode_records(plain)), len(decode_records(whole))
    packed = extend(CompressionType.LZ4)
    many = bytes(plain) * 8
    return {
        "encode: extend, build": (count, extend),
        "encode: append each, build": (count, append),
        "encode: append each with key, header, own timestamp": (whole_count, append_whole),
        "decode: list of Record": (count, lambda: decode_records(plain)),
        "decode: list of Record, CRC not checked": (
            count,
            lambda: decode_records(plain, verify=False),
        ),
        "decode: list of Record with key, header, own timestamp": (
            whole_count,
            lambda: decode_records(whole),
        ),
        "decode: list of Record, lz4": (count, lambda: decode_records(packed)),
        "decode: columns": (count, lambda: decode_columns(plain)),
        "decode: columns of 8 batches": (8 * count, lambda: decode_columns(many)),
        "decode: columns of 8 batches, CRC not checked": (
            8 * count,
            lambda: decode_columns(many, verify=False),
        ),
    }


def _rate(records: int, work: Work) -> float:
    """Return millions of records a second in the best pass."""
    best = float("inf")
    end = time.perf_counter() + SECONDS
    while (start := time.perf_counter()) < end:
        work()
        best = min(best, time.perf_counter() - start)
    return records / best / 1e6
