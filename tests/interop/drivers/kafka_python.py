"""kafka-python."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any, TypeVar

from tests.interop.drivers.base import AdminDriver, Cluster, OnProgress, Record, Refused, Topic

with warnings.catch_warnings():
    # kafka-python 3.0 reads its schemas by importlib.resources.read_text, deprecated in 3.11.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka
    from kafka.admin import ConfigResource, OffsetSpec
    from kafka.errors import BrokerResponseError, KafkaTimeoutError

__all__ = ["KafkaPython"]

T = TypeVar("T")
TIMEOUT = 30.0


def _call(function: Callable[..., T], *arguments: Any, **options: Any) -> T:
    try:
        return function(*arguments, **options)
    except KafkaTimeoutError as error:
        raise TimeoutError(str(error)) from error
    except BrokerResponseError as error:
        raise Refused(error.errno, str(error)) from error


class KafkaPython(AdminDriver):
    """Producer, consumer and admin client; idempotent unless told otherwise."""

    name = "kafka-python"
    null_headers = False
    offers = frozenset({"log_dirs"})

    def version(self) -> str:
        """See `Driver`."""
        return str(kafka.__version__)

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
        options = {
            "acks": acks if acks == "all" else int(acks),
            "compression_type": None if compression == "none" else compression,
            "enable_idempotence": idempotent,
            "max_request_size": 4_000_000,
            "linger_ms": 5,
            **(settings or {}),
        }
        sent = []
        with closing(kafka.KafkaProducer(bootstrap_servers=self.address, **options)) as producer:
            for record in records:
                future = _call(
                    producer.send,
                    topic,
                    value=record.value,
                    key=record.key,
                    headers=list(record.headers),
                    partition=partition,
                    timestamp_ms=record.timestamp,
                )
                sent.append(future)
            offsets = []
            for future in sent:
                offsets.append(_call(future.get, timeout=TIMEOUT).offset)
                if on_progress is not None:
                    on_progress(len(offsets))
        return offsets

    def _consumer(self, settings: Mapping[str, Any] | None = None) -> Any:
        options = {"enable_auto_commit": False, "auto_offset_reset": "none", **(settings or {})}
        return kafka.KafkaConsumer(bootstrap_servers=self.address, **options)

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
        where = [kafka.TopicPartition(topic, number) for number in partitions]
        records: list[Record] = []
        deadline = time.monotonic() + TIMEOUT
        with closing(self._consumer(settings)) as consumer:
            consumer.assign(where)
            for each in where:
                consumer.seek(each, start)
            while len(records) < count:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{len(records)} of {count} records arrived")
                found = _call(consumer.poll, timeout_ms=500)
                records += [_record(each) for part in found.values() for each in part]
                if on_progress is not None:
                    on_progress(len(records))
        return records[:count]

    def offset_at(self, topic: str, when: int | str, *, partition: int = 0) -> int:
        """See `Driver`."""
        spec = {
            "earliest": OffsetSpec.EARLIEST,
            "latest": OffsetSpec.LATEST,
            "max_timestamp": OffsetSpec.MAX_TIMESTAMP,
        }.get(str(when), when)
        where = kafka.TopicPartition(topic, partition)
        return int(self._admin("list_partition_offsets", {where: spec})[where].offset)

    # -- administration ----------------------------------------------------------------------

    def _admin(self, method: str, *arguments: Any, **options: Any) -> Any:
        with closing(kafka.KafkaAdminClient(bootstrap_servers=self.address)) as admin:
            return _call(getattr(admin, method), *arguments, **options)

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
        topic = {
            "num_partitions": partitions,
            "replication_factor": replication_factor,
            "configs": dict(configs or {}),
        }
        self._admin("create_topics", {name: topic}, validate_only=validate_only)

    def delete_topic(self, name: str) -> None:
        """See `AdminDriver`."""
        self._admin("delete_topics", [name])

    def topics(self) -> set[str]:
        """See `AdminDriver`."""
        return set(self._admin("list_topics"))

    def describe_topic(self, name: str) -> Topic:
        """See `AdminDriver`."""
        (found,) = self._admin("describe_topics", [name])
        if found["error_code"]:
            raise Refused(found["error_code"], name)
        return Topic(name, len(found["partitions"]), str(found["topic_id"]))

    def create_partitions(self, name: str, total: int) -> None:
        """See `AdminDriver`."""
        self._admin("create_partitions", {name: total})

    def configs(self, kind: str, name: str) -> dict[str, str | None]:
        """See `AdminDriver`."""
        found = self._admin(
            "describe_configs", [ConfigResource(kind.upper(), name)], config_filter="all"
        )
        return {key: entry["value"] for key, entry in found[kind][name].items()}

    def alter_configs(self, topic: str, configs: Mapping[str, str | None]) -> None:
        """See `AdminDriver`."""
        changes = {
            key: ("DELETE", None) if value is None else ("SET", value)
            for key, value in configs.items()
        }
        self._alter(topic, changes, incremental=True)

    def replace_configs(self, topic: str, configs: Mapping[str, str]) -> None:
        """See `AdminDriver`; the client itself fills in the settings that are not named."""
        self._alter(topic, dict(configs), incremental=False)

    def _alter(self, topic: str, changes: Mapping[str, Any], incremental: bool) -> None:
        resource = ConfigResource("TOPIC", topic, changes)
        result = self._admin(
            "alter_configs", [resource], incremental=incremental, raise_on_unknown=False
        )
        text = result["topic"][topic]
        if text != "OK":
            raise Refused(int(text.partition("[Error ")[2].partition("]")[0]), text)

    def delete_records(self, topic: str, before: int, *, partition: int = 0) -> int:
        """See `AdminDriver`."""
        where = kafka.TopicPartition(topic, partition)
        return int(self._admin("delete_records", {where: before})[where]["low_watermark"])

    def describe_cluster(self) -> Cluster:
        """See `AdminDriver`."""
        found = self._admin("describe_cluster")
        brokers = {each["broker_id"]: f"{each['host']}:{each['port']}" for each in found["brokers"]}
        return Cluster(found["cluster_id"], found["controller_id"], brokers)

    def log_dirs(self) -> dict[tuple[str, int], int]:
        """See `AdminDriver`."""
        return {
            (topic["name"], partition["partition_index"]): partition["partition_size"]
            for broker in self._admin("describe_log_dirs")
            for log_dir in broker["log_dirs"]
            for topic in log_dir["topics"]
            for partition in topic["partitions"]
        }


def _record(each: Any) -> Record:
    return Record(
        each.value, each.key, tuple(each.headers), each.timestamp, each.offset, each.partition
    )
