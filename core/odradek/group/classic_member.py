"""A member of a classic group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from odradek.group.records import MemberMetadata
from odradek.wire.api.a11_join_group import JoinGroupRequest, JoinGroupResponse

if TYPE_CHECKING:
    from collections.abc import Container

    from odradek.errors import ErrorCode
    from odradek.group.timers import Timer

__all__ = ["Member", "Protocols", "Terms", "join_refused", "names"]

Protocols = tuple[tuple[str, bytes], ...]
"""Names and metadata of the protocols (assignors) a member can do, the preferred one first."""


class Terms(NamedTuple):
    """What a member joins with; the timeouts are milliseconds."""

    protocols: Protocols
    rebalance_timeout_ms: int
    session_timeout_ms: int

    @classmethod
    def of(cls, request: JoinGroupRequest) -> Terms:
        """Read them from a request.

        Version 0 has no rebalance timeout: the session timeout stands for it (KIP-62). A
        protocol that is named twice counts as where it stands first.
        """
        protocols: dict[str, bytes] = {}
        for protocol in request.protocols:
            protocols.setdefault(protocol.name, protocol.metadata)
        rebalance = request.rebalance_timeout_ms
        return cls(
            tuple(protocols.items()),
            request.session_timeout_ms if rebalance < 0 else rebalance,
            request.session_timeout_ms,
        )


class Member:
    """A member: who it is, its terms, what it was assigned, which of its requests wait.

    `join_ticket` and `sync_ticket` are those of the JoinGroup and SyncGroup requests that wait
    for an answer, `join_version` is the former's. `is_new` holds until the member's first
    generation.
    """

    __slots__ = (
        "assignment",
        "client_host",
        "client_id",
        "instance_id",
        "is_new",
        "join_ticket",
        "join_version",
        "member_id",
        "session",
        "sync_ticket",
        "terms",
        "weight",
    )

    def __init__(
        self,
        member_id: str,
        instance_id: str | None,
        client_id: str,
        client_host: str,
        terms: Terms,
        assignment: bytes = b"",
    ) -> None:
        self.member_id = member_id
        self.instance_id = instance_id
        self.client_id = client_id
        self.client_host = client_host
        self.terms = terms
        self.assignment = assignment
        self.join_ticket: int | None = None
        self.join_version = 0
        self.sync_ticket: int | None = None
        self.is_new = False
        self.weight = 0  # bytes that are counted for it
        self.session: Timer

    def metadata(self, protocol: str) -> bytes:
        """Return the member's metadata for `protocol`; KeyError when it cannot do it."""
        for name, metadata in self.terms.protocols:
            if name == protocol:
                return metadata
        raise KeyError(protocol)

    def vote(self, candidates: Container[str]) -> str:
        """Return the protocol the member likes best among `candidates`; one must be its own."""
        return next(name for name, _ in self.terms.protocols if name in candidates)

    def record(self, protocol: str, assignment: bytes) -> MemberMetadata:
        """Return the member as the log keeps it."""
        return MemberMetadata(
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            client_id=self.client_id,
            client_host=self.client_host,
            rebalance_timeout=self.terms.rebalance_timeout_ms,
            session_timeout=self.terms.session_timeout_ms,
            subscription=self.metadata(protocol),
            assignment=assignment,
        )

    @classmethod
    def replayed(cls, record: MemberMetadata, protocol: str) -> Member:
        """Return the member that the log kept."""
        rebalance = record.rebalance_timeout
        terms = Terms(
            ((protocol, record.subscription),),
            record.session_timeout if rebalance < 0 else rebalance,
            record.session_timeout,
        )
        return cls(
            record.member_id,
            record.group_instance_id,
            record.client_id,
            record.client_host,
            terms,
            record.assignment,
        )


def names(protocols: Sequence[tuple[str, bytes]]) -> list[str]:
    """Return the names alone."""
    return [name for name, _ in protocols]


def join_refused(member_id: str, error: ErrorCode, version: int) -> JoinGroupResponse:
    """Return the answer to a JoinGroup that leads into no generation."""
    response = JoinGroupResponse(member_id=member_id, error_code=error)
    if version >= 7:
        response.protocol_name = None  # there is none, and this version can say so
    return response
