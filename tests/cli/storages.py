"""Storages with one log, made without a broker, for the tests of `odradek log`."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import trio
from tests.log.logs import KEY, NOW, add, committed, opened

from odradek.log.partition import PartitionLog
from odradek.plugins import load
from odradek.record import BatchBuilder

Run = Callable[..., subprocess.CompletedProcess[bytes]]
Fill = Callable[[PartitionLog], Awaitable[None]]


def batch(number: int, count: int = 2, size: int = 700, **options: Any) -> bytearray:
    builder = BatchBuilder(64 * 1024 * 1024, **options)
    for at in range(count):
        assert builder.append(NOW + number + at, b"key-%d" % at, b"v" * size, [("h", b"1")])
    return builder.build()


async def usual(log: PartitionLog) -> None:
    """Three segments of four batches of two records, of one idempotent producer."""
    for number in range(12):
        if number and not number % 4:
            log.roll()
        add(log, batch(number, producer_id=5, producer_epoch=0, base_sequence=2 * number))
    await committed(log)


def stored(root: Path, fill: Fill = usual) -> str:
    """Make a storage with one log; return its URL."""
    url = root.as_uri()
    factory = load().storage("file")

    async def main() -> None:
        async with factory.open(url, factory.settings()) as store, opened(store) as log:
            await fill(log)

    trio.run(main)
    return url


def segments(url: str) -> list[Path]:
    return sorted(Path(url.removeprefix("file://")).glob(f"{KEY.topic_id}-0/*.log"))


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def rows(done: subprocess.CompletedProcess[bytes]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def lines(done: subprocess.CompletedProcess[bytes], kind: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in done.stdout.splitlines()]
    return [each for each in found if each["kind"] == kind]
