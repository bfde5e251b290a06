"""The table of topic settings against Apache Kafka's own, printed by its class LogConfig."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

import pytest

from odradek.config import NOT_OFFERED, ConfigType, TopicSetting, topic_settings

if TYPE_CHECKING:
    from tests.interop.drivers.java import Java

OWN_BOUNDS = {
    "retention.bytes",  # Kafka takes any number, and every one below 0 for no limit
    "segment.bytes",  # Kafka 4 refuses less than 1 MiB
}
NEWER = {"message.timestamp.after.max.ms"}
"""Those that had another default before Kafka 4 (this one had none: any time in the future)."""

MAXIMA = {ConfigType.INT: 2**31 - 1, ConfigType.LONG: 2**63 - 1}


@pytest.fixture
def table(java: Java) -> Mapping[str, Mapping[str, str]]:
    printed = java.tool("org.apache.kafka.storage.internals.log.LogConfig")
    found = {}
    for name, rows in re.findall(
        r'<h4><a id="([^"]+)">.*?<table>(.*?)</table>', printed, re.DOTALL
    ):
        cells = re.findall(r"<th>(.*?):</th><td>(.*?)</td>", rows, re.DOTALL)
        found[name] = {title: html.unescape(cell) for title, cell in cells}
    assert len(found) > 30
    return found


def bounds(row: TopicSetting) -> str:
    """The bounds of a setting as Kafka prints them."""
    declared = row.setting
    if declared.choices:
        return ", ".join(sorted(declared.choices))
    if declared.minimum is None:
        return ""
    unbounded = declared.maximum in (None, MAXIMA.get(row.type))
    return f"[{declared.minimum:g},...{'' if unbounded else f',{declared.maximum:g}'}]"


def test_every_setting_of_kafka_is_offered_or_refused_with_a_reason(
    table: Mapping[str, Mapping[str, str]],
) -> None:
    assert set(table) - set(topic_settings()) - set(NOT_OFFERED) == set()


def test_types_defaults_bounds_and_synonyms_are_kafkas(
    java: Java, table: Mapping[str, Mapping[str, str]]
) -> None:
    for name, row in topic_settings().items():
        kafka = table[name]
        assert row.type.name.lower() == kafka["Type"], name
        if not (java.name.startswith("java-3") and name in NEWER):
            assert row.default == kafka["Default"].partition(" ")[0], name
        assert row.synonym == kafka["Server Default Property"], name
        if name not in OWN_BOUNDS:
            valid = kafka["Valid Values"]
            if row.setting.choices:
                valid = ", ".join(sorted(re.findall(r"\w+", valid)))
            assert bounds(row) == valid, name
