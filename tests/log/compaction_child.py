"""Compacts the log of `tests.log.logs` in a store of files, as a process of its own whose memory
can be told from that of the tests: `python -m tests.log.compaction_child DIRECTORY MAP_BYTES`.

Says in a line of JSON what the compaction did, and its resident memory in bytes before it and at
the peak.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import trio
from tests.log.logs import NOW, opened

from odradek.log.cleaner import Tools, compact, survey
from odradek.log.worker import ThreadWorker
from odradek_storage_file import FileStorageSettings, open_file_store

__all__ = ["SETTINGS"]

SETTINGS: dict[str, Any] = {
    "cleanup_policy": "compact",
    "min_cleanable_dirty_ratio": "0",
    "max_message_bytes": str(64 * 1024 * 1024),
}


async def _at_once(size: int) -> None:
    """No pace is to be kept."""


def _resident(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) * 1024
    raise LookupError(field)


def _forget_peak() -> int:
    """Have the peak counted from now on; return the resident memory."""
    Path("/proc/self/clear_refs").write_text("5")
    return _resident("VmRSS")


async def _main(directory: str, map_bytes: int) -> None:
    settings = FileStorageSettings(min_free_bytes=0, ballast_bytes=0)
    worker = ThreadWorker("test-compaction")
    async with (
        open_file_store(f"file://{directory}", settings) as store,
        opened(store, 1, **SETTINGS) as log,
    ):
        due = await survey(log, NOW, {})
        assert due is not None
        await worker.run(len, b"")  # the thread is there
        before = _forget_peak()
        tools = Tools(worker, _at_once, bytes(16), map_bytes)
        done = await compact(log, due, tools, now_ms=NOW, proven_ms=NOW)
        assert done is not None
        peak = _resident("VmHWM")
    worker.close()
    told = {
        "before": before,
        "peak": peak,
        "size_before": done.size_before,
        "size_after": done.size_after,
        "rewritten": done.rewritten,
        "opaque": done.opaque_from is not None,
    }
    print(json.dumps(told))


if __name__ == "__main__":
    trio.run(_main, sys.argv[1], int(sys.argv[2]))
