"""aiokafka's consumer."""

from __future__ import annotations

import asyncio
from typing import Any

import aiokafka
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.errors import KafkaError
from tests.interop.members.base import options, stopping, tell, tell_assigned

ASSIGNORS = {"range": RangePartitionAssignor, "roundrobin": RoundRobinPartitionAssignor}


class Listener(aiokafka.ConsumerRebalanceListener):  # type: ignore[misc]  # it has no types
    """Tells what is owned."""

    def on_partitions_revoked(self, revoked: Any) -> None:
        """Eager: everything goes."""
        tell_assigned(())

    def on_partitions_assigned(self, assigned: Any) -> None:
        """Eager: this is everything."""
        tell_assigned((each.topic, each.partition) for each in assigned)


async def main() -> None:
    """Consume until told to leave."""
    asked = options()
    consumer = aiokafka.AIOKafkaConsumer(
        bootstrap_servers=asked.bootstrap,
        group_id=asked.group,
        group_instance_id=asked.instance,
        partition_assignment_strategy=(ASSIGNORS[asked.strategy],),
        session_timeout_ms=asked.session_ms,
        heartbeat_interval_ms=min(500, asked.session_ms // 3),
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        metadata_max_age_ms=1000,
        retry_backoff_ms=50,
    )
    consumer.subscribe(asked.topics, listener=Listener())
    await consumer.start()
    stop = stopping()
    while not stop.is_set():
        found = await consumer.getmany(timeout_ms=100, max_records=500)
        records = [
            [each.topic, each.partition, each.offset, each.value.decode()]
            for part in found.values()
            for each in part
        ]
        if records:
            tell("records", records=records)
            try:
                ends = {(each[0], each[1]): each[2] + 1 for each in records}
                await consumer.commit(
                    {aiokafka.TopicPartition(*where): end for where, end in ends.items()}
                )
                tell("committed")
            except KafkaError as failed:
                tell("error", text=repr(failed))
    await consumer.stop()
    tell("left")


asyncio.run(main())
