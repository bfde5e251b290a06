"""The settings of topics and of the broker, as DescribeConfigs and CreateTopics tell them."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import TYPE_CHECKING

from attrs import frozen

from odradek.config import (
    PLAIN_SECTIONS,
    Config,
    ConfigType,
    TopicSettings,
    settings_of,
    topic_settings,
)
from odradek.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from odradek.broker.broker import Broker

__all__ = [
    "Resource",
    "Row",
    "Source",
    "Synonym",
    "broker_configs",
    "check_topic",
    "public_url",
    "topic_configs",
]


VALUE_LIMIT = 4096
"""Characters of a setting's value: all settings of a topic share one entry in the coordinator."""


class Resource(IntEnum):
    """What settings can belong to (Kafka's `ConfigResource.Type`)."""

    TOPIC = 2
    BROKER = 4


class Source(IntEnum):
    """Where a value comes from (Kafka's `ConfigSource`)."""

    TOPIC = 1
    STATIC_BROKER = 4
    DEFAULT = 5


@frozen(slots=True)
class Synonym:
    """A value that would be in force if the ones before it were not set."""

    name: str
    value: str
    source: Source


@frozen(slots=True)
class Row:
    """One setting in force."""

    name: str
    value: str
    source: Source
    type: ConfigType
    doc: str
    synonyms: tuple[Synonym, ...] = ()


def public_url(url: str) -> str:
    """A URL as clients may see it: without a user's name and password."""
    scheme, slashes, rest = url.partition("://")
    place, slash, path = rest.partition("/")
    _, at, host = place.rpartition("@")
    return f"{scheme}{slashes}***@{host}{slash}{path}" if at else url


def check_topic(configs: Mapping[str, str], defaults: TopicSettings) -> TopicSettings:
    """Return the settings that a client wants for a topic. Raises KafkaError INVALID_CONFIG."""
    for name, value in configs.items():
        if len(value) > VALUE_LIMIT:
            raise KafkaError(
                ErrorCode.INVALID_CONFIG,
                f"{name[:80]}: a value has at most {VALUE_LIMIT} characters",
            )
    return TopicSettings.parse(configs, defaults)


def topic_configs(config: Config, overrides: Mapping[str, str]) -> list[Row]:
    """Every setting of a topic that has these of its own."""
    settings, _ = TopicSettings.salvage(overrides, config.topics)
    rows = []
    for known in topic_settings().values():
        synonyms = [Synonym(known.synonym, known.default, Source.DEFAULT)]
        if known.name in config.topics_set:
            synonyms.insert(
                0, Synonym(known.synonym, known.text(config.topics), Source.STATIC_BROKER)
            )
        if known.name in overrides:
            synonyms.insert(0, Synonym(known.name, overrides[known.name], Source.TOPIC))
        rows.append(
            Row(
                known.name,
                known.text(settings),
                synonyms[0].source,
                known.type,
                known.doc,
                tuple(synonyms),
            )
        )
    return rows


def broker_configs(broker: Broker) -> list[Row]:
    """The broker's own settings, under Kafka's names where it has them. All are read-only."""
    rows = []
    config = broker.config
    for section, cls in PLAIN_SECTIONS.items():
        values = getattr(config, section)
        for field, declared in settings_of(cls).items():
            value = getattr(values, field)
            name = declared.kafka or f"odradek.{section}.{field}"
            rows.append(_row(name, value, declared.default, declared.doc))
    listeners = ",".join(f"{b.name.upper()}://{b.address}" for b in broker.bound)
    traits = broker.store.traits
    rows += [
        _row("advertised.listeners", listeners, None, "Where clients reach this broker."),
        _row("log.dirs", public_url(config.storage.url), None, "Where the log is stored."),
        _row(
            "odradek.storage.durability",
            traits.durability,
            None,
            "What an acknowledgement means: ack (synced), interval (synced soon) or none.",
        ),
        _row(
            "odradek.coordinator",
            public_url(config.coordinator.url),
            None,
            "What coordinates the brokers.",
        ),
    ]
    return rows


def _row(name: str, value: object, default: object, doc: str) -> Row:
    kind = ConfigType.STRING
    if isinstance(value, bool):
        kind = ConfigType.BOOLEAN
    elif isinstance(value, int):
        kind = ConfigType.LONG
    elif isinstance(value, float):
        kind = ConfigType.DOUBLE
    text = str(value).lower() if isinstance(value, bool) else "" if value is None else str(value)
    source = Source.DEFAULT if value == default else Source.STATIC_BROKER
    return Row(name, text, source, kind, doc)
