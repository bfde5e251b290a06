"""Configuration: what can be set, read from a file or options, checked, and explained.

`setting` declares a setting, here and in plugins. `load_config` and `config_from_options` give a
`Config`; `TopicSettings` are a topic's settings under Kafka's names. Importing this package opens
nothing and starts quickly: TOML, the reference and explanations of mistakes load when needed.
"""

from odradek.config.fields import ConfigError, Setting, nearest, setting, settings_of, structure
from odradek.config.groups import GroupsSettings
from odradek.config.load import (
    config_from_options,
    config_from_table,
    default_data_dir,
    load_config,
)
from odradek.config.model import (
    PLAIN_SECTIONS,
    BrokerSettings,
    Config,
    Limits,
    ListenerSettings,
    PartSettings,
)
from odradek.config.secret import Secret
from odradek.config.topic_setting import ConfigType, TopicSetting
from odradek.config.topics import NOT_OFFERED, TopicSettings, topic_settings
from odradek.config.upkeep import CleanerSettings, RetentionSettings, ScrubSettings

__all__ = [
    "NOT_OFFERED",
    "PLAIN_SECTIONS",
    "BrokerSettings",
    "CleanerSettings",
    "Config",
    "ConfigError",
    "ConfigType",
    "GroupsSettings",
    "Limits",
    "ListenerSettings",
    "PartSettings",
    "RetentionSettings",
    "ScrubSettings",
    "Secret",
    "Setting",
    "TopicSetting",
    "TopicSettings",
    "config_from_options",
    "config_from_table",
    "default_data_dir",
    "load_config",
    "nearest",
    "setting",
    "settings_of",
    "structure",
    "topic_settings",
]
