"""Topic settings: Kafka's names, defaults and string forms; mistakes answered with the key."""

from __future__ import annotations

import attrs
import pytest

from odradek.config import (
    NOT_OFFERED,
    ConfigError,
    ConfigType,
    TopicSettings,
    config_from_table,
    topic_settings,
)
from odradek.errors import ErrorCode, KafkaError

# `kafka-configs.sh --describe --all` on a topic of Apache Kafka 4.2, minus what is in NOT_OFFERED
KAFKA_DEFAULTS = {
    "cleanup.policy": "delete",
    "compression.type": "producer",
    "delete.retention.ms": "86400000",
    "file.delete.delay.ms": "60000",
    "index.interval.bytes": "4096",
    "max.compaction.lag.ms": "9223372036854775807",
    "max.message.bytes": "1048588",
    "message.timestamp.after.max.ms": "3600000",
    "message.timestamp.before.max.ms": "9223372036854775807",
    "message.timestamp.type": "CreateTime",
    "min.cleanable.dirty.ratio": "0.5",
    "min.compaction.lag.ms": "0",
    "min.insync.replicas": "1",
    "retention.bytes": "-1",
    "retention.ms": "604800000",
    "segment.bytes": "1073741824",
    "segment.jitter.ms": "0",
    "segment.ms": "604800000",
    "unclean.leader.election.enable": "false",
}


def test_names_and_defaults_are_kafkas() -> None:
    assert {name: row.default for name, row in topic_settings().items()} == KAFKA_DEFAULTS


def test_every_row_describes_itself() -> None:
    for name, row in topic_settings().items():
        assert row.doc.endswith((".", ")")), name
        assert row.synonym, name
        assert hasattr(TopicSettings(), row.field)
        assert row.text(TopicSettings()) == row.default
    assert topic_settings()["retention.ms"].synonym == "log.retention.ms"
    assert topic_settings()["retention.ms"].type is ConfigType.LONG


@pytest.mark.parametrize("name", sorted(KAFKA_DEFAULTS))
def test_default_survives_the_string_form(name: str) -> None:
    assert TopicSettings.parse({name: KAFKA_DEFAULTS[name]}) == TopicSettings()


@pytest.mark.parametrize(
    ("name", "text", "field", "value"),
    [
        ("cleanup.policy", "compact,delete", "cleanup_policy", ("compact", "delete")),
        ("cleanup.policy", " compact , compact ", "cleanup_policy", ("compact",)),
        ("retention.ms", " 10 ", "retention_ms", 10),
        ("retention.ms", "-1", "retention_ms", -1),
        ("unclean.leader.election.enable", "FALSE", "unclean_leader_election_enable", False),
        ("min.cleanable.dirty.ratio", "1", "min_cleanable_dirty_ratio", 1.0),
        ("min.cleanable.dirty.ratio", "+25e-2", "min_cleanable_dirty_ratio", 0.25),
        ("min.cleanable.dirty.ratio", ".5", "min_cleanable_dirty_ratio", 0.5),
        ("compression.type", "zstd", "compression_type", "zstd"),
    ],
)
def test_parse_reads_kafkas_strings(name: str, text: str, field: str, value: object) -> None:
    assert getattr(TopicSettings.parse({name: text}), field) == value


@pytest.mark.parametrize(
    ("overrides", "detail"),
    [
        ({"retention.msec": "1"}, "unknown topic setting 'retention.msec'; did you mean"),
        ({"flush.messages": "1"}, "flush.messages is not offered: durability"),
        ({"retention.ms": "x"}, "retention.ms: 'x' is not a number"),
        ({"retention.ms": ""}, "retention.ms: '' is not a number"),
        ({"retention.ms": "1_000"}, "retention.ms: '1_000' is not a number"),
        ({"retention.ms": "\u0661"}, "is not a number"),  # a digit, though not an ASCII one
        ({"retention.ms": "9" * 10_000}, "is not a number"),
        ({"retention.ms": "-2"}, "retention.ms: -2 is less than -1"),
        ({"segment.bytes": "2147483648"}, "segment.bytes: 2147483648 is more than 2147483647"),
        ({"min.insync.replicas": "0"}, "min.insync.replicas: 0 is less than 1"),
        ({"min.cleanable.dirty.ratio": "1.1"}, "1.1 is more than 1.0"),
        ({"min.cleanable.dirty.ratio": "nan"}, "it is not a number"),
        ({"min.cleanable.dirty.ratio": "0_1"}, "'0_1' is not a number"),
        ({"min.cleanable.dirty.ratio": "\u0661"}, "is not a number"),
        ({"min.cleanable.dirty.ratio": ""}, "'' is not a number"),
        ({"compression.type": "brotli"}, "compression.type: 'brotli' is not one of producer"),
        ({"cleanup.policy": "compact,keep"}, "cleanup.policy: 'keep' is not one of"),
        ({"cleanup.policy": ""}, "cleanup.policy: it names no policy"),
        ({"unclean.leader.election.enable": "yes"}, "'yes' is neither true nor false"),
        ({"unclean.leader.election.enable": "true"}, "enable: only false is supported: a replica"),
        (
            {"min.compaction.lag.ms": "2", "max.compaction.lag.ms": "1"},
            "min.compaction.lag.ms is greater than max.compaction.lag.ms",
        ),
    ],
)
def test_parse_answers_a_mistake_with_invalid_config(
    overrides: dict[str, str], detail: str
) -> None:
    with pytest.raises(KafkaError) as caught:
        TopicSettings.parse(overrides)
    assert caught.value.code is ErrorCode.INVALID_CONFIG
    assert detail in caught.value.detail
    assert len(caught.value.detail) < 300


def test_parse_starts_from_the_base() -> None:
    base = TopicSettings(retention_ms=5)
    assert TopicSettings.parse({"segment.ms": "7"}, base).retention_ms == 5
    assert TopicSettings.parse({}, base) is base


def test_stored_settings_are_kept_as_far_as_they_are_understood() -> None:
    base = TopicSettings(segment_ms=7, max_compaction_lag_ms=100)
    stored = {
        "from.the.future": "1",
        "unclean.leader.election.enable": "true",
        "segment.ms": "soon",
        "retention.ms": "5",
    }
    settings, problems = TopicSettings.salvage(stored, base)
    assert settings == attrs.evolve(base, retention_ms=5)
    assert len(problems) == 3
    assert [name for name in stored if any(name in line for line in problems)] == [*stored][:3]
    assert TopicSettings.salvage({"retention.ms": "5"}, base) == (settings, [])
    settings, (problem,) = TopicSettings.salvage({"min.compaction.lag.ms": "200"}, base)
    assert settings == base
    assert "min.compaction.lag.ms is greater than max.compaction.lag.ms" in problem


@pytest.mark.parametrize(
    "stored",
    [
        {"retention.ms": "for ever"},
        {"cleanup.policy": "keep", "retention.ms": "5", "retention.bytes": "5"},
        {"retention.ms": "5", "retention.bytes": "5", "cleanup.policy": "compact,keep"},
    ],
)
def test_what_cannot_be_read_deletes_nothing(stored: dict[str, str]) -> None:
    settings, problems = TopicSettings.salvage(stored, TopicSettings())
    assert (settings.retention_ms, settings.retention_bytes) == (-1, -1)
    assert settings.cleanup_policy == ("delete",)
    assert len(problems) == 1


def test_what_is_not_offered_is_not_offered() -> None:
    assert not set(NOT_OFFERED) & set(topic_settings())


def test_file_gives_defaults_with_or_without_quotes() -> None:
    table = {"topics": {"retention.ms": 1000, "cleanup.policy": ["compact", "delete"]}}
    nested = {"topics": {"retention": {"ms": "1000"}, "cleanup": {"policy": "compact,delete"}}}
    for each in (table, nested):
        config = config_from_table(each)
        assert config.topics.retention_ms == 1000
        assert config.topics.compacted
        assert config.topics_set == {"retention.ms", "cleanup.policy"}


def test_file_with_mistakes_reports_each() -> None:
    with pytest.raises(ConfigError) as caught:
        config_from_table({"topics": {"retention.ms": "soon", "flush.ms": 1, "x": {"y": []}}})
    assert len(caught.value.problems) == 3
    assert all(line.startswith("the configuration: [topics]: ") for line in caught.value.problems)
