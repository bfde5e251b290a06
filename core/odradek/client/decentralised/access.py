"""Reading a group's entries, and entering it into the index of groups."""

from __future__ import annotations

from collections.abc import Collection

from odradek.client.decentralised.keys import GroupKeys, group_of, group_value
from odradek.contracts.coordinator import ABSENT, Conflict, Coordinator, Entry, Put, Uncertain
from odradek.errors import OdradekError
from odradek.types import PartitionKey

__all__ = ["enter_index", "read"]

_GETS = 8
"""Entries to be read one by one; of more the whole directory is read, in one call."""


async def read(
    coordinator: Coordinator, directory: str, partitions: Collection[PartitionKey]
) -> dict[PartitionKey, Entry]:
    """Return what there is of the partitions' entries in a directory of owners or offsets.

    Raises Unavailable and Denied.
    """
    keys = {each: f"{directory}/{each}" for each in partitions}
    if len(keys) > _GETS:
        entries = await coordinator.list(directory)
        return {each: entries[key] for each, key in keys.items() if key in entries}
    found = {each: await coordinator.get(key) for each, key in keys.items()}
    return {each: entry for each, entry in found.items() if entry is not None}


async def enter_index(coordinator: Coordinator, keys: GroupKeys) -> None:
    """Make sure that the group is in the index; before its first offset is written.

    Raises OdradekError when another group has the same key, which takes two names with the same
    SHA-256; Unavailable and Denied.
    """
    while True:
        entry = await coordinator.get(keys.index)
        if entry is not None:
            if group_of(entry) != keys.group:
                raise OdradekError(f"group {keys.group!r} has the same key as {group_of(entry)!r}")
            return
        try:
            await coordinator.txn(Put(keys.index, group_value(keys.group), ABSENT))
        except (Conflict, Uncertain):
            continue  # reading tells
