"""Changing a topic's settings: what AlterConfigs and IncrementalAlterConfigs have in common."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import trio

from odradek.broker.configs import Resource, check_topic
from odradek.broker.guard import as_kafka_error
from odradek.contracts.coordinator import Conflict, Version
from odradek.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from odradek.broker.broker import Broker
    from odradek.cluster.image import Image

__all__ = ["alter", "repeated"]

PATIENCE = 30.0


async def alter(
    broker: Broker,
    resource_type: int,
    name: str,
    change: Callable[[Mapping[str, str]], dict[str, str]],
    validate_only: bool,
) -> None:
    """Replace a topic's settings by what `change` makes of them. Raises KafkaError.

    `change` is asked again when another request changes the topic at the same time.
    """
    if resource_type == Resource.BROKER:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            "a broker's settings are in its configuration file: change it there and restart",
        )
    if resource_type != Resource.TOPIC:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"no settings of resource type {resource_type}")
    with trio.move_on_after(PATIENCE):
        await _replace(broker, name, change, validate_only)
        return
    raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "the change may yet be applied")


async def _replace(
    broker: Broker,
    name: str,
    change: Callable[[Mapping[str, str]], dict[str, str]],
    validate_only: bool,
) -> None:
    while True:
        topic = broker.image.topics.get(name)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        configs = change(topic.configs)
        check_topic(configs, broker.config.topics)
        if validate_only or configs == topic.configs:
            return
        async with as_kafka_error():
            try:
                await broker.set_configs(topic, configs)
            except Conflict:
                # Somebody else changed the topic: make the same change of what it is now.
                seen = topic.version
                await broker.view.wait_until(lambda image: _version(image, name) != seen)  # noqa: B023  # awaited now
            else:
                return


def _version(image: Image, name: str) -> Version | None:
    topic = image.topics.get(name)
    return None if topic is None else topic.version


def repeated(resources: Sequence[tuple[int, str]]) -> set[tuple[int, str]]:
    """The resources that one request names more than once: which change should win?"""
    return {resource for resource, count in Counter(resources).items() if count > 1}
