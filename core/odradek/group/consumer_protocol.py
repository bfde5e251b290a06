"""What consumers tell one another through a group: the consumer protocol, sans-IO.

The coordinator hands the metadata and assignments of members around as bytes. Where the group's
protocol type is "consumer" these bytes are a version (int16) and a subscription or an assignment
(Kafka: `ConsumerProtocolSubscription.json`, `ConsumerProtocolAssignment.json`):

    v0  topics, user data;  assigned partitions, user data
    v1  owned partitions, for cooperative rebalancing (KIP-429)
    v2  generation of the owned partitions (KIP-792)
    v3  rack (KIP-881)

No version is flexible. A newer version only appends fields: it is read as version 3, and what
follows is ignored. Versions 1 to 3 of the assignment have the layout of version 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from struct import Struct
from struct import error as struct_error
from typing import TYPE_CHECKING

from attrs import field, frozen

from odradek.errors import MalformedMessage

if TYPE_CHECKING:
    from odradek.types import Buffer

__all__ = [
    "LAST_VERSION",
    "PROTOCOL_TYPE",
    "ConsumerProtocolAssignment",
    "ConsumerProtocolSubscription",
    "decode_assignment",
    "decode_subscription",
    "encode_assignment",
    "encode_subscription",
    "subscribed_topics",
]

PROTOCOL_TYPE = "consumer"
"""The protocol type of groups whose members speak this protocol."""

LAST_VERSION = 3
"""The newest version that is written."""

_INT16 = Struct("!h")
_INT32 = Struct("!i")


@frozen(kw_only=True)
class ConsumerProtocolSubscription:
    """What a member wants, and what it has.

    `owned` are the partitions it holds from `generation` (-1 for none or unknown), by topic.
    """

    topics: Sequence[str]
    user_data: bytes | None = None
    owned: Mapping[str, Sequence[int]] = field(factory=dict)
    generation: int = -1
    rack: str | None = None


@frozen(kw_only=True)
class ConsumerProtocolAssignment:
    """The partitions that a member is given, by topic."""

    partitions: Mapping[str, Sequence[int]] = field(factory=dict)
    user_data: bytes | None = None


def encode_subscription(
    subscription: ConsumerProtocolSubscription, version: int = LAST_VERSION
) -> bytes:
    """Encode with the version in front; fields that `version` lacks are left out.

    Raises ValueError for a version outside of 0 to 3 and for a name of more than 32767 bytes.
    """
    _check_version(version)
    parts = [_INT16.pack(version), _INT32.pack(len(subscription.topics))]
    parts += map(_text, subscription.topics)
    parts.append(_data(subscription.user_data))
    if version >= 1:
        parts.append(_partitions(subscription.owned))
    if version >= 2:
        parts.append(_INT32.pack(subscription.generation))
    if version >= 3:
        parts.append(b"\xff\xff" if subscription.rack is None else _text(subscription.rack))
    return b"".join(parts)


def decode_subscription(data: Buffer) -> ConsumerProtocolSubscription:
    """Decode any version. Raises MalformedMessage when `data` is no subscription."""
    try:
        reader = _Reader(data)
        version = reader.version()
        topics = reader.topics()
        user_data = reader.data()
        return ConsumerProtocolSubscription(
            topics=tuple(topics),
            user_data=user_data,
            owned=reader.partitions() if version >= 1 else {},
            generation=reader.int32() if version >= 2 else -1,
            rack=reader.text_or_null() if version >= 3 else None,
        )
    except (struct_error, UnicodeDecodeError) as error:
        raise MalformedMessage(f"consumer protocol subscription: {error}") from None


def subscribed_topics(data: Buffer) -> list[str]:
    """Decode only the topics of a subscription: the one thing a coordinator asks of it.

    Raises MalformedMessage. What follows the topics is not looked at, because some clients write
    version 1 without its fields.
    """
    try:
        reader = _Reader(data)
        reader.version()
        return reader.topics()
    except (struct_error, UnicodeDecodeError) as error:
        raise MalformedMessage(f"consumer protocol subscription: {error}") from None


def encode_assignment(assignment: ConsumerProtocolAssignment, version: int = LAST_VERSION) -> bytes:
    """Encode with the version in front. Raises as `encode_subscription` does."""
    _check_version(version)
    partitions = _partitions(assignment.partitions)
    return b"".join((_INT16.pack(version), partitions, _data(assignment.user_data)))


def decode_assignment(data: Buffer) -> ConsumerProtocolAssignment:
    """Decode any version; empty bytes, which a leader may leave a member with, assign nothing.

    Raises MalformedMessage when `data` is no assignment.
    """
    if not len(data):
        return ConsumerProtocolAssignment()
    try:
        reader = _Reader(data)
        reader.version()
        return ConsumerProtocolAssignment(partitions=reader.partitions(), user_data=reader.data())
    except (struct_error, UnicodeDecodeError) as error:
        raise MalformedMessage(f"consumer protocol assignment: {error}") from None


def _check_version(version: int) -> None:
    if not 0 <= version <= LAST_VERSION:
        raise ValueError(f"version {version} of the consumer protocol is not known")


def _text(value: str) -> bytes:
    raw = value.encode()
    if len(raw) > 0x7FFF:
        raise ValueError(f"a name of {len(raw)} bytes where 32767 are allowed")
    return _INT16.pack(len(raw)) + raw


def _data(value: bytes | None) -> bytes:
    return b"\xff\xff\xff\xff" if value is None else _INT32.pack(len(value)) + value


def _partitions(value: Mapping[str, Sequence[int]]) -> bytes:
    parts = [_INT32.pack(len(value))]
    for topic, numbers in value.items():
        parts.append(_text(topic))
        parts.append(Struct(f"!i{len(numbers)}i").pack(len(numbers), *numbers))
    return b"".join(parts)


class _Reader:
    """Reads at a position that moves on; struct.error where the bytes end early."""

    def __init__(self, data: Buffer) -> None:
        self._view = memoryview(data)
        self._at = 0

    def _take(self, size: int) -> memoryview:
        end = self._at + size
        if size < 0 or end > len(self._view):
            raise MalformedMessage(f"consumer protocol: {size} bytes where fewer are left")
        taken = self._view[self._at : end]
        self._at = end
        return taken

    def int16(self) -> int:
        (value,) = _INT16.unpack(self._take(2))
        return int(value)

    def int32(self) -> int:
        (value,) = _INT32.unpack(self._take(4))
        return int(value)

    def version(self) -> int:
        version = self.int16()
        if version < 0:
            raise MalformedMessage(f"consumer protocol: version {version}")
        return version

    def count(self, least: int) -> int:
        """Read the length of an array whose elements take at least `least` bytes each."""
        count = self.int32()
        if not 0 <= count * least <= len(self._view) - self._at:
            raise MalformedMessage(f"consumer protocol: an array of {count} in too few bytes")
        return count

    def text(self) -> str:
        return str(self._take(self.int16()), "utf-8")

    def text_or_null(self) -> str | None:
        size = self.int16()
        return None if size == -1 else str(self._take(size), "utf-8")

    def data(self) -> bytes | None:
        size = self.int32()
        return None if size == -1 else bytes(self._take(size))

    def topics(self) -> list[str]:
        return [self.text() for _ in range(self.count(2))]

    def partitions(self) -> dict[str, tuple[int, ...]]:
        value: dict[str, tuple[int, ...]] = {}
        for _ in range(self.count(6)):
            topic = self.text()
            count = self.count(4)
            value[topic] = Struct(f"!{count}i").unpack(self._take(4 * count))
        return value
