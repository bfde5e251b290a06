"""The settings of a topic, under Kafka's names and with Kafka's defaults.

Clients set them as strings (CreateTopics, IncrementalAlterConfigs) and read them as strings
(DescribeConfigs); the broker uses the typed fields. Every one is honoured: what Odradek does not do
is refused. Names, types, defaults and bounds are those of Apache Kafka 4.3, whose own table a test
compares with this one, except where a setting says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import attrs

from odradek.config.fields import ConfigError, nearest, setting, settings_of
from odradek.config.topic_setting import ConfigType, TopicSetting, text_of
from odradek.errors import ErrorCode, KafkaError

__all__ = ["NOT_OFFERED", "TopicSettings", "topic_settings"]

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1
DAY_MS = 24 * 60 * 60 * 1000
COMPRESSION_TYPES = ("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd")


NOT_OFFERED: Mapping[str, str] = {
    "compression.gzip.level": "a batch that the broker compresses gets the codec's default level",
    "compression.lz4.level": "a batch that the broker compresses gets the codec's default level",
    "compression.zstd.level": "a batch that the broker compresses gets the codec's default level",
    "flush.messages": "durability is a setting of the storage: see `durability` there",
    "flush.ms": "durability is a setting of the storage: see `durability` there",
    "follower.replication.throttled.replicas": "replication is not throttled",
    "leader.replication.throttled.replicas": "replication is not throttled",
    "internal.segment.bytes": "use segment.bytes, which may be as small",
    "local.retention.bytes": "storage has one tier: use retention.bytes",
    "local.retention.ms": "storage has one tier: use retention.ms",
    "message.downconversion.enable": "message formats before version 2 are not served",
    "message.format.version": "every batch has message format version 2",
    "message.timestamp.difference.max.ms": "use message.timestamp.before.max.ms",
    "preallocate": "segments are not preallocated",
    "remote.log.copy.disable": "storage has one tier",
    "remote.log.delete.on.disable": "storage has one tier",
    "remote.storage.enable": "storage has one tier: choose an object store as the storage",
    "segment.index.bytes": "indexes grow with their segment",
}
"""Kafka's topic settings that Odradek does not have, with what to do instead."""


KEEPING: Mapping[str, Mapping[str, Any]] = {
    "cleanup.policy": {"cleanup_policy": ("delete",), "retention_bytes": -1, "retention_ms": -1},
    "retention.bytes": {"retention_bytes": -1},
    "retention.ms": {"retention_ms": -1},
}
"""What keeps every record, in place of a setting that cannot be read."""


def _policies(value: tuple[str, ...]) -> str | None:
    return "it names no policy" if not value else None


def _clean(value: bool) -> str | None:
    return "only false is supported: a replica that is behind never leads" if value else None


@attrs.frozen(kw_only=True)
class TopicSettings:
    """What may be set for a topic. Field names are Kafka's with `_` for `.` and `-`."""

    cleanup_policy: tuple[str, ...] = setting(
        ("delete",),
        choices=("delete", "compact"),
        check=_policies,
        doc="What happens to old records: `delete` by age and size, `compact` to the newest "
        "record of each key, or both, separated by a comma. With `compact` a record without a key "
        "is refused, and compaction removes those that came before.",
        server="log.cleanup.policy",
        code=ConfigType.LIST,
    )
    compression_type: str = setting(
        "producer",
        choices=COMPRESSION_TYPES,
        doc="How batches are stored: `producer` keeps what the producer chose; anything else "
        "makes the broker compress again, which costs it CPU time per record.",
        server="compression.type",
        code=ConfigType.STRING,
    )
    delete_retention_ms: int = setting(
        DAY_MS,
        minimum=0,
        maximum=LONG_MAX,
        doc="How long compaction keeps a tombstone (a record without a value, which deletes its "
        "key) from the first compaction that meets it, so that every consumer can hear of it; "
        "in milliseconds.",
        server="log.cleaner.delete.retention.ms",
        code=ConfigType.LONG,
    )
    file_delete_delay_ms: int = setting(
        60_000,
        minimum=0,
        maximum=LONG_MAX,
        doc="How long the files of a removed segment stay beside the log, with `.deleted` at "
        "the end of their names, in milliseconds; shorter when the disk runs full. Storage "
        "without files removes a segment at once.",
        server="log.segment.delete.delay.ms",
        code=ConfigType.LONG,
    )
    index_interval_bytes: int = setting(
        4096,
        minimum=0,
        maximum=INT_MAX,
        doc="Bytes of log between two entries of the index, in memory, of the segment that is "
        "written. Smaller finds an offset with less reading and costs memory. Indexes of other "
        "segments are the storage's, with entries 4096 bytes apart or less.",
        server="log.index.interval.bytes",
        code=ConfigType.INT,
    )
    max_compaction_lag_ms: int = setting(
        LONG_MAX,
        minimum=1,
        maximum=LONG_MAX,
        doc="The longest time a record may stay uncompacted, in milliseconds: then the log is "
        "compacted whatever its `min.cleanable.dirty.ratio`, and its last segment ended for it.",
        server="log.cleaner.max.compaction.lag.ms",
        code=ConfigType.LONG,
    )
    max_message_bytes: int = setting(
        1_048_588,
        minimum=0,
        maximum=INT_MAX,
        doc="The largest record batch accepted, after compression, in bytes.",
        server="message.max.bytes",
        code=ConfigType.INT,
    )
    message_timestamp_after_max_ms: int = setting(
        3_600_000,
        minimum=0,
        maximum=LONG_MAX,
        doc="How far in the future of the broker's clock a record's timestamp may lie, in "
        "milliseconds; ignored with `LogAppendTime`.",
        server="log.message.timestamp.after.max.ms",
        code=ConfigType.LONG,
    )
    message_timestamp_before_max_ms: int = setting(
        LONG_MAX,
        minimum=0,
        maximum=LONG_MAX,
        doc="How far in the past of the broker's clock a record's timestamp may lie, in "
        "milliseconds; ignored with `LogAppendTime`.",
        server="log.message.timestamp.before.max.ms",
        code=ConfigType.LONG,
    )
    message_timestamp_type: str = setting(
        "CreateTime",
        choices=("CreateTime", "LogAppendTime"),
        doc="Whose time a record carries: the producer's or the broker's.",
        server="log.message.timestamp.type",
        code=ConfigType.STRING,
    )
    min_cleanable_dirty_ratio: float = setting(
        0.5,
        minimum=0.0,
        maximum=1.0,
        doc="The share of uncompacted bytes from which on a log is compacted, 0 to 1. Lower "
        "leaves fewer outdated records and costs more reading and writing.",
        server="log.cleaner.min.cleanable.ratio",
        code=ConfigType.DOUBLE,
    )
    min_compaction_lag_ms: int = setting(
        0,
        minimum=0,
        maximum=LONG_MAX,
        doc="The shortest time a record stays uncompacted, in milliseconds: as long as a "
        "consumer has for reading every record.",
        server="log.cleaner.min.compaction.lag.ms",
        code=ConfigType.LONG,
    )
    min_insync_replicas: int = setting(
        1,
        minimum=1,
        maximum=INT_MAX,
        doc="How many replicas must have a batch before it is acknowledged to a producer that "
        "asked for `acks=all`.",
        server="min.insync.replicas",
        code=ConfigType.INT,
    )
    retention_bytes: int = setting(
        -1,
        minimum=-1,
        maximum=LONG_MAX,
        doc="How large a partition may grow before its oldest segments are deleted, in bytes; "
        "-1 for no limit. Whole segments go, as long as at least so much is left. Only with "
        "`delete` in `cleanup.policy`.",
        server="log.retention.bytes",
        code=ConfigType.LONG,
    )
    retention_ms: int = setting(
        7 * DAY_MS,
        minimum=-1,
        maximum=LONG_MAX,
        doc="How old the newest record of a segment may grow, by its timestamp, before the "
        "segment is deleted, in milliseconds; -1 for no limit. Only with `delete` in "
        "`cleanup.policy`.",
        server="log.retention.ms",
        code=ConfigType.LONG,
    )
    segment_bytes: int = setting(
        1_073_741_824,
        minimum=14,
        maximum=INT_MAX,
        doc="The size at which a new segment is begun, in bytes, or the largest that the storage "
        "takes if that is smaller. A larger batch is refused with RECORD_LIST_TOO_LARGE, as in "
        "Kafka, from the moment it is lowered: keep it well above `max.message.bytes`. (The least "
        "is 14, as in Kafka before 4.0; Kafka 4 refuses less than 1 MiB.)",
        server="log.segment.bytes",
        code=ConfigType.INT,
    )
    segment_jitter_ms: int = setting(
        0,
        minimum=0,
        maximum=LONG_MAX,
        doc="Up to how much earlier than `segment.ms` a segment ends, another time for each, so "
        "that not all partitions begin new ones at once; in milliseconds.",
        server="log.roll.jitter.ms",
        code=ConfigType.LONG,
    )
    segment_ms: int = setting(
        7 * DAY_MS,
        minimum=1,
        maximum=LONG_MAX,
        doc="The age at which a batch begins a new segment even if the present one is not full, "
        "by the timestamps of its records, in milliseconds. Compaction does not wait for a batch.",
        server="log.roll.ms",
        code=ConfigType.LONG,
    )
    unclean_leader_election_enable: bool = setting(
        False,
        check=_clean,
        doc="Whether a replica that is behind may become the leader when no other is left, "
        "which loses records. Only `false` is supported.",
        server="unclean.leader.election.enable",
        code=ConfigType.BOOLEAN,
    )

    def __attrs_post_init__(self) -> None:
        if self.min_compaction_lag_ms > self.max_compaction_lag_ms:
            raise ValueError("min.compaction.lag.ms is greater than max.compaction.lag.ms")

    @property
    def compacted(self) -> bool:
        """Whether records need a key because the log is, or will be, compacted."""
        return "compact" in self.cleanup_policy

    @classmethod
    def parse(
        cls, overrides: Mapping[str, str], base: TopicSettings | None = None
    ) -> TopicSettings:
        """Return `base` (the defaults, if left out) with `overrides` in Kafka's string form.

        Raises KafkaError with INVALID_CONFIG, naming the key, for an unknown or unsupported key
        and for a value that is not allowed.
        """
        values = {}
        for key, text in overrides.items():
            try:
                known = _known(key)
                values[known.field] = known.parse(text)
            except ValueError as error:
                raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from None
        return cls._replace(base or cls(), values)

    @classmethod
    def salvage(
        cls, overrides: Mapping[str, str], base: TopicSettings
    ) -> tuple[TopicSettings, list[str]]:
        """Return what of stored settings is understood, and a line on each that is not.

        Another version may have stored them, or somebody by hand. What cannot be read has the
        value of `base`, unless it decides what is deleted: then nothing is.
        """
        values: dict[str, Any] = {}
        keeping: dict[str, Any] = {}
        problems = []
        for key, text in overrides.items():
            try:
                known = _known(key)
                values[known.field] = known.parse(text)
            except ValueError as error:
                problems.append(str(error))
                keeping |= KEEPING.get(key, {})
        values |= keeping
        try:
            return cls._replace(base, values), problems
        except KafkaError as error:  # two that are allowed, but not together
            for field in ("min_compaction_lag_ms", "max_compaction_lag_ms"):
                values.pop(field, None)
            return cls._replace(base, values), [*problems, error.detail]

    @classmethod
    def _replace(cls, base: TopicSettings, values: Mapping[str, Any]) -> TopicSettings:
        if not values:
            return base
        try:
            return attrs.evolve(base, **values)
        except ValueError as error:
            raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from None

    @classmethod
    def from_table(cls, table: Mapping[str, object], place: str) -> TopicSettings:
        """Read the section `topics` of a configuration: Kafka's names, TOML's or Kafka's values.

        Raises ConfigError with every problem found.
        """
        problems = []
        values: dict[str, Any] = {}
        for key, value in table.items():
            try:
                known = _known(key)
                values[known.field] = known.from_toml(value)
            except ValueError as error:
                problems.append(f"{place}: {error}")
        if problems:
            raise ConfigError(problems)
        try:
            return attrs.evolve(cls(), **values)
        except ValueError as error:
            raise ConfigError([f"{place}: {error}"]) from None


def _known(key: str) -> TopicSetting:
    table = topic_settings()
    if key in table:
        return table[key]
    if key in NOT_OFFERED:
        raise ValueError(f"{key[:80]} is not offered: {NOT_OFFERED[key]}")
    raise ValueError(f"unknown topic setting {key[:80]!r}{nearest(key[:80], table)}")


@lru_cache(maxsize=1)
def topic_settings() -> Mapping[str, TopicSetting]:
    """Return the table of topic settings by Kafka's name, in order of name."""
    rows = {}
    for field, declared in settings_of(TopicSettings).items():
        name = field.replace("_", ".")
        rows[name] = TopicSetting(
            name=name,
            field=field,
            type=declared.extra["code"],
            synonym=declared.extra["server"],
            default=text_of(declared.default),
            doc=declared.doc,
            setting=declared,
        )
    return rows
