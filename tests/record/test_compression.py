"""Codecs: what other implementations write is read, what is written they read, all of it bounded.

python-snappy, lz4 and zstandard are the oracles; gzip is the standard library's.
"""

import gzip
import struct
import tracemalloc

import lz4.block
import lz4.frame
import pytest
import snappy
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from kafka import codec as kafka_codec

from odradek.errors import CorruptBatch, ErrorCode, KafkaError
from odradek.record import CompressionType, compress, decompress
from odradek.record.compression import validate_level

MB = 1024 * 1024
CODECS = [codec for codec in CompressionType if codec is not CompressionType.NONE]
TEXT = b"".join(b"%d bottles of beer on the wall\n" % i for i in range(20_000))
SAMPLES = {
    "empty": b"",
    "byte": b"x",
    "text": TEXT,
    "zeros": bytes(3 * MB),
    "noise": bytes((i * i * 7919 + i // 3) & 255 for i in range(200_000)),
}


def _xerial(*blocks: bytes) -> bytes:
    framed = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
    return framed + b"".join(struct.pack(">i", len(block)) + block for block in blocks)


def _snappy_blocks(data: bytes) -> list[bytes]:
    """Split xerial framing, by the description of the format."""
    assert data[:8] == b"\x82SNAPPY\x00"
    assert struct.unpack_from(">ii", data, 8) == (1, 1)
    blocks, position = [], 16
    while position < len(data):
        (length,) = struct.unpack_from(">i", data, position)
        blocks.append(data[position + 4 : position + 4 + length])
        position += 4 + length
    assert position == len(data)
    return blocks


ORACLE_READS = {
    CompressionType.GZIP: gzip.decompress,
    CompressionType.SNAPPY: lambda data: b"".join(map(snappy.uncompress, _snappy_blocks(data))),
    CompressionType.LZ4: lz4.frame.decompress,
    CompressionType.ZSTD: lambda data: zstandard.decompress(data, 16 * MB),
}
KAFKA_PYTHON_READS = {
    CompressionType.GZIP: kafka_codec.gzip_decode,
    CompressionType.SNAPPY: kafka_codec.snappy_decode,
    CompressionType.LZ4: kafka_codec.lz4_decode,
    CompressionType.ZSTD: kafka_codec.zstd_decode,
}
ORACLE_WRITES = {
    "gzip": (CompressionType.GZIP, gzip.compress),
    "gzip, level 1": (CompressionType.GZIP, lambda data: gzip.compress(data, 1)),
    "gzip, two members": (
        CompressionType.GZIP,
        lambda data: gzip.compress(data[:50]) + gzip.compress(data[50:]),
    ),
    "snappy, bare": (CompressionType.SNAPPY, snappy.compress),
    "snappy, xerial": (CompressionType.SNAPPY, kafka_codec.snappy_encode),
    "snappy, two streams": (
        CompressionType.SNAPPY,
        lambda data: _xerial(snappy.compress(data[:50])) + _xerial(snappy.compress(data[50:])),
    ),
    "lz4": (CompressionType.LZ4, lz4.frame.compress),
    "lz4, linked blocks": (
        CompressionType.LZ4,
        lambda data: lz4.frame.compress(data, block_linked=True, content_checksum=True),
    ),
    "lz4, with size": (
        CompressionType.LZ4,
        lambda data: lz4.frame.compress(data, store_size=True, block_checksum=True),
    ),
    "lz4, 4 MiB blocks": (
        CompressionType.LZ4,
        lambda data: lz4.frame.compress(data, block_size=lz4.frame.BLOCKSIZE_MAX4MB),
    ),
    "zstd": (CompressionType.ZSTD, zstandard.compress),
    "zstd, without size": (
        CompressionType.ZSTD,
        zstandard.ZstdCompressor(write_content_size=False).compress,
    ),
    "zstd, streamed": (
        CompressionType.ZSTD,
        lambda data: (c := zstandard.ZstdCompressor(19).compressobj()).compress(data) + c.flush(),
    ),
    "zstd, checksum": (
        CompressionType.ZSTD,
        zstandard.ZstdCompressor(write_checksum=True).compress,
    ),
    "zstd, two frames": (
        CompressionType.ZSTD,
        lambda data: zstandard.compress(data[:50]) + zstandard.compress(data[50:]),
    ),
}


@pytest.mark.parametrize("sample", SAMPLES)
@pytest.mark.parametrize("codec", CODECS)
def test_what_is_written_others_read(codec, sample):
    data = SAMPLES[sample]
    written = compress(codec, data)
    assert ORACLE_READS[codec](written) == data
    assert decompress(codec, written, max(len(data), 1)) == data
    if data:
        assert bytes(KAFKA_PYTHON_READS[codec](written)) == data


@pytest.mark.parametrize("sample", SAMPLES)
@pytest.mark.parametrize("writer", ORACLE_WRITES)
def test_what_others_write_is_read(writer, sample):
    codec, write = ORACLE_WRITES[writer]
    data = SAMPLES[sample]
    assert decompress(codec, write(data), len(data)) == data


@given(st.binary(max_size=3000), st.sampled_from(CompressionType), st.integers(1, 60))
def test_round_trip(data, codec, times):
    assert decompress(codec, compress(codec, data * times), len(data) * times) == data * times


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, lambda d: memoryview(bytearray(d))])
@pytest.mark.parametrize("codec", CompressionType)
def test_any_buffer_is_taken(codec, kind):
    assert decompress(codec, kind(compress(codec, kind(TEXT))), len(TEXT)) == TEXT


def test_lz4_frames_have_independent_blocks_of_64_kib_as_java_demands():
    frame = compress(CompressionType.LZ4, TEXT)
    flags, block_descriptor = frame[4], frame[5]
    assert flags >> 6 == 1  # version
    assert flags & 0x20  # independent blocks
    assert flags & 0x03 == 0  # reserved; no dictionary
    assert block_descriptor == 0x40


def test_snappy_is_written_in_blocks_of_32_kib_as_snappy_java_does():
    blocks = _snappy_blocks(compress(CompressionType.SNAPPY, TEXT))
    sizes = [len(snappy.uncompress(block)) for block in blocks]
    assert set(sizes[:-1]) == {32 * 1024}
    assert sum(sizes) == len(TEXT)


@pytest.mark.parametrize("codec", CompressionType)
def test_decompress_allows_exactly_the_limit(codec):
    written = compress(codec, TEXT)
    assert decompress(codec, written, len(TEXT)) == TEXT
    with pytest.raises(KafkaError) as raised:
        decompress(codec, written, len(TEXT) - 1)
    assert raised.value.code is ErrorCode.MESSAGE_TOO_LARGE


def _bombs() -> dict[str, tuple[CompressionType, bytes]]:
    zeros = bytes(64 * MB)
    huge_window = b"\x28\xb5\x2f\xfd\x00" + bytes([17 << 3])  # 128 MiB, no content size
    run = (1 << 1 | 131_072 << 3).to_bytes(3, "little") + b"a"  # 128 KiB of one byte
    return {
        "gzip": (CompressionType.GZIP, gzip.compress(zeros)),
        "gzip, lying about its size": (
            CompressionType.GZIP,
            gzip.compress(zeros)[:-4] + (10).to_bytes(4, "little"),
        ),
        "gzip, many members": (CompressionType.GZIP, gzip.compress(bytes(MB)) * 64),
        "snappy, bare": (CompressionType.SNAPPY, snappy.compress(zeros)),
        "snappy, xerial": (CompressionType.SNAPPY, compress(CompressionType.SNAPPY, zeros)),
        "lz4": (CompressionType.LZ4, lz4.frame.compress(zeros)),
        "lz4, 4 MiB blocks": (
            CompressionType.LZ4,
            lz4.frame.compress(zeros, block_size=lz4.frame.BLOCKSIZE_MAX4MB),
        ),
        "zstd": (CompressionType.ZSTD, zstandard.compress(zeros)),
        "zstd, without size": (
            CompressionType.ZSTD,
            zstandard.ZstdCompressor(write_content_size=False).compress(zeros),
        ),
        "zstd, runs in a large window": (CompressionType.ZSTD, huge_window + run * 512),
        "zstd, many frames": (CompressionType.ZSTD, zstandard.compress(bytes(MB)) * 64),
    }


BOMBS = _bombs()


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_bomb_is_refused_within_the_limit(bomb):
    codec, data = BOMBS[bomb]
    limit = 2 * MB
    tracemalloc.start()
    try:
        with pytest.raises(KafkaError) as raised:
            decompress(codec, data, limit)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert raised.value.code is ErrorCode.MESSAGE_TOO_LARGE
    assert peak < 2 * limit


def test_a_zstd_window_above_128_mib_is_refused():
    frame = b"\x28\xb5\x2f\xfd\x00" + bytes([18 << 3]) + (1 | 1 << 3).to_bytes(3, "little") + b"a"
    with pytest.raises(CorruptBatch):
        decompress(CompressionType.ZSTD, frame, 100)


@pytest.mark.parametrize(
    ("codec", "data"),
    [
        (CompressionType.GZIP, gzip.compress(b"x")[:-4] + (2**20).to_bytes(4, "little")),
        (CompressionType.SNAPPY, b"\x80\x80\x40" + b"x" * 20),
        (CompressionType.SNAPPY, _xerial(b"\x80\x80\x40" + b"x" * 20)),
    ],
)
def test_a_lie_about_the_size_is_corrupt_and_costs_little(codec, data):
    with pytest.raises(CorruptBatch):
        decompress(codec, data, 2 * MB)


@pytest.mark.parametrize("codec", CODECS)
def test_cut_data_are_corrupt_wherever_they_are_cut(codec):
    written = compress(codec, b"some bytes, some bytes, some bytes")
    whole_without_block = {16} if codec is CompressionType.SNAPPY else set()  # an empty stream
    for size in set(range(len(written))) - whole_without_block:
        with pytest.raises(CorruptBatch):
            decompress(codec, written[:size], 1000)


@pytest.mark.parametrize("codec", CODECS)
def test_data_followed_by_something_else_are_corrupt(codec):
    with pytest.raises(CorruptBatch):
        decompress(codec, compress(codec, TEXT[:500]) + b"\x7fmore", 100_000)


@given(st.sampled_from(CODECS), st.binary(max_size=200), st.booleans())
def test_noise_is_decompressed_within_the_limit_or_refused(codec, noise, framed):
    heads = {
        CompressionType.GZIP: b"\x1f\x8b\x08\0\0\0\0\0\0\xff",
        CompressionType.SNAPPY: _xerial(),
        CompressionType.LZ4: b"\x04\x22\x4d\x18\x60\x40\x82",
        CompressionType.ZSTD: b"\x28\xb5\x2f\xfd",
    }
    code = ErrorCode.NONE
    output = memoryview(b"")
    try:
        output = decompress(codec, (heads[codec] if framed else b"") + noise, 5000)
    except KafkaError as error:
        code = error.code
    assert len(output) <= 5000
    assert code in {ErrorCode.NONE, ErrorCode.CORRUPT_MESSAGE, ErrorCode.MESSAGE_TOO_LARGE}


@pytest.mark.parametrize("codec", [5, 6, 7, -1])
def test_an_unknown_codec_is_unsupported(codec):
    with pytest.raises(KafkaError) as raised:
        decompress(codec, b"", 10)
    assert raised.value.code is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


@pytest.mark.parametrize(
    ("codec", "level"),
    [
        (CompressionType.GZIP, -1),
        (CompressionType.GZIP, 1),
        (CompressionType.GZIP, 9),
        (CompressionType.LZ4, 1),
        (CompressionType.LZ4, 17),
        (CompressionType.ZSTD, -131072),
        (CompressionType.ZSTD, 22),
    ],
)
def test_levels_of_kafkas_ranges_are_taken(codec, level):
    assert ORACLE_READS[codec](compress(codec, TEXT[:5000], level)) == TEXT[:5000]


@pytest.mark.parametrize("codec", [CompressionType.GZIP, CompressionType.LZ4, CompressionType.ZSTD])
def test_a_higher_level_compresses_better(codec):
    fast = compress(codec, TEXT, -5 if codec is CompressionType.ZSTD else 1)
    best = compress(codec, TEXT, 9 if codec is CompressionType.GZIP else 12)
    assert len(best) < len(fast)


@pytest.mark.parametrize(
    ("codec", "level"),
    [
        (CompressionType.NONE, 1),
        (CompressionType.SNAPPY, 1),
        (CompressionType.GZIP, 0),
        (CompressionType.GZIP, 10),
        (CompressionType.GZIP, -2),
        (CompressionType.LZ4, 0),
        (CompressionType.LZ4, 18),
        (CompressionType.ZSTD, 23),
        (CompressionType.ZSTD, -131073),
    ],
)
def test_levels_beyond_kafkas_ranges_are_refused(codec, level):
    with pytest.raises(ValueError, match="level"):
        validate_level(codec, level)
    with pytest.raises(ValueError, match="level"):
        compress(codec, b"", level)
