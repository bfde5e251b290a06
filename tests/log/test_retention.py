"""Which segments are due: the plan against Kafka's rules, word by word, and single promises."""

from __future__ import annotations

from uuid import UUID

from attrs import evolve, frozen
from hypothesis import given
from hypothesis import strategies as st

from odradek.config import TopicSettings
from odradek.contracts.storage import LogSnapshot, SegmentInfo
from odradek.log.clock import Spell
from odradek.log.retention import Retention, plan, roll_after_ms
from odradek.types import PartitionKey

NOW = 1_700_000_000_000
KEY = PartitionKey(UUID(int=7), 3)


def log(
    *sizes: int, ages: list[int] | None = None, log_start: int = 0, start: int = 0
) -> LogSnapshot:
    """Segments of 10 offsets each, the last one active; `ages` of their newest records in ms."""
    ages = ages or [0] * len(sizes)
    segments = [
        SegmentInfo(
            id=100 + number,
            base_offset=start + number * 10,
            end_offset=start + number * 10 + (10 if size else 0),
            size=size,
            max_timestamp=NOW - age if size else -1,
            max_timestamp_offset=start + number * 10,
            created_ms=NOW,
            sealed=number + 1 < len(sizes),
        )
        for number, (size, age) in enumerate(zip(sizes, ages, strict=True))
    ]
    return LogSnapshot(tuple(segments), log_start, segments[-1].end_offset, ())


def topic(**settings: int | str) -> TopicSettings:
    return TopicSettings.parse({k.replace("_", "."): str(v) for k, v in settings.items()})


def due(snapshot: LogSnapshot, *, high_watermark: int | None = None, **settings: int | str):
    end = snapshot.segments[-1].end_offset if high_watermark is None else high_watermark
    return plan(snapshot, end, topic(**settings), NOW)


# -- Kafka's own words -------------------------------------------------------------------------


@frozen
class Kafka:
    """`UnifiedLog.deleteOldSegments` of Apache Kafka 4, as it is: one rule after the other."""

    segments: tuple[SegmentInfo, ...]
    log_start: int
    high_watermark: int
    rolled: bool = False

    def delete(self, predicate) -> Kafka:
        segments = list(self.segments)
        gone = 0
        while gone < len(segments):
            segment = segments[gone]
            following = segments[gone + 1] if gone + 1 < len(segments) else None
            upper = following.base_offset if following else segment.end_offset
            empty_last = following is None and segment.size == 0
            if self.high_watermark < upper or empty_last or not predicate(segment, following):
                break
            gone += 1
        if gone == 0:
            return self
        if gone == len(segments):
            end = segments[-1].end_offset
            new = evolve(segments[-1], id=-1, base_offset=end, end_offset=end, size=0)
            return evolve(self, segments=(new,), log_start=max(end, self.log_start), rolled=True)
        start = max(segments[gone].base_offset, self.log_start)
        return evolve(self, segments=tuple(segments[gone:]), log_start=start)

    def retained(self, settings: TopicSettings) -> Kafka:
        log = self.delete(
            lambda segment, following: (
                following is not None and following.base_offset <= self.log_start
            )
        )
        if "delete" not in settings.cleanup_policy:
            return log
        if settings.retention_bytes >= 0:
            excess = sum(segment.size for segment in log.segments) - settings.retention_bytes

            def too_many(segment: SegmentInfo, _: object) -> bool:
                nonlocal excess
                if excess - segment.size < 0:
                    return False
                excess -= segment.size
                return True

            if excess >= 0:
                log = log.delete(too_many)
        if settings.retention_ms >= 0:

            def too_old(segment: SegmentInfo, _: object) -> bool:
                newest = segment.max_timestamp if segment.max_timestamp >= 0 else segment.created_ms
                return NOW - newest > settings.retention_ms

            log = log.delete(too_old)
        return log


@st.composite
def logs(draw: st.DrawFn) -> tuple[LogSnapshot, int, TopicSettings]:
    segments: list[SegmentInfo] = []
    offset = draw(st.integers(0, 5))
    count = draw(st.integers(1, 8))
    for number in range(count):
        active = number == count - 1
        length = draw(st.integers(0 if active else 1, 5))
        segments.append(
            SegmentInfo(
                id=number,
                base_offset=offset,
                end_offset=offset + length,
                size=length * draw(st.integers(0 if not active else 1, 3)),
                max_timestamp=draw(st.one_of(st.just(-1), st.integers(NOW - 10, NOW + 5))),
                max_timestamp_offset=offset,
                created_ms=NOW - draw(st.integers(-5, 10)),
                sealed=not active,
            )
        )
        offset += length + (0 if active else draw(st.integers(0, 2)))  # compaction leaves gaps
    end = segments[-1].end_offset
    start = draw(st.integers(segments[0].base_offset, end))
    watermark = draw(st.integers(start, end))
    settings = topic(
        cleanup_policy=draw(st.sampled_from(["delete", "compact", "compact,delete"])),
        retention_ms=draw(st.integers(-1, 10)),
        retention_bytes=draw(st.integers(-1, 30)),
    )
    return LogSnapshot(tuple(segments), start, end, ()), watermark, settings


@given(logs())
def test_plan_is_what_kafka_does(case: tuple[LogSnapshot, int, TopicSettings]) -> None:
    snapshot, watermark, settings = case
    kafka = Kafka(snapshot.segments, snapshot.log_start, watermark).retained(settings)
    found = plan(snapshot, watermark, settings, NOW)
    kept = {segment.id for segment in kafka.segments}
    gone = tuple(segment.id for segment in snapshot.segments if segment.id not in kept)
    if found is None:
        assert gone == ()
        return
    assert found.remove == gone
    assert found.log_start == kafka.log_start
    assert found.roll == kafka.rolled
    assert found.below_start + found.by_size + found.by_time == len(gone)
    assert found.size == sum(s.size for s in snapshot.segments if s.id in gone)


@given(logs())
def test_active_segment_stays_where_it_may_not_be_rolled(
    case: tuple[LogSnapshot, int, TopicSettings],
) -> None:
    snapshot, watermark, settings = case
    free = plan(snapshot, watermark, settings, NOW)
    held = plan(snapshot, watermark, settings, NOW, may_roll=False)
    active = snapshot.segments[-1].id
    removed = free.remove if free else ()
    assert (held.remove if held else ()) == tuple(i for i in removed if i != active)
    assert held is None or not held.roll


# -- promise by promise ------------------------------------------------------------------------


def test_segment_goes_by_its_newest_record() -> None:
    old = log(5, 5, 5, ages=[2000, 1001, 1000])
    assert due(old, retention_ms=1000) == Retention((100, 101), 20, False, 0, 0, 2, 10)
    assert due(old, retention_ms=2000) is None


def test_old_segment_behind_a_younger_one_stays() -> None:
    assert due(log(5, 5, 5, ages=[0, 9999, 0]), retention_ms=1000) is None


def test_segment_without_timestamps_is_as_old_as_its_creation() -> None:
    snapshot = log(5, 5)
    first = evolve(snapshot.segments[0], max_timestamp=-1, created_ms=NOW - 1001)
    snapshot = evolve(snapshot, segments=(first, snapshot.segments[1]))
    found = due(snapshot, retention_ms=1000)
    assert found is not None
    assert found.remove == (100,)
    assert due(snapshot, retention_ms=1001) is None


def test_as_many_bytes_stay_as_are_asked_for() -> None:
    snapshot = log(5, 5, 5, 5)
    for limit, gone in ((20, 0), (16, 0), (15, 1), (11, 1), (10, 2), (5, 3), (1, 3), (0, 4)):
        found = due(snapshot, retention_bytes=limit, retention_ms=-1)
        assert len(found.remove if found else ()) == gone, limit


def test_records_of_the_future_stay() -> None:
    assert due(log(5, 5, ages=[-(10**12), 0]), retention_ms=0) is None


def test_nothing_is_due_that_may_not_be_read_yet() -> None:
    snapshot = log(5, 5, 5, ages=[9999] * 3)
    for watermark, gone in ((9, 0), (10, 1), (19, 1), (20, 2), (29, 2), (30, 3)):
        found = due(snapshot, high_watermark=watermark, retention_ms=1000)
        assert len(found.remove if found else ()) == gone, watermark


def test_active_segment_is_rolled_when_all_is_due() -> None:
    found = due(log(5, 5, ages=[9999, 9999]), retention_ms=1000)
    assert found == Retention((100, 101), 20, True, 0, 0, 2, 10)


def test_empty_active_segment_stays() -> None:
    found = due(log(5, 0, ages=[9999, 9999]), retention_ms=1000)
    assert found == Retention((100,), 10, False, 0, 0, 1, 5)
    assert due(log(0), retention_ms=0, retention_bytes=0) is None


def test_compacted_log_only_loses_what_is_below_its_start() -> None:
    old = log(5, 5, 5, ages=[9999] * 3, log_start=13)
    found = due(old, retention_ms=0, retention_bytes=0, cleanup_policy="compact")
    assert found == Retention((100,), 13, False, 1, 0, 0, 5)
    both = due(old, retention_ms=0, cleanup_policy="compact,delete")
    assert both is not None
    assert (both.below_start, both.by_time) == (1, 2)


def test_log_start_never_goes_back() -> None:
    found = due(log(5, 5, 5, log_start=25), cleanup_policy="compact")
    assert found is not None
    assert (found.remove, found.log_start) == ((100, 101), 25)


def test_reasons_are_named() -> None:
    old = log(5, 5, 5, 5, ages=[9999, 9999, 9999, 0], log_start=10)
    found = due(old, retention_ms=1000, retention_bytes=10)
    assert found is not None
    assert found.reason == "1 below the log start offset, 1 by retention.bytes, 1 by retention.ms"


def test_records_of_a_spell_are_as_young_as_its_end() -> None:
    """Written under a wall clock that was back a year, they look a year old."""
    year = 365 * 24 * 3600 * 1000
    snapshot = log(5, 5, ages=[year, 0])
    spell = Spell(NOW - year - 100, NOW - year + 100, NOW - 500)
    settings = topic(retention_ms=1000)
    assert plan(snapshot, 20, settings, NOW) is not None
    assert plan(snapshot, 20, settings, NOW, spells=[spell]) is None
    assert plan(snapshot, 20, settings, NOW + 501, spells=[spell]) is not None
    other = spell._replace(to_ms=NOW - year - 1)
    assert plan(snapshot, 20, settings, NOW, spells=[other]) is not None


# -- rolling -----------------------------------------------------------------------------------


@given(
    st.integers(1, 2**63 - 1),
    st.integers(0, 2**63 - 1),
    st.integers(0, 2**40),
    st.integers(0, 999),
)
def test_jitter_is_the_same_each_time_and_within_its_bounds(
    segment_ms: int, jitter_ms: int, offset: int, partition: int
) -> None:
    settings = topic(segment_ms=segment_ms, segment_jitter_ms=jitter_ms)
    key = PartitionKey(KEY.topic_id, partition)
    age = roll_after_ms(settings, key, offset)
    assert age == roll_after_ms(settings, key, offset)
    assert 1 <= age <= segment_ms
    assert segment_ms - age <= jitter_ms


def test_jitter_spreads_partitions_and_segments_evenly() -> None:
    settings = topic(segment_ms=1_000_000, segment_jitter_ms=800_000)
    partitions = [
        roll_after_ms(settings, PartitionKey(KEY.topic_id, number), 0) for number in range(1000)
    ]
    segments = [roll_after_ms(settings, KEY, number * 1000) for number in range(1000)]
    for ages in (partitions, segments):
        for quarter in range(4):
            low = 200_000 + quarter * 200_000
            assert 150 < sum(low < age <= low + 200_000 for age in ages) < 350


def test_compacted_log_is_rolled_by_its_largest_compaction_lag() -> None:
    values = {"segment_ms": 5000, "max_compaction_lag_ms": 700}
    assert roll_after_ms(topic(**values), KEY, 0) == 5000
    assert roll_after_ms(topic(**values, cleanup_policy="compact"), KEY, 0) == 700
    assert roll_after_ms(topic(**values, cleanup_policy="compact,delete"), KEY, 0) == 700
