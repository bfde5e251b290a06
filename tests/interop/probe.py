"""Requests exactly as a test wants them, over a plain blocking socket.

What no client can be made to send, and what a test must know without asking the client under
test: this speaks by the project's own codec, which tests/wire holds against other people's.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from types import TracebackType
from typing import TypeVar
from uuid import UUID

from odradek.errors import ErrorCode
from odradek.record import BatchBuilder
from odradek.wire import Message, decode_correlation_id, decode_response, encode_request
from odradek.wire.api.a00_produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from odradek.wire.api.a01_fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from odradek.wire.api.a02_list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from odradek.wire.api.a03_metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from odradek.wire.api.a10_find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from odradek.wire.api.a19_create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from odradek.wire.api.a21_delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)

__all__ = ["Probe", "batch_of"]

R = TypeVar("R", bound=Message)
TIMEOUT = 60.0


def batch_of(
    values: Sequence[bytes | None],
    *,
    timestamp: int | None = None,
    producer: tuple[int, int, int] = (-1, -1, -1),
) -> bytes:
    """One batch of records without keys, as of `timestamp` (ms, now if left out).

    `producer`: producer id, producer epoch, base sequence.
    """
    builder = BatchBuilder(
        16 << 20, producer_id=producer[0], producer_epoch=producer[1], base_sequence=producer[2]
    )
    at = int(time.time() * 1000) if timestamp is None else timestamp
    for value in values:
        assert builder.append(at, None, value)
    return bytes(builder.build())


class Probe:
    """One connection; a context manager. Every call raises OSError after a minute."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), TIMEOUT)
        self._correlation_id = 0

    def __enter__(self) -> Probe:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._socket.close()

    def call(self, request: Message, version: int, answer: type[R]) -> R:
        """Send a request and return its response."""
        self.send(request, version)
        return self.receive(version, answer)

    def send(self, request: Message, version: int) -> None:
        """Send a request without waiting for its response."""
        self._correlation_id += 1
        self._socket.sendall(b"".join(encode_request(request, version, self._correlation_id, "t")))  # type: ignore[arg-type]  # no part is a range of a file here

    def send_frame(self, frame: bytes) -> None:
        """Send a whole frame, of whatever content."""
        self._socket.sendall(frame)
        self._correlation_id = int.from_bytes(frame[8:12])

    def receive(self, version: int, answer: type[R]) -> R:
        """Receive the response to the newest request."""
        size = int.from_bytes(self._exactly(4))
        frame = memoryview(self._exactly(size))
        assert decode_correlation_id(frame) == self._correlation_id
        return decode_response(answer, version, frame)

    def _exactly(self, count: int) -> bytes:
        held = bytearray()
        while len(held) < count:
            more = self._socket.recv(count - len(held))
            if not more:
                raise EOFError("the broker closed the connection")
            held += more
        return bytes(held)

    # -- what tests ask again and again ------------------------------------------------------

    def create_topic(self, name: str, partitions: int = 1, **configs: str) -> None:
        """Create a topic; `_` stands for `.` in the names of settings."""
        topic = CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=1,
            configs=[
                CreatableTopicConfig(name=key.replace("_", "."), value=value)
                for key, value in configs.items()
            ],
        )
        request = CreateTopicsRequest(topics=[topic], timeout_ms=60_000)
        (result,) = self.call(request, 7, CreateTopicsResponse).topics
        assert result.error_code == 0, result.error_message

    def create_offsets_topic(self) -> None:
        """Have `__consumer_offsets` created; returns when it is.

        A client with a group id does the same at some moment. A test that kills the broker at that
        very moment would be told at the next start of partitions that have no log.
        """
        request = FindCoordinatorRequest(key="any")
        found = self.call(request, 2, FindCoordinatorResponse)
        assert found.error_code == 0, ErrorCode(found.error_code)

    def topic_id(self, name: str) -> UUID:
        """Id of a topic that exists."""
        request = MetadataRequest(
            topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=False
        )
        (topic,) = self.call(request, 12, MetadataResponse).topics
        assert topic.error_code == 0, ErrorCode(topic.error_code)
        return topic.topic_id

    def end_offset(self, topic: str, partition: int = 0) -> int:
        """High watermark of a partition."""
        where = ListOffsetsPartition(partition_index=partition, timestamp=-1)
        request = ListOffsetsRequest(
            replica_id=-1, topics=[ListOffsetsTopic(name=topic, partitions=[where])]
        )
        (result,) = self.call(request, 7, ListOffsetsResponse).topics[0].partitions
        assert result.error_code == 0, ErrorCode(result.error_code)
        return result.offset

    def delete_records(self, topic: str, before: int, partition: int = 0) -> None:
        """Delete the records below an offset."""
        where = DeleteRecordsPartition(partition_index=partition, offset=before)
        request = DeleteRecordsRequest(
            topics=[DeleteRecordsTopic(name=topic, partitions=[where])], timeout_ms=60_000
        )
        (result,) = self.call(request, 2, DeleteRecordsResponse).topics[0].partitions
        assert result.error_code == 0, ErrorCode(result.error_code)

    def produce(
        self, topic: str, batch: bytes, partition: int = 0, acks: int = -1, version: int = 9
    ) -> PartitionProduceResponse:
        """Send one batch as it is."""
        data = PartitionProduceData(index=partition, records=batch)
        request = ProduceRequest(
            acks=acks,
            timeout_ms=60_000,
            topic_data=[TopicProduceData(name=topic, partition_data=[data])],
        )
        (result,) = self.call(request, version, ProduceResponse).responses[0].partition_responses
        return result

    def produce_values(self, topic: str, values: Sequence[bytes], partition: int = 0) -> int:
        """Send records in one batch, with values only; returns the offset of the first."""
        result = self.produce(topic, batch_of(values), partition)
        assert result.error_code == 0, ErrorCode(result.error_code)
        return result.base_offset

    @staticmethod
    def fetch_request(
        topic: str,
        partition: int,
        offset: int,
        *,
        max_wait_ms: int = 0,
        min_bytes: int = 1,
        max_bytes: int = 1 << 20,
    ) -> FetchRequest:
        """A fetch of one partition, for version 12."""
        where = FetchPartition(
            partition=partition, fetch_offset=offset, partition_max_bytes=max_bytes
        )
        return FetchRequest(
            max_wait_ms=max_wait_ms,
            min_bytes=min_bytes,
            max_bytes=max_bytes,
            topics=[FetchTopic(topic=topic, partitions=[where])],
        )

    def fetch(self, topic: str, partition: int, offset: int, **limits: int) -> PartitionData:
        """Fetch one partition."""
        request = self.fetch_request(topic, partition, offset, **limits)
        (result,) = self.call(request, 12, FetchResponse).responses[0].partitions
        return result
