"""One setting of a topic as clients see it: its Kafka name and type, and values as strings."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

import attrs

from odradek.config.fields import Setting

if TYPE_CHECKING:
    from odradek.config.topics import TopicSettings

__all__ = ["ConfigType", "TopicSetting", "text_of"]


class ConfigType(IntEnum):
    """The type codes of DescribeConfigs (`ConfigType` in Kafka's `DescribeConfigsResponse`)."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


@attrs.frozen(slots=True)
class TopicSetting:
    """One row of the table for DescribeConfigs.

    `name`: Kafka's. `field`: the attribute of TopicSettings. `synonym`: the broker-wide setting
    of Kafka that gives its default. `default`: as a string.
    """

    name: str
    field: str
    type: ConfigType
    synonym: str
    default: str
    doc: str
    setting: Setting

    def text(self, settings: TopicSettings) -> str:
        """Return the value in force, in Kafka's string form."""
        return text_of(getattr(settings, self.field))

    def parse(self, text: str) -> object:
        """Read Kafka's string form. Raises ValueError, naming the key, for what is not allowed."""
        value = self._convert(text.strip())  # Kafka trims too (ConfigDef.parseType)
        problem = self.setting.problem(value)
        if problem is not None:
            raise ValueError(f"{self.name}: {problem}")
        return value

    def from_toml(self, value: object) -> object:
        """Read a value of the configuration file. Raises ValueError, naming the key."""
        if isinstance(value, list) and all(isinstance(each, str) for each in value):
            return self.parse(",".join(value))
        if isinstance(value, (bool, int, float, str)):
            return self.parse(text_of(value))
        raise ValueError(f"{self.name}: expected a value, found {type(value).__name__}")

    def _convert(self, text: str) -> object:
        try:
            if self.type in (ConfigType.INT, ConfigType.LONG):
                return _whole(text)
            if self.type is ConfigType.DOUBLE:
                return _real(text)
        except ValueError:
            raise ValueError(f"{self.name}: {text[:40]!r} is not a number") from None
        if self.type is ConfigType.BOOLEAN:
            if text.lower() not in ("true", "false"):
                raise ValueError(f"{self.name}: {text[:40]!r} is neither true nor false")
            return text.lower() == "true"
        if self.type is ConfigType.LIST:
            return tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
        return text


def _whole(text: str) -> int:
    digits = text.removeprefix("-").removeprefix("+")
    if not (digits.isascii() and digits.isdigit()):  # int() also takes "1_000" and other scripts
        raise ValueError(text)
    if len(digits) > 20:
        raise ValueError(text)
    return int(text)


def _real(text: str) -> float:
    if "_" in text or not text.isascii():  # float() takes these too
        raise ValueError(text)
    return float(text)


def text_of(value: object) -> str:
    """Return a value in Kafka's string form."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(value)
    return str(value)
