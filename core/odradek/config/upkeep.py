"""Sections `[retention]`, `[cleaner]` and `[scrub]`: how a broker looks after its logs."""

from __future__ import annotations

import attrs

from odradek.config.fields import setting

__all__ = ["CleanerSettings", "RetentionSettings", "ScrubSettings"]

MIB = 1024 * 1024
INT_MAX = 2**31 - 1


@attrs.frozen(kw_only=True)
class RetentionSettings:
    """Section `[retention]`: when old records are removed. How old is a setting of the topic."""

    check_interval_ms: int = setting(
        300_000,
        minimum=1,
        maximum=INT_MAX,
        kafka="log.retention.check.interval.ms",
        doc="How often it is looked for segments that are due, in milliseconds.",
    )
    trust_clock: bool = setting(
        False,
        doc="Believe the wall clock at once, wherever it jumps and however long the machine was "
        "off. Otherwise a jump forward is caught up with at twice the speed of real time, so that "
        "a clock that goes wrong deletes nothing before somebody can see to it.",
    )


@attrs.frozen(kw_only=True)
class CleanerSettings:
    """Section `[cleaner]`: how logs are compacted. Which are is a setting of the topic."""

    enabled: bool = setting(
        True,
        kafka="log.cleaner.enable",
        doc="Whether compacted topics are compacted by this broker.",
    )
    buffer_bytes: int = setting(
        36 * MIB,
        minimum=MIB,
        maximum=INT_MAX,
        kafka="log.cleaner.dedupe.buffer.size",
        doc="Memory for the keys of one compaction, in bytes. A log with more keys than fit "
        "(some 55,000 in each MiB) is compacted in several passes.",
    )
    backoff_ms: int = setting(
        15_000,
        minimum=1,
        maximum=INT_MAX,
        kafka="log.cleaner.backoff.ms",
        doc="How long to wait when no log needs to be compacted, in milliseconds.",
    )
    io_max_bytes_per_s: int = setting(
        0,
        minimum=0,
        kafka="log.cleaner.io.max.bytes.per.second",
        doc="How many bytes compaction may read and write in a second; 0 for no limit but that "
        "it makes way for requests.",
    )


@attrs.frozen(kw_only=True)
class ScrubSettings:
    """Section `[scrub]`: reading sealed segments again, to find damage while it can be mended."""

    bytes_per_s: int = setting(
        4 * MIB,
        minimum=0,
        doc="How many bytes are read in a second, over all partitions; 0 turns scrubbing off.",
    )
    interval_s: int = setting(
        7 * 24 * 3600,
        minimum=1,
        maximum=INT_MAX,
        doc="How long after it was read a segment is read again at the earliest, in seconds.",
    )
