"""The compression codecs of Kafka, and how a batch names them."""

from __future__ import annotations

from enum import IntEnum

__all__ = ["CompressionType"]


class CompressionType(IntEnum):
    """The codec's number in the attributes of a batch; its lower-case name in settings."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4
