"""Compaction of a log over a store: what stays, what goes, and what it never disturbs."""

from __future__ import annotations

import trio
from tests.log.logs import NOW, OpenLog, add, committed, everything

from odradek.log.cleaner import Compacted, Tools, compact, state_of, survey
from odradek.log.partition import PartitionLog
from odradek.log.worker import ThreadWorker
from odradek.record import BatchBuilder

SEED = bytes(range(16))
MAP_BYTES = 1 << 20


async def at_once(size: int) -> None:
    """No pace is to be kept."""


def keyed(*records: tuple[str, str | None], timestamp: int = NOW, **options: object) -> bytearray:
    builder = BatchBuilder(1 << 20, **options)  # type: ignore[arg-type]
    for key, value in records:
        builder.append(timestamp, key.encode(), None if value is None else value.encode())
    return builder.build()


async def cleaned(
    log: PartitionLog, now_ms: int = NOW, map_bytes: int = MAP_BYTES
) -> Compacted | None:
    """Make the pass that is due, or return None."""
    due = await survey(log, now_ms, {})
    if due is None:
        return None
    worker = ThreadWorker("test")
    try:
        tools = Tools(worker, at_once, SEED, map_bytes)
        with trio.fail_after(30):
            return await compact(log, due, tools, now_ms=now_ms, proven_ms=now_ms)
    finally:
        worker.close()


async def test_only_the_newest_record_of_each_key_stays(with_log: OpenLog) -> None:
    async with with_log(cleanup_policy="compact") as log:
        for number in range(10):
            add(log, keyed(("a", f"a{number}"), (f"k{number}", "once")))
        await committed(log)
        log.roll()
        done = await cleaned(log)
        assert done is not None
        assert done.cleaned_to == 20
        assert done.size_after < done.size_before
        found = {r.key: (r.offset, r.value) for r in await everything(log)}
        assert found.pop(b"a") == (18, b"a9")
        assert found == {f"k{n}".encode(): (2 * n + 1, b"once") for n in range(10)}
        assert len(await everything(log)) == 11
        assert state_of(log).cleaned_to == 20
        assert await cleaned(log) is None
