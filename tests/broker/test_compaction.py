"""Compaction by a running broker: which logs, when, and what its clients see of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from tests.broker.peer import Peer, batch, connected, running

from odradek.log.cleaner import state_of
from odradek.log.partition import PartitionLog
from odradek.record import Record, iter_records, scan

SOON = {"backoff_ms": 5}
COMPACT = {"cleanup.policy": "compact", "segment.bytes": "1000"}


def storage(kind: str, tmp_path: Path) -> str:
    if kind == "memory":
        return "memory:"
    pytest.importorskip("odradek_storage_file")
    return f"file://{tmp_path}"


async def cleaned(log: PartitionLog, offset: int) -> None:
    """Wait until the log is compacted up to an offset."""
    with trio.fail_after(30):
        while state_of(log).cleaned_to < offset:  # noqa: ASYNC110  # nothing tells of it
            await trio.sleep(0.002)


async def consumed(peer: Peer, topic: str, start: int, end: int) -> list[Record]:
    """Read a topic as a client does: by the offset behind the last batch it was given."""
    found: list[Record] = []
    offset = start
    with trio.fail_after(30):
        while offset < end:
            data = await peer.fetch(topic, offset)
            assert data.error_code == 0
            view = memoryview(data.records or b"")  # type: ignore[arg-type]  # decoded: bytes-like
            batches = scan(view)
            assert batches.problem is None
            assert batches.metas, f"nothing to read at {offset}, before the end at {end}"
            found += [record for record in iter_records(view) if record.offset >= offset]
            offset = batches.metas[-1].next_offset
    return found


@pytest.mark.parametrize("kind", ["memory", "file"])
async def test_compacted_topic_keeps_the_newest_record_of_each_key(
    kind: str, tmp_path: Path
) -> None:
    async with (
        running(storage=storage(kind, tmp_path), cleaner=SOON, scrub={"bytes_per_s": 0}) as broker,
        connected(broker) as peer,
    ):
        await broker.create_topic("t", partitions=1, configs=COMPACT)
        log = broker.topic("t").log(0)
        sent: dict[bytes, int] = {}
        for number in range(50):
            keys = [f"k{(7 * number + i) % 20}".encode() for i in range(3)]
            result = await peer.produce("t", batch(3, keys=keys))
            for i, key in enumerate(keys):
                sent[key] = result.base_offset + i
        log.roll()
        await cleaned(log, 150)
        found = await consumed(peer, "t", 0, 150)
        assert {record.key: record.offset for record in found} == sent
        assert len(found) == len(sent)
