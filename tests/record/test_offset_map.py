"""The map of compaction: bounded, and as good as a dictionary until it is full."""

import random
import threading

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.record.implementations import load
from tests.record.windows import SEED, batch, new_map

from odradek.record import crc32c, note_window

patient = settings(
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


@pytest.fixture(scope="module")
def compiled():
    return load("compiled")


@pytest.mark.usefixtures("implementation")
class TestOffsetMap:
    @patient
    @given(
        st.lists(st.tuples(st.binary(max_size=3) | st.binary(max_size=40), st.integers(5, 99))),
        st.integers(32, 400),
    )
    def test_it_is_a_dictionary_until_it_is_full(self, notes, max_bytes):
        offsets = new_map(max_bytes, 10)
        model: dict[bytes, int] = {}
        for key, offset in notes:
            known = key in model or offset < 10
            assert offsets.put(key, offset) == (known or len(model) < offsets.capacity)
            if offset >= 10 and (known or len(model) < offsets.capacity):
                model[key] = max(model.get(key, 0), offset)
        assert len(offsets) == len(model)
        assert {key: offsets.get(key) for key, _ in notes} == {
            key: model.get(key) for key, _ in notes
        }

    def test_memory_is_bounded_and_proportional_to_what_is_expected(self):
        for max_bytes in (32, 33, 47, 48, 1000, 1 << 20):
            offsets = new_map(max_bytes)
            assert offsets.nbytes == max_bytes // 16 * 16
            assert offsets.capacity == max_bytes // 16 * 85 // 100
        for expected in (0, 1, 5, 1000, 54_321):
            offsets = new_map(1 << 20, expected=expected)
            assert expected <= offsets.capacity <= expected + 2
            assert offsets.nbytes <= 16 * (expected / 0.85 + 2)
        assert new_map(1 << 10, expected=10**12).nbytes == 1 << 10

    def test_a_full_map_still_answers(self):
        offsets = new_map(16 * 20)
        keys = [b"%d" % i for i in range(offsets.capacity)]
        assert all(offsets.put(key, i) for i, key in enumerate(keys))
        assert not offsets.put(b"another", 5)
        assert offsets.put(keys[0], 99)
        assert offsets.get(b"another") is None
        assert [offsets.get(key) for key in keys] == [99, *range(1, offsets.capacity)]

    def test_offsets_up_to_40_bits_above_the_base(self):
        base = 2**50
        offsets = new_map(base_offset=base)
        assert offsets.put(b"first", base)
        assert offsets.put(b"last", base + 2**40 - 2)
        assert (offsets.get(b"first"), offsets.get(b"last")) == (base, base + 2**40 - 2)
        with pytest.raises(OverflowError, match="too far"):
            offsets.put(b"beyond", base + 2**40 - 1)
        assert offsets.put(b"below", base - 1)
        assert offsets.get(b"below") is None

    def test_an_empty_key_is_a_key(self):
        offsets = new_map()
        assert offsets.put(b"", 3)
        assert offsets.get(b"") == 3

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            ((31, 0, SEED), "at least 32 bytes"),
            ((-5, 0, SEED), "at least 32 bytes"),
            ((64, 0, SEED[:15]), "16 bytes, not 15"),
            ((64, -1, SEED), "-1 is no offset"),
            ((64, 2**63, SEED), "is no offset"),
        ],
    )
    def test_what_makes_no_map_is_refused(self, implementation, arguments, words):
        with pytest.raises(ValueError, match=words):
            implementation.OffsetMap(*arguments)

    def test_another_seed_puts_keys_elsewhere(self, implementation):
        """Keys that collide under one seed do not under another: nobody can choose them."""
        keys = [b"%d" % i for i in range(200)]
        for seed in (SEED, SEED[::-1]):
            offsets = implementation.OffsetMap(16 * 400, 0, seed)
            assert all(offsets.put(key, i) for i, key in enumerate(keys))
            assert [offsets.get(key) for key in keys] == list(range(200))


def test_a_map_is_written_by_one_thread_at_a_time(compiled):
    """Two at once would fill the slot that ends every search."""
    rows = [(b"%d" % i, None) for i in range(2000)]
    data = memoryview(b"".join(batch(2000 * i, rows) for i in range(20)))
    offsets = compiled.OffsetMap(1 << 20, 0, SEED)
    started = threading.Barrier(2)
    refused = []

    def work():
        started.wait()
        for _ in range(5):
            try:
                compiled.note_window(data, offsets, 10**9, limit=1)
            except RuntimeError as error:
                refused.append(str(error))

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(refused) <= {"another thread writes to this map"}
    assert len(offsets) == 2000
    assert offsets.get(b"7") == 2000 * 19 + 7


def test_each_implementation_takes_its_own_maps(compiled):
    with pytest.raises(TypeError):
        compiled.note_window(memoryview(b""), load("pure").OffsetMap(64, 0, SEED), 5, limit=1)


def test_the_hash_is_siphash(compiled):
    """From the reference implementation's vectors for 128 bits of output."""
    expected = ["a3817f04ba25a8e66df67214c7550293", "da87c1d86b99af44347659119b22fc45"]
    assert [compiled.siphash(bytes(range(n)), SEED).hex() for n in (0, 1)] == expected
    seen = {compiled.siphash(bytes(n), SEED) for n in range(40)}
    assert len(seen) == 40
    model = [_siphash(bytes(range(n)), SEED) for n in range(40)]
    assert [compiled.siphash(bytes(range(n)), SEED) for n in range(40)] == model


def _siphash(data: bytes, seed: bytes) -> bytes:
    mask = 2**64 - 1
    k = [int.from_bytes(seed[i : i + 8], "little") for i in (0, 8)]
    a, b, c, d = (
        k[0] ^ 0x736F6D6570736575,
        k[1] ^ 0x646F72616E646F6D ^ 0xEE,
        k[0] ^ 0x6C7967656E657261,
        k[1] ^ 0x7465646279746573,
    )

    def turn(word: int, bits: int) -> int:
        return (word << bits | word >> (64 - bits)) & mask

    def mix(rounds: int) -> None:
        nonlocal a, b, c, d
        for _ in range(rounds):
            a, c = (a + b) & mask, (c + d) & mask
            b, d = turn(b, 13) ^ a, turn(d, 16) ^ c
            a = turn(a, 32)
            c, a = (c + b) & mask, (a + d) & mask
            b, d = turn(b, 17) ^ c, turn(d, 21) ^ a
            c = turn(c, 32)

    whole = len(data) & ~7
    words = [int.from_bytes(data[i : i + 8], "little") for i in range(0, whole, 8)]
    words.append(int.from_bytes(data[whole:], "little") | (len(data) & 255) << 56)
    for word in words:
        d ^= word
        mix(2)
        a ^= word
    c ^= 0xEE
    mix(4)
    low = a ^ b ^ c ^ d
    b ^= 0xDD
    mix(4)
    return low.to_bytes(8, "little") + (a ^ b ^ c ^ d).to_bytes(8, "little")


@pytest.mark.parametrize("native", [True, False])
def test_the_crc_is_crc_32c(compiled, native):
    assert compiled.crc32c(b"123456789", native=native) == 0xE3069283
    chance = random.Random(7)
    data = memoryview(chance.randbytes(8000))
    sizes = [*range(100), *range(1530, 1545), *range(3060, 3080), 7000]
    for size in sizes:
        start = chance.randrange(9)
        part = data[start : start + size]
        assert compiled.crc32c(part, native=native) == crc32c(part)


def test_noting_is_not_left_to_pure_python(compiled, monkeypatch):
    """The results would be right without the compiled code doing anything: this says it does."""
    pure = load("pure")
    for name in ("note_window", "clean_window", "OffsetMap"):
        assert getattr(compiled, name) is not getattr(pure, name)
        monkeypatch.setattr(f"odradek.record.pure_compacting.{name}", None)
    monkeypatch.setattr("odradek.record.pure_compacting.read_batch", None)
    data = memoryview(batch(0, [(b"a", b"1")] * 3))
    offsets = compiled.OffsetMap(1000, 0, SEED)
    monkeypatch.setattr("odradek.record.kernel.active", compiled)
    assert note_window(data, offsets, 9).position == len(data)
