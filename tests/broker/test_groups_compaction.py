"""Groups over a compacted `__consumer_offsets`: what they know is all there, in less to read."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from tests.broker.grouping import OFFSETS, Member, commit, committed, find
from tests.broker.peer import code, connected, running
from tests.broker.test_compaction import SOON, cleaned
from tests.log.test_compaction_model import stored

COMMITS = 60
GROUPS = {
    "initial_rebalance_delay_ms": 0,
    "offsets_partitions": 1,
    "offsets_segment_bytes": 4096,
}


@pytest.mark.parametrize("storage", ["memory", "file"])
async def test_groups_are_loaded_from_what_compaction_left(storage: str, tmp_path: Path) -> None:
    pytest.importorskip("odradek_storage_file")
    url = f"memory:{tmp_path.name}" if storage == "memory" else f"file://{tmp_path}/data"
    coordinator = f"memory:{tmp_path.name}"
    async with (
        running(
            storage=url,
            coordinator=coordinator,
            groups=GROUPS,
            cleaner=SOON,
            topics={"min.cleanable.dirty.ratio": 0},
        ) as broker,
        connected(broker) as peer,
    ):
        await broker.create_topic("t", partitions=2)
        assert code((await find(peer)).error_code) == "NONE"
        log = broker.topic(OFFSETS).log(0)
        for number in range(COMMITS):
            for group in ("a", "b"):
                assert await commit(peer, group, {("t", 0): number, ("t", 1): 7}) == ["NONE"] * 2
        member = await Member(peer, "members").enter()
        assert await member.commit({("t", 0): 3}) == ["NONE"]
        before = log.log_end_offset
        log.roll()
        await cleaned(log, before)
        assert log.log_end_offset == before
        assert len(await stored(log)) < 20
        # Compaction goes on beside a shard that answers: nothing of it is in its way.
        assert await commit(peer, "a", {("t", 0): COMMITS}) == ["NONE"]
    async with (
        running(storage=url, coordinator=coordinator, groups=GROUPS) as broker,
        connected(broker) as peer,
    ):
        assert code((await find(peer)).error_code) == "NONE"
        with trio.fail_after(10):
            while await commit(peer, "c", {("t", 0): 1}) != ["NONE"]:  # what a client does
                await trio.lowlevel.checkpoint()
        assert await committed(peer, "a", "t", 0, 1) == [COMMITS, 7]
        assert await committed(peer, "b", "t", 0, 1) == [COMMITS - 1, 7]
        assert await committed(peer, "members", "t", 0, 1) == [3, -1]
