"""DescribeLogDirs (API key 35): log directories of a broker and the replicas in them.

Versions 1 to 5; flexible from 2.

    v1   the first one here
    v2   flexible
    v3   a top-level error_code in the response (KIP-784)
    v4   total_bytes and usable_bytes in the response (KIP-827)
    v5   is_cordoned in the response (KIP-1066)
"""

from __future__ import annotations

from odradek.wire.schema import Message, Struct, array, bool_, int16, int32, int64, string

__all__ = [
    "DescribableLogDirTopic",
    "DescribeLogDirsPartition",
    "DescribeLogDirsRequest",
    "DescribeLogDirsResponse",
    "DescribeLogDirsResult",
    "DescribeLogDirsTopic",
]


class DescribableLogDirTopic(Struct):
    """An element of `DescribeLogDirsRequest.topics`."""

    topic: str = string("0+")
    partitions: list[int] = array(int32, "0+")


class DescribeLogDirsRequest(Message, api_key=35, versions="1-5", flexible="2+"):
    """What a client sends."""

    # Null is all of them.
    topics: list[DescribableLogDirTopic] | None = array(DescribableLogDirTopic, "0+", nullable="0+")


class DescribeLogDirsPartition(Struct):
    """An element of `DescribeLogDirsTopic.partitions`."""

    partition_index: int = int32("0+")
    partition_size: int = int64("0+")  # bytes
    offset_lag: int = int64("0+")  # behind the high watermark
    is_future_key: bool = bool_("0+")


class DescribeLogDirsTopic(Struct):
    """An element of `DescribeLogDirsResult.topics`."""

    name: str = string("0+")
    partitions: list[DescribeLogDirsPartition] = array(DescribeLogDirsPartition, "0+")


class DescribeLogDirsResult(Struct):
    """An element of `DescribeLogDirsResponse.results`."""

    error_code: int = int16("0+")
    log_dir: str = string("0+")
    topics: list[DescribeLogDirsTopic] = array(DescribeLogDirsTopic, "0+")
    total_bytes: int = int64("4+", default=-1, ignorable=True)  # of the volume; -1 is unknown
    usable_bytes: int = int64("4+", default=-1, ignorable=True)  # of the volume; -1 is unknown
    is_cordoned: bool = bool_("5+", ignorable=True)


class DescribeLogDirsResponse(Message, api_key=35, versions="1-5", flexible="2+"):
    """What a broker answers."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("3+", ignorable=True)
    results: list[DescribeLogDirsResult] = array(DescribeLogDirsResult, "0+")
