"""JoinGroup (key 11), versions 0 to 9: become a member, and wait for the next generation.

The response waits for the other members, or for the rebalance timeout; requests behind it on the
same connection are acted upon, and answered after it. What the members say to each other
(`protocols`) is handed on unread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from odradek.broker.group_errors import refusal
from odradek.broker.waiting import Pending
from odradek.errors import ErrorCode
from odradek.wire import Message
from odradek.wire.api.a11_join_group import JoinGroupRequest

if TYPE_CHECKING:
    from odradek.broker.serve import Caller

__all__ = ["handle"]

PROTOCOL_BYTES = 250
"""Memory that a protocol takes besides its name and metadata, about."""


def handle(caller: Caller, request: JoinGroupRequest, version: int) -> Message | Pending:
    """Answer when the generation is complete."""
    if not request.group_id:
        return refusal(request, version, ErrorCode.INVALID_GROUP_ID)
    size = 0
    for protocol in request.protocols:
        size += len(protocol.name) + len(protocol.metadata)
    groups = caller.broker.groups
    if size > groups.record_max_bytes:
        # It could never be kept; Kafka finds that out at the end of the rebalance, by this code.
        return refusal(request, version, ErrorCode.UNKNOWN_SERVER_ERROR)
    size += PROTOCOL_BYTES * len(request.protocols)
    names = request.group_id, request.member_id, request.group_instance_id, request.reason
    size += len(request.protocol_type) + sum([len(name) for name in names if name])
    return groups.ask(
        caller, request.group_id, request, version, size=size, host=_shown(caller.peer)
    )


def _shown(peer: str) -> str:
    """The client's address, as Kafka shows it in DescribeGroups: `/127.0.0.1`."""
    address = peer.rpartition("://")[2]
    host, colon, port = address.rpartition(":")
    return "/" + (host.strip("[]") if colon and port.isdigit() else address)
