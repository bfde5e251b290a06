"""What goes into the group machine and what comes out of it.

The machine does nothing itself: each call returns the `Effects` its host has to carry out, in
the order they are given. A reply that depends on a `Write` is not among the effects of the call
that asked for the write; it comes from `stored` or `failed` of that write.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from odradek.wire.schema import Message, Struct

__all__ = ["NOTHING", "Effects", "LogRecord", "Reply", "Request", "Write"]

LogRecord = tuple[bytes, bytes | None]
"""Key and value of a record of `__consumer_offsets`; a value of None is a tombstone."""


class Request(NamedTuple):
    """One wire request for one group.

    `ticket` is the host's: it comes back, exactly once, with the reply. A ticket must not be used
    again before. `version` is that of the request's API. `client_host` is what DescribeGroups
    shows, "/127.0.0.1" in Kafka's form.
    """

    ticket: int
    message: Message
    version: int
    client_id: str
    client_host: str


class Reply(NamedTuple):
    """The response to the request with this ticket, of this call or of an earlier one.

    `message` is the response of the request's API; for `GroupShard.delete` it is a
    `DeletableGroupResult`.
    """

    ticket: int
    message: Struct


class Write(NamedTuple):
    """Records to append to the shard's partition of `__consumer_offsets`, as ONE batch.

    The host appends writes in the order in which they are given, and tells the fate of each by
    `stored(id)` or `failed(id, error)`, when it knows it.
    """

    id: int
    records: tuple[LogRecord, ...]
    timestamp_ms: int


class Effects(NamedTuple):
    """What the host has to do: send replies, append writes. Both orders matter."""

    replies: Sequence[Reply] = ()
    writes: Sequence[Write] = ()


NOTHING = Effects()
"""Nothing to do."""
