"""The client's settings: defaults, units, and Kafka's names for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from attrs import Attribute, field, frozen, validators

from odradek.record import CompressionType

__all__ = ["ClientSettings", "ProducerSettings", "ReaderSettings"]

Validator: TypeAlias = Callable[[object, "Attribute[Any]", Any], None]

MAX_INT32 = 2**31 - 1
MAX_SECONDS = MAX_INT32 // 1000
"""The protocol's times are 32 bits of milliseconds: 24 days."""


def one_of(*choices: object) -> Validator:
    """Accept these values and no others; the error names them all."""

    def validate(_: object, attribute: Attribute[Any], value: Any) -> None:
        if value not in choices:
            given = ", ".join(map(repr, choices))
            raise ValueError(f"{attribute.name} is one of {given}, not {value!r}")

    return validate


def whole(least: int) -> Validator:
    """Accept whole numbers from `least` to what 32 bits hold."""

    def validate(_: object, attribute: Attribute[Any], value: Any) -> None:
        if not isinstance(value, int):
            raise TypeError(f"{attribute.name} is a whole number, not {value!r}")
        if not least <= value <= MAX_INT32:
            raise ValueError(f"{attribute.name} is from {least} to {MAX_INT32}, not {value}")

    return validate


_positive: Any = validators.gt(0)
_not_negative: Any = validators.ge(0)
sent_positive: Any = validators.and_(_positive, validators.le(MAX_SECONDS))
"""Of seconds that brokers are told in milliseconds."""
_sent_not_negative: Any = validators.and_(_not_negative, validators.le(MAX_SECONDS))


def _codec(given: CompressionType | str) -> CompressionType:
    if isinstance(given, CompressionType):
        return given
    if isinstance(given, str) and given.upper() in CompressionType.__members__:
        return CompressionType[given.upper()]
    names = ", ".join(name.lower() for name in CompressionType.__members__)
    raise ValueError(f"compression is one of {names}, not {given!r}")


@frozen(slots=True, kw_only=True)
class ClientSettings:
    """Settings of everything that talks to a cluster. Times are in seconds, sizes in bytes.

    * `client_id` (client.id): how brokers name this client in their logs.
    * `connect_timeout` (socket.connection.setup.timeout.ms): for a connection and its ApiVersions.
    * `request_timeout` (request.timeout.ms): from the sending of a request to its answer.
    * `retry_backoff`, `retry_backoff_max` (retry.backoff.ms, retry.backoff.max.ms): the wait
      before a retry doubles from the first to the second, give or take 20 % (KIP-580).
    * `metadata_max_age` (metadata.max.age.ms): metadata is fetched anew at the latest then.
    * `max_in_flight`: requests without an answer on one connection; further ones wait.
    * `max_response_bytes` (receive.message.max.bytes): a longer frame ends the connection.
    """

    client_id: str = "odradek"
    connect_timeout: float = field(default=10.0, validator=_positive)
    request_timeout: float = field(default=30.0, validator=sent_positive)
    retry_backoff: float = field(default=0.1, validator=_not_negative)
    retry_backoff_max: float = field(default=1.0, validator=_not_negative)
    metadata_max_age: float = field(default=300.0, validator=_positive)
    max_in_flight: int = field(default=64, validator=whole(1))
    max_response_bytes: int = field(default=128 * 1024 * 1024, validator=whole(1))


@frozen(slots=True, kw_only=True)
class ProducerSettings:
    """Settings of a producer. Times are in seconds, sizes in bytes.

    * `acks` (acks): -1 waits for the in-sync replicas, 1 for the leader, 0 for nobody.
    * `idempotent` (enable.idempotence): a retry is written once; needs acks = -1.
    * `linger` (linger.ms): how long a batch waits for more records before it is sent.
    * `batch_bytes` (batch.size): a batch is sent when it has grown to this size, uncompressed.
    * `max_request_bytes` (max.request.size): of one request, and of one record.
    * `buffer_bytes` (buffer.memory): records not acknowledged yet; `send` waits for room.
    * `compression` (compression.type): a `CompressionType`, or its name: "gzip", "lz4", ...
    * `delivery_timeout` (delivery.timeout.ms): from `send` to the acknowledgement.
    * `max_in_flight` (max.in.flight.requests.per.connection): at most 5 when idempotent, since
      brokers remember the last 5 batches of a producer. Without idempotence a partition has one
      request in flight at a time, so that a retry cannot change the order of its records.
    * `create_topics`: ask brokers to create unknown topics (their auto.create.topics.enable).
    """

    acks: int = field(default=-1, validator=one_of(-1, 0, 1))
    idempotent: bool = True
    linger: float = field(default=0.005, validator=_not_negative)
    batch_bytes: int = field(default=128 * 1024, validator=whole(1))
    max_request_bytes: int = field(default=1024 * 1024, validator=whole(1))
    buffer_bytes: int = field(default=32 * 1024 * 1024, validator=_positive)
    compression: CompressionType = field(default=CompressionType.NONE, converter=_codec)
    delivery_timeout: float = field(default=120.0, validator=_positive)
    max_in_flight: int = field(default=5, validator=whole(1))
    create_topics: bool = True

    def __attrs_post_init__(self) -> None:
        """Refuse combinations that cannot keep what they promise."""
        if self.idempotent and self.acks != -1:
            raise ValueError("an idempotent producer needs acks = -1; set idempotent = False")
        if self.idempotent and self.max_in_flight > 5:
            raise ValueError("an idempotent producer may have at most 5 requests in flight")


@frozen(slots=True, kw_only=True)
class ReaderSettings:
    """Settings of a reader. Times are in seconds, sizes in bytes.

    * `max_wait` (fetch.max.wait.ms): how long a broker waits for new records.
    * `min_bytes` (fetch.min.bytes): answer sooner when this much is there.
    * `fetch_bytes` (fetch.max.bytes): of one answer, of all its partitions.
    * `partition_bytes` (max.partition.fetch.bytes): of one partition in one answer.
    * `buffer_bytes`: batches fetched and not yet taken; fetching pauses above it. One answer may
      go beyond it, since a broker returns a batch whole however large it is (KIP-74).
    * `check_crcs` (check.crcs).
    * `missing_timeout`: how long a topic or partition may be unknown to the brokers before the
      reader raises UNKNOWN_TOPIC_OR_PARTITION.
    """

    max_wait: float = field(default=0.5, validator=_sent_not_negative)
    min_bytes: int = field(default=1, validator=whole(0))
    fetch_bytes: int = field(default=8 * 1024 * 1024, validator=whole(1))
    partition_bytes: int = field(default=1024 * 1024, validator=whole(1))
    buffer_bytes: int = field(default=32 * 1024 * 1024, validator=_positive)
    check_crcs: bool = True
    missing_timeout: float = field(default=30.0, validator=_not_negative)
