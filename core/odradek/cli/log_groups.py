"""What the records of `__consumer_offsets` say, as documents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from odradek.errors import MalformedMessage
from odradek.group.records import (
    GroupKey,
    OffsetKey,
    OtherKey,
    decode_group,
    decode_key,
    decode_offset,
)

if TYPE_CHECKING:
    from odradek.record import Record

__all__ = ["group_document"]


def group_document(record: Record) -> dict[str, Any]:
    """Return what a record says: of kind `group_offset` or `group`, `deleted` for a tombstone.

    One that cannot be read, or is of another type, stays a `record`, with the reason.
    """
    try:
        return _decoded(record)
    except MalformedMessage as error:
        return {"kind": "record", "reason": f"no group record: {error}", **record._asdict()}


def _decoded(record: Record) -> dict[str, Any]:
    key = decode_key(record.key or b"")
    head: dict[str, Any] = {"record_offset": record.offset, "timestamp": record.timestamp}
    if isinstance(key, OtherKey):
        reason = f"a group record of type {key.version}, which is not read here"
        return {"kind": "record", "reason": reason, **record._asdict()}
    if isinstance(key, OffsetKey):
        head = {
            "kind": "group_offset",
            **head,
            "group": key.group,
            "topic": key.topic,
            "topic_partition": key.partition,
            "deleted": record.value is None,
        }
        if record.value is None:
            return head
        value = decode_offset(record.value)
        return {
            **head,
            "offset": value.offset,
            "leader_epoch": value.leader_epoch,
            "metadata": value.metadata,
            "committed": value.commit_timestamp_ms,
            "expires": value.expire_timestamp_ms,
        }
    assert isinstance(key, GroupKey)
    head = {"kind": "group", **head, "group": key.group, "deleted": record.value is None}
    if record.value is None:
        return head
    group = decode_group(record.value)
    return {
        **head,
        "generation": group.generation,
        "protocol_type": group.protocol_type,
        "protocol": group.protocol,
        "leader": group.leader,
        "since": group.current_state_timestamp,
        "members": [
            {
                "member": member.member_id,
                "instance": member.group_instance_id,
                "client": member.client_id,
                "host": member.client_host,
                "session_timeout_ms": member.session_timeout,
                "rebalance_timeout_ms": member.rebalance_timeout,
                "subscription_bytes": len(member.subscription),
                "assignment_bytes": len(member.assignment),
            }
            for member in group.members
        ],
    }
