"""confluent-kafka: librdkafka in Python."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import confluent_kafka as ck
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # it has no __all__
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
)
from tests.interop.drivers.base import AdminDriver, Cluster, OnProgress, Record, Refused, Topic

__all__ = ["Confluent"]

TIMEOUT = 30.0


def _refused(error: ck.KafkaException | ck.KafkaError) -> Exception:
    inner = error.args[0] if isinstance(error, ck.KafkaException) else error
    if inner.code() > 0:
        return Refused(inner.code(), inner.str())
    return TimeoutError(str(error)) if "TIMED_OUT" in inner.name() else RuntimeError(str(error))


class Confluent(AdminDriver):
    """librdkafka's producer, consumer and admin client."""

    name = "confluent-kafka"

    def version(self) -> str:
        """See `Driver`."""
        return f"{ck.version()} (librdkafka {ck.libversion()[0]})"

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
        producer = ck.Producer(
            {
                "bootstrap.servers": self.address,
                "acks": acks,
                "compression.type": compression,
                "enable.idempotence": idempotent,
                "message.max.bytes": 4_000_000,
                "message.timeout.ms": int(TIMEOUT * 1000),
                "queue.buffering.max.messages": 1_000_000,
                **(settings or {}),
            }
        )
        offsets: list[int] = []
        failures: list[ck.KafkaError] = []

        def delivered(error: ck.KafkaError | None, message: ck.Message) -> None:
            if error is not None:
                failures.append(error)
                return
            offset = message.offset()
            offsets.append(-1 if offset is None else offset)
            if on_progress is not None:
                on_progress(len(offsets))

        for record in records:
            producer.produce(
                topic,
                value=record.value,
                key=record.key,
                partition=partition,
                headers=list(record.headers),
                timestamp=record.timestamp or 0,
                on_delivery=delivered,
            )
            producer.poll(0)
        left = producer.flush(TIMEOUT + 5)
        if failures:
            raise _refused(failures[0])
        assert not left, f"{left} records are still on their way"
        return offsets

    def _consumer(self, settings: Mapping[str, Any] | None = None) -> ck.Consumer:
        return ck.Consumer(
            {
                "bootstrap.servers": self.address,
                "group.id": "never-joined",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                **(settings or {}),
            }
        )

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
        consumer = self._consumer(settings)
        records: list[Record] = []
        deadline = time.monotonic() + TIMEOUT
        try:
            consumer.assign([ck.TopicPartition(topic, number, start) for number in partitions])
            while len(records) < count:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{len(records)} of {count} records arrived")
                for message in consumer.consume(count - len(records), 0.5):
                    error = message.error()
                    if error is not None:
                        if error.code() < 0 and not error.fatal() and error.retriable():
                            continue
                        if error.name() in ("_TRANSPORT", "_ALL_BROKERS_DOWN", "_RESOLVE"):
                            continue  # told, not final: the client connects again
                        raise _refused(error)
                    records.append(_record(message))
                if on_progress is not None:
                    on_progress(len(records))
        finally:
            consumer.close()
        return records

    def offset_at(self, topic: str, when: int | str, *, partition: int = 0) -> int:
        """See `Driver`."""
        spec = {
            "earliest": OffsetSpec.earliest,
            "latest": OffsetSpec.latest,
            "max_timestamp": OffsetSpec.max_timestamp,
        }.get(str(when), lambda: OffsetSpec.for_timestamp(int(when)))()
        where = ck.TopicPartition(topic, partition)
        return int(self._admin("list_offsets", {where: spec}).offset)

    # -- administration ----------------------------------------------------------------------

    def _admin(self, method: str, *arguments: Any, **options: Any) -> Any:
        """Call a method and wait for its result; a client that is let go of never answers."""
        client = AdminClient({"bootstrap.servers": self.address})
        try:
            future = getattr(client, method)(*arguments, **options)
            if isinstance(future, dict):
                (future,) = future.values()
            return future.result(TIMEOUT)
        except ck.KafkaException as error:
            raise _refused(error) from error

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
        topic = NewTopic(name, partitions, replication_factor, config=dict(configs or {}))
        self._admin("create_topics", [topic], validate_only=validate_only)

    def delete_topic(self, name: str) -> None:
        """See `AdminDriver`."""
        self._admin("delete_topics", [name])

    def topics(self) -> set[str]:
        """See `AdminDriver`."""
        return set(
            AdminClient({"bootstrap.servers": self.address}).list_topics(timeout=TIMEOUT).topics
        )

    def describe_topic(self, name: str) -> Topic:
        """See `AdminDriver`."""
        found = self._admin("describe_topics", ck.TopicCollection(topic_names=[name]))
        return Topic(found.name, len(found.partitions), str(found.topic_id))

    def create_partitions(self, name: str, total: int) -> None:
        """See `AdminDriver`."""
        self._admin("create_partitions", [NewPartitions(name, total)])

    def configs(self, kind: str, name: str) -> dict[str, str | None]:
        """See `AdminDriver`."""
        found = self._admin("describe_configs", [ConfigResource(kind, name)])
        return {key: entry.value for key, entry in found.items()}

    def alter_configs(self, topic: str, configs: Mapping[str, str | None]) -> None:
        """See `AdminDriver`."""
        entries = [
            ConfigEntry(
                key,
                value,
                incremental_operation=AlterConfigOpType.DELETE
                if value is None
                else AlterConfigOpType.SET,
            )
            for key, value in configs.items()
        ]
        resource = ConfigResource("topic", topic, incremental_configs=entries)
        self._admin("incremental_alter_configs", [resource])

    def replace_configs(self, topic: str, configs: Mapping[str, str]) -> None:
        """See `AdminDriver`."""
        resource = ConfigResource("topic", topic, set_config=dict(configs))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # AlterConfigs itself is deprecated
            self._admin("alter_configs", [resource])

    def delete_records(self, topic: str, before: int, *, partition: int = 0) -> int:
        """See `AdminDriver`."""
        where = ck.TopicPartition(topic, partition, before)
        return int(self._admin("delete_records", [where]).low_watermark)

    def describe_cluster(self) -> Cluster:
        """See `AdminDriver`."""
        found = self._admin("describe_cluster")
        return Cluster(
            found.cluster_id,
            found.controller.id if found.controller is not None else None,
            {node.id: f"{node.host}:{node.port}" for node in found.nodes},
        )


def _record(message: ck.Message) -> Record:
    kind, timestamp = message.timestamp()
    offset = message.offset()
    partition = message.partition()
    assert offset is not None
    assert partition is not None
    headers: Any = message.headers() or ()  # a list of pairs, whatever its type says
    return Record(
        message.value(),
        message.key(),
        tuple(headers),
        timestamp if kind else None,
        offset,
        partition,
    )
