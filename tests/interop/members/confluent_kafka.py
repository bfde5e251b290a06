"""librdkafka's consumer."""

from __future__ import annotations

import confluent_kafka as ck
from tests.interop.members.base import options, stopping, tell, tell_assigned


def main() -> None:
    """Consume until told to leave."""
    asked = options()
    settings = {
        "bootstrap.servers": asked.bootstrap,
        "group.id": asked.group,
        "partition.assignment.strategy": asked.strategy,
        "session.timeout.ms": asked.session_ms,
        "heartbeat.interval.ms": min(500, asked.session_ms // 3),
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        "reconnect.backoff.ms": 20,
        "reconnect.backoff.max.ms": 200,
        "topic.metadata.refresh.interval.ms": 1000,
        "log_level": 0,
        **asked.settings,
    }
    if asked.instance is not None:
        settings["group.instance.id"] = asked.instance
    consumer = ck.Consumer(settings)
    owned: set[tuple[str, int]] = set()

    def assigned(_: ck.Consumer, partitions: list[ck.TopicPartition]) -> None:
        owned.update((each.topic, each.partition) for each in partitions)
        tell_assigned(owned)

    def revoked(_: ck.Consumer, partitions: list[ck.TopicPartition]) -> None:
        owned.difference_update((each.topic, each.partition) for each in partitions)
        tell_assigned(owned)

    consumer.subscribe(asked.topics, on_assign=assigned, on_revoke=revoked, on_lost=revoked)
    stop = stopping()
    while not stop.is_set():
        records: list[list[str | int]] = []
        ends: dict[tuple[str, int], int] = {}
        for message in consumer.consume(500, 0.1):
            error = message.error()
            if error is not None:
                tell("error", text=str(error))
                continue
            topic, partition, offset = message.topic(), message.partition(), message.offset()
            assert topic is not None
            assert partition is not None
            assert offset is not None
            ends[topic, partition] = offset + 1
            records.append([topic, partition, offset, (message.value() or b"").decode()])
        if records:
            tell("records", records=records)
            try:
                offsets = [ck.TopicPartition(*where, end) for where, end in ends.items()]
                for each in consumer.commit(offsets=offsets, asynchronous=False) or ():
                    if each.error is not None:
                        raise ck.KafkaException(each.error)
                tell("committed")
            except ck.KafkaException as failed:
                tell("error", text=str(failed))
    consumer.close()
    tell("left")


main()
