"""How decentralised groups lie in the coordinator. JSON values, because operators read them.

    group-members.<group>/<session>     {"member": ..., "topics": {name: {"id", "partitions"}}}
    group-owners.<group>/<id>-<n>       {"member": ..., "topic": name}
    group-offsets.<group>/<id>-<n>      {"claim": ..., "committed": {...} or null, "topic": name}
    groups/<group>                      {"group": ..., "protocol": "decentralised"}

Members and owners are ephemeral, with their member's session. Offsets and the index of groups,
which names those that have offsets, stay.

A member registers under its session's id, which no session had before, nor will have: so a check
of its registration holds only while that very session lives.

A partition is named by its topic's id, so a topic that is created again begins anew. Every claim
of a partition overwrites its entry of offsets too, with a token nobody used before: the version
of that entry, which is never deleted while the group lives, is the fence of the claim. The version
of the owner's entry would not do, because it may repeat when the key is created again (C5).

Names of groups and sessions are percent-encoded; `encode` says how it stays injective. Sans-IO.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import quote
from uuid import UUID

from attrs import frozen

from odradek.client.membership import CommittedOffset
from odradek.contracts.coordinator import MAX_KEY_PART, Entry
from odradek.errors import OdradekError
from odradek.types import PartitionKey

__all__ = [
    "INDEX",
    "PROTOCOL",
    "GroupKeys",
    "Registration",
    "StoredOffset",
    "SubscribedTopic",
    "encode",
    "group_of",
    "group_value",
    "offset_of",
    "offset_value",
    "owner_of",
    "owner_value",
    "partition_of",
    "registration_of",
    "registration_value",
]

INDEX: Final = "groups"
"""The directory of the groups that have offsets."""
PROTOCOL: Final = "decentralised"

_MEMBERS = "group-members."
_OWNERS = "group-owners."
_OFFSETS = "group-offsets."
_ROOM = MAX_KEY_PART - len(_MEMBERS)
_MAX_PARTITIONS = 1_000_000
"""Of one topic; more is a damaged entry, and must not become a million keys in memory."""


def encode(name: str) -> str:
    """Return a part of a key for a group's name, or a session's id.

    Letters, digits, ``_``, ``-`` and ``.`` stand for themselves, every other byte of the name's
    UTF-8 is ``%XX``. Where that is too long for a key it is ``~`` and the SHA-256 of the name,
    which no encoded name can be, since ``~`` is encoded. Raises ValueError for an empty name.
    """
    if not name:
        raise ValueError("the name of a group is not empty")
    octets = name.encode("utf-8", "surrogatepass")
    text = quote(octets, safe="").replace("~", "%7E")  # which quote() leaves alone
    if text in {".", ".."}:
        return text.replace(".", "%2E")
    return text if len(text) <= _ROOM else f"~{sha256(octets).hexdigest()}"


class GroupKeys:
    """The keys of one group. Raises ValueError for an empty name."""

    __slots__ = ("group", "index", "members", "offsets", "owners")

    def __init__(self, group: str) -> None:
        encoded = encode(group)
        self.group = group
        self.members = _MEMBERS + encoded
        self.owners = _OWNERS + encoded
        self.offsets = _OFFSETS + encoded
        self.index = f"{INDEX}/{encoded}"

    def member(self, session_id: str) -> str:
        """Key of the registration of the member that has this session."""
        return f"{self.members}/{encode(session_id)}"

    def owner(self, partition: PartitionKey) -> str:
        """Key of a partition's owner."""
        return f"{self.owners}/{partition}"

    def offset(self, partition: PartitionKey) -> str:
        """Key of a partition's offset."""
        return f"{self.offsets}/{partition}"


@frozen(slots=True, order=True)
class SubscribedTopic:
    """A topic as one member sees it."""

    id: UUID
    partitions: int


@frozen(slots=True)
class Registration:
    """A member: `topics` are those subscribed to that exist, by name, as the member sees them."""

    member: str
    topics: Mapping[str, SubscribedTopic] = MappingProxyType({})
    client_id: str = ""


@frozen(slots=True)
class StoredOffset:
    """What is kept of a partition: the last claim's token, and the offset, if one was committed."""

    claim: str
    topic: str
    committed: CommittedOffset | None = None


def registration_value(registration: Registration) -> bytes:
    """Encode a member."""
    topics = {
        name: {"id": str(topic.id), "partitions": topic.partitions}
        for name, topic in registration.topics.items()
    }
    return _dump(
        {"client_id": registration.client_id, "member": registration.member, "topics": topics}
    )


def registration_of(entry: Entry) -> Registration:
    """Decode a member. Raises OdradekError."""
    with _expecting(entry) as value:
        topics = {
            str(name): SubscribedTopic(
                UUID(topic["id"]), _count(topic["partitions"], _MAX_PARTITIONS)
            )
            for name, topic in value["topics"].items()
        }
        return Registration(str(value["member"]), topics, str(value.get("client_id", "")))


def owner_value(member: str, topic: str) -> bytes:
    """Encode an owner."""
    return _dump({"member": member, "topic": topic})


def owner_of(entry: Entry) -> tuple[str, str]:
    """Decode an owner: the member, and the name of the topic. Raises OdradekError."""
    with _expecting(entry) as value:
        return str(value["member"]), str(value["topic"])


def offset_value(stored: StoredOffset) -> bytes:
    """Encode an offset."""
    committed = None if stored.committed is None else stored.committed._asdict()
    return _dump({"claim": stored.claim, "committed": committed, "topic": stored.topic})


def offset_of(entry: Entry) -> StoredOffset:
    """Decode an offset. Raises OdradekError."""
    with _expecting(entry) as value:
        found = value["committed"]
        committed = None
        if found is not None:
            committed = CommittedOffset(
                _count(found["offset"]), int(found["leader_epoch"]), str(found["metadata"])
            )
        return StoredOffset(str(value["claim"]), str(value["topic"]), committed)


def group_value(group: str) -> bytes:
    """Encode an entry of the index of groups."""
    return _dump({"group": group, "protocol": PROTOCOL})


def group_of(entry: Entry) -> str:
    """Decode an entry of the index of groups: the group's name. Raises OdradekError."""
    with _expecting(entry) as value:
        return str(value["group"])


def partition_of(key: str) -> PartitionKey:
    """Return the partition that a key of owners or offsets is about. Raises OdradekError."""
    name = key.partition("/")[2]
    topic_id, _, number = name.rpartition("-")
    try:
        partition = PartitionKey(UUID(topic_id), int(number))
    except ValueError as error:
        raise OdradekError(f"coordinator key {key!r} does not name a partition") from error
    if str(partition) != name:  # UUID() takes other spellings too
        raise OdradekError(f"coordinator key {key!r} does not name a partition as it should")
    return partition


def _count(number: object, most: int = 2**63 - 1) -> int:
    if not isinstance(number, int) or not 0 <= number <= most:
        raise ValueError(f"{number!r} is not a number from 0 to {most}")
    return number


def _dump(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()


@contextmanager
def _expecting(entry: Entry) -> Iterator[dict[str, Any]]:
    """Read a JSON object; name the key whose value lacks what this version expects."""
    try:
        value = json.loads(entry.value)
        if not isinstance(value, dict):
            raise TypeError("no JSON object")
        yield value
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise OdradekError(
            f"coordinator key {entry.key!r} is not understood: {type(error).__name__}: {error}"
        ) from error
