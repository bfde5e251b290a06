"""The sequence numbers of idempotent producers: which batch is new, a retry, or out of order."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.errors import ErrorCode, KafkaError
from odradek.log.producers import BATCHES_KEPT, SEQUENCE_WRAP, DamagedSnapshot, Producers
from odradek.record import BatchMeta

LAST = SEQUENCE_WRAP - 1


def meta(
    sequence: int,
    count: int = 1,
    *,
    epoch: int = 0,
    pid: int = 1,
    offset: int = 0,
    timestamp: int = 1000,
    control: bool = False,
) -> BatchMeta:
    return BatchMeta(
        base_offset=offset,
        last_offset=offset + count - 1,
        size=61 + 10 * count,
        leader_epoch=0,
        attributes=0x20 if control else 0,
        base_timestamp=timestamp,
        max_timestamp=timestamp,
        producer_id=pid,
        producer_epoch=epoch,
        base_sequence=sequence,
        record_count=count,
    )


def holding(*batches: BatchMeta, limit: int = 16_384) -> Producers:
    producers = Producers(limit)
    for each in batches:
        producers.update(each)
    return producers


FIVE = [meta(n * 10, 10, offset=n * 10) for n in range(5)]
SIX = [meta(n * 10, 10, offset=n * 10) for n in range(6)]

APPENDED = "append"
OUT_OF_ORDER = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
FENCED = ErrorCode.INVALID_PRODUCER_EPOCH


@pytest.mark.parametrize(
    ("before", "sent", "expected"),
    [
        pytest.param([], meta(0), APPENDED, id="unknown producer, first batch"),
        pytest.param([], meta(4711), APPENDED, id="unknown producer, history gone"),
        pytest.param([], meta(5, epoch=9), APPENDED, id="unknown producer, any epoch"),
        pytest.param(FIVE, meta(50), APPENDED, id="the next one"),
        pytest.param(FIVE, meta(51), OUT_OF_ORDER, id="a gap"),
        pytest.param(FIVE, meta(49), OUT_OF_ORDER, id="overlaps the last"),
        pytest.param(FIVE, meta(40, 10), 40, id="retry of the newest"),
        pytest.param(FIVE, meta(20, 10), 20, id="retry of the middle"),
        pytest.param(FIVE, meta(0, 10), 0, id="retry of the fifth"),
        pytest.param(SIX, meta(0, 10), OUT_OF_ORDER, id="retry of the sixth: forgotten"),
        pytest.param(SIX, meta(10, 10), 10, id="the fifth of six"),
        pytest.param(FIVE, meta(40, 9), OUT_OF_ORDER, id="retry that became shorter"),
        pytest.param(FIVE, meta(40, 11), OUT_OF_ORDER, id="retry that became longer"),
        pytest.param(FIVE, meta(0, 1, epoch=1), APPENDED, id="new epoch from 0"),
        pytest.param(FIVE, meta(0, 10, epoch=1), APPENDED, id="new epoch: no retry of the old"),
        pytest.param(FIVE, meta(50, epoch=1), OUT_OF_ORDER, id="new epoch goes on counting"),
        pytest.param([meta(0, epoch=3)], meta(1, epoch=2), FENCED, id="old epoch"),
        pytest.param([meta(0, epoch=3)], meta(0, epoch=2), FENCED, id="old epoch, seen sequence"),
        pytest.param([meta(LAST)], meta(0), APPENDED, id="wraps to 0"),
        pytest.param([meta(LAST)], meta(1), OUT_OF_ORDER, id="wraps past 0"),
        pytest.param([meta(LAST - 4, 10)], meta(5), APPENDED, id="a batch across the wrap"),
        pytest.param([meta(LAST - 4, 10, offset=7)], meta(LAST - 4, 10), 7, id="its retry"),
        pytest.param([meta(LAST - 4, 10)], meta(6), OUT_OF_ORDER, id="a gap behind the wrap"),
        pytest.param([meta(0, pid=2)], meta(7, pid=1), APPENDED, id="another producer's"),
        pytest.param(
            [meta(0), meta(-1, control=True, offset=1)], meta(1), APPENDED, id="marker between"
        ),
    ],
)
def test_check_tells_new_batches_from_retries_and_gaps(
    before: list[BatchMeta], sent: BatchMeta, expected: object
) -> None:
    producers = holding(*before)
    if isinstance(expected, ErrorCode):
        with pytest.raises(KafkaError) as caught:
            producers.check(sent)
        assert caught.value.code is expected
    elif expected == APPENDED:
        assert producers.check(sent) is None
    else:
        seen = producers.check(sent)
        assert seen is not None
        assert seen.base_offset == expected
        assert seen.last_offset == seen.base_offset + sent.record_count - 1


def test_check_changes_nothing() -> None:
    producers = holding(*FIVE)
    before = producers.snapshot(50)
    producers.check(meta(50))
    producers.check(meta(0, 10))
    with pytest.raises(KafkaError):
        producers.check(meta(77))
    producers.check(meta(0, pid=99))
    assert producers.snapshot(50) == before


def test_new_epoch_forgets_the_batches_of_the_old() -> None:
    producers = holding(*FIVE, meta(0, epoch=1, offset=50))
    state = producers.get(1)
    assert state is not None
    assert (state.epoch, [b.base_offset for b in state.batches]) == (1, [50])


def test_snapshot_comes_back_whole() -> None:
    producers = holding(*FIVE, meta(LAST, pid=2, epoch=7, offset=50, timestamp=-1))
    data = producers.snapshot(51)
    restored = Producers()
    restored.update(meta(0, pid=3))
    assert restored.restore(data) == 51
    assert restored.snapshot(51) == data
    assert len(restored) == 2
    assert restored.get(3) is None


def test_snapshot_of_nothing_comes_back() -> None:
    assert Producers().restore(Producers().snapshot(0)) == 0


def test_snapshot_with_any_flipped_bit_is_refused_and_changes_nothing() -> None:
    data = holding(*FIVE).snapshot(50)
    restored = holding(meta(0, pid=3))
    for position in range(len(data)):
        if position in (2, 3):
            continue  # padding
        damaged = bytearray(data)
        damaged[position] ^= 1 << position % 8
        with pytest.raises(DamagedSnapshot):
            restored.restore(bytes(damaged))
    assert restored.get(3) is not None


def test_snapshot_cut_anywhere_is_refused() -> None:
    data = holding(*FIVE).snapshot(50)
    for length in range(len(data)):
        with pytest.raises(DamagedSnapshot):
            Producers().restore(data[:length])


def test_snapshot_of_a_newer_version_is_refused() -> None:
    data = bytearray(holding(*FIVE).snapshot(50))
    struct.pack_into(">H", data, 0, 2)
    with pytest.raises(DamagedSnapshot, match="version 2"):
        Producers().restore(bytes(data))


def test_producers_beyond_the_limit_push_out_those_that_wrote_least_recently() -> None:
    producers = Producers(limit=10)
    for pid in range(10):
        producers.update(meta(0, pid=pid, offset=pid))
    producers.update(meta(1, pid=0, offset=10))
    producers.update(meta(0, pid=10, offset=11))
    assert len(producers) <= 10
    assert producers.get(0) is not None, "it has written meanwhile"
    assert producers.get(10) is not None, "it writes just now"
    assert producers.get(1) is None
    for pid in range(11, 1000):
        producers.update(meta(0, pid=pid, offset=pid + 1))
        assert len(producers) <= 10
        assert producers.get(pid) is not None


def test_old_timestamps_do_not_make_a_producer_be_forgotten() -> None:
    producers = Producers(limit=100)
    producers.update(meta(0, pid=1, offset=0, timestamp=1))
    for pid in range(2, 90):
        producers.update(meta(0, pid=pid, offset=pid, timestamp=2_000_000_000_000))
    assert producers.get(1) is not None


def test_full_snapshot_fits_into_the_blobs_of_a_log() -> None:
    from odradek.contracts.storage import MAX_BLOB_BYTES

    producers = Producers()
    offset = 0
    for pid in range(20_000):
        for sequence in range(BATCHES_KEPT):
            producers.update(meta(sequence, pid=pid, offset=offset))
            offset += 1
    assert len(producers.snapshot(offset)) < MAX_BLOB_BYTES // 4


def test_truncate_forgets_what_reaches_to_the_new_end() -> None:
    producers = holding(*FIVE, meta(0, pid=2, offset=50))
    producers.truncate(45)
    state = producers.get(1)
    assert state is not None
    assert [b.base_offset for b in state.batches] == [0, 10, 20, 30]
    assert producers.get(2) is None
    assert producers.check(meta(40, 10)) is None


class Model:
    """The rules as Kafka's documents put them, over the whole history, without any economy."""

    def __init__(self) -> None:
        self.log: list[BatchMeta] = []

    def expected(self, sent: BatchMeta) -> object:
        mine = [b for b in self.log if b.producer_id == sent.producer_id]
        if not mine:
            return APPENDED
        epoch = mine[-1].producer_epoch
        if sent.producer_epoch < epoch:
            return FENCED
        if sent.producer_epoch > epoch:
            return APPENDED if sent.base_sequence == 0 else OUT_OF_ORDER
        recent = [b for b in mine if b.producer_epoch == epoch][-5:]
        if sent.base_sequence == (recent[-1].base_sequence + recent[-1].record_count) % 2**31:
            return APPENDED
        for b in recent:
            if (b.base_sequence, b.record_count) == (sent.base_sequence, sent.record_count):
                return b.base_offset
        return OUT_OF_ORDER


sends = st.lists(
    st.tuples(
        st.integers(0, 2),  # producer
        st.integers(-1, 1),  # epoch, relative to the newest
        st.sampled_from(["next", "retry", "gap", "zero", "high"]),
        st.integers(1, 6),  # records
        st.integers(0, 6),  # how far back a retry reaches
        st.booleans(),  # pass through a snapshot before
    ),
    max_size=60,
)


@given(sends)
def test_producers_agree_with_a_model_that_keeps_everything(steps: list[tuple]) -> None:  # type: ignore[type-arg]  # six things
    producers, model = Producers(), Model()
    offset = 0
    for pid, shift, kind, length, back, reload in steps:
        count = length
        if reload:
            data = producers.snapshot(offset)
            producers = Producers()
            assert producers.restore(data) == offset
        mine = [b for b in model.log if b.producer_id == pid]
        epoch = max((mine[-1].producer_epoch if mine else 0) + shift, 0)
        sequence = 0
        if kind == "high":
            sequence = LAST - 2
        elif mine and kind == "next":
            sequence = (mine[-1].base_sequence + mine[-1].record_count) % 2**31
        elif mine and kind == "gap":
            sequence = (mine[-1].base_sequence + mine[-1].record_count + 1) % 2**31
        elif mine and kind == "retry":
            old = mine[-1 - min(back, len(mine) - 1)]
            sequence, count = old.base_sequence, old.record_count
        sent = meta(sequence, count, epoch=epoch, pid=pid, offset=offset)
        expected = model.expected(sent)
        assert decision(producers, sent) == expected
        if expected == APPENDED:
            producers.update(sent)
            model.log.append(sent)
            offset += count


def decision(producers: Producers, sent: BatchMeta) -> object:
    try:
        seen = producers.check(sent)
    except KafkaError as error:
        return error.code
    return APPENDED if seen is None else seen.base_offset
