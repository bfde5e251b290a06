"""Foreign clients at the fixture: groups form at once, faults arrive, restarts are survived."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from odradek.testing.fixture import Odradek

confluent_kafka = pytest.importorskip("confluent_kafka")
kafka = pytest.importorskip("kafka")
aiokafka = pytest.importorskip("aiokafka")

pytestmark = pytest.mark.interop

PATIENCE = 20.0
SETTLED = 5.0
"""Seconds in which a group has to be at work: clients wait up to 3 s between heartbeats."""


def until(found: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        result = found()
        if result:
            return result
    raise AssertionError("it does not happen")


def confluent(odradek: Odradek, **options: Any) -> dict[str, Any]:
    return {"bootstrap.servers": odradek.bootstrap, **options}


def confluent_consumer(odradek: Odradek, **options: Any):
    return confluent_kafka.Consumer(
        confluent(
            odradek,
            **{
                "group.id": "g",
                "auto.offset.reset": "earliest",
                "heartbeat.interval.ms": 100,
                "session.timeout.ms": 6000,
                **options,
            },
        )
    )


def test_confluent_kafka_joins_a_group_without_delay(odradek: Odradek) -> None:
    odradek.produce("t", ["a", "b"])
    consumer = confluent_consumer(odradek)
    consumer.subscribe(["t"])
    began = time.monotonic()
    first = until(lambda: consumer.poll(0.1))
    assert time.monotonic() - began < 2.5  # Kafka's initial delay alone would be 3 s
    assert (first.error(), first.value()) == (None, b"a")
    consumer.close()
    assert odradek.faults.seen("JoinGroup") >= 1


def test_kafka_python_joins_a_group_without_delay(odradek: Odradek) -> None:
    odradek.produce("t", ["a", "b"])
    consumer = kafka.KafkaConsumer(
        "t", bootstrap_servers=odradek.bootstrap, group_id="g", auto_offset_reset="earliest",
        consumer_timeout_ms=PATIENCE * 1000,
    )  # fmt: skip
    assert [next(consumer).value for _ in range(2)] == [b"a", b"b"]
    consumer.close()


def test_aiokafka_joins_a_group_without_delay(odradek: Odradek) -> None:
    odradek.produce("t", ["a", "b"])

    async def main() -> list[bytes]:
        consumer = aiokafka.AIOKafkaConsumer(
            "t", bootstrap_servers=odradek.bootstrap, group_id="g", auto_offset_reset="earliest"
        )
        await consumer.start()
        try:
            async with asyncio.timeout(PATIENCE):
                return [(await consumer.getone()).value for _ in range(2)]
        finally:
            await consumer.stop()

    assert asyncio.run(main()) == [b"a", b"b"]


def test_rebalance_on_demand_calls_the_members_callbacks(odradek: Odradek) -> None:
    odradek.create_topic("t", 2)
    told: list[str] = []
    consumer = confluent_consumer(odradek)
    consumer.subscribe(
        ["t"],
        on_assign=lambda *_: told.append("assigned"),
        on_revoke=lambda *_: told.append("revoked"),
    )
    until(lambda: consumer.poll(0.05) or told == ["assigned"])
    odradek.rebalance("g")
    until(lambda: consumer.poll(0.05) or told == ["assigned", "revoked", "assigned"])
    consumer.close()


def test_confluent_kafka_retries_a_produce_that_failed(odradek: Odradek) -> None:
    odradek.create_topic("t")
    producer = confluent_kafka.Producer(confluent(odradek, **{"retry.backoff.ms": 10}))
    odradek.faults.fail("Produce", "NOT_LEADER_OR_FOLLOWER", times=2)
    producer.produce("t", b"x")
    assert producer.flush(PATIENCE) == 0
    assert odradek.faults.seen("Produce") == 3
    assert [record.value for record in odradek.records("t")] == [b"x"]


def test_confluent_kafka_reports_an_error_that_no_retry_mends(odradek: Odradek) -> None:
    odradek.create_topic("t")
    producer = confluent_kafka.Producer(confluent(odradek))
    odradek.faults.fail("Produce", "TOPIC_AUTHORIZATION_FAILED")
    errors: list[Any] = []
    producer.produce("t", b"x", on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(PATIENCE) == 0
    assert errors[0].code() == confluent_kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert odradek.records("t") == []


def test_idempotent_producer_writes_once_when_its_answer_is_lost(odradek: Odradek) -> None:
    odradek.create_topic("t")
    producer = confluent_kafka.Producer(
        confluent(odradek, **{"enable.idempotence": True, "retry.backoff.ms": 10})
    )
    odradek.faults.disconnect("Produce", after=True)
    producer.produce("t", b"x")
    assert producer.flush(PATIENCE) == 0
    assert odradek.faults.seen("Produce") == 2
    assert [record.value for record in odradek.records("t")] == [b"x"]


def test_kafka_python_reports_the_error_of_an_administrative_request(odradek: Odradek) -> None:
    admin = kafka.KafkaAdminClient(bootstrap_servers=odradek.bootstrap)
    odradek.faults.fail("CreateTopics", "POLICY_VIOLATION")
    with pytest.raises(kafka.errors.PolicyViolationError):
        admin.create_topics([kafka.admin.NewTopic("t", 1, 1)])
    admin.close()
    assert odradek.topics() == {}


def test_commit_that_failed_is_raised_by_its_code(odradek: Odradek) -> None:
    odradek.produce("t", ["a"])
    consumer = confluent_consumer(odradek, **{"enable.auto.commit": False})
    consumer.subscribe(["t"])
    message = until(lambda: consumer.poll(0.1))
    odradek.faults.fail("OffsetCommit", "GROUP_AUTHORIZATION_FAILED")
    with pytest.raises(confluent_kafka.KafkaException) as caught:
        consumer.commit(message=message, asynchronous=False)
    assert caught.value.args[0].code() == confluent_kafka.KafkaError.GROUP_AUTHORIZATION_FAILED
    (committed,) = consumer.commit(message=message, asynchronous=False)
    assert committed.offset == 1
    consumer.close()


def test_consumer_goes_on_behind_a_restart(odradek: Odradek) -> None:
    odradek.produce("t", ["before"])
    consumer = confluent_consumer(odradek, **{"reconnect.backoff.ms": 10})
    consumer.subscribe(["t"])
    assert until(lambda: consumer.poll(0.1)).value() == b"before"
    odradek.restart()
    odradek.produce("t", ["after"])
    seen = until(lambda: (m := consumer.poll(0.1)) and not m.error() and m)
    assert seen.value() == b"after"
    consumer.close()
