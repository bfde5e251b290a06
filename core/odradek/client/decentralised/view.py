"""A group as its watches show it to one member. Sans-IO.

What a watch tells may be old, and is never older than what it told before (C13); so nothing is
decided on it alone. It says what to look at, and when.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Mapping

from odradek.client.decentralised.keys import GroupKeys, Registration, partition_of, registration_of
from odradek.contracts.coordinator import Change, Entry
from odradek.errors import OdradekError
from odradek.types import PartitionKey

__all__ = ["GroupView"]

logger = logging.getLogger(__name__)


class GroupView:
    """The members and owners of a group, as the member sees them that has the session.

    `members` are the registrations by key, `owners` the ids of the owners' sessions by key: a
    group has many partitions, of which a member cares for few, so keys are not taken apart.
    """

    def __init__(
        self,
        keys: GroupKeys,
        session_id: str,
        members: Mapping[str, Entry],
        owners: Mapping[str, Entry],
    ) -> None:
        self.members: dict[str, Registration] = {}
        self.owners: dict[str, str] = {}
        self._own = keys.member(session_id)
        self._session_id = session_id
        for key, entry in members.items():
            self.member_changed(Change(key, entry))
        for key, entry in owners.items():
            self.owner_changed(Change(key, entry))

    def member_changed(self, change: Change) -> bool:
        """Take a change of the members' directory; return whether it changes the plan."""
        before = self.members.pop(change.key, None)
        if change.entry is not None:
            try:
                self.members[change.key] = registration_of(change.entry)
            except OdradekError as error:
                # All members of this version leave it out alike.
                logger.error("a member that is not understood gets no partitions: %s", error)
        return self.members.get(change.key) != before

    def owner_changed(self, change: Change) -> None:
        """Take a change of the owners' directory."""
        if change.entry is None:
            self.owners.pop(change.key, None)
        else:
            self.owners[change.key] = change.entry.owner or ""

    def group_with(self, registration: Registration) -> list[Registration]:
        """Return all members, with the member's own registration as it is by now.

        A member that has just lost a session may be there twice for a moment: that is one member.
        """
        return [
            registration,
            *(each for key, each in self.members.items() if key != self._own),
        ]

    def is_mine(self, key: str) -> bool:
        """Whether this session owns the partition with this owner's key."""
        return self.owners.get(key) == self._session_id

    def is_anothers(self, key: str) -> bool:
        """Whether another session owns it."""
        return self.owners.get(key, self._session_id) != self._session_id

    def strays(self, known: Container[str]) -> set[PartitionKey]:
        """Return what this session owns besides what is known. Raises OdradekError."""
        return {
            partition_of(key)
            for key, owner in self.owners.items()
            if owner == self._session_id and key not in known
        }
