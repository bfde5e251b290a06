"""How the cluster's state lies in the coordinator. JSON values, because operators read them.

    cluster/id               {"format": 1, "cluster_id": "..."}
    cluster/producer_ids     {"next": 4000}                          a counter of blocks
    cluster/sweeps           {}                                      its version counts sweeps
    brokers/<id>             {"endpoints": [...], "rack": ...}       ephemeral
    topics/<name>            {"id": "...", "partitions": 3, ...}     its creation is the topic's
    partitions/<id>-<n>      {"leader": 1, "leader_epoch": 4, "isr": [1], "replicas": [1]}
    deleted/<id>             {"partitions": 3, "brokers": [1]}       logs still to be removed
    clocks/<id>              {"proven_ms": ..., "steps": [], ...}    a broker's retention clock

A topic's partitions are written with the topic, or before it where they are too many for one
transaction, and deleted after it. So a topic that can be seen is whole, and what a crash leaves
behind is partitions without a topic: harmless, and swept by the next broker that starts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from uuid import UUID

from odradek.cluster.image import BrokerImage, DeletedTopic, Endpoint, PartitionImage, TopicImage
from odradek.contracts.coordinator import Entry
from odradek.errors import OdradekError
from odradek.types import PartitionKey

__all__ = [
    "BROKERS",
    "CLOCKS",
    "CLUSTER_ID",
    "DELETED",
    "PARTITIONS",
    "PRODUCER_IDS",
    "SWEEPS",
    "TOPICS",
    "broker_key",
    "broker_of",
    "broker_value",
    "clock_key",
    "deleted_key",
    "deleted_of",
    "deleted_value",
    "dump",
    "load",
    "partition_key",
    "partition_of",
    "partition_value",
    "topic_key",
    "topic_of",
    "topic_value",
]

CLUSTER_ID = "cluster/id"
PRODUCER_IDS = "cluster/producer_ids"
SWEEPS = "cluster/sweeps"
BROKERS = "brokers"
TOPICS = "topics"
PARTITIONS = "partitions"
DELETED = "deleted"
CLOCKS = "clocks"


def dump(value: Mapping[str, Any]) -> bytes:
    """Encode a value."""
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()


def load(entry: Entry) -> dict[str, Any]:
    """Decode a value. Raises OdradekError that names the key."""
    try:
        value = json.loads(entry.value)
    except ValueError as error:
        raise OdradekError(f"coordinator key {entry.key!r} does not hold JSON: {error}") from error
    if not isinstance(value, dict):
        raise OdradekError(f"coordinator key {entry.key!r} does not hold a JSON object")
    return value


@contextmanager
def _expecting(entry: Entry) -> Iterator[None]:
    """Name the key whose value lacks what this version of the software expects."""
    try:
        yield
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise OdradekError(
            f"coordinator key {entry.key!r} is not understood: {type(error).__name__}: {error}"
        ) from error


def _name(entry: Entry) -> str:
    return entry.key.partition("/")[2]


def broker_key(broker_id: int) -> str:
    """Key of a live broker."""
    return f"{BROKERS}/{broker_id}"


def broker_value(broker: BrokerImage) -> bytes:
    """Encode a broker."""
    endpoints = [{"listener": e.listener, "host": e.host, "port": e.port} for e in broker.endpoints]
    return dump({"endpoints": endpoints, "rack": broker.rack})


def broker_of(entry: Entry) -> BrokerImage:
    """Decode a broker."""
    with _expecting(entry):
        value = load(entry)
        endpoints = tuple(Endpoint(e["listener"], e["host"], e["port"]) for e in value["endpoints"])
        return BrokerImage(int(_name(entry)), endpoints, value.get("rack"))


def clock_key(broker_id: int) -> str:
    """Key of a broker's retention clock (`odradek.log.clock`)."""
    return f"{CLOCKS}/{broker_id}"


def topic_key(name: str) -> str:
    """Key of a topic."""
    return f"{TOPICS}/{name}"


def topic_value(topic: TopicImage) -> bytes:
    """Encode a topic."""
    return dump(
        {
            "id": str(topic.id),
            "partitions": topic.partitions,
            "replication_factor": topic.replication_factor,
            "configs": dict(topic.configs),
        }
    )


def topic_of(entry: Entry) -> TopicImage:
    """Decode a topic."""
    with _expecting(entry):
        value = load(entry)
        return TopicImage(
            name=_name(entry),
            id=UUID(value["id"]),
            partitions=value["partitions"],
            replication_factor=value["replication_factor"],
            configs=value["configs"],
            version=entry.version,
        )


def partition_key(key: PartitionKey) -> str:
    """Key of a partition."""
    return f"{PARTITIONS}/{key}"


def partition_value(partition: PartitionImage) -> bytes:
    """Encode a partition."""
    return dump(
        {
            "replicas": partition.replicas,
            "leader": partition.leader,
            "leader_epoch": partition.leader_epoch,
            "isr": partition.isr,
        }
    )


def partition_of(entry: Entry) -> tuple[PartitionKey, PartitionImage]:
    """Decode a partition."""
    with _expecting(entry):
        topic_id, _, number = _name(entry).rpartition("-")
        value = load(entry)
        return PartitionKey(UUID(topic_id), int(number)), PartitionImage(
            replicas=tuple(value["replicas"]),
            leader=value["leader"],
            leader_epoch=value["leader_epoch"],
            isr=tuple(value["isr"]),
            version=entry.version,
        )


def deleted_key(topic_id: UUID) -> str:
    """Key of a deleted topic."""
    return f"{DELETED}/{topic_id}"


def deleted_value(topic: DeletedTopic) -> bytes:
    """Encode a deleted topic."""
    return dump({"partitions": topic.partitions, "brokers": topic.brokers})


def deleted_of(entry: Entry) -> DeletedTopic:
    """Decode a deleted topic."""
    with _expecting(entry):
        value = load(entry)
        return DeletedTopic(
            UUID(_name(entry)), value["partitions"], tuple(value["brokers"]), entry.version
        )
