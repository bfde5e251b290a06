"""The numbers that bound groups; the broker's configuration section `[groups]` makes them."""

from __future__ import annotations

from attrs import frozen

__all__ = ["GroupSettings"]


@frozen(kw_only=True)
class GroupSettings:
    """Bounds of groups, with Kafka's defaults. Times are milliseconds."""

    session_timeout_min_ms: int = 6_000
    """`group.min.session.timeout.ms`: a shorter session is refused."""

    session_timeout_max_ms: int = 1_800_000
    """`group.max.session.timeout.ms`: a longer session is refused."""

    initial_rebalance_delay_ms: int = 3_000
    """`group.initial.rebalance.delay.ms`: how long an empty group waits for more members, again
    after each that comes, at most for the rebalance timeout."""

    max_size: int = 2**31 - 1
    """`group.max.size`: members of a group; one more is refused."""

    offset_metadata_max_bytes: int = 4_096
    """`offset.metadata.max.bytes`: the text that a commit may carry, in characters as Kafka has
    it, per partition."""

    offsets_retention_ms: int = 7 * 24 * 3_600_000
    """`offsets.retention.minutes`: how long offsets outlive the last member of their group, or
    their commit where the group has none."""

    offsets_retention_check_interval_ms: int = 600_000
    """`offsets.retention.check.interval.ms`: how often expired offsets are looked for."""

    batch_max_bytes: int = 128 * 1024
    """Keys and values that are written as one batch, where there is a choice: tombstones. It has
    to be well below the `max.message.bytes` of the log."""

    new_member_timeout_ms: int = 300_000
    """How long a member may wait for its first generation before it is given up. A client that
    is gone while it waits is not noticed otherwise, since waiting keeps a session alive
    (Kafka's `NEW_MEMBER_JOIN_TIMEOUT_MS`)."""

    max_pending_members: int = 10_000
    """Member ids of a shard that were given out and not joined with yet (KIP-394); one more, and
    the oldest is a member's no more. Kafka has no bound here."""

    max_protocols: int = 100
    """Protocols that a member may join with; more are refused with INCONSISTENT_GROUP_PROTOCOL.
    Clients have a handful. Kafka has no bound here."""
