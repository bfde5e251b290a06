"""Produce (key 0), versions 3 to 13 (0 to 2 are advertised for old librdkafka, and refused).

Each partition's batch is validated as Kafka's LogValidator does, given its offset in the
receive buffer, and handed to the store before this returns. The response waits: for acks=1 and
acks=all until the batch is committed (with one replica the same thing: on this disk, as safely
as `durability` says); for acks=0 there is none, and an error closes the connection. A batch that
the log has already, by producer id and sequence, is answered with the offset of the original.

Left out: transactions (INVALID_TXN_STATE until they come), the leader hints of version 10, and
record_errors, because batches are checked as wholes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from odradek.broker.acknowledgement import acknowledge, make_template
from odradek.broker.waiting import HangUp, Pending, committed, wait_committed
from odradek.contracts.storage import Fenced, StorageError
from odradek.errors import ErrorCode, KafkaError
from odradek.record import validate
from odradek.record.batch import TRANSACTIONAL
from odradek.wire import Message
from odradek.wire.api.a00_produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)

if TYPE_CHECKING:
    from odradek.broker.broker import Broker
    from odradek.broker.hosting import HostedTopic
    from odradek.broker.serve import Caller
    from odradek.log.partition import Append, PartitionLog

__all__ = ["handle"]

ALL = -1

RESULT_BYTES = 400
"""Memory that one result takes while it waits, about."""

ZSTD_FROM = 7
TOPIC_IDS_FROM = 13


class PendingProduce(Pending):
    """A response that waits until everything that was appended is committed."""

    __slots__ = ("_appended", "_response", "_timeout", "_waits", "weight")

    def __init__(
        self,
        response: ProduceResponse,
        waits: list[tuple[PartitionLog, int]],
        appended: list[PartitionProduceResponse],
        timeout: float,
    ) -> None:
        self._response = response
        self._waits = waits
        self._appended = appended
        self._timeout = timeout
        self.weight = RESULT_BYTES * len(waits)

    def ready(self) -> bool:
        """Whether every batch is committed, or known not to be."""
        return committed(self._waits)

    async def wait(self) -> None:
        """Wait for that, at most as long as the client wants to."""
        with trio.move_on_after(self._timeout):
            await wait_committed(self._waits)

    async def finish(self) -> Message:
        """Replace by an error what was not committed."""
        for (log, end_offset), result in zip(self._waits, self._appended, strict=True):
            if log.high_watermark < end_offset:
                _not_committed(log, result)
        return self._response


class PendingAcknowledgement(Pending):
    """The usual case: one batch for one partition, appended and waiting to be committed."""

    __slots__ = ("_done", "_hosted", "_log", "_partition", "_timeout", "_version")

    weight = RESULT_BYTES

    def __init__(
        self,
        hosted: HostedTopic,
        partition: int,
        log: PartitionLog,
        done: Append,
        version: int,
        timeout: float,
    ) -> None:
        self._hosted = hosted
        self._partition = partition
        self._log = log
        self._done = done
        self._version = version
        self._timeout = timeout

    def ready(self) -> bool:
        """Whether the batch is committed, or known not to be."""
        log = self._log
        return log.high_watermark >= self._done[1] or log.failure is not None

    async def wait(self) -> None:
        """Wait for that, at most as long as the client wants to."""
        with trio.move_on_after(self._timeout):
            await wait_committed([(self._log, self._done.end_offset)])

    def frame(self, correlation_id: int) -> bytearray | None:
        """Return the acknowledgement, or None when there is an error to tell."""
        log = self._log
        done = self._done
        if log.high_watermark < done[1]:
            return None
        hosted = self._hosted
        key = (self._version, self._partition)
        template = hosted.acknowledgements.get(key)
        if template is None:
            image = hosted.image
            template = make_template(self._version, image.name, image.id, self._partition)
            hosted.acknowledgements[key] = template
        return acknowledge(template, correlation_id, done[0], done[2], log.log_start_offset)

    async def finish(self) -> Message:
        """Say what went wrong."""
        result = PartitionProduceResponse(index=self._partition)
        _not_committed(self._log, result)
        image = self._hosted.image
        return ProduceResponse(
            responses=[
                TopicProduceResponse(
                    name=image.name, topic_id=image.id, partition_responses=[result]
                )
            ]
        )


def handle(caller: Caller, request: ProduceRequest, version: int) -> Message | Pending | None:
    """Append, and answer when committed."""
    broker = caller.broker
    acks = request.acks
    now_ms = broker.host.now_ms()
    topic_data = request.topic_data
    one = len(topic_data) == 1 and len(topic_data[0].partition_data) == 1
    if one and acks in (-1, 1) and request.transactional_id is None:
        return _handle_one(broker, request, now_ms, version)
    waits: list[tuple[PartitionLog, int]] = []
    appended: list[PartitionProduceResponse] = []
    topics = []
    refused = _refusal(request)
    for topic in request.topic_data:
        hosted: HostedTopic | None = None
        failure = refused
        if failure is None:
            try:
                if version >= TOPIC_IDS_FROM:
                    hosted = broker.topic_by_id(topic.topic_id)
                else:
                    hosted = broker.topic(topic.name)
            except KafkaError as error:
                failure = error
        results = []
        for partition in topic.partition_data:
            result = PartitionProduceResponse(index=partition.index, base_offset=-1)
            results.append(result)
            if hosted is None:
                assert failure is not None
                _fail(result, failure.code, failure.detail)
                continue
            log, end_offset = _append(broker, hosted, partition, result, now_ms, version, acks)
            if log is not None:
                waits.append((log, end_offset))
                appended.append(result)
        topics.append(
            TopicProduceResponse(
                name=topic.name, topic_id=topic.topic_id, partition_responses=results
            )
        )
    if acks == 0:
        _hang_up_after_errors(topics)
        return None
    response = ProduceResponse(responses=topics)
    if not waits:
        return response
    return PendingProduce(response, waits, appended, _timeout(broker, request))


def _handle_one(
    broker: Broker, request: ProduceRequest, now_ms: int, version: int
) -> Message | Pending:
    """Append the only batch of a request.

    The batch is not touched again after an error: its offset may be written into it already.
    """
    topic = request.topic_data[0]
    partition = topic.partition_data[0]
    try:
        if version >= TOPIC_IDS_FROM:
            hosted = broker.topic_by_id(topic.topic_id)
        else:
            hosted = broker.topic(topic.name)
        log, done = _place(broker, hosted, partition, now_ms, version, request.acks)
    except (KafkaError, StorageError) as error:
        result = PartitionProduceResponse(index=partition.index)
        _tell(result, error)
        answered = TopicProduceResponse(
            name=topic.name, topic_id=topic.topic_id, partition_responses=[result]
        )
        return ProduceResponse(responses=[answered])
    timeout = _timeout(broker, request)
    return PendingAcknowledgement(hosted, partition.index, log, done, version, timeout)


def _timeout(broker: Broker, request: ProduceRequest) -> float:
    return min(max(request.timeout_ms, 0), broker.config.limits.wait_max_ms) / 1000


def _refusal(request: ProduceRequest) -> KafkaError | None:
    if request.acks not in (-1, 0, 1):
        return KafkaError(ErrorCode.INVALID_REQUIRED_ACKS)
    if request.transactional_id is not None:
        return KafkaError(ErrorCode.INVALID_TXN_STATE, "transactions are not offered")
    return None


def _append(
    broker: Broker,
    hosted: HostedTopic,
    partition: PartitionProduceData,
    result: PartitionProduceResponse,
    now_ms: int,
    version: int,
    acks: int,
) -> tuple[PartitionLog | None, int]:
    """Append one partition's batch; what went wrong goes into `result`."""
    try:
        log, done = _place(broker, hosted, partition, now_ms, version, acks)
    except (KafkaError, StorageError) as error:
        _tell(result, error)
        return None, -1
    result.base_offset = done.base_offset
    result.log_append_time_ms = done.timestamp
    result.log_start_offset = log.log_start_offset
    return log, done.end_offset


def _place(
    broker: Broker,
    hosted: HostedTopic,
    partition: PartitionProduceData,
    now_ms: int,
    version: int,
    acks: int,
) -> tuple[PartitionLog, Append]:
    """Validate and append one batch. Raises KafkaError and StorageError: nothing was appended."""
    log = hosted.log(partition.index)
    if hosted.internal:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, "brokers alone write internal topics")
    if acks == ALL and hosted.settings.min_insync_replicas > 1:
        _check_insync(broker, hosted, log)
    records = partition.records
    validated = validate(
        memoryview(b"") if records is None else records,  # type: ignore[arg-type]  # decoded: a view
        hosted.rules,
        now_ms,
        zstd_allowed=version >= ZSTD_FROM,
    )
    if validated.meta.attributes & TRANSACTIONAL:
        raise KafkaError(ErrorCode.INVALID_TXN_STATE, "transactions are not offered")
    if validated.meta.size > hosted.settings.segment_bytes:
        raise KafkaError(ErrorCode.RECORD_LIST_TOO_LARGE)
    return log, log.append(validated.meta, validated.buffer, now_ms)


def _not_committed(log: PartitionLog, result: PartitionProduceResponse) -> None:
    if log.failure is not None:
        _fail(result, ErrorCode.KAFKA_STORAGE_ERROR, str(log.failure))
    else:
        _fail(result, ErrorCode.REQUEST_TIMED_OUT, "not committed in time")


def _check_insync(broker: Broker, hosted: HostedTopic, log: PartitionLog) -> None:
    """Refuse acks=all where too few replicas are in sync to keep its promise."""
    state = broker.image.partitions.get(log.key)
    insync = len(state.isr) if state is not None else 0
    if insync < hosted.settings.min_insync_replicas:
        raise KafkaError(
            ErrorCode.NOT_ENOUGH_REPLICAS,
            f"{insync} of min.insync.replicas = {hosted.settings.min_insync_replicas} are in sync",
        )


def _tell(result: PartitionProduceResponse, error: KafkaError | StorageError) -> None:
    if isinstance(error, KafkaError):
        _fail(result, error.code, error.detail)
    elif isinstance(error, Fenced):
        _fail(result, ErrorCode.NOT_LEADER_OR_FOLLOWER, str(error))
    else:
        _fail(result, ErrorCode.KAFKA_STORAGE_ERROR, str(error))


def _fail(result: PartitionProduceResponse, code: ErrorCode, detail: str) -> None:
    result.error_code = code
    result.error_message = detail or code.text
    result.base_offset = -1
    result.log_append_time_ms = -1


def _hang_up_after_errors(topics: list[TopicProduceResponse]) -> None:
    """acks=0: there is no response to say so in, so the connection is closed, as by Kafka.

    The client then asks who leads the partition, and the operator finds the reason in the log.
    """
    for topic in topics:
        for result in topic.partition_responses:
            if result.error_code:
                # What the client called the topic may be anything: cut it and escape it.
                name = repr(topic.name[:80]) if topic.name else str(topic.topic_id)
                raise HangUp(
                    f"a batch for partition {result.index} of {name}, sent with acks=0, is lost: "
                    f"{result.error_message}"
                )
