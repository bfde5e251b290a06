"""Any log, noted and cleaned in windows of any size, against a dictionary."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.record.windows import (
    DAY,
    LIMIT,
    TIME,
    batch,
    clean,
    compact,
    joined,
    logs,
    new_map,
    sound_batches,
)

from odradek.record import (
    Cleaned,
    assemble,
    decode_records,
    iter_records,
    kernel,
    note_window,
    parse_header,
    scan,
)

pytestmark = pytest.mark.usefixtures("implementation")

# The function-scoped fixture is the module's: `implementation` has the scope of the module.
patient = settings(
    deadline=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


@patient
@given(logs(sound_batches()), st.integers(1, 400), st.integers(0, 3), st.data())
def test_any_log_against_a_dictionary(log, step, days, draw):
    """Read in windows of any size: each key's newest, each tombstone in time, and nothing else."""
    data, end = log
    now = TIME + days * DAY
    producers = set(draw.draw(st.lists(st.integers(0, end), max_size=4)))
    offsets = new_map()
    newest: dict[bytes, int] = {}
    opened = [
        (meta, decode_records(data, at))
        for meta, at in zip(*_walk(data), strict=True)
        if not meta.control
    ]
    for meta, records in opened:
        if not meta.transactional:
            newest |= {r.key: r.offset for r in records if r.key is not None}
    for noted in _in_windows(data, step, lambda v: note_window(v, offsets, end, limit=LIMIT)):
        assert not noted.full
    assert {key: offsets.get(key) for key in newest} == newest
    assert len(offsets) == len(newest)

    expected = []
    expire = True
    for meta, records in opened:
        if meta.transactional:
            expire = False
            expected += records
            continue
        horizon = meta.delete_horizon
        expired = expire and horizon is not None and now >= horizon
        expected += [
            r
            for r in records
            if r.key is not None and newest[r.key] == r.offset and not (r.value is None and expired)
        ]
    output = bytearray()
    results: list[Cleaned] = []

    def clean_next(view):
        expire = not any(cleaned.opaque for cleaned in results)
        results.append(clean(view, offsets, end, now, producers, expire=expire))
        return results[-1]

    for cleaned in _in_windows(data, step, clean_next):
        output += joined(cleaned)
        assert cleaned.metas == scan(memoryview(joined(cleaned))).metas
        assert cleaned.bytes_out == sum(map(len, cleaned.buffers))
    assert list(iter_records(output)) == expected
    metas, before = _walk(bytes(output))[0], _walk(data)[0]
    was = {meta.base_offset: meta for meta in before}
    for meta in metas:
        old = was[meta.base_offset]
        assert meta[:2] + meta[7:10] == old[:2] + old[7:10]
        whole = meta.control or meta.transactional
        assert whole or meta.record_count or meta.last_offset in producers
        assert meta.compression == (old.compression if meta.record_count else 0)
    ends = {meta.last_offset for meta in before}
    assert {meta.last_offset for meta in metas} >= producers & ends


def _walk(data):
    found = scan(memoryview(data))
    assert found.problem is None
    return found.metas, found.positions


def _in_windows(data, step, work):
    """Yield what `work` makes of windows of `step` bytes, or of one batch that is larger."""
    position = 0
    while position < len(data):
        size = max(step, parse_header(data, position).size)
        done = work(memoryview(data)[position : position + size])
        assert done.position
        position += done.position
        yield done


def test_cleaning_again_changes_nothing():
    rows = [(b"k%d" % (i % 7), None if i % 3 else b"v%d" % i) for i in range(40)]
    data = b"".join(batch(4 * i, rows[4 * i : 4 * i + 4], producer=3) for i in range(10))
    once = compact(data, producers={39})
    twice = compact(joined(once), producers={39})
    assert not twice.changed
    assert joined(twice) == joined(once)


def test_the_implementation_under_test_is_in_force(implementation):
    assert kernel.active is implementation
    assert type(new_map()) is implementation.OffsetMap
    assert assemble(parse_header(batch(0, [])), b"") == batch(0, [])
