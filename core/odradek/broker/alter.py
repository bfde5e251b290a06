"""Changing a topic's settings: what AlterConfigs and IncrementalAlterConfigs have in common."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from odradek.broker.configs import Resource
from odradek.broker.guard import as_kafka_error
from odradek.config import TopicSettings
from odradek.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from odradek.broker.broker import Broker

__all__ = ["alter", "repeated"]


async def alter(
    broker: Broker,
    resource_type: int,
    name: str,
    change: Callable[[Mapping[str, str]], dict[str, str]],
    validate_only: bool,
) -> None:
    """Replace a topic's settings by what `change` makes of them. Raises KafkaError."""
    if resource_type == Resource.BROKER:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            "a broker's settings are in its configuration file: change it there and restart",
        )
    if resource_type != Resource.TOPIC:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"no settings of resource type {resource_type}")
    topic = broker.image.topics.get(name)
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    configs = change(topic.configs)
    TopicSettings.parse(configs, broker.config.topics)
    if not validate_only and configs != topic.configs:
        async with as_kafka_error():
            await broker.set_configs(topic, configs)


def repeated(resources: Sequence[tuple[int, str]]) -> set[tuple[int, str]]:
    """The resources that one request names more than once: which change should win?"""
    return {resource for resource, count in Counter(resources).items() if count > 1}
