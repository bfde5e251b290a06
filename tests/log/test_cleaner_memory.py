"""Memory of a compaction: bounded, whatever the batches are and max.message.bytes says."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio
from tests.log.logs import NOW, add, committed, opened

from odradek.config.upkeep import CleanerSettings
from odradek.log.cleaning_windows import LIMIT
from odradek.record import BatchBuilder, CompressionType
from odradek.record.kernel import accelerated

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="asks /proc for its memory"),
    pytest.mark.skipif(
        importlib.util.find_spec("odradek_storage_file") is None,
        reason="odradek-storage-file is not installed",
    ),
]

MB = 1_000_000
BROKER = 56 * MB
"""What a broker takes that has nothing to do: measured."""

NOISE = 8 * MB
"""What an allocator keeps, and modules that are imported meanwhile."""

COPIES = 3 if accelerated else 5
"""Of a batch: pure Python gathers what stays beside what was opened."""

RECORD = 100_000
"""Few records for many bytes: these tests are not about keys."""


def large(codec: CompressionType, size: int, keys: range, noise: bool) -> bytearray:
    """A batch of so many bytes uncompressed, its values noise or of one letter."""
    random = Random(size)
    builder = BatchBuilder(size + RECORD, compression=codec)
    for number in range(size // RECORD):
        value = random.randbytes(RECORD) if noise else b"v" * RECORD
        assert builder.append(NOW, b"%d" % keys[number % len(keys)], value)
    return builder.build()


async def compacted(path: Path, *batches: bytearray) -> dict[str, Any]:
    """Write a log and have it compacted by another process."""
    from tests.log.compaction_child import SETTINGS

    from odradek_storage_file import FileStorageSettings, open_file_store

    settings = FileStorageSettings(min_free_bytes=0, ballast_bytes=0)
    async with (
        open_file_store(f"file://{path}", settings) as store,
        opened(store, **SETTINGS) as log,
    ):
        for batch in batches:
            add(log, batch)
            await committed(log)
        log.roll()
        add(log, large(CompressionType.NONE, RECORD, range(1), False))
        await committed(log)
    command = [sys.executable, "-m", "tests.log.compaction_child", str(path), str(1 << 20)]
    with trio.fail_after(120):
        done = await trio.run_process(command, capture_stdout=True)
    told: dict[str, Any] = json.loads(done.stdout)
    return told


@pytest.mark.parametrize("noise", [True, False], ids=["noise", "compressible"])
@pytest.mark.parametrize("codec", CompressionType)
async def test_large_batches_take_a_few_times_the_limit(
    tmp_path: Path, codec: CompressionType, noise: bool
) -> None:
    """One record is superseded, so that all others are written and compressed again."""
    size = LIMIT - 2 * RECORD
    keys = range(size // RECORD)
    batches = [large(codec, size, keys, noise), large(codec, RECORD, keys, noise)]
    told = await compacted(tmp_path, *batches)
    assert not told["opaque"]
    assert told["rewritten"]
    assert told["peak"] - told["before"] < COPIES * LIMIT + NOISE


async def test_batch_beyond_the_limit_is_not_opened(tmp_path: Path) -> None:
    batch = large(CompressionType.ZSTD, 6 * LIMIT, range(10), noise=False)
    told = await compacted(tmp_path, batch, large(CompressionType.ZSTD, RECORD, range(10), False))
    assert told["opaque"]
    assert told["size_after"] == told["size_before"]
    assert told["peak"] - told["before"] < LIMIT + NOISE


def test_default_settings_are_bounded_by_128_mb() -> None:
    assert BROKER + CleanerSettings().buffer_bytes + 3 * LIMIT <= 128 * MB
