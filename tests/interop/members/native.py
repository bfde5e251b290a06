"""Odradek's own consumer."""

from __future__ import annotations

import trio
from tests.interop.members.base import options, stopping, tell, tell_assigned

from odradek.client import (
    ClientSettings,
    CommitFailed,
    Consumer,
    ConsumerSettings,
    TopicPartition,
    open_consumer,
)
from odradek.errors import OdradekError


async def main() -> None:
    """Consume until told to leave."""
    asked = options()
    settings = ConsumerSettings(
        assignors=(asked.strategy,),
        group_instance_id=asked.instance,
        session_timeout=asked.session_ms / 1000,
        heartbeat_interval=min(0.5, asked.session_ms / 3000),
        auto_commit=False,
        auto_offset_reset="earliest",
        max_wait=0.1,
    )
    stop = stopping()

    async def changed(consumer: Consumer, partitions: frozenset[TopicPartition]) -> None:
        tell_assigned(consumer.assignment)

    async def gone(consumer: Consumer, partitions: frozenset[TopicPartition]) -> None:
        tell_assigned(consumer.assignment - partitions)

    async with open_consumer(
        asked.bootstrap,
        asked.group,
        topics=asked.topics,
        settings=settings,
        on_assigned=changed,
        on_revoked=gone,
        on_lost=gone,
        client_settings=ClientSettings(retry_backoff=0.05),
    ) as consumer:
        batches = consumer.batches()
        while not stop.is_set():
            batch = None
            with trio.move_on_after(0.1):
                batch = await anext(batches)
            if batch is None:
                continue
            topic, partition = batch.partition
            records = batch.records()
            tell(
                "records",
                records=[
                    [topic, partition, each.offset, (each.value or b"").decode()]
                    for each in records
                ],
            )
            try:
                await consumer.commit({batch.partition: records[-1].offset + 1})
                tell("committed")
            except (CommitFailed, OdradekError) as failed:
                tell("error", text=repr(failed))
    tell("left")


trio.run(main)
