"""The compiled codec against the pure one: the same results, the same errors, on any input.

Nightly, the same with many more damaged payloads: `pytest -m nightly tests/record`.
"""

import os
import random
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.record.implementations import load

import odradek.record
from odradek.errors import KafkaError
from odradek.record import kernel, pure
from odradek.record.layout import encode_record, encode_varint

MIN, MAX = -(2**63), 2**63 - 1

# A machine with much else to do says nothing about the codec.
patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

_bytes = st.none() | st.binary(max_size=80)
_headers = st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=9)), max_size=3)
_int64 = st.integers(MIN, MAX) | st.integers(-3, 3) | st.sampled_from([MIN, MIN + 1, MAX - 1, MAX])
_int32 = st.integers(-(2**31), 2**31 - 1) | st.integers(0, 99)
_records = st.lists(st.tuples(_int32, _int64, _bytes, _bytes, _headers), max_size=8)


@pytest.fixture(scope="module")
def compiled() -> Any:
    return load("compiled")


def _outcome(call: Any) -> Any:
    try:
        return call()
    except (KafkaError, OverflowError) as error:
        return type(error), str(error)


def _columns(module: Any, start: int, end: int, *arguments: Any) -> Any:
    def run() -> Any:
        collector = module.ColumnCollector(True)
        collector.add(*arguments, start, end)
        collector.add(*arguments, start, end)
        made = collector.finish(3)
        headers = made.headers
        binaries = [made.keys, made.values, headers.names, headers.values]
        return (
            [view.tolist() for view in (made.offsets, made.timestamps, headers.offsets)],
            [(*[b and (b.tolist(), b.format) for b in c.buffers], c.null_count) for c in binaries],
            made.position,
        )

    return _outcome(run)


def _compare(compiled: Any, payload: bytes, count: int, base: int, time: int, fixed: Any) -> None:
    arguments = (memoryview(payload), count, base, time, fixed)
    expected = _outcome(lambda: pure.decode(*arguments))
    assert _outcome(lambda: compiled.decode(*arguments)) == expected
    for start, end in ((MIN, MAX), (min(base, MAX - 3) + 1, min(base, MAX - 3) + 3)):
        assert _columns(compiled, start, end, *arguments) == _columns(pure, start, end, *arguments)
    for parse in (_parsed, _parsed_first):
        assert parse(compiled, payload, count) == parse(pure, payload, count)


def _parsed(module: Any, payload: bytes, count: int) -> Any:
    return _outcome(lambda: list(module.parse_records(payload, count)))


def _parsed_first(module: Any, payload: bytes, count: int) -> Any:
    """What is told before the damage."""
    records = module.parse_records(payload, count)
    return [_outcome(lambda: next(records, None)) for _ in range(2)]


@patient
@given(_records, _int64, _int64, st.none() | _int64, st.integers(-2, 2))
def test_sound_payloads_and_wrong_counts(compiled, records, base, time, fixed, off):
    payload = b"".join(encode_record(*one) for one in records)
    _compare(compiled, payload, len(records) + off, base, time, fixed)


@patient
@given(_records, st.data())
def test_damaged_payloads(compiled, records, data):
    payload = bytearray(b"".join(encode_record(*one) for one in records))
    for _ in range(data.draw(st.integers(1, 3))):
        if payload:
            position = data.draw(st.integers(0, len(payload) - 1))
            payload[position] = data.draw(st.integers(0, 255))
    size = data.draw(st.integers(0, len(payload)) | st.just(len(payload)))
    _compare(compiled, bytes(payload[:size]), len(records), 5, 5, None)


@patient
@given(st.binary(max_size=60), st.integers(0, 4) | st.sampled_from([-1, 2**31 - 1]))
@example(b"\x10\x00\x00\x00\x01\x01\x80\x80\x00", 1)  # a header count of zero in three bytes
def test_noise(compiled, payload, count):
    _compare(compiled, payload, count, 0, 0, None)


@pytest.mark.parametrize("field", range(7))
@pytest.mark.parametrize(
    "varint",
    [
        *(encode_varint(n) for n in (0, -1, 1, 63, 64, -65, 2**31 - 1, 2**31, -(2**31) - 1)),
        *(encode_varint(n) for n in (MAX, MIN)),
        b"\x80" * 9 + b"\x02",
        b"\x80" * 10 + b"\x01",
        b"\xff" * 12,
        b"\x80\x00",
        b"\x80",
        b"",
    ],
)
def test_each_varint_of_a_record_at_its_limits(compiled, field, varint):
    """Length, timestamp delta, offset delta, key, value, header count, a header's key."""
    parts = [b"", b"\x00", b"\x00", b"\x02k", b"\x02v", b"\x02", b"\x02h", b"\x02w"]
    if field:
        parts[field] = varint
    body = b"\x00" + b"".join(parts)
    length = encode_varint(len(body)) if field else varint
    for payload in (length + body, length + body + b"\x00" * 80):
        for base in (0, MIN, MAX):
            _compare(compiled, payload, 1, base, base, None)


def _sample() -> bytes:
    rows = [
        (i, i * i, b"k%d" % i, b"v" * i, [("ü", None), ("b", b"\xff")][: i % 3]) for i in range(9)
    ]
    return b"".join(encode_record(*row) for row in rows)


def test_every_truncation_and_every_flipped_bit(compiled):
    payload = _sample()
    for size in range(len(payload)):
        _compare(compiled, payload[:size], 9, 0, 0, None)
    for position in range(len(payload)):
        for bit in range(8):
            damaged = bytearray(payload)
            damaged[position] ^= 1 << bit
            _compare(compiled, bytes(damaged), 9, 0, 0, None)


@pytest.mark.nightly
def test_many_damaged_payloads(compiled):
    seed = int(os.environ.get("ODRADEK_SEED", random.randrange(2**32)))
    print(f"ODRADEK_SEED={seed}")
    chance = random.Random(seed)
    payload = _sample()
    for _ in range(int(os.environ.get("ODRADEK_FUZZ_ROUNDS", "100000"))):
        damaged = bytearray(payload)
        for _ in range(chance.randint(1, 4)):
            damaged[chance.randrange(len(damaged))] = chance.choice(
                [0, 1, 127, 128, 255, chance.randrange(256)]
            )
        cut = chance.choice([len(damaged), chance.randrange(len(damaged))])
        _compare(compiled, bytes(damaged[:cut]), 9, 0, 0, None)


def test_sound_payloads_are_not_left_to_pure_python(compiled, monkeypatch):
    """The results would be right without the compiled code doing anything: this says it does."""
    payload = _sample()
    for name in ("decode", "parse_records"):
        monkeypatch.setattr(pure, name, None)
    assert len(compiled.decode(payload, 9, 0, 0, None)) == 9
    assert len(list(compiled.parse_records(payload, 9))) == 9


def test_records_are_of_the_same_class_and_as_good_as_any(compiled):
    ours = compiled.decode(_sample(), 9, 0, 0, None)
    theirs = pure.decode(_sample(), 9, 0, 0, None)
    assert [type(record) for record in ours] == [odradek.record.Record] * 9
    assert [hash(record) for record in ours] == [hash(record) for record in theirs]
    assert ours[2]._replace(offset=77) == (77, *theirs[2][1:])
    assert {*ours} == {*theirs}


@patient
@given(st.binary(max_size=70))
def test_murmur2(compiled, key):
    assert compiled.murmur2(key) == pure.murmur2(key)


@pytest.mark.parametrize("name", ["pure", "compiled"])
@pytest.mark.parametrize(
    ("key", "expected"),
    [
        # From Apache Kafka's UtilsTest.testMurmur2.
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_is_javas(name, key, expected):
    assert load(name).murmur2(key) == expected


def test_the_compiled_codec_is_in_force_where_it_is_installed(compiled):
    if os.environ.get("ODRADEK_PURE_PYTHON", "0") in {"", "0"}:
        assert compiled.INTERFACE == kernel.INTERFACE
        assert odradek.record.accelerated
        assert odradek.record.implementation().startswith("compiled (Cython ")
        assert odradek.record.BatchBuilder is compiled.BatchBuilder


@pytest.mark.parametrize(("value", "forced"), [("1", True), ("0", False), ("", False)])
def test_the_environment_forces_pure_python(compiled, value, forced):
    script = "from odradek import record; print(record.accelerated, record.implementation())"
    answer = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "ODRADEK_PURE_PYTHON": value},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert answer.startswith("False pure Python (ODRADEK_PURE_PYTHON" if forced else "True comp")


def _without(monkeypatch: pytest.MonkeyPatch, module: Any) -> tuple[Any, str]:
    monkeypatch.setattr(kernel, "PURE_PYTHON", False)
    monkeypatch.setitem(sys.modules, "odradek.record._accelerated", module)
    if module is not None:
        monkeypatch.setattr(odradek.record, "_accelerated", module, raising=False)
    return kernel._choose()


def test_pure_python_is_in_force_where_nothing_else_is_installed(monkeypatch):
    module, text = _without(monkeypatch, None)
    assert module is pure
    assert text == "pure Python (the compiled module is not installed)"


def test_a_compiled_module_of_other_sources_is_left_aside(monkeypatch):
    class Old:
        INTERFACE = kernel.INTERFACE - 1

    module, text = _without(monkeypatch, Old)
    assert module is pure
    assert "install again" in text
