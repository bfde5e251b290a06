"""What the settings of a topic mean for retention and compaction, seen through a broker."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.broker.peer import NOW, FixedHost, Peer, batch, code, connected, records_of, running
from tests.broker.settings import alter, log_of, shows

from odradek.broker import Broker
from odradek.broker.cleaning import Cleaning
from odradek.broker.retaining import Retaining
from odradek.log.partition import PartitionLog
from odradek.log.worker import InlineWorker
from odradek.record import BatchBuilder

# -- retention -------------------------------------------------------------------------------


@asynccontextmanager
async def kept(host: FixedHost, **settings: str) -> AsyncIterator[tuple[Broker, PartitionLog]]:
    """A broker that takes its clock as it is, and a log of six segments of the same size."""
    trusting = running(host=host, retention={"trust_clock": True})
    async with trusting as broker, connected(broker) as peer:
        size = len(batch(1, 1000))
        await peer.create("events", 1, 7, segment_bytes=str(size), **settings)
        for age in range(6):
            await peer.produce("events", batch(1, 1000, timestamp=NOW + age))
        log = log_of(broker, "events")
        assert len(log.segments) == 6
        yield broker, log


async def check_retention(broker: Broker) -> None:
    (retaining,) = (each for each in broker.upkeep.chores if isinstance(each, Retaining))
    await retaining.check()


@shows("retention.ms", "cleanup.policy")
@pytest.mark.parametrize(
    ("policy", "start"), [("delete", 3), ("compact,delete", 3), ("compact", 0)]
)
async def test_segments_go_when_their_newest_record_is_too_old(
    host: FixedHost, policy: str, start: int
) -> None:
    async with kept(host, retention_ms="1000") as (broker, log):
        async with connected(broker) as peer:
            assert await alter(peer, "cleanup.policy", policy) == ("NONE", None)
        host.now = NOW + 1003
        await check_retention(broker)
        assert log.log_start_offset == start


@shows("retention.bytes")
async def test_oldest_segments_go_when_the_log_is_too_large(host: FixedHost) -> None:
    size = len(batch(1, 1000))
    async with kept(host, retention_ms="-1", retention_bytes=str(2 * size)) as (broker, log):
        await check_retention(broker)
        assert log.log_start_offset == 4
        assert log.size == 2 * size


@shows("file.delete.delay.ms")
async def test_files_of_removed_segments_stay_for_a_while(host: FixedHost, tmp_path: Path) -> None:
    pytest.importorskip("odradek_storage_file")
    for delay, left in (("3600000", 2), ("0", 0)):
        directory = tmp_path / delay
        settings = {"segment.bytes": len(batch(1, 1000)), "file.delete.delay.ms": delay}
        async with (
            running(storage=f"file://{directory}", topics=settings, host=host) as broker,
            connected(broker) as peer,
        ):
            await peer.create("events")
            for _ in range(3):
                await peer.produce("events", batch(1, 1000))
            log = log_of(broker, "events")
            await log.trim(2)
            names = [path.name for path in directory.glob(f"{log.key.topic_id}-0/*")]
            assert sum(name.endswith(".log") for name in names) == 1
            assert sum(name.endswith(".deleted") for name in names) == left


# -- compaction ------------------------------------------------------------------------------


class Compacted:
    """A log whose batches are a segment each, compacted when it is asked for."""

    def __init__(self, broker: Broker, peer: Peer, host: FixedHost) -> None:
        self._broker = broker
        self.peer = peer
        self._host = host

    async def write(self, key: bytes | None, value: bytes | None = b"v" * 500) -> None:
        builder = BatchBuilder(4096)
        assert builder.append(self._host.now, key, value)
        assert code((await self.peer.produce("events", builder.build())).error_code) == "NONE"

    async def left(self) -> list[int]:
        """Compact as far as anything is due; return the offsets of the records that are left."""
        (cleaning,) = (each for each in self._broker.upkeep.chores if isinstance(each, Cleaning))
        while await cleaning.clean(InlineWorker()):
            pass
        found: list[int] = []
        end = log_of(self._broker, "events").high_watermark
        while not found or found[-1] + 1 < end:
            some = records_of(await self.peer.fetch("events", found[-1] + 1 if found else 0))
            found += [record.offset for record in some]
        return found


@asynccontextmanager
async def compacted(host: FixedHost, **settings: str) -> AsyncIterator[Compacted]:
    async with (
        running(host=host, retention={"trust_clock": True}, cleaner={"enabled": False}) as broker,
        connected(broker) as peer,
    ):
        await peer.create("events", 1, 7, cleanup_policy="compact", segment_bytes="600", **settings)
        yield Compacted(broker, peer, host)


@shows("min.cleanable.dirty.ratio", "cleanup.policy")
@pytest.mark.parametrize(("ratio", "left"), [("0.9", [1, 2, 3, 4]), ("0.3", [2, 3, 4])])
async def test_a_log_is_compacted_when_enough_of_it_is_dirty(
    host: FixedHost, ratio: str, left: list[int]
) -> None:
    async with compacted(host, min_cleanable_dirty_ratio=ratio) as log:
        for key in (b"b", b"b", b"a"):
            await log.write(key)
        assert await log.left() == [1, 2], "all of it is dirty at first"
        await log.write(b"b")
        assert await log.left() == [1, 2, 3], "the dirty segment has nothing that is outdated"
        await log.write(b"c")
        assert await log.left() == left


async def test_records_without_a_key_go_when_a_topic_becomes_compacted(host: FixedHost) -> None:
    async with compacted(host) as log:
        assert await alter(log.peer, "cleanup.policy", "delete") == ("NONE", None)
        for key in (b"a", None, None, b"a", b"b"):
            await log.write(key)
        assert await log.left() == [0, 1, 2, 3, 4]
        assert await alter(log.peer, "cleanup.policy", "compact") == ("NONE", None)
        assert await log.left() == [3, 4]


@shows("min.compaction.lag.ms")
async def test_a_young_record_is_not_compacted(host: FixedHost) -> None:
    async with compacted(host, min_compaction_lag_ms="1000") as log:
        for key in (b"a", b"a", b"b"):
            await log.write(key)
        host.now = NOW + 999
        assert await log.left() == [0, 1, 2]
        host.now = NOW + 1000
        assert await log.left() == [1, 2]


@shows("max.compaction.lag.ms")
async def test_an_old_record_is_compacted_however_little_is_dirty(host: FixedHost) -> None:
    async with compacted(host, min_cleanable_dirty_ratio="1", max_compaction_lag_ms="1000") as log:
        for key in (b"c", b"b", b"a"):
            await log.write(key)
        assert await log.left() == [0, 1, 2]
        await log.write(b"a")
        host.now = NOW + 1000
        assert await log.left() == [0, 1, 2, 3]
        host.now = NOW + 1001
        assert await log.left() == [0, 1, 3], "the last segment was ended for it"


@shows("delete.retention.ms")
async def test_a_tombstone_stays_for_a_while(host: FixedHost) -> None:
    async with compacted(host, delete_retention_ms="1000") as log:
        for key, value in ((b"a", b"v" * 500), (b"a", None), (b"b", b"v" * 500)):
            await log.write(key, value)
        await log.write(b"c")
        assert await log.left() == [1, 2, 3]
        host.now = NOW + 999
        assert await log.left() == [1, 2, 3]
        host.now = NOW + 1000
        assert await log.left() == [2, 3]
