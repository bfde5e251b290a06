"""aiokafka: each call runs an event loop of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

import aiokafka
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import BrokerResponseError
from tests.interop.drivers.base import AdminDriver, Cluster, OnProgress, Record, Refused, Topic

__all__ = ["AioKafka"]

T = TypeVar("T")
TIMEOUT = 30.0


def _run(body: Awaitable[T]) -> T:
    async def bounded() -> T:
        async with asyncio.timeout(TIMEOUT):
            return await body

    try:
        return asyncio.run(bounded())
    except BrokerResponseError as error:
        raise Refused(error.errno, str(error)) from error


class AioKafka(AdminDriver):
    """Producer, consumer and admin client; speaks the oldest versions of all clients here."""

    name = "aiokafka"
    max_timestamp = False
    by_id = False

    def version(self) -> str:
        """See `Driver`."""
        return str(aiokafka.__version__)

    def produce(
        self,
        topic: str,
        records: Sequence[Record],
        *,
        partition: int = 0,
        acks: str = "all",
        compression: str = "none",
        idempotent: bool = False,
        on_progress: OnProgress | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """See `Driver`."""

        async def body() -> list[int]:
            producer = aiokafka.AIOKafkaProducer(
                bootstrap_servers=self.address,
                acks=acks if acks == "all" else int(acks),
                compression_type=None if compression == "none" else compression,
                enable_idempotence=idempotent,
                max_request_size=4_000_000,
                **(settings or {}),
            )
            await producer.start()
            try:
                sent = [
                    await producer.send(
                        topic,
                        value=record.value,
                        key=record.key,
                        partition=partition,
                        timestamp_ms=record.timestamp,
                        headers=list(record.headers),
                    )
                    for record in records
                ]
                offsets = []
                for future in sent:
                    metadata = await future
                    offsets.append(-1 if metadata is None else metadata.offset)
                    if on_progress is not None:
                        on_progress(len(offsets))
                return offsets
            finally:
                await producer.stop()

        return _run(body())

    def _consume(
        self, body: Callable[[Any], Awaitable[T]], settings: Mapping[str, Any] | None = None
    ) -> T:
        async def with_consumer() -> T:
            options = {"enable_auto_commit": False, "auto_offset_reset": "none", **(settings or {})}
            consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=self.address, **options)
            await consumer.start()
            try:
                return await body(consumer)
            finally:
                await consumer.stop()

        return _run(with_consumer())

    def consume(
        self,
        topic: str,
        count: int,
        *,
        partitions: Sequence[int] = (0,),
        start: int = 0,
        on_progress: OnProgress | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> list[Record]:
        """See `Driver`."""
        where = [aiokafka.TopicPartition(topic, number) for number in partitions]

        async def body(consumer: Any) -> list[Record]:
            records: list[Record] = []
            consumer.assign(where)
            for each in where:
                consumer.seek(each, start)
            while len(records) < count:
                found = await consumer.getmany(*where, timeout_ms=500)
                records += [_record(each) for part in found.values() for each in part]
                if on_progress is not None:
                    on_progress(len(records))
            return records[:count]

        return self._consume(body, settings)

    def offset_at(self, topic: str, when: int | str, *, partition: int = 0) -> int:
        """See `Driver`."""
        where = aiokafka.TopicPartition(topic, partition)

        async def body(consumer: Any) -> int:
            if when == "earliest":
                return int((await consumer.beginning_offsets([where]))[where])
            if when == "latest":
                return int((await consumer.end_offsets([where]))[where])
            found = (await consumer.offsets_for_times({where: int(when)}))[where]
            return -1 if found is None else int(found.offset)

        return self._consume(body)

    # -- administration ----------------------------------------------------------------------

    def _admin(self, method: str, *arguments: Any, **options: Any) -> Any:
        async def body() -> Any:
            admin = AIOKafkaAdminClient(bootstrap_servers=self.address)
            await admin.start()
            try:
                return await getattr(admin, method)(*arguments, **options)
            finally:
                await admin.close()

        return _run(body())

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        replication_factor: int = 1,
        configs: Mapping[str, str] | None = None,
        *,
        validate_only: bool = False,
    ) -> None:
        """See `AdminDriver`."""
        topic = NewTopic(name, partitions, replication_factor, topic_configs=dict(configs or {}))
        answer = self._admin("create_topics", [topic], validate_only=validate_only)
        ((_, code, text),) = answer.topic_errors
        _check(code, text)

    def delete_topic(self, name: str) -> None:
        """See `AdminDriver`."""
        ((_, code),) = self._admin("delete_topics", [name]).topic_error_codes
        _check(code, name)

    def topics(self) -> set[str]:
        """See `AdminDriver`."""
        return set(self._admin("list_topics"))

    def describe_topic(self, name: str) -> Topic:
        """See `AdminDriver`."""
        found = {topic["topic"]: topic for topic in self._admin("describe_topics")}
        if name not in found:  # asked by name, this client lets the broker create it
            raise Refused(3, name)
        return Topic(name, len(found[name]["partitions"]))

    def create_partitions(self, name: str, total: int) -> None:
        """See `AdminDriver`."""
        self._admin("create_partitions", {name: NewPartitions(total)})

    def configs(self, kind: str, name: str) -> dict[str, str | None]:
        """See `AdminDriver`."""
        resource = ConfigResource(ConfigResourceType[kind.upper()], name)
        # to whom a resource does not belong an empty list comes back
        (found,) = (
            each for answer in self._admin("describe_configs", [resource])
            for each in answer.resources
        )  # fmt: skip
        code, text, *_, entries = found
        _check(code, text)
        return {entry[0]: entry[1] for entry in entries}

    def alter_configs(self, topic: str, configs: Mapping[str, str | None]) -> None:
        """Not offered by this client."""
        raise NotImplementedError

    def replace_configs(self, topic: str, configs: Mapping[str, str]) -> None:
        """See `AdminDriver`."""
        resource = ConfigResource(ConfigResourceType.TOPIC, topic, dict(configs))
        (found,) = (
            each for answer in self._admin("alter_configs", [resource])
            for each in answer.resources
        )  # fmt: skip
        _check(found[0], found[1])

    def delete_records(self, topic: str, before: int, *, partition: int = 0) -> int:
        """See `AdminDriver`."""
        where = aiokafka.TopicPartition(topic, partition)
        wanted = {where: RecordsToDelete(before_offset=before)}
        return int(self._admin("delete_records", wanted)[where])

    def describe_cluster(self) -> Cluster:
        """See `AdminDriver`."""
        found = self._admin("describe_cluster")
        brokers = {each["node_id"]: f"{each['host']}:{each['port']}" for each in found["brokers"]}
        return Cluster(found["cluster_id"], found["controller_id"], brokers)


def _check(code: int, text: str | None) -> None:
    if code:
        raise Refused(code, text or "")


def _record(each: Any) -> Record:
    return Record(
        each.value, each.key, tuple(each.headers), each.timestamp, each.offset, each.partition
    )
