"""The group machine answers as Apache Kafka does, error by error, to the same requests."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.group.against import Local, Remote, compare
from tests.interop.kafka import KafkaBroker

from odradek.wire.api.a19_create_topics import CreatableTopic, CreateTopicsRequest

FILES = sorted((Path(__file__).parents[1] / "scenarios/kafka_groups").glob("*.txt"))


@pytest.fixture
def remote(kafka: KafkaBroker) -> Iterator[Remote]:
    remote = Remote(kafka.address)
    topics = [CreatableTopic(name=n, num_partitions=10, replication_factor=1) for n in ("t", "u")]
    remote.call(CreateTopicsRequest(topics=topics), 7)  # or they are there already
    remote.ready()
    yield remote
    remote.close()


@pytest.mark.interop
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_machine_answers_as_kafka_does(path, remote):
    local = Local()
    local.run("settings initial_rebalance_delay_ms=0 session_timeout_min_ms=100")  # as Kafka's
    for line in path.read_text().splitlines():
        if line and not line.startswith("#"):
            compare(local, remote, line)
