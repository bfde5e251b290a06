"""How the cluster's state lies in the coordinator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.cluster import keys
from odradek.cluster.image import BrokerImage, DeletedTopic, Endpoint, PartitionImage, TopicImage
from odradek.contracts.coordinator import Entry, Version, check_key, check_value
from odradek.errors import OdradekError
from odradek.types import PartitionKey


def entry(key: str, value: bytes, version: int = 3) -> Entry:
    check_key(key)
    check_value(key, value)
    return Entry(key=key, value=value, version=Version(version), revision=9, created=9, owner=None)


ids = st.integers(0, 2**31 - 1)
brokers = st.builds(
    BrokerImage,
    ids,
    st.lists(st.builds(Endpoint, st.text(), st.text(), st.integers(0, 65535))).map(tuple),
    st.none() | st.text(),
)
names = st.text("abcXYZ019._-", min_size=1, max_size=249).filter(lambda n: n not in (".", ".."))
topics = st.builds(
    TopicImage,
    names,
    st.uuids(),
    st.integers(1, 10_000),
    st.integers(1, 5),
    st.dictionaries(st.text(), st.text()),
)
partition_keys = st.builds(PartitionKey, st.uuids(), st.integers(0, 9_999))
replicas = st.lists(ids, max_size=5).map(tuple)
partitions = st.builds(PartitionImage, replicas, ids | st.just(-1), ids, replicas)
deleted = st.builds(DeletedTopic, st.uuids(), st.integers(1, 10_000), replicas)


@given(brokers)
def test_broker_comes_back(broker: BrokerImage) -> None:
    assert keys.broker_of(entry(keys.broker_key(broker.id), keys.broker_value(broker))) == broker


@given(topics)
def test_topic_comes_back_with_its_version(topic: TopicImage) -> None:
    back = keys.topic_of(entry(keys.topic_key(topic.name), keys.topic_value(topic), 42))
    assert back == topic
    assert back.version == 42


@given(partition_keys, partitions)
def test_partition_comes_back_with_its_version(
    key: PartitionKey, partition: PartitionImage
) -> None:
    stored = entry(keys.partition_key(key), keys.partition_value(partition), 42)
    assert keys.partition_of(stored) == (key, partition)
    assert keys.partition_of(stored)[1].version == 42


@given(deleted)
def test_deleted_topic_comes_back(topic: DeletedTopic) -> None:
    assert keys.deleted_of(entry(keys.deleted_key(topic.id), keys.deleted_value(topic))) == topic


UUID_7 = UUID(int=7)


@pytest.mark.parametrize(
    "value", [b"\xff", b"{", b"[]", b"null", b"{}", b'{"id": 7}', b'{"replicas": 3}']
)
@pytest.mark.parametrize(
    ("decode", "key"),
    [
        (keys.broker_of, "brokers/1"),
        (keys.topic_of, "topics/events"),
        (keys.partition_of, f"partitions/{UUID_7}-0"),
        (keys.deleted_of, f"deleted/{UUID_7}"),
    ],
)
def test_value_that_is_not_understood_names_its_key(
    decode: Callable[[Entry], Any], key: str, value: bytes
) -> None:
    with pytest.raises(OdradekError, match=key):
        decode(entry(key, value))


def test_key_that_is_not_understood_is_named() -> None:
    whole = keys.partition_value(PartitionImage((1,), 1, 0, (1,)))
    with pytest.raises(OdradekError, match="partitions/rubbish"):
        keys.partition_of(entry("partitions/rubbish", whole))
