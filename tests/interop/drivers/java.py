"""Apache Kafka's Java client: one JVM for a whole session, driven by lines of JSON."""

from __future__ import annotations

import base64
import json
import select
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.interop.drivers.base import AdminDriver, Cluster, OnProgress, Record, Refused, Topic

__all__ = ["Java", "Jvm", "ToolFailed"]

TIMEOUT = 60.0
FAST_START = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto", "-Xmx256m")
"""A JVM that lives for seconds: less compilation, fewer threads."""


class Jvm:
    """Runs java/Driver.java with the client of one version of Kafka."""

    def __init__(self, jars: Path) -> None:
        self._process = subprocess.Popen(
            ["java", *FAST_START, "-cp", f"{jars}:{jars}/*", "Driver"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self._held = b""

    def call(self, command: Mapping[str, Any], on_progress: OnProgress | None = None) -> Any:
        """Run one command. Raises Refused, TimeoutError, RuntimeError."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command).encode() + b"\n")
        self._process.stdin.flush()
        deadline = time.monotonic() + TIMEOUT
        while True:
            answer = json.loads(self._line(deadline))
            if "progress" in answer:
                if on_progress is not None:
                    on_progress(answer["progress"])
            elif "error" in answer:
                error = answer["error"]
                if error["code"] > 0:
                    raise Refused(error["code"], error["text"])
                raise RuntimeError(error["text"])
            else:
                return answer["result"]

    def _line(self, deadline: float) -> bytes:
        assert self._process.stdout is not None
        while b"\n" not in self._held:
            left = max(deadline - time.monotonic(), 0)
            if not select.select([self._process.stdout], [], [], left)[0]:
                self.kill()
                raise TimeoutError("the Java client does not answer")
            more = self._process.stdout.read1(1 << 20)  # type: ignore[attr-defined]  # a buffered reader
            if not more:
                raise RuntimeError("the JVM ended")
            self._held += more
        line, _, self._held = self._held.partition(b"\n")
        return line

    def kill(self) -> None:
        """End it."""
        with self._process:
            self._process.kill()


class ToolFailed(Exception):
    """A command line tool ended with another exit code than 0; the text is what it printed."""


class Java(AdminDriver):
    """Producer, consumer and admin client of Apache Kafka."""

    offers = frozenset({"log_dirs", "by_id"})

    def __init__(self, address: str, jvm: Jvm, version: str) -> None:
        super().__init__(address)
        self.name = f"java-{version}"
        self._jvm = jvm

    def version(self) -> str:
        """See `Driver`."""
        return str(self._call("version"))

    def _call(self, do: str, on_progress: OnProgress | None = None, **command: Any) -> Any:
        return self._jvm.call({"do": do, "bootstrap": self.address, **command}, on_progress)

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
            "acks": acks,
            "compression.type": compression,
            "enable.idempotence": str(idempotent).lower(),
            "max.request.size": 4_000_000,
            "linger.ms": 5,
            **(settings or {}),
        }
        sent = [
            {
                "key": _text(record.key),
                "value": _text(record.value),
                "headers": [[name, _text(value)] for name, value in record.headers],
                "timestamp": record.timestamp,
            }
            for record in records
        ]
        return list(
            self._call("produce", topic=topic, partition=partition, records=sent, settings=options)
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
        found = self._call(
            "consume",
            on_progress,
            topic=topic,
            partitions=list(partitions),
            start=start,
            count=count,
            progress=on_progress is not None,
            settings=dict(settings or {}),
        )
        return [
            Record(
                _bytes(each["value"]),
                _bytes(each["key"]),
                tuple((name, _bytes(value)) for name, value in each["headers"]),
                each["timestamp"],
                each["offset"],
                each["partition"],
            )
            for each in found
        ]

    def offset_at(self, topic: str, when: int | str, *, partition: int = 0) -> int:
        """See `Driver`."""
        return int(self._call("offset_at", topic=topic, partition=partition, when=when))

    def offsets_for_times(self, topic: str, when: int, *, partition: int = 0) -> int:
        """The consumer's way to look up a time in ms."""
        return int(self._call("offsets_for_times", topic=topic, partition=partition, when=when))

    def tool(self, main: str, *arguments: str, stdin: str = "") -> str:
        """Run a command line tool by its class; returns what it printed, if it exits with 0."""
        answer = self._call("tool", main=main, arguments=arguments, stdin=stdin)
        if answer["code"]:
            raise ToolFailed(answer["printed"])
        return str(answer["printed"])

    # -- administration ----------------------------------------------------------------------

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
        self._call(
            "create_topic",
            name=name,
            partitions=partitions,
            replication_factor=replication_factor,
            configs=dict(configs or {}),
            validate_only=validate_only,
        )

    def delete_topic(self, name: str) -> None:
        """See `AdminDriver`."""
        self._call("delete_topic", name=name)

    def delete_topic_by_id(self, topic_id: str) -> None:
        """DeleteTopics by id (KIP-516)."""
        self._call("delete_topic_by_id", name=topic_id)

    def topics(self) -> set[str]:
        """See `AdminDriver`."""
        return set(self._call("topics"))

    def describe_topic(self, name: str) -> Topic:
        """See `AdminDriver`."""
        return Topic(**self._call("describe_topic", name=name))

    def describe_topic_by_id(self, topic_id: str) -> Topic:
        """Metadata by id (KIP-516)."""
        return Topic(**self._call("describe_topic_by_id", name=topic_id))

    def create_partitions(self, name: str, total: int) -> None:
        """See `AdminDriver`."""
        self._call("create_partitions", name=name, total=total)

    def configs(self, kind: str, name: str) -> dict[str, str | None]:
        """See `AdminDriver`."""
        return dict(self._call("configs", kind=kind.upper(), name=name))

    def alter_configs(
        self, topic: str, configs: Mapping[str, str | None], operation: str = "SET"
    ) -> None:
        """See `AdminDriver`; also APPEND and SUBTRACT, for lists."""
        self._call(
            "alter_configs", kind="TOPIC", name=topic, configs=dict(configs), operation=operation
        )

    def replace_configs(self, topic: str, configs: Mapping[str, str]) -> None:
        """Kafka 4 took it out of the client."""
        raise NotImplementedError

    def delete_records(self, topic: str, before: int, *, partition: int = 0) -> int:
        """See `AdminDriver`."""
        return int(self._call("delete_records", topic=topic, partition=partition, before=before))

    def describe_cluster(self) -> Cluster:
        """See `AdminDriver`."""
        found = self._call("describe_cluster")
        brokers = {int(number): where for number, where in found["brokers"].items()}
        return Cluster(found["id"], found["controller"], brokers)

    def log_dirs(self) -> dict[tuple[str, int], int]:
        """See `AdminDriver`."""
        return {(topic, number): size for topic, number, size in self._call("log_dirs", broker=1)}


def _text(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)
