"""What DescribeGroups and ListGroups tell of a classic group."""

from __future__ import annotations

from typing import TYPE_CHECKING

from odradek.errors import ErrorCode
from odradek.group.classic import ClassicGroup, State
from odradek.wire.api.a15_describe_groups import DescribedGroup, DescribedGroupMember
from odradek.wire.api.a16_list_groups import ListedGroup

if TYPE_CHECKING:
    from odradek.group.classic_member import Member

__all__ = ["GROUP_TYPE", "absent", "described", "listed"]

GROUP_TYPE = "classic"
"""The type of these groups in ListGroups (KIP-848)."""


def described(group: ClassicGroup) -> DescribedGroup:
    """Describe a group; metadata of members, and the protocol, only while it is Stable."""
    stable = group.state is State.STABLE
    return DescribedGroup(
        group_id=group.group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type or "",
        protocol_data=group.protocol or "" if stable else "",
        members=[
            _described(member, member.metadata(str(group.protocol)) if stable else b"")
            for member in group.members.values()
        ],
    )


def _described(member: Member, metadata: bytes) -> DescribedGroupMember:
    return DescribedGroupMember(
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        member_metadata=metadata,
        member_assignment=member.assignment,
    )


def absent(group_id: str, version: int) -> DescribedGroup:
    """Describe a group that does not exist: as Dead, from version 6 on as an error (KIP-1043)."""
    group = DescribedGroup(group_id=group_id, group_state=State.DEAD.value)
    if version >= 6:
        group.error_code = ErrorCode.GROUP_ID_NOT_FOUND
        group.error_message = f"Group {group_id} not found."
    return group


def listed(group: ClassicGroup) -> ListedGroup:
    """Return the group's line in ListGroups."""
    return ListedGroup(
        group_id=group.group_id,
        protocol_type=group.protocol_type or "",
        group_state=group.state.value,
        group_type=GROUP_TYPE,
    )
