"""Windows by the compiled module against pure Python: the same results, on any bytes.

Nightly, the same with many more: `pytest -m nightly tests/record`.
"""

import os
import random
import struct
import sys
import threading
from functools import partial
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.record.implementations import load
from tests.record.windows import (
    DAY,
    LIMIT,
    MAX,
    MIN,
    SEED,
    TIME,
    batch,
    hostile_batches,
    logs,
    outcome,
    rebased,
    sound_batches,
)

from odradek.errors import KafkaError
from odradek.record import CompressionType, crc32c, pure
from odradek.record.batch import ATTRIBUTES_POSITION, CRC_POSITION, HEADER_SIZE

patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.fixture(scope="module")
def compiled():
    return load("compiled")


def _compare(compiled, data, end, *, max_bytes=4096, base=0, now=TIME, producers=(), limit=LIMIT):
    """Note and clean by both; a copy of exactly these bytes, so that a sanitizer sees beyond."""
    view = memoryview(bytes(bytearray(data)))

    def run(module):
        offsets = module.OffsetMap(max_bytes, base, SEED)
        yield outcome(lambda: module.note_window(view, offsets, end, limit=limit))
        yield len(offsets), offsets.base_offset
        for expire in (True, False):
            clean = partial(
                module.clean_window,
                end_offset=end,
                now_ms=now,
                delete_retention_ms=DAY,
                last_of_producers=set(producers),
                limit=limit,
                expire=expire,
            )
            yield outcome(partial(clean, view, offsets))

    assert list(run(compiled)) == list(run(pure))


@patient
@given(
    logs(sound_batches() | hostile_batches()),
    st.sampled_from([32, 100, 4096]),
    st.integers(-3, 40),
    st.sampled_from([TIME, TIME - 2 * DAY, TIME + 2 * DAY, MAX - 1]),
    st.sets(st.integers(0, 20), max_size=5),
    st.integers(0, 90),
)
def test_any_window(compiled, log, max_bytes, below, now, producers, cut):
    data, end = log
    _compare(
        compiled,
        data[: len(data) - cut],
        end - below,
        max_bytes=max_bytes,
        base=max(0, end - 2 * below),
        now=now,
        producers=producers,
        limit=64 if cut % 2 else LIMIT,
    )


@patient
@given(logs(sound_batches()), st.data())
def test_damaged_windows(compiled, log, draw):
    data, end = bytearray(log[0]), log[1]
    for _ in range(draw.draw(st.integers(1, 3))):
        data[draw.draw(st.integers(0, len(data) - 1))] = draw.draw(st.integers(0, 255))
    _compare(compiled, bytes(data), end)


@patient
@given(st.binary(max_size=200), st.integers(MIN, MAX))
def test_noise(compiled, data, end):
    _compare(compiled, data, end)


def _sample() -> bytes:
    return b"".join(
        [
            batch(3, [(b"a", b"1"), (b"b", None), (None, b"3")], producer=4),
            batch(6, [(b"c", b"4"), (b"a", None)], deltas=[0, 3], last_offset=9),
            batch(10, [(b"c", None)], CompressionType.SNAPPY),
            batch(11, [], producer=5),
        ]
    )


def test_every_truncation(compiled):
    data = _sample()
    for size in range(len(data)):
        _compare(compiled, data[:size], 12)


@pytest.mark.parametrize("offset", [0, 2**40 - 5, 2**40 - 2, 2**40, 2**62, 2**63 - 4, 2**63 - 3])
def test_offsets_at_their_limits(compiled, offset):
    data = rebased(batch(0, [(b"a", b"1"), (b"b", None), (b"a", b"3")]), offset)
    for base in (0, max(0, offset - 5), min(offset + 1, MAX)):
        for end in (offset + 2, offset + 3, 2**70, -(2**70)):
            _compare(compiled, batch(0, [(b"z", b"1")])[: 61 * (base % 2)] + data, end, base=base)


def test_every_changed_byte_under_a_right_crc(compiled):
    """What a hostile producer may send: every byte behind the CRC, at its extremes."""
    data = bytearray(batch(0, [(b"a", b"1"), (b"b", None), (b"a", b"33")], producer=4))
    follow = batch(3, [(b"b", b"5")])
    for position in range(ATTRIBUTES_POSITION, len(data)):
        for value in (0, 1, 2, 6, 127, 128, 255):
            damaged = data[:]
            damaged[position] = value
            _compare(compiled, _sealed(damaged) + rebased(follow, 2**33), 2**34, producers={2})


def test_every_truncated_payload_under_a_right_crc(compiled):
    data = batch(0, [(b"a", b"1"), (b"b", None), (b"a", b"33")])
    for size in range(HEADER_SIZE, len(data)):
        cut = bytearray(data[:size])
        struct.pack_into(">i", cut, 8, size - 12)
        _compare(compiled, _sealed(cut), 9)
        _compare(compiled, _sealed(cut) + batch(3, [(b"b", b"5")]), 9)


def _sealed(data: bytearray) -> bytes:
    struct.pack_into(">I", data, CRC_POSITION, crc32c(memoryview(data)[ATTRIBUTES_POSITION:]))
    return bytes(data)


@pytest.mark.nightly
def test_many_hostile_windows(compiled):
    seed = int(os.environ.get("ODRADEK_SEED", random.randrange(2**32)))
    print(f"ODRADEK_SEED={seed}")
    chance = random.Random(seed)
    sample = _sample()
    ends = [0]
    while ends[-1] < len(sample):
        ends.append(ends[-1] + 12 + struct.unpack_from(">i", sample, ends[-1] + 8)[0])
    for _ in range(int(os.environ.get("ODRADEK_FUZZ_ROUNDS", "100000"))):
        data = b""
        for start, end in pairwise(ends):
            one = bytearray(sample[start:end])
            for _ in range(chance.randint(0, 3)):
                one[chance.randrange(ATTRIBUTES_POSITION, len(one))] = chance.choice(
                    [0, 1, 2, 127, 128, 255, chance.randrange(256)]
                )
            if chance.random() < 0.2:
                del one[chance.randrange(HEADER_SIZE, len(one) + 1) :]
                struct.pack_into(">i", one, 8, len(one) - 12)
            data += _sealed(one)
        _compare(
            compiled,
            data[: chance.choice([len(data), chance.randrange(len(data))])],
            chance.choice([12, 2**33]),
            max_bytes=chance.choice([32, 64, 4096]),
            now=chance.choice([TIME - DAY, TIME, TIME + DAY]),
            producers={chance.randrange(12), 2**31 + 3},
            limit=chance.choice([LIMIT, 8]),
        )


def test_a_window_that_another_thread_changes_is_an_error_at_most(compiled):
    """The broker never does that; memory is kept all the same (a sanitizer looks on)."""
    rows = [(b"%d" % (i % 50), b"v" * (i % 90)) for i in range(400)]
    original = b"".join(batch(400 * i, rows) for i in range(4))
    data = bytearray(original)
    stop = threading.Event()

    def write():
        chance = random.Random(5)
        while not stop.is_set():
            position = chance.randrange(len(data))
            data[position] ^= 1 << chance.randrange(8)
            data[position] = original[position]

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for _ in range(60):
            offsets = compiled.OffsetMap(1 << 14, 0, SEED)
            for work in (_note, _clean):
                try:
                    done = work(compiled, memoryview(data), offsets)
                except (KafkaError, BufferError):
                    continue
                assert done.position <= len(data)
    finally:
        stop.set()
        thread.join()


def test_windows_are_worked_through_without_the_gil(compiled):
    """Else the broker's event loop would stand still: here it would until the work is done."""
    rows = [(b"%d" % (i % 50), b"v" * 90) for i in range(400)]
    view = memoryview(b"".join(batch(400 * i, rows) for i in range(100)))
    offsets = compiled.OffsetMap(1 << 14, 0, SEED)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)  # nobody is made to give the GIL away
    try:
        for work in (_note, _clean):
            assert any(_is_interrupted(work, compiled, view, offsets) for _ in range(1000))
    finally:
        sys.setswitchinterval(interval)


def _is_interrupted(work, *arguments):
    """Whether this thread came to run between the beginning and the end of another's work."""
    begun, ended = threading.Event(), []

    def run():
        begun.set()
        work(*arguments)
        ended.append(True)

    thread = threading.Thread(target=run)
    thread.start()
    begun.wait()
    interrupted = not ended
    thread.join()
    return interrupted


def _note(module, view, offsets):
    return module.note_window(view, offsets, 10**6, limit=LIMIT)


def _clean(module, view, offsets):
    return module.clean_window(
        view,
        offsets,
        end_offset=10**6,
        now_ms=TIME,
        delete_retention_ms=DAY,
        last_of_producers={399},
        limit=LIMIT,
    )
