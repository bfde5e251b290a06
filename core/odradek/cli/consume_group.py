"""`odradek consume --group`: records of a topic as a member of a group."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import TYPE_CHECKING, NamedTuple

import click
import trio

from odradek.cli.text import count, escape, plural
from odradek.client import (
    EARLIEST,
    LATEST,
    Consumer,
    ConsumerRecord,
    ConsumerSettings,
    FetchedBatch,
    Start,
    TopicPartition,
    list_offsets,
    open_consumer,
)

if TYPE_CHECKING:
    from odradek.client import Cluster

__all__ = ["GroupReading", "consume_as_member"]

_LOOK_AGAIN = 0.2
"""Seconds. The end of a partition may be records that are never handed out, such as those of a
transaction's end: then nothing but a look at the position tells that it was reached."""

Write = Callable[[Sequence[ConsumerRecord]], Awaitable[None]]


async def consume_as_member(
    cluster: Cluster,
    group: str,
    topic: str,
    start: Start,
    write: Write,
    written: Callable[[], bool],
    *,
    until_end: bool,
    limit: int | None,
    commit: bool,
    instance_id: str | None,
    assignors: Sequence[str],
    quiet: bool,
) -> None:
    """Write a topic's records, of the partitions that the group gives this member.

    `start` is for partitions of which the group has no offset. `written` tells of a write that
    was cancelled whether it is complete all the same. What was written is committed
    every few seconds, when a partition is given up, and at the end, however it comes, unless
    `commit` is false. Raises as a `Consumer` does.
    """
    reading = GroupReading(cluster, group, start, until_end=until_end, quiet=quiet)
    settings = ConsumerSettings(
        auto_offset_reset="latest" if start.timestamp == LATEST else "earliest",
        auto_commit=commit,
        group_instance_id=instance_id,
        assignors=assignors or ("cooperative-sticky",),
    )
    try:
        async with open_consumer(
            cluster,
            group,
            topics=[topic],
            settings=settings,
            on_assigned=reading.assigned,
            on_revoked=reading.revoked,
            on_lost=reading.revoked,
        ) as consumer:
            try:
                await reading.run(consumer, write, written, limit)
            finally:
                reading.sum_up(consumer)
    finally:
        reading.tell()


class _Done(NamedTuple):
    """A batch that was written up to `end`."""

    batch: FetchedBatch
    end: int


class GroupReading:
    """What a member has read, and how far its partitions went when they were given to it."""

    def __init__(
        self, cluster: Cluster, group: str, start: Start, *, until_end: bool, quiet: bool
    ) -> None:
        self._cluster = cluster
        self._group = group
        self._start = start
        self._until_end = until_end
        self._quiet = quiet
        self._ends: dict[TopicPartition, int] | None = None  # None: nothing was assigned yet
        self._waiting = trio.CancelScope()
        self._done: _Done | None = None  # of what was taken last
        self._records = 0
        self._summary = ""

    async def run(
        self, consumer: Consumer, write: Write, written: Callable[[], bool], limit: int | None
    ) -> None:
        """Write records until the limit, or the ends, are reached; endlessly without these.

        However it ends: what was written whole counts as finished, and leaving commits it.
        """
        batches = consumer.batches()
        try:
            while not self._at_the_ends(consumer):
                batch: FetchedBatch | None = None
                with trio.CancelScope() as self._waiting:  # cancelled: no batch was taken
                    if self._until_end:
                        self._waiting.deadline = trio.current_time() + _LOOK_AGAIN
                    batch = await anext(batches)
                if batch is None:
                    continue
                records = list(batch)
                done = _Done(batch, batch.end_offset)
                if limit is not None and len(records) > limit - self._records:
                    records = records[: limit - self._records]
                    done = _Done(batch, records[-1].offset + 1)
                self._done = None
                try:
                    await write(records)
                finally:
                    if written():
                        self._done = done
                        self._records += len(records)
                if self._records == limit:
                    return
        finally:
            if self._done is not None:
                _finish(consumer, *self._done)

    def _at_the_ends(self, consumer: Consumer) -> bool:
        if not self._until_end or self._ends is None:
            return False
        for partition in consumer.assignment:
            position = consumer.position(partition)
            end = self._ends.get(partition)
            if position is None or end is None or position < end:
                return False
        return True

    async def assigned(self, consumer: Consumer, partitions: frozenset[TopicPartition]) -> None:
        """Begin where the group has no offset as was asked for; note where partitions end."""
        offset, time = self._start
        if time not in (EARLIEST, LATEST):  # those are settings of the consumer
            known = await consumer.committed(partitions) if partitions else {}
            for partition in partitions - known.keys():
                if offset is not None:
                    consumer.seek(partition, offset)
                elif time is not None:
                    consumer.seek_to_time(partition, time)
        self._ends = self._ends or {}
        if self._until_end:
            times = dict.fromkeys(partitions, LATEST)
            found = await list_offsets(self._cluster, times) if times else {}
            self._ends |= {partition: at.offset for partition, at in found.items()}
            self._waiting.cancel()  # there may be nothing to wait for
        self._say(f"{_named(consumer.assignment | partitions)}: {self._member}")

    async def revoked(self, consumer: Consumer, partitions: frozenset[TopicPartition]) -> None:
        """Take leave of partitions."""
        await trio.lowlevel.checkpoint()
        if self._ends is not None:
            self._ends = {at: end for at, end in self._ends.items() if at not in partitions}

    @property
    def _member(self) -> str:
        return f"read as a member of group {escape(self._group)}"

    def sum_up(self, consumer: Consumer) -> None:
        """Note how far it came, while the partitions are still assigned."""
        lags = dict(consumer.lag().partitions)
        for partition, end in (self._ends or {}).items():
            position = consumer.position(partition) if partition in lags else None
            if position is not None and lags[partition] is None:
                lags[partition] = max(end - position, 0)
        known = [lag for lag in lags.values() if lag is not None]
        left = f"lag {count(sum(known))}" if len(known) == len(lags) else "lag unknown"
        assigned = plural(len(lags), "partition")
        self._summary = f"{plural(self._records, 'record')} {self._member}; {left} in {assigned}"

    def tell(self) -> None:
        """Say what was noted; what was read is committed by now."""
        if self._summary:
            self._say(self._summary)

    def _say(self, text: str) -> None:
        if not self._quiet:
            click.echo(text, err=True)


def _finish(consumer: Consumer, batch: FetchedBatch, end: int) -> None:
    """Say that a batch is finished up to `end`, where nobody has asked for the next one since.

    That its partition was given up meanwhile shows in the position, too.
    """
    where = batch.partition
    if where in consumer.assignment and consumer.position(where) == batch.end_offset:
        consumer.seek(where, end, leader_epoch=batch.meta.leader_epoch)


def _named(partitions: Collection[TopicPartition]) -> str:
    """Return partitions for people: `t:0,1 u:3`."""
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        topics.setdefault(topic, []).append(partition)
    named = (f"{escape(topic)}:{','.join(map(str, each))}" for topic, each in topics.items())
    return " ".join(named) or "no partition"
