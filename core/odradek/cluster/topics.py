"""Creating, changing and deleting topics: transactions on the coordinator.

Each function returns when the change is durable in the coordinator; a caller that needs it in
force waits for its `ClusterView` as well. Raises KafkaError with the code that clients branch
on, and the coordinator's errors.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from typing import cast
from uuid import UUID

import trio
from attrs import evolve

from odradek.cluster import keys
from odradek.cluster.image import DeletedTopic, Image, PartitionImage, TopicImage
from odradek.cluster.planner import batches
from odradek.contracts.coordinator import (
    ABSENT,
    Check,
    Conflict,
    Coordinator,
    CoordinatorError,
    Delete,
    Op,
    Put,
    Version,
)
from odradek.errors import ErrorCode, KafkaError
from odradek.types import PartitionKey

__all__ = [
    "INTERNAL_TOPICS",
    "MAX_PARTITIONS",
    "OFFSETS_TOPIC",
    "add_partitions",
    "check_collision",
    "check_name",
    "create",
    "delete",
    "remove_partitions",
    "set_configs",
    "sweep",
    "write_partitions",
]

logger = logging.getLogger(__name__)

OFFSETS_TOPIC = "__consumer_offsets"
"""Where consumer groups keep their state."""

INTERNAL_TOPICS = frozenset({OFFSETS_TOPIC, "__transaction_state", "__share_group_state"})
"""Topics that brokers write and clients may only read (Kafka's `Topic.INTERNAL_TOPICS`)."""

MAX_NAME = 249
MAX_PARTITIONS = 10_000
"""Partitions of one topic: each costs memory and keys, and a request names only a number."""

OPS_PER_TXN = 60
ATTEMPTS = 5
UNDO_PATIENCE = 5.0
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
    """Create a topic with these replicas per partition. Raises TOPIC_ALREADY_EXISTS.

    Cancelled: the topic exists or it does not; keys of partitions may be left for `sweep`.
    """
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
    put = Put(keys.topic_key(name), keys.topic_value(topic), ABSENT)
    for _ in range(ATTEMPTS):
        try:
            await _write_with(coordinator, put, fresh)
        except Conflict:
            if await coordinator.get(put.key) is not None:
                break
        else:
            return topic
    raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {name!r} already exists")


async def _write_with(
    coordinator: Coordinator, topic: Put, fresh: Sequence[tuple[PartitionKey, PartitionImage]]
) -> None:
    """Write new partitions, and a topic that has them: all at once, or the topic last.

    Raises Conflict, and then nothing is left behind, and the coordinator's other errors.
    """
    puts = [_put(key, partition) for key, partition in fresh]
    if len(puts) < OPS_PER_TXN:
        await coordinator.txn(topic, *puts)
        return
    fence = await _sweep_fence(coordinator)
    undo: list[Delete] = []
    try:
        for batch in batches(puts, OPS_PER_TXN):
            versions = await coordinator.txn(*batch)
            undo += [
                Delete(put.key, cast("Version", version))
                for put, version in zip(batch, versions, strict=True)
            ]
    except BaseException:
        await _undo(coordinator, undo)
        raise
    try:
        await coordinator.txn(topic, fence)
    except Conflict:
        await _undo(coordinator, undo)
        raise


async def _undo(coordinator: Coordinator, undo: Sequence[Delete]) -> None:
    """Delete what was written, also when cancelled. What resists is left to `sweep`."""
    with trio.move_on_after(UNDO_PATIENCE, shield=True):
        for batch in batches(undo, OPS_PER_TXN):
            try:
                await coordinator.txn(*batch)
            except CoordinatorError as error:
                logger.warning("%d keys of partitions are left behind: %s", len(batch), error)


async def _sweep_fence(coordinator: Coordinator) -> Check:
    """A check that fails once anybody has begun to sweep after now."""
    while True:
        entry = await coordinator.get(keys.SWEEPS)
        if entry is not None:
            return Check(entry.key, entry.version)
        try:
            await coordinator.txn(Put(keys.SWEEPS, keys.dump({}), ABSENT))
        except Conflict:
            continue


async def sweep(coordinator: Coordinator, found: Sequence[tuple[PartitionKey, Version]]) -> None:
    """Delete keys of partitions that belonged to no topic when they were read.

    They may be those of a topic that another broker is creating right now. So the sweep is
    announced before the first deletion: a creation that began earlier then fails at its last
    step, and what was written later has other versions than those that were found.
    """
    if not found:
        return
    await coordinator.put(keys.SWEEPS, keys.dump({}))
    await _undo(coordinator, [Delete(keys.partition_key(key), version) for key, version in found])


def _first_state(replicas: tuple[int, ...]) -> PartitionImage:
    return PartitionImage(replicas=replicas, leader=replicas[0], leader_epoch=0, isr=replicas)


def _put(key: PartitionKey, partition: PartitionImage) -> Put:
    version = ABSENT if partition.version is None else partition.version
    return Put(keys.partition_key(key), keys.partition_value(partition), version)


async def write_partitions(
    coordinator: Coordinator, partitions: Sequence[tuple[PartitionKey, PartitionImage]]
) -> None:
    """Write partitions, each against the version it was read at. Raises Conflict."""
    for batch in batches([_put(*each) for each in partitions], OPS_PER_TXN):
        await coordinator.txn(*batch)


async def remove_partitions(coordinator: Coordinator, gone: Sequence[PartitionKey]) -> None:
    """Delete the keys of partitions whose topic is gone. Idempotent."""
    for batch in batches(gone, OPS_PER_TXN):
        found = [await coordinator.get(keys.partition_key(key)) for key in batch]
        ops = [Delete(entry.key, entry.version) for entry in found if entry is not None]
        if ops:
            await coordinator.txn(*ops)


async def delete(
    coordinator: Coordinator, topic: TopicImage, known: Mapping[PartitionKey, PartitionImage]
) -> None:
    """Delete a topic; its name is free at once. Raises UNKNOWN_TOPIC_OR_PARTITION.

    `known` tells who has logs to remove. Partitions that are not in it are read: the watches of a
    view run beside each other, so a topic can be seen before its partitions are, and a deletion
    that names nobody would leave the logs behind for ever.
    """
    key = keys.topic_key(topic.name)
    while True:
        entry = await coordinator.get(key)
        if entry is None or keys.topic_of(entry).id != topic.id:
            raise _unknown(topic.name)
        newest = keys.topic_of(entry)
        hosts = await _hosts(coordinator, newest, known)
        gone = DeletedTopic(newest.id, newest.partitions, tuple(sorted(hosts)))
        changes: list[Op] = [Delete(key, entry.version)]
        if hosts:
            changes.append(Put(keys.deleted_key(newest.id), keys.deleted_value(gone), ABSENT))
        try:
            await coordinator.txn(*changes)
        except Conflict:
            continue  # its settings changed meanwhile: look again
        await remove_partitions(coordinator, newest.partition_keys())
        return


async def _hosts(
    coordinator: Coordinator, topic: TopicImage, known: Mapping[PartitionKey, PartitionImage]
) -> set[int]:
    hosts: set[int] = set()
    for key in topic.partition_keys():
        partition = known.get(key)
        if partition is None:
            entry = await coordinator.get(keys.partition_key(key))
            if entry is None:
                continue
            _, partition = keys.partition_of(entry)
        hosts.update(partition.replicas)
    return hosts


async def add_partitions(
    coordinator: Coordinator, topic: TopicImage, assignment: Sequence[tuple[int, ...]]
) -> None:
    """Add partitions behind the last one. Raises INVALID_PARTITIONS when another was faster.

    Other changes of the topic meanwhile are kept. Cancelled: as `create`.
    """
    fresh = [
        (PartitionKey(topic.id, topic.partitions + number), _first_state(replicas))
        for number, replicas in enumerate(assignment)
    ]
    newest = topic
    for _ in range(ATTEMPTS):
        grown = evolve(newest, partitions=topic.partitions + len(assignment))
        assert newest.version is not None
        try:
            await _write_with(
                coordinator,
                Put(keys.topic_key(topic.name), keys.topic_value(grown), newest.version),
                fresh,
            )
        except Conflict:
            entry = await coordinator.get(keys.topic_key(topic.name))
            now = keys.topic_of(entry) if entry is not None else None
            if now is None or now.id != topic.id:
                raise _unknown(topic.name) from None
            if now.partitions != topic.partitions:
                break
            if now.version == newest.version:  # an addition that did not come to its end
                await _sweep_left(coordinator, [key for key, _ in fresh])
            newest = now
        else:
            return
    raise KafkaError(
        ErrorCode.INVALID_PARTITIONS, f"topic {topic.name!r} was changed by another request"
    )


async def _sweep_left(coordinator: Coordinator, left: Sequence[PartitionKey]) -> None:
    found = []
    for key in left:
        entry = await coordinator.get(keys.partition_key(key))
        if entry is not None:
            found.append((key, entry.version))
    await sweep(coordinator, found)


def _unknown(name: str) -> KafkaError:
    return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name!r} does not exist")


async def set_configs(
    coordinator: Coordinator, topic: TopicImage, configs: Mapping[str, str]
) -> None:
    """Replace a topic's settings. Raises Conflict when it was changed meanwhile."""
    assert topic.version is not None
    changed = evolve(topic, configs=dict(configs))
    await coordinator.txn(Put(keys.topic_key(topic.name), keys.topic_value(changed), topic.version))
