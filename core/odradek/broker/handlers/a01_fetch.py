"""Fetch (key 1), versions 4 to 17.

Answers with whole batches as they lie in the store, by `sendfile` where the connection and the
store allow. A fetch that finds less than min_bytes waits, at most max_wait_ms, for any of its
partitions to move; an error in any partition answers at once.

Every response is a full one: session id 0 tells the client not to start an incremental fetch
session (KIP-227 allows that), and a session from an earlier broker is refused with
FETCH_SESSION_ID_NOT_FOUND, upon which clients start anew. Left out: preferred read replicas.
read_committed equals read_uncommitted until there are transactions.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import trio

from odradek.broker.waiting import Advance, Pending
from odradek.contracts.storage import Corrupt, DataRef, StorageError
from odradek.errors import ErrorCode, KafkaError
from odradek.wire import Message
from odradek.wire.api.a01_fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    PartitionData,
)

if TYPE_CHECKING:
    from odradek.broker.broker import Broker
    from odradek.broker.hosting import HostedTopic
    from odradek.broker.serve import Caller
    from odradek.log.partition import PartitionLog

__all__ = ["handle"]

TOPIC_IDS_FROM = 13

FULL = 0
FINAL = -1
"""Epochs of a fetch session that ask for a full response: to open one, or to close it."""

MAX_RESPONSE_BYTES = 64 * 1024 * 1024
"""A client may ask for 2 GiB; it gets the rest with its next fetch."""

PARTITION_BYTES = 300
"""Memory that a waiting request takes for each of its partitions, about."""


class PendingFetch(Pending):
    """A fetch that waits for enough to read, and reads when its turn has come."""

    __slots__ = (
        "_broker",
        "_deadline",
        "_min_bytes",
        "_request",
        "_version",
        "_waiting",
        "weight",
    )

    def __init__(self, broker: Broker, request: FetchRequest, version: int) -> None:
        self._broker = broker
        self._request = request
        self._version = version
        self._min_bytes = request.min_bytes
        wait_ms = min(max(request.max_wait_ms, 0), broker.config.limits.wait_max_ms)
        self._deadline = trio.current_time() + wait_ms / 1000
        self._waiting: trio.CancelScope | None = None
        self.weight = PARTITION_BYTES * sum([len(topic.partitions) for topic in request.topics])

    def hurry(self) -> None:
        """Answer with what there is."""
        self._deadline = -math.inf
        if self._waiting is not None:
            self._waiting.cancel()

    def ready(self) -> bool:
        """Whether there is enough, or an error to tell."""
        return self._enough() or trio.current_time() >= self._deadline

    def _enough(self) -> bool:
        available = 0
        for topic in self._request.topics:
            try:
                hosted = _hosted(self._broker, topic.topic, topic.topic_id, self._version)
                for partition in topic.partitions:
                    log = hosted.log(partition.partition)
                    _check(log, partition)
                    available += log.available(partition.fetch_offset)
                    if available >= self._min_bytes:
                        return True
            except KafkaError:
                return True
        return available >= self._min_bytes

    async def wait(self) -> None:
        """Wait for an advance of any partition until there is enough, or time is up."""
        logs = []
        for topic in self._request.topics:
            hosted = _hosted(self._broker, topic.topic, topic.topic_id, self._version)
            logs += [hosted.log(partition.partition) for partition in topic.partitions]
        advance = Advance(logs)
        try:
            with trio.move_on_at(self._deadline) as self._waiting:
                while not self._enough():
                    await advance.wait()
        finally:
            advance.close()

    async def finish(self) -> Message:
        """Read, partition by partition, within the client's limits."""
        request = self._request
        left = min(request.max_bytes, MAX_RESPONSE_BYTES)
        response = FetchResponse()
        held: list[DataRef] = []
        try:
            for topic in request.topics:
                answered = FetchableTopicResponse(topic=topic.topic, topic_id=topic.topic_id)
                response.responses.append(answered)
                for partition in topic.partitions:
                    data = await self._read(topic.topic, topic.topic_id, partition, left, held)
                    answered.partitions.append(data)
                    if data.records:
                        left -= len(data.records)
        except BaseException:
            for reference in held:
                reference.close()
            raise
        return response

    async def _read(
        self, name: str, topic_id: object, partition: FetchPartition, left: int, held: list[DataRef]
    ) -> PartitionData:
        result = PartitionData(partition_index=partition.partition, high_watermark=-1)
        log = None
        try:
            hosted = _hosted(self._broker, name, topic_id, self._version)
            log = hosted.log(partition.partition)
            _check(log, partition)
            diverging = _diverging(log, partition)
            if diverging is not None:
                result.diverging_epoch = diverging
                limit = 0
            else:
                limit = min(partition.partition_max_bytes, left)
            read = await log.read(
                partition.fetch_offset, limit, at_least_one=not held and diverging is None
            )
        except KafkaError as error:
            result.error_code = error.code
            if log is not None and error.code is ErrorCode.OFFSET_OUT_OF_RANGE:
                result.high_watermark = log.high_watermark
                result.log_start_offset = log.log_start_offset
            return result
        except Corrupt:
            result.error_code = ErrorCode.CORRUPT_MESSAGE
            return result
        except StorageError:
            result.error_code = ErrorCode.KAFKA_STORAGE_ERROR
            return result
        result.high_watermark = result.last_stable_offset = read.high_watermark
        result.log_start_offset = read.log_start_offset
        if read.data is not None:
            held.append(read.data)
            result.records = read.data
        return result


def handle(caller: Caller, request: FetchRequest, version: int) -> Message | Pending:
    """Answer when there is enough to read."""
    if request.session_epoch not in (FULL, FINAL):
        return FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
    return PendingFetch(caller.broker, request, version)


def _hosted(broker: Broker, name: str, topic_id: object, version: int) -> HostedTopic:
    if version >= TOPIC_IDS_FROM:
        return broker.topic_by_id(topic_id)  # type: ignore[arg-type]  # decoded as a UUID
    return broker.topic(name)


def _check(log: PartitionLog, partition: FetchPartition) -> None:
    """Fence by leader epoch (KIP-320) and refuse offsets out of range."""
    log.check_epoch(partition.current_leader_epoch)
    if not log.log_start_offset <= partition.fetch_offset <= log.log_end_offset:
        raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)


def _diverging(log: PartitionLog, partition: FetchPartition) -> EpochEndOffset | None:
    """KIP-595: tell a reader whose last epoch ended earlier here where its log parts from ours."""
    epoch = partition.last_fetched_epoch
    if epoch < 0:
        return None
    found, end = log.epoch_end(epoch)
    if found < 0:
        raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)  # an epoch of the future: as in Kafka
    if found < epoch or end < partition.fetch_offset:
        return EpochEndOffset(epoch=found, end_offset=end)
    return None
