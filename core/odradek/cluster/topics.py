"""Creating, changing and deleting topics: transactions on the coordinator.

Each function returns when the change is durable in the coordinator; a caller that needs it in
force waits for its `ClusterView` as well. Raises KafkaError with the code that clients branch
on, and the coordinator's errors.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import cast
from uuid import UUID

from odradek.cluster import keys
from odradek.cluster.image import DeletedTopic, Image, PartitionImage, TopicImage
from odradek.cluster.planner import batches
from odradek.contracts.coordinator import (
    ABSENT,
    Conflict,
    Coordinator,
    Delete,
    Op,
    Put,
)
from odradek.errors import ErrorCode, KafkaError
from odradek.types import PartitionKey

__all__ = [
    "MAX_PARTITIONS",
    "add_partitions",
    "check_collision",
    "check_name",
    "create",
    "delete",
    "remove_partitions",
    "set_configs",
    "write_partitions",
]

MAX_NAME = 249
MAX_PARTITIONS = 10_000
"""Partitions of one topic: each costs memory and keys, and a request names only a number."""

OPS_PER_TXN = 60
_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")


def check_name(name: str) -> None:
    """Raise INVALID_TOPIC_EXCEPTION unless Kafka allows the name (`Topic.java`)."""
    if not name:
        problem = "the name is empty"
    elif name in {".", ".."}:
        problem = "'.' and '..' are not allowed"
    elif len(name) > MAX_NAME:
        problem = f"the name has {len(name)} characters, more than {MAX_NAME}"
    elif not _LEGAL.fullmatch(name):
        problem = f"{name[:80]!r} has characters other than ASCII letters, digits, '.', '_', '-'"
    else:
        return
    raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"invalid topic name: {problem}")


def check_collision(image: Image, name: str) -> None:
    """Raise unless no other topic differs from `name` only by '.' and '_' (metric names)."""
    if "." not in name and "_" not in name:
        return
    plain = name.replace(".", "_")
    for other in image.topics:
        if other != name and other.replace(".", "_") == plain:
            raise KafkaError(
                ErrorCode.INVALID_TOPIC_EXCEPTION, f"topic {name!r} collides with {other!r}"
            )


async def create(
    coordinator: Coordinator,
    topic_id: UUID,
    name: str,
    assignment: Sequence[tuple[int, ...]],
    configs: Mapping[str, str],
) -> TopicImage:
    """Create a topic with these replicas per partition. Raises TOPIC_ALREADY_EXISTS."""
    topic = TopicImage(
        name=name,
        id=topic_id,
        partitions=len(assignment),
        replication_factor=len(assignment[0]),
        configs=dict(configs),
    )
    fresh = [
        (PartitionKey(topic_id, number), _first_state(replicas))
        for number, replicas in enumerate(assignment)
    ]
    await write_partitions(coordinator, fresh)
    try:
        await coordinator.txn(Put(keys.topic_key(name), keys.topic_value(topic), ABSENT))
    except Conflict:
        await remove_partitions(coordinator, [key for key, _ in fresh])
        raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {name!r} already exists") from None
    return topic


def _first_state(replicas: tuple[int, ...]) -> PartitionImage:
    return PartitionImage(replicas=replicas, leader=replicas[0], leader_epoch=0, isr=replicas)


async def write_partitions(
    coordinator: Coordinator, partitions: Sequence[tuple[PartitionKey, PartitionImage]]
) -> None:
    """Write partitions, each against the version it was read at. Raises Conflict."""
    ops = [
        Put(
            keys.partition_key(key),
            keys.partition_value(partition),
            ABSENT if partition.version is None else partition.version,
        )
        for key, partition in partitions
    ]
    for batch in batches(ops, OPS_PER_TXN):
        await coordinator.txn(*cast("list[Op]", batch))


async def remove_partitions(coordinator: Coordinator, gone: Sequence[PartitionKey]) -> None:
    """Delete the keys of partitions whose topic is gone. Idempotent."""
    for batch in batches(gone, OPS_PER_TXN):
        ops = []
        for key in cast("list[PartitionKey]", batch):
            entry = await coordinator.get(keys.partition_key(key))
            if entry is not None:
                ops.append(Delete(entry.key, entry.version))
        if ops:
            await coordinator.txn(*ops)


async def delete(coordinator: Coordinator, topic: TopicImage, hosts: Iterable[int]) -> None:
    """Delete a topic; its name is free at once. Raises UNKNOWN_TOPIC_OR_PARTITION.

    `hosts` are the brokers that have logs to remove.
    """
    key = keys.topic_key(topic.name)
    while True:
        entry = await coordinator.get(key)
        if entry is None or keys.topic_of(entry).id != topic.id:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {topic.name!r} does not exist"
            )
        try:
            newest = keys.topic_of(entry)
            gone = DeletedTopic(newest.id, newest.partitions, tuple(sorted(hosts)))
            await coordinator.txn(
                Delete(key, entry.version),
                Put(keys.deleted_key(newest.id), keys.deleted_value(gone), ABSENT),
            )
        except Conflict:
            continue  # its settings changed meanwhile: look again
        await remove_partitions(coordinator, newest.partition_keys())
        return


async def add_partitions(
    coordinator: Coordinator, topic: TopicImage, assignment: Sequence[tuple[int, ...]]
) -> None:
    """Add partitions behind the last one. Raises INVALID_PARTITIONS when another was faster."""
    fresh = [
        (PartitionKey(topic.id, topic.partitions + number), _first_state(replicas))
        for number, replicas in enumerate(assignment)
    ]
    grown = TopicImage(
        name=topic.name,
        id=topic.id,
        partitions=topic.partitions + len(assignment),
        replication_factor=topic.replication_factor,
        configs=topic.configs,
    )
    assert topic.version is not None
    overtaken = KafkaError(
        ErrorCode.INVALID_PARTITIONS, f"topic {topic.name!r} was changed by another request"
    )
    try:
        await write_partitions(coordinator, fresh)
    except Conflict:
        raise overtaken from None
    try:
        await coordinator.txn(
            Put(keys.topic_key(topic.name), keys.topic_value(grown), topic.version)
        )
    except Conflict:
        await remove_partitions(coordinator, [key for key, _ in fresh])
        raise overtaken from None


async def set_configs(
    coordinator: Coordinator, topic: TopicImage, configs: Mapping[str, str]
) -> None:
    """Replace a topic's settings. Raises Conflict when it was changed meanwhile."""
    assert topic.version is not None
    changed = TopicImage(
        name=topic.name,
        id=topic.id,
        partitions=topic.partitions,
        replication_factor=topic.replication_factor,
        configs=dict(configs),
    )
    await coordinator.txn(Put(keys.topic_key(topic.name), keys.topic_value(changed), topic.version))
