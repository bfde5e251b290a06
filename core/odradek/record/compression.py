"""Kafka's compression codecs: what Java clients read is written, all that clients send is read.

What Java's readers ask for, and where the library's own defaults differ:

* lz4: the frame format with independent blocks (Java refuses linked ones: "Dependent block stream
  is unsupported"), in blocks of 64 KiB. Block checksums are written, and Java checks them.
* snappy: the block framing of snappy-java ("xerial"), 32 KiB per block. librdkafka and others send
  one bare block; both are read.
* zstd: one frame; Java writes it without the content size, we with it.
* gzip: one member; several are read.

Decompression never allocates more than the limit it is given: outputs are filled in place by
cramjam's `decompress_into`, which stops when they are full. Besides that zstd takes a window of
at most 128 MiB of address space (libzstd refuses larger ones), of which it touches what it writes.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from mmap import mmap
from struct import Struct
from struct import error as StructError
from typing import Any, Final

import cramjam

from odradek.errors import CorruptBatch, ErrorCode, KafkaError
from odradek.types import Buffer

__all__ = ["CompressionType", "compress", "compress_buffer", "decompress", "validate_level"]


class CompressionType(IntEnum):
    """The codec's number in the attributes of a batch; its lower-case name in settings."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


_LEVELS: Final = {
    CompressionType.GZIP: (1, 9),
    CompressionType.LZ4: (1, 17),
    CompressionType.ZSTD: (-131072, 22),
}
"""Kafka's ranges (KIP-390)."""

_GZIP_DEFAULT = 6
_LZ4_DEFAULT = 9
"""Kafka's default level stands for the fast compressor; only other levels mean high compression."""
_LZ4_FAST = 1
_ZSTD_DEFAULT = 3

_XERIAL_HEADER = b"\x82SNAPPY\x00" + Struct(">ii").pack(1, 1)
"""Magic, version, lowest version that can read it."""
_XERIAL_BLOCK = 32 * 1024
_SNAPPY_MAX_RATIO = 22
"""A copy of 64 bytes takes 3: a larger claim is a lie told to make us allocate."""

_FIRST_GUESS = 64 * 1024
_GROWTH = 4
_PAGES = 4 * 1024 * 1024
"""From this size on outputs are pages of their own: only those that are written take memory, and
they are given back at once. Below it memory that was used before is several times faster."""
_OUTPUT_FULL = "failed to write whole buffer"
"""How cramjam says that the output buffer was too small."""

_block_length = Struct(">i")
_LZ4_PIECE = 4 * 64 * 1024
"""Bytes given to the compressor at a time: whole blocks, so that what comes of it is the same."""
_little = {1: Struct("<B"), 2: Struct("<H"), 4: Struct("<I"), 8: Struct("<Q")}


def validate_level(codec: CompressionType, level: int | None) -> None:
    """Raise ValueError when `codec` has no such level; None, the default, is right for all."""
    if level is None or (codec is CompressionType.GZIP and level == -1):
        return
    if codec not in _LEVELS:
        raise ValueError(f"{codec.name.lower()} has no compression levels")
    low, high = _LEVELS[codec]
    if not low <= level <= high:
        raise ValueError(f"the level of {codec.name.lower()} is from {low} to {high}, not {level}")


def compress(codec: CompressionType, data: Buffer, level: int | None = None) -> bytes:
    """Return `data` compressed so that every Kafka client can read it.

    `level` None is Kafka's default for the codec. Raises ValueError for a level out of range.
    """
    return bytes(compress_buffer(codec, data, level))


def compress_buffer(codec: CompressionType, data: Buffer, level: int | None = None) -> Buffer:
    """Do as `compress` does; the buffer that the codec made, and no copy of it."""
    validate_level(codec, level)
    made: Any
    if codec is CompressionType.NONE:
        made = data
    elif codec is CompressionType.GZIP:
        made = cramjam.gzip.compress(data, _GZIP_DEFAULT if level in {None, -1} else level)
    elif codec is CompressionType.SNAPPY:
        return _compress_xerial(memoryview(data))
    elif codec is CompressionType.LZ4:
        made = _compress_lz4(memoryview(data), level)
    else:
        made = cramjam.zstd.compress(data, _ZSTD_DEFAULT if level is None else level)
    return memoryview(made)


def decompress(codec: int, data: Buffer, limit: int) -> memoryview:
    """Return what `data` decompresses to, at most `limit` bytes; uncompressed `data` as it is.

    Raises KafkaError with MESSAGE_TOO_LARGE when it would be more than `limit` bytes, with
    UNSUPPORTED_COMPRESSION_TYPE when Kafka has no such codec, and CorruptBatch when `data` is
    damaged, cut, or followed by something else.
    """
    if codec == CompressionType.NONE:
        if len(data) > limit:
            raise _too_large(limit)
        return memoryview(data)
    try:
        if codec == CompressionType.SNAPPY:
            return _decompress_snappy(memoryview(data), limit)
        if codec == CompressionType.LZ4:
            return _decompress_growing(cramjam.lz4.decompress_into, data, None, limit)
        if codec == CompressionType.GZIP:
            hint = _gzip_size(data)
            return _decompress_growing(cramjam.gzip.decompress_into, data, hint, limit)
        if codec == CompressionType.ZSTD:
            hint = _zstd_size(data)
            return _decompress_growing(cramjam.zstd.decompress_into, data, hint, limit)
    except cramjam.DecompressionError as error:
        raise CorruptBatch(f"the batch cannot be decompressed: {error}") from None
    raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"there is no codec {codec}")


def _too_large(limit: int) -> KafkaError:
    return KafkaError(
        ErrorCode.MESSAGE_TOO_LARGE, f"the batch decompresses to more than {limit} bytes"
    )


def _decompress_growing(
    decompress_into: Callable[[Any, Any], int], data: Buffer, hint: int | None, limit: int
) -> memoryview:
    """Decompress into ever larger buffers until one suffices or the limit is reached.

    `hint` is what the data says of its size, true or not. It is believed only as far as ordinary
    ratios go, so that a small lie cannot make us clear megabytes.
    """
    ordinary = max(_FIRST_GUESS, 32 * len(data))
    capacity = min(max(1, ordinary // 4 if hint is None else min(hint, ordinary)), limit)
    while True:
        output = bytearray(capacity) if capacity < _PAGES else mmap(-1, capacity)
        try:
            written = decompress_into(data, output)
        except cramjam.DecompressionError as error:
            if capacity >= limit:
                if _OUTPUT_FULL in str(error):
                    raise _too_large(limit) from None
                raise
            capacity = min(capacity * _GROWTH, limit)
            del output  # before there is a larger one
        else:
            return memoryview(output)[:written]


def _gzip_size(data: Buffer) -> int | None:
    """Return the size in the trailer of the last member (RFC 1952, ISIZE)."""
    return int(_little[4].unpack_from(data, len(data) - 4)[0]) if len(data) > 18 else None


def _zstd_size(data: Buffer) -> int | None:
    """Return the content size of the first frame, if its header has it (RFC 8878, 3.1.1.1)."""
    if len(data) < 5:
        return None
    descriptor = data[4]
    single_segment = descriptor >> 5 & 1
    width = (single_segment, 2, 4, 8)[descriptor >> 6]
    if width == 0:
        return None
    position = 5 + (1 - single_segment) + (0, 1, 2, 4)[descriptor & 3]
    try:
        size = int(_little[width].unpack_from(data, position)[0])
    except StructError:
        return None
    return size + 256 if width == 2 else size


def _compress_lz4(data: memoryview, level: int | None) -> Any:
    compressor = cramjam.lz4.Compressor(
        level=_LZ4_FAST if level in {None, _LZ4_DEFAULT} else level,
        content_checksum=False,
        block_linked=False,
    )
    # It takes nothing but bytes, and keeps the GIL: 1.7 ms for a MiB.
    for start in range(0, len(data), _LZ4_PIECE):
        compressor.compress(bytes(data[start : start + _LZ4_PIECE]))
    return compressor.finish()


def _compress_xerial(data: memoryview) -> bytes:
    parts = [_XERIAL_HEADER]
    for start in range(0, len(data), _XERIAL_BLOCK):
        block = bytes(cramjam.snappy.compress_raw(data[start : start + _XERIAL_BLOCK]))
        parts += (_block_length.pack(len(block)), block)
    return b"".join(parts)


def _decompress_snappy(data: memoryview, limit: int) -> memoryview:
    if not data:
        raise CorruptBatch("snappy data have at least a byte")
    blocks = _xerial_blocks(data) if data[:8] == _XERIAL_HEADER[:8] else [data]
    sizes = []
    for block in blocks:
        size = cramjam.snappy.decompress_raw_len(block)
        if size > _SNAPPY_MAX_RATIO * len(block):
            raise CorruptBatch(f"{len(block)} bytes of snappy claim to be {size}")
        sizes.append(size)
    if sum(sizes) > limit:
        raise _too_large(limit)
    output = memoryview(bytearray(sum(sizes)))
    position = 0
    for block, size in zip(blocks, sizes, strict=True):
        cramjam.snappy.decompress_raw_into(block, output[position : position + size])
        position += size
    return output


def _xerial_blocks(data: memoryview) -> list[memoryview]:
    """Split xerial framing; streams that follow one another are one, as in snappy-java."""
    blocks = []
    position = 0
    while position < len(data):
        if data[position : position + 8] == _XERIAL_HEADER[:8]:
            position += len(_XERIAL_HEADER)
            if position > len(data):
                raise CorruptBatch("the snappy data end within the header of the framing")
            continue
        if position + 4 > len(data):
            raise CorruptBatch("the snappy data end within the length of a block")
        (length,) = _block_length.unpack_from(data, position)
        position += 4
        if not 0 < length <= len(data) - position:
            raise CorruptBatch(f"a snappy block of {length} bytes where {len(data) - position} are")
        blocks.append(data[position : position + length])
        position += length
    return blocks
