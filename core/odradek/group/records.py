"""The records of `__consumer_offsets`, in Kafka's own layout, sans-IO.

Key and value each begin with a version (int16). For keys it is the type of the record:

| key | holds | value |
|--|--|--|
| 0, 1 | group, topic, partition | a committed offset: OffsetCommitValue, versions 0 to 4 |
| 2 | group | a classic group: GroupMetadataValue, versions 0 to 4 |
| 3 and above | | groups of KIP-848 and share groups: not for the classic machine |

Source: `group-coordinator/src/main/resources/common/message` in Apache Kafka. Written are, as by
Kafka 4, key version 1 and 2 and value version 3; an offset with an expiry of its own (OffsetCommit
before version 5) is written as value version 1, the only one that has a place for it. Version 4
is flexible: what its tagged fields say is ignored (KIP-915).
"""

from __future__ import annotations

from struct import Struct as Layout
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from odradek.errors import MalformedMessage, UnsupportedVersion
from odradek.wire.codec import decode, encode
from odradek.wire.schema import Message, Struct, array, bytes_, int32, int64, string

if TYPE_CHECKING:
    from odradek.types import Buffer

__all__ = [
    "CommittedOffset",
    "GroupKey",
    "GroupMetadataValue",
    "MemberMetadata",
    "OffsetKey",
    "OtherKey",
    "decode_group",
    "decode_key",
    "decode_offset",
    "encode_group",
    "encode_group_key",
    "encode_offset",
    "encode_offset_key",
]

M = TypeVar("M", bound=Message)

_VERSION = Layout("!h")

_OFFSET_KEY = _VERSION.pack(1)
_GROUP_KEY = _VERSION.pack(2)


class OffsetCommitKey(Message, versions="0-1"):
    """Whose offset of which partition; both versions have this layout."""

    group: str = string("0-1")
    topic: str = string("0-1")
    partition: int = int32("0-1")


class OffsetCommitValue(Message, versions="0-4", flexible="4+"):
    """A committed offset; the timestamps are milliseconds since 1970."""

    offset: int = int64("0+")
    leader_epoch: int = int32("3+", default=-1, ignorable=True)
    metadata: str = string("0+")
    commit_timestamp: int = int64("0+")
    expire_timestamp: int = int64("1", default=-1, ignorable=True)


class GroupMetadataKey(Message, versions="2"):
    """Which group."""

    group: str = string("2")


class MemberMetadata(Struct):
    """A member of a generation; the timeouts are milliseconds."""

    member_id: str = string("0+")
    group_instance_id: str | None = string("3+", nullable="3+", default=None, ignorable=True)
    client_id: str = string("0+")
    client_host: str = string("0+")
    rebalance_timeout: int = int32("1+", default=-1, ignorable=True)
    session_timeout: int = int32("0+")
    subscription: bytes = bytes_("0+")
    assignment: bytes = bytes_("0+")


class GroupMetadataValue(Message, versions="0-4", flexible="4+"):
    """A generation of a classic group."""

    protocol_type: str = string("0+")
    generation: int = int32("0+")
    protocol: str | None = string("0+", nullable="0+")
    leader: str | None = string("0+", nullable="0+")
    current_state_timestamp: int = int64("2+", default=-1, ignorable=True)
    members: list[MemberMetadata] = array(MemberMetadata, "0+")


class OffsetKey(NamedTuple):
    """The key of a committed offset."""

    group: str
    topic: str
    partition: int


class GroupKey(NamedTuple):
    """The key of a classic group."""

    group: str


class OtherKey(NamedTuple):
    """A key of a type that is not read here."""

    version: int


class CommittedOffset(NamedTuple):
    """How far a group has read a partition: `offset` is the next one it wants.

    `leader_epoch` is -1 when it is not known. `expire_timestamp_ms` is -1 unless the commit
    asked for a retention of its own.
    """

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    expire_timestamp_ms: int = -1


def encode_offset_key(group: str, topic: str, partition: int) -> bytes:
    """Encode the key of an offset."""
    key = OffsetCommitKey(group=group, topic=topic, partition=partition)
    return b"".join((_OFFSET_KEY, *encode(key, 1)))  # type: ignore[arg-type]  # no records in it


def encode_group_key(group: str) -> bytes:
    """Encode the key of a classic group."""
    key = GroupMetadataKey(group=group)
    return b"".join((_GROUP_KEY, *encode(key, 2)))  # type: ignore[arg-type]  # likewise


def encode_offset(offset: CommittedOffset) -> bytes:
    """Encode the value of an offset."""
    version = 3 if offset.expire_timestamp_ms == -1 else 1
    value = OffsetCommitValue(
        offset=offset.offset,
        leader_epoch=offset.leader_epoch,
        metadata=offset.metadata,
        commit_timestamp=offset.commit_timestamp_ms,
        expire_timestamp=offset.expire_timestamp_ms,
    )
    return b"".join((_VERSION.pack(version), *encode(value, version)))  # type: ignore[arg-type]


def encode_group(group: GroupMetadataValue, version: int = 3) -> bytes:
    """Encode the value of a classic group."""
    return b"".join((_VERSION.pack(version), *encode(group, version)))  # type: ignore[arg-type]


def decode_key(key: Buffer) -> OffsetKey | GroupKey | OtherKey:
    """Decode a key of any version. Raises MalformedMessage."""
    version = _version(key)
    if version in (0, 1):
        offset = decode(OffsetCommitKey, version, key, 2)
        return OffsetKey(offset.group, offset.topic, offset.partition)
    if version == 2:
        return GroupKey(decode(GroupMetadataKey, version, key, 2).group)
    return OtherKey(version)


def decode_offset(value: Buffer) -> CommittedOffset:
    """Decode the value of an offset. Raises MalformedMessage, also for a version above 4."""
    message = _decode(OffsetCommitValue, value)
    return CommittedOffset(
        message.offset,
        message.leader_epoch,
        message.metadata,
        message.commit_timestamp,
        message.expire_timestamp,
    )


def decode_group(value: Buffer) -> GroupMetadataValue:
    """Decode the value of a group. Raises MalformedMessage, also for a version above 4."""
    return _decode(GroupMetadataValue, value)


def _version(data: Buffer) -> int:
    if len(data) < 2:
        raise MalformedMessage("a record of __consumer_offsets without a version")
    (version,) = _VERSION.unpack_from(data)
    return int(version)


def _decode(cls: type[M], value: Buffer) -> M:
    version = _version(value)
    try:
        return decode(cls, version, value, 2)
    except UnsupportedVersion:
        raise MalformedMessage(f"{cls.__name__} of version {version} cannot be read") from None
