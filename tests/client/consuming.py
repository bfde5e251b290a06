"""What the consumer's tests share: records written without the producer, and members of groups."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import trio
import trio.testing

from odradek.client import Cluster, ConsumerRecord, TopicPartition, open_consumer
from odradek.client.consumer import Consumer
from odradek.client.errors import raise_for
from odradek.record import BatchBuilder
from odradek.wire.api.a00_produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)

__all__ = ["Worker", "on_mock_clock", "until", "write"]


async def write(
    cluster: Cluster, partition: TopicPartition, values: Iterable[int], *, batch: int = 50
) -> None:
    """Append records, `batch` of them to a record batch; record n has the time 1000 + n."""
    numbers = list(values)

    async def attempt() -> None:
        topic = await cluster.topic(partition.topic)
        leader = await cluster.leader(partition)
        data = PartitionProduceData(index=partition.partition, records=builder.build())
        request = ProduceRequest(
            acks=-1,
            timeout_ms=10_000,
            topic_data=[
                TopicProduceData(
                    name=partition.topic, topic_id=topic.topic_id, partition_data=[data]
                )
            ],
        )
        answer = await cluster.call(request, ProduceResponse, node=leader.node_id)
        raise_for(answer.responses[0].partition_responses[0].error_code)

    for at in range(0, len(numbers), batch):
        builder = BatchBuilder(1 << 20)
        for number in numbers[at : at + batch]:
            assert builder.append(1000 + number, None, b"%d" % number)
        await cluster.retrying(attempt, timeout=10)


def on_mock_clock(main: Callable[[], Awaitable[None]]) -> None:
    """Run `main` on a clock that jumps to the next deadline when every task waits."""
    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


async def until(
    holds: Callable[[], object], timeout: float = 30.0, *, look: float = 0.005
) -> float:
    """Return the seconds until something holds, by the trio clock; `look` at it so often."""
    begun = trio.current_time()
    with trio.fail_after(timeout):
        while not holds():  # noqa: ASYNC110  # what is waited for has no event
            await trio.sleep(look)
    return trio.current_time() - begun


class Worker:
    """A member of a group that notes what it gets, and handles each record with `handle`.

    `events`: (what, numbers of partitions) of each callback, without the empty ones.
    """

    def __init__(
        self,
        cluster: Any,
        group: str = "g",
        *,
        handle: Callable[[ConsumerRecord], Awaitable[None]] | None = None,
        **options: Any,
    ) -> None:
        self.events: list[tuple[str, list[int]]] = []
        self.records: list[tuple[int, int]] = []
        self.error: BaseException | None = None
        self.stopped = trio.Event()
        self._cluster = cluster
        self._group = group
        self._handle = handle
        self._options = options
        self._consumer: Consumer | None = None
        self._stop = trio.CancelScope()

    @property
    def consumer(self) -> Consumer:
        assert self._consumer is not None, "it does not run"
        return self._consumer

    @property
    def has(self) -> list[int]:
        """The numbers of its partitions."""
        return sorted(each.partition for each in self.consumer.assignment)

    @property
    def stable(self) -> bool:
        return self._consumer is not None and self._consumer.health.state == "stable"

    def stop(self) -> None:
        """Have it leave, from outside of the iteration."""
        self._stop.cancel()

    async def run(self, *, task_status: trio.TaskStatus[Worker] = trio.TASK_STATUS_IGNORED) -> None:
        """Consume until `stop`, or until it fails: then `error` says why."""
        try:
            async with open_consumer(
                self._cluster,
                self._group,
                on_assigned=self._note("assigned"),
                on_revoked=self._note("revoked"),
                on_lost=self._note("lost"),
                **self._options,
            ) as consumer:
                self._consumer = consumer
                task_status.started(self)
                with self._stop:
                    async for record in consumer:
                        self.records.append((record.partition, record.offset))
                        if self._handle is not None:
                            await self._handle(record)
        except Exception as error:
            self.error = error
        finally:
            self.stopped.set()

    def _note(self, what: str) -> Callable[[Consumer, frozenset[TopicPartition]], Awaitable[None]]:
        async def note(_: Consumer, partitions: frozenset[TopicPartition]) -> None:
            if partitions:
                self.events.append((what, sorted(each.partition for each in partitions)))
            await trio.lowlevel.checkpoint()

        return note
