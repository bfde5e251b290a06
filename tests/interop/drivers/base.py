"""What tests ask of a foreign client, whatever it is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attrs import field, frozen

from odradek.errors import ErrorCode

__all__ = ["AdminDriver", "Cluster", "Driver", "OnProgress", "Record", "Refused", "Topic"]

OnProgress = Callable[[int], None]
"""Called with the number of records so far, in the thread that runs the client."""

Headers = tuple[tuple[str, bytes | None], ...]


@frozen
class Record:
    """A record as a client gives or gets it; offset and timestamp (ms) as far as known."""

    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    timestamp: int | None = None
    offset: int = field(default=-1, eq=False)
    partition: int = field(default=0, eq=False)


class Refused(Exception):
    """The client reports an error of the broker."""

    def __init__(self, code: int, text: str) -> None:
        self.code = ErrorCode(code)
        super().__init__(f"{self.code.name}: {text}")


@frozen
class Topic:
    """A topic as a client describes it; the id is Kafka's 22 characters, where clients tell it."""

    name: str
    partitions: int
    id: str | None = None


@frozen
class Cluster:
    """A cluster as a client describes it: its id, the controller, `id -> host:port`."""

    id: str | None
    controller: int | None
    brokers: Mapping[int, str]


class Driver(ABC):
    """A client that produces and consumes, each call with an instance of its own."""

    name: str
    """As tests are named."""
    idempotent = True
    """Whether it has an idempotent producer."""
    headers = True
    """Whether records can be given headers, one by one."""
    null_headers = True
    """Whether a header can be null."""
    timestamps = True
    """Whether records can be given timestamps."""
    max_timestamp = True
    """Whether it can ask for the newest record (KIP-734)."""
    reports_offsets = True
    """Whether `produce` returns offsets."""

    def __init__(self, address: str) -> None:
        self.address = address

    @abstractmethod
    def version(self) -> str:
        """Which version of the client runs."""

    @abstractmethod
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
        """Send records and return their offsets, when all are acknowledged.

        `settings` are the client's own. Raises Refused for the first record that was refused.
        """

    @abstractmethod
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
        """Return the first `count` records from offset `start`; raises TimeoutError after 30 s.

        kcat reads one partition, or all that there are.
        """

    @abstractmethod
    def offset_at(self, topic: str, when: int | str, *, partition: int = 0) -> int:
        """ListOffsets: a time in ms, `earliest`, `latest`, or `max_timestamp`; -1 for none."""

    def close(self) -> None:  # noqa: B027  # most have nothing to close
        """End what the driver holds."""


class AdminDriver(Driver):
    """A client that administrates too. Every method raises Refused."""

    by_id = True
    """Whether it describes topics with their ids."""
    offers: frozenset[str] = frozenset()
    """What else it has: `describe_log_dirs`, `delete_config`."""

    @abstractmethod
    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        replication_factor: int = 1,
        configs: Mapping[str, str] | None = None,
        *,
        validate_only: bool = False,
    ) -> None:
        """CreateTopics."""

    @abstractmethod
    def delete_topic(self, name: str) -> None:
        """DeleteTopics."""

    @abstractmethod
    def topics(self) -> set[str]:
        """Names of all topics."""

    @abstractmethod
    def describe_topic(self, name: str) -> Topic:
        """Metadata of one topic, which is not created by asking."""

    @abstractmethod
    def create_partitions(self, name: str, total: int) -> None:
        """CreatePartitions."""

    @abstractmethod
    def configs(self, kind: str, name: str) -> dict[str, str | None]:
        """DescribeConfigs of a `topic` or a `broker`."""

    @abstractmethod
    def alter_configs(self, topic: str, configs: Mapping[str, str | None]) -> None:
        """IncrementalAlterConfigs: set, or delete (None)."""

    @abstractmethod
    def replace_configs(self, topic: str, configs: Mapping[str, str]) -> None:
        """AlterConfigs (deprecated in Kafka): what is not named goes back to its default."""

    @abstractmethod
    def delete_records(self, topic: str, before: int, *, partition: int = 0) -> int:
        """DeleteRecords; returns the low watermark."""

    @abstractmethod
    def describe_cluster(self) -> Cluster:
        """DescribeCluster, or Metadata."""

    def log_dirs(self) -> dict[tuple[str, int], int]:
        """DescribeLogDirs: bytes of each partition."""
        raise NotImplementedError
