"""Tests of a program that talks to Kafka, each with a broker of its own."""

from collections.abc import Iterator

import pytest

from odradek.testing.fixture import Odradek
from orders import Copier


@pytest.fixture
def copier(odradek: Odradek) -> Iterator[Copier]:
    odradek.create_topic("orders", partitions=1)
    copier = Copier(odradek.bootstrap)
    yield copier
    copier.close()


def values(odradek: Odradek, topic: str) -> list[bytes | None]:
    return [record.value for record in odradek.records(topic)]


def test_paid_orders_are_copied(odradek: Odradek, copier: Copier) -> None:
    odradek.produce("orders", ["paid 1", "open 2", "paid 3"])
    copier.copy(3)
    assert values(odradek, "paid") == [b"paid 1", b"paid 3"]


def test_copy_is_made_once_though_an_answer_is_lost(odradek: Odradek, copier: Copier) -> None:
    odradek.create_topic("paid")
    odradek.faults.disconnect("Produce", after=True)
    odradek.produce("orders", ["paid 1"])
    copier.copy(1)
    assert odradek.faults.seen("Produce") == 2
    assert values(odradek, "paid") == [b"paid 1"]


def test_broker_may_be_restarted(odradek: Odradek, copier: Copier) -> None:
    odradek.produce("orders", ["paid 1"])
    copier.copy(1)
    odradek.restart()
    odradek.produce("orders", ["paid 2"])
    copier.copy(1)
    assert values(odradek, "paid") == [b"paid 1", b"paid 2"]


@pytest.mark.parametrize("error", ["NOT_LEADER_OR_FOLLOWER", "REQUEST_TIMED_OUT"])
def test_passing_errors_are_retried(odradek: Odradek, copier: Copier, error: str) -> None:
    odradek.create_topic("paid")
    odradek.faults.fail("Produce", error, times=3)
    odradek.produce("orders", ["paid 1"])
    copier.copy(1)
    assert values(odradek, "paid") == [b"paid 1"]
    assert odradek.faults.seen("Produce") == 4
