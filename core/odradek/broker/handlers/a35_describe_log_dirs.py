"""DescribeLogDirs (key 35), versions 1 to 4: where the log lies and how large it is.

Sizes are of the segments; total and usable bytes (KIP-827) are those of the file system, or
unknown (-1) where the storage has no such thing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from odradek.broker.configs import public_url
from odradek.contracts.storage import StorageError
from odradek.errors import ErrorCode
from odradek.wire import Message
from odradek.wire.api.a35_describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)

if TYPE_CHECKING:
    from odradek.broker.serve import Caller

__all__ = ["handle"]


async def handle(caller: Caller, request: DescribeLogDirsRequest, version: int) -> Message:
    """Describe the one log directory of this broker."""
    broker = caller.broker
    wanted = (
        None
        if request.topics is None
        else {topic.topic: set(topic.partitions) for topic in request.topics}
    )
    topics: dict[str, DescribeLogDirsTopic] = {}
    for log in broker.hosting.logs():
        number = log.key.partition
        if wanted is not None and number not in wanted.get(log.topic, ()):
            continue
        topic = topics.setdefault(log.topic, DescribeLogDirsTopic(name=log.topic))
        topic.partitions.append(
            DescribeLogDirsPartition(partition_index=number, partition_size=log.size)
        )
    result = DescribeLogDirsResult(
        log_dir=public_url(broker.config.storage.url), topics=list(topics.values())
    )
    try:
        usage = await broker.store.usage()
    except StorageError:
        result.error_code = ErrorCode.KAFKA_STORAGE_ERROR
    else:
        result.log_dir = usage.location
        result.total_bytes = usage.total_bytes
        result.usable_bytes = usage.usable_bytes
    return DescribeLogDirsResponse(results=[result])
