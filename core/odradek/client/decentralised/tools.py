"""Looking at decentralised groups and changing their offsets, for tools."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID, uuid4

from attrs import frozen

from odradek.client.decentralised.access import enter_index, read
from odradek.client.decentralised.keys import (
    INDEX,
    GroupKeys,
    Registration,
    StoredOffset,
    group_of,
    offset_of,
    offset_value,
    owner_of,
    partition_of,
    registration_of,
)
from odradek.client.decentralised.planning import pack
from odradek.client.membership import CommittedOffset
from odradek.client.metadata import TopicPartition
from odradek.contracts.coordinator import (
    ABSENT,
    Conflict,
    Coordinator,
    Delete,
    Entry,
    Op,
    Put,
    Uncertain,
)
from odradek.errors import ErrorCode, KafkaError
from odradek.types import PartitionKey

__all__ = [
    "DecentralisedGroup",
    "PartitionState",
    "delete_group",
    "describe_group",
    "described",
    "list_groups",
    "reset_offsets",
]


@frozen(slots=True)
class PartitionState:
    """A partition of a group: `owner` is a member's id, None while it has none."""

    key: PartitionKey
    topic: str
    owner: str | None = None
    committed: CommittedOffset | None = None

    @property
    def name(self) -> TopicPartition:
        """The partition by its topic's name, which may be a new topic's by now."""
        return TopicPartition(self.topic, self.key.partition)

    def lag(self, end_offset: int) -> int | None:
        """Return how many records are left up to `end_offset`; None without an offset."""
        return None if self.committed is None else max(0, end_offset - self.committed.offset)


@frozen(slots=True)
class DecentralisedGroup:
    """A group as it is registered; `partitions` are those that have an owner or an offset."""

    group_id: str
    members: tuple[Registration, ...]
    partitions: tuple[PartitionState, ...]

    @property
    def active(self) -> bool:
        """Whether it has members."""
        return bool(self.members)


def described(
    group: str,
    members: Mapping[str, Entry],
    owners: Mapping[str, Entry],
    offsets: Mapping[str, Entry],
) -> DecentralisedGroup:
    """Return the group that the entries of its directories say there is. Pure.

    Members are sorted by id, partitions by topic and number. Raises OdradekError for an entry
    that cannot be read.
    """
    owned = {partition_of(key): owner_of(entry) for key, entry in owners.items()}
    stored = {partition_of(key): offset_of(entry) for key, entry in offsets.items()}
    states = []
    for key in owned.keys() | stored.keys():
        owner, topic = owned.get(key, (None, ""))
        if key in stored:
            states.append(PartitionState(key, stored[key].topic, owner, stored[key].committed))
        else:
            states.append(PartitionState(key, topic, owner))
    registrations = (registration_of(entry) for entry in members.values())
    return DecentralisedGroup(
        group,
        tuple(sorted(registrations, key=lambda each: each.member)),
        tuple(sorted(states, key=lambda each: (each.topic, each.key))),
    )


async def list_groups(coordinator: Coordinator) -> list[str]:
    """Return the groups that have offsets, sorted. Raises Unavailable, Denied, OdradekError."""
    return sorted(group_of(entry) for entry in (await coordinator.list(INDEX)).values())


async def describe_group(coordinator: Coordinator, group: str) -> DecentralisedGroup:
    """Return a group; its entries are not all of one instant.

    Raises KafkaError (GROUP_ID_NOT_FOUND), ValueError for an empty name, and as `list_groups`.
    """
    keys = GroupKeys(group)
    found = described(
        group,
        await coordinator.list(keys.members),
        await coordinator.list(keys.owners),
        await coordinator.list(keys.offsets),
    )
    if not found.members and not found.partitions:
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no group {group!r}")
    return found


async def reset_offsets(
    coordinator: Coordinator,
    group: str,
    offsets: Mapping[PartitionKey, CommittedOffset | None],
    topics: Mapping[UUID, str],
) -> None:
    """Set offsets, whatever they are, or with None forget them; `topics` are the topics' names.

    Works on groups with members too: whoever owns a partition cannot commit it any more, and
    finds out when it tries; then it begins again at the new offset. Many are set by several
    transactions, each of which is applied whole or not at all. May be repeated.

    Raises ValueError for an empty name, Unavailable, Denied, OdradekError.
    """
    keys = GroupKeys(group)
    await enter_index(coordinator, keys)
    token = f"reset {uuid4()}"
    left = set(offsets)
    while left:
        entries = await read(coordinator, keys.offsets, left)
        left -= {each for each, entry in entries.items() if offset_of(entry).claim == token}
        attempts: list[tuple[PartitionKey, tuple[Op, ...]]] = []
        for each in left:
            value = offset_value(StoredOffset(token, topics[each.topic_id], offsets[each]))
            version = entries[each].version if each in entries else ABSENT
            attempts.append((each, (Put(keys.offset(each), value, version),)))
        for items, ops in pack(attempts):
            try:
                await coordinator.txn(*ops)
            except (Conflict, Uncertain):
                continue  # reading tells
            left.difference_update(items)


async def delete_group(coordinator: Coordinator, group: str) -> None:
    """Delete the offsets of a group without members, and its entry in the index.

    A member that joins meanwhile begins without offsets. May be repeated.

    Raises KafkaError: NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND; ValueError for an empty name,
    Unavailable, Denied.
    """
    keys = GroupKeys(group)
    if await coordinator.list(keys.members) or await coordinator.list(keys.owners):
        raise KafkaError(ErrorCode.NON_EMPTY_GROUP, f"group {group!r} has members")
    if await coordinator.get(keys.index) is None:
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no group {group!r}")
    while entries := await coordinator.list(keys.offsets):
        deletes = [(key, (Delete(key, entry.version),)) for key, entry in entries.items()]
        for _, ops in pack(deletes):
            try:
                await coordinator.txn(*ops)
            except (Conflict, Uncertain):
                continue  # reading tells
    while (entry := await coordinator.get(keys.index)) is not None:
        try:
            await coordinator.txn(Delete(entry.key, entry.version))
        except (Conflict, Uncertain):
            continue
