"""Looking after logs: deciding on retention, and what compaction is to the load of offsets."""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path
from uuid import UUID

from bench.compaction_broker import DONE
from bench.groups import answered, fill_offsets
from bench.target import started
from odradek.config import TopicSettings
from odradek.contracts.storage import LogSnapshot, SegmentInfo
from odradek.log.retention import plan, roll_after_ms
from odradek.types import PartitionKey

__all__ = ["offsets_load", "retention"]

Figures = dict[str, float]

NOW = 1_700_000_000_000
HOUR = 3_600_000
MIB = 1024 * 1024
PATIENCE = 120.0


def _log(segments: int) -> LogSnapshot:
    """A log with a segment of 1 MiB for each hour."""
    first = NOW - segments * HOUR
    infos = [
        SegmentInfo(
            id=number + 1,
            base_offset=1000 * number,
            end_offset=1000 * (number + 1),
            size=MIB,
            max_timestamp=first + HOUR * (number + 1),
            max_timestamp_offset=1000 * (number + 1) - 1,
            created_ms=first + HOUR * number,
            sealed=number + 1 < segments,
        )
        for number in range(segments)
    ]
    return LogSnapshot(tuple(infos), 0, infos[-1].end_offset, ())


def retention(segments: int = 10_000) -> Figures:
    """Deciding what is due of a log of so many segments, in milliseconds; the best of many."""
    log = _log(segments)
    end = log.durable_end
    half = segments // 2
    figures: Figures = {}
    for name, configs, due in (
        ("nothing due", {"retention.ms": "-1"}, 0),
        ("half due by time", {"retention.ms": str(half * HOUR - 1)}, half),
        ("half due by size", {"retention.ms": "-1", "retention.bytes": str(half * MIB)}, half),
        ("all due by time", {"retention.ms": "0"}, segments - 1),
    ):
        settings = TopicSettings.parse(configs)
        times = []
        for _ in range(20):
            begun = time.perf_counter()
            found = plan(log, end, settings, NOW)
            times.append(time.perf_counter() - begun)
            if (0 if found is None else len(found.remove)) != due:
                raise RuntimeError(f"{name}: {found}")
        figures[f"{name} ms"] = 1000 * min(times)
    settings = TopicSettings.parse({"segment.jitter.ms": str(HOUR)})
    key = PartitionKey(UUID(int=1), 0)
    begun = time.perf_counter()
    for info in log.segments:
        roll_after_ms(settings, key, info.base_offset)
    figures["jitter of each ms"] = 1000 * (time.perf_counter() - begun)
    return figures


def offsets_load(records: int = 200_000) -> Figures:
    """Loading a partition of `__consumer_offsets` before and after its compaction."""
    root = Path(tempfile.mkdtemp(prefix="odradek-bench-"))
    # Small segments: the active one is not compacted
    settings = ["groups.offsets_partitions=1", "groups.offsets_segment_bytes=1048576"]
    idle = [*settings, "cleaner.enabled=false"]
    try:
        with started(directory=root, settings=idle) as broker:
            written = fill_offsets(broker, records)
        with started(directory=root, settings=idle) as broker:
            before, _ = answered(broker)
        with started(directory=root, settings=[*settings, "cleaner.backoff_ms=50"]) as broker:
            deadline = time.monotonic() + PATIENCE
            while not (told := [m for each in broker.said() if (m := DONE.search(each))]):
                if time.monotonic() > deadline:
                    raise RuntimeError("the offsets were not compacted")
                time.sleep(0.1)
        with started(directory=root, settings=idle) as broker:
            after, _ = answered(broker)
        return {
            "records": written,
            "MB before": int(told[0][2]) / 1e6,
            "MB after": int(told[-1][3]) / 1e6,
            "loaded s, before": before,
            "loaded s, after": after,
            "before / after": before / after,
        }
    finally:
        shutil.rmtree(root, ignore_errors=True)
