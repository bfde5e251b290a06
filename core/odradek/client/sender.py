"""The producer's way to the brokers: who gets which batches when, and what came of it.

One task sees that every partition with records has a broker being served; one task for each
broker sends what that leads, in order; one for each request in flight waits for the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import trio

from odradek.client.accumulator import Accumulator, Identity, ProducerBatch
from odradek.client.cluster import Cluster, is_stale
from odradek.client.connection import Pending
from odradek.client.delivery import BatchOutcome
from odradek.client.errors import (
    DeliveryTimedOut,
    Disconnected,
    error_of,
    is_retriable,
    raise_for,
)
from odradek.client.metadata import TopicPartition
from odradek.client.settings import ProducerSettings
from odradek.errors import ErrorCode, KafkaError, OdradekError
from odradek.wire.api.a00_produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from odradek.wire.api.a22_init_producer_id import InitProducerIdRequest, InitProducerIdResponse

__all__ = ["Sender"]

_PURPOSE = "produce"

_MAYBE_WRITTEN = frozenset(
    {ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, ErrorCode.REQUEST_TIMED_OUT}
)
_SEQUENCE_LOST = frozenset(
    {
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    }
)


class Sender:
    """Takes batches from `batches` and settles each of them.

    `closed` is set to the reason when nothing can be sent any more. `settled` is set, and
    replaced, whenever a batch was settled and there may be room again.
    """

    def __init__(
        self,
        cluster: Cluster,
        settings: ProducerSettings,
        nursery: trio.Nursery,
        observer: Callable[[BatchOutcome], None] | None,
    ) -> None:
        self.settings = settings
        self.batches = Accumulator(settings)
        self.closed: OdradekError | None = None
        self.settled = trio.Event()
        self._cluster = cluster
        self._nursery = nursery
        self._observer = observer
        self._identity: Identity | None = None
        self._serving: set[int] = set()
        self._stale = False
        self._changed = trio.Event()

    def notify(self) -> None:
        """Wake the tasks: there is something to send, or the image changed."""
        self._changed.set()
        self._changed = trio.Event()

    def give_up(self, error: OdradekError) -> None:
        """Fail what is on its way and whatever comes: nothing can be sent any more."""
        if self.closed is None:
            self.closed = error
        for batch in self.batches.seal_all():
            self._settle(batch, error=error)
        self.notify()

    # Which broker gets what

    async def run(self) -> None:
        """See that every partition with records has a broker that is served, or time out."""
        backoff = self._cluster.backoff()
        while self.closed is None:
            changed = self._changed
            now = trio.current_time()
            for batch in self.batches.overdue(now):
                self._settle(batch, error=self._overdue(batch))
            for node in self._by_leader():
                if node not in self._serving:
                    self._serving.add(node)
                    self._nursery.start_soon(self._serve, node)
            if self._stale or self._leaderless():
                self._stale = False
                try:
                    await self._cluster.renew(self._topics())
                except OdradekError as error:
                    if not is_retriable(error):
                        self.give_up(error)
                        return
                self.notify()
                if not self._leaderless():
                    backoff.reset()
                    continue
                await trio.sleep(backoff.next())
                continue
            with trio.move_on_after(self._until_overdue(now)):
                await changed.wait()

    def _topics(self) -> set[str]:
        return {partition.topic for partition in self.batches.active}

    def _leaderless(self) -> bool:
        leader = self._cluster.metadata.leader
        return any(leader(partition) is None for partition in self.batches.active)

    def _by_leader(self) -> dict[int, list[TopicPartition]]:
        groups: dict[int, list[TopicPartition]] = {}
        for partition in self.batches.active:
            leader = self._cluster.metadata.leader(partition)
            if leader is not None:
                groups.setdefault(leader.node_id, []).append(partition)
        return groups

    def _until_overdue(self, now: float) -> float:
        created = [
            batch.created for queue in self.batches.active.values() for batch in queue.batches()
        ]
        if not created:
            return float("inf")
        return max(min(created) + self.settings.delivery_timeout - now, 0.001)

    def _overdue(self, batch: ProducerBatch) -> DeliveryTimedOut:
        maybe = "it may have been written" if batch.outcome_unknown else "it was not written"
        last = "" if batch.last_error is None else f"; the last error was {batch.last_error}"
        return DeliveryTimedOut(
            f"a batch of {batch.records} records for partition {batch.partition} was not "
            f"acknowledged within {self.settings.delivery_timeout:g} s ({batch.attempts} "
            f"attempts); {maybe}{last}"
        )

    async def _serve(self, node: int) -> None:
        """Send to one broker what it leads, in order, several requests at a time."""
        slots = trio.Semaphore(self.settings.max_in_flight)
        backoff = self._cluster.backoff()
        while True:
            await slots.acquire()
            try:
                identity = await self._get_identity() if self.settings.idempotent else None
            except OdradekError as error:
                self.give_up(error)
                return
            batches = await self._next(node, identity)
            if not batches:  # a new identity is needed
                slots.release()
                continue
            try:
                connection = await self._cluster.connection(node, _PURPOSE)
                request = self._request(batches)
                response = ProduceResponse if self.settings.acks else None
                pending = await connection.submit(request, response)
            except OdradekError as error:
                for batch in batches:
                    self._failed(batch, error)
                slots.release()
                await trio.sleep(backoff.next())
            else:
                backoff.reset()
                self._nursery.start_soon(self._conclude, batches, pending, slots)

    async def _next(self, node: int, identity: Identity | None) -> Sequence[ProducerBatch]:
        """Wait for batches to send to `node`; none when another identity is needed first."""
        while True:
            changed = self._changed
            mine = self._by_leader().get(node, ())
            batches, again = self.batches.take(mine, trio.current_time(), identity)
            if batches:
                return batches
            if self.batches.identity_spent:
                self.batches.identity_spent = False
                if self._identity == identity:
                    self._identity = None
                return ()
            with trio.move_on_at(again):
                await changed.wait()

    async def _get_identity(self) -> Identity:
        """Return the producer id and epoch; from the cluster, where there is none (any more)."""

        async def attempt() -> Identity:
            request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0)
            answer = await self._cluster.call(request, InitProducerIdResponse)
            raise_for(answer.error_code)
            return Identity(answer.producer_id, answer.producer_epoch)

        while self._identity is None:
            try:
                got = await self._cluster.retrying(attempt, timeout=self.settings.delivery_timeout)
            except OdradekError as error:
                if not is_retriable(error):
                    raise
            else:
                self._identity = self._identity or got  # another broker's task may be first
        return self._identity

    def _request(self, batches: Sequence[ProducerBatch]) -> ProduceRequest:
        topics: dict[str, TopicProduceData] = {}
        for batch in batches:
            name, partition = batch.partition
            topic = topics.get(name)
            if topic is None:
                topic_id = self._cluster.metadata.topics[name].topic_id
                topic = topics[name] = TopicProduceData(name=name, topic_id=topic_id)
            assert batch.builder is not None
            topic.partition_data.append(
                PartitionProduceData(index=partition, records=batch.builder.build())
            )
        return ProduceRequest(
            acks=self.settings.acks,
            timeout_ms=int(self._cluster.settings.request_timeout * 1000),
            topic_data=list(topics.values()),
        )

    # What became of it

    async def _conclude(
        self,
        batches: Sequence[ProducerBatch],
        pending: Pending[ProduceResponse],
        slots: trio.Semaphore,
    ) -> None:
        try:
            if pending.expected is None:
                await pending.left()
                for batch in batches:
                    self._settle(batch)
                return
            answer = await pending.answer(self._cluster.settings.request_timeout)
        except OdradekError as error:
            for batch in batches:
                self._failed(batch, error)
        else:
            names = self._cluster.metadata.names
            parts = {
                TopicPartition(topic.name or names.get(topic.topic_id, ""), part.index): part
                for topic in answer.responses
                for part in topic.partition_responses
            }
            for batch in batches:
                part = parts.get(batch.partition)
                if part is None:
                    self._failed(batch, Disconnected(f"no answer for {batch.partition}"))
                else:
                    self._answered(batch, part)
        finally:
            slots.release()
            self.notify()

    def _answered(self, batch: ProducerBatch, part: PartitionProduceResponse) -> None:
        if part.error_code == ErrorCode.NONE:
            self._settle(batch, base_offset=part.base_offset, append_time=part.log_append_time_ms)
        elif part.error_code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
            self._settle(batch)  # written before, longer ago than the broker remembers offsets
        else:
            details = [each.batch_index_error_message for each in part.record_errors]
            detail = "; ".join(each for each in (part.error_message, *details) if each)
            where = f"partition {batch.partition}"
            self._failed(
                batch, error_of(part.error_code, f"{where}: {detail}" if detail else where)
            )

    def _failed(self, batch: ProducerBatch, error: OdradekError) -> None:
        """Decide what a batch that was not acknowledged does next."""
        if batch.done.is_set():
            return
        batch.last_error = error
        if isinstance(error, Disconnected):
            batch.outcome_unknown |= error.sent
        elif isinstance(error, KafkaError) and error.code in _MAYBE_WRITTEN:
            batch.outcome_unknown = True
        queue = self.batches.queues[batch.partition]
        if self.closed is not None:
            self._settle(batch, error=self.closed)
        elif self._sequence_lost(error) or is_retriable(error):
            first = min(queue.batches(), key=lambda each: each.serial)
            if self._sequence_lost(error) and batch is first:
                queue.gap = True  # no batch before it is missing: the broker forgot the producer
            if is_stale(error):
                self._stale = True
            queue.put_back(batch)
            queue.not_before = trio.current_time() + self._cluster.settings.retry_backoff
        else:
            self._settle(batch, error=error)
        self.notify()

    def _sequence_lost(self, error: OdradekError) -> bool:
        return (
            self.settings.idempotent
            and isinstance(error, KafkaError)
            and error.code in _SEQUENCE_LOST
        )

    def _settle(
        self,
        batch: ProducerBatch,
        *,
        base_offset: int = -1,
        append_time: int = -1,
        error: OdradekError | None = None,
    ) -> None:
        if batch.done.is_set():
            return
        self.batches.settle(batch, base_offset=base_offset, append_time=append_time, error=error)
        self.settled.set()
        self.settled = trio.Event()
        if self._observer is not None:
            seconds = trio.current_time() - batch.created
            self._observer(
                BatchOutcome(
                    batch.partition, batch.records, batch.size, base_offset, seconds, error
                )
            )
