"""Section `[groups]`: what consumer groups may ask for, and how their state is kept."""

from __future__ import annotations

import attrs

from odradek.config.fields import setting

__all__ = ["GroupsSettings"]

INT_MAX = 2**31 - 1


@attrs.frozen(kw_only=True)
class GroupsSettings:
    """Section `[groups]`: consumer groups and the topic that their state is kept in.

    The `offsets_partitions`, `offsets_replication_factor` and `offsets_segment_bytes` are those
    that `__consumer_offsets` is created with, when the first group needs it; they change nothing
    afterwards.
    """

    min_session_timeout_ms: int = setting(
        6_000,
        minimum=1,
        maximum=INT_MAX,
        kafka="group.min.session.timeout.ms",
        doc="The shortest session timeout that a member may ask for, in milliseconds.",
    )
    max_session_timeout_ms: int = setting(
        1_800_000,
        minimum=1,
        maximum=INT_MAX,
        kafka="group.max.session.timeout.ms",
        doc="The longest session timeout that a member may ask for, in milliseconds: how long its "
        "partitions may lie idle after it died.",
    )
    initial_rebalance_delay_ms: int = setting(
        3_000,
        minimum=0,
        maximum=INT_MAX,
        kafka="group.initial.rebalance.delay.ms",
        doc="How long an empty group waits for more members after one has joined, in "
        "milliseconds; 0 suits tests.",
    )
    max_size: int = setting(
        10_000,
        minimum=1,
        maximum=INT_MAX,
        kafka="group.max.size",
        doc="Members that a group may have. (Kafka has no bound by default. The first join of a "
        "member costs memory, and the group's record has to fit into one batch.)",
    )
    members_max_bytes: int = setting(
        128 * 1024 * 1024,
        minimum=1024 * 1024,
        doc="Memory that the members of all groups of this broker may keep, in bytes: their names, "
        "what they join with and what they are assigned. Beyond it new members are sent away with "
        "COORDINATOR_NOT_AVAILABLE, and try again. (Kafka has no bound.)",
    )
    offset_metadata_max_bytes: int = setting(
        4_096,
        minimum=0,
        maximum=INT_MAX,
        kafka="offset.metadata.max.bytes",
        doc="The longest text that may be committed with an offset.",
    )
    offsets_retention_minutes: int = setting(
        7 * 24 * 60,
        minimum=1,
        maximum=INT_MAX,
        kafka="offsets.retention.minutes",
        doc="How long offsets are kept after their group has lost its last member, in minutes.",
    )
    offsets_retention_check_interval_ms: int = setting(
        600_000,
        minimum=1,
        maximum=2**63 - 1,
        kafka="offsets.retention.check.interval.ms",
        doc="How often offsets that are too old are looked for, in milliseconds.",
    )
    offsets_partitions: int = setting(
        8,
        minimum=1,
        maximum=10_000,
        kafka="offsets.topic.num.partitions",
        doc="Partitions of `__consumer_offsets`: each group's state is in one of them, and the "
        "broker that leads it coordinates the group. (Kafka has 50. Commits of one partition share "
        "a sync of the disk: with 8, a hundred groups commit twice as often as with 50.)",
    )
    offsets_replication_factor: int = setting(
        3,
        minimum=1,
        maximum=32_767,
        kafka="offsets.topic.replication.factor",
        doc="Replicas of `__consumer_offsets`; as many as there are brokers, where those are "
        "fewer. (Kafka waits for more brokers then, and offers no groups.)",
    )
    offsets_segment_bytes: int = setting(
        100 * 1024 * 1024,
        minimum=1024,
        maximum=INT_MAX,
        kafka="offsets.topic.segment.bytes",
        doc="Segment size of `__consumer_offsets`, in bytes; small, so that it can be compacted "
        "early and is loaded quickly.",
    )

    def __attrs_post_init__(self) -> None:
        if self.min_session_timeout_ms > self.max_session_timeout_ms:
            raise ValueError("min_session_timeout_ms is greater than max_session_timeout_ms")
