"""The producer's way to the brokers: who gets which batches when, and what came of it.

One task sees that every partition with records has a broker being served; one task for each
broker sends what that leads, in order; one for each request in flight waits for the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import trio

from odradek.client.accumulator import Accumulator
from odradek.client.batches import Identity, PartitionQueue, ProducerBatch
from odradek.client.cluster import Cluster
from odradek.client.connection import Pending
from odradek.client.delivery import BatchOutcome
from odradek.client.errors import (
    DeliveryTimedOut,
    Disconnected,
    error_of,
    is_retriable,
    is_stale,
    raise_for,
)
from odradek.client.health import ProducerHealth
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
_BUSY = float("-inf")
"""An outlet's `again` while its task is busy: it will look before it waits."""

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


class _Outlet:
    """A broker that is served. `again`: when its task looks for batches by itself; `wake` has it
    look sooner."""

    __slots__ = ("again", "node", "wake")

    def __init__(self, node: int) -> None:
        self.node = node
        self.again = _BUSY
        self.wake = trio.Event()


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
        self._outlets: dict[int, _Outlet] = {}
        self._requests = 0
        self._stale = False
        self._attention = trio.Event()
        self._last_error: OdradekError | None = None
        self._last_error_at = 0.0

    def notify(self, queue: PartitionQueue) -> None:
        """Take notice of a batch that was opened, sealed or put back.

        Wakes no more tasks than have to look: an open batch of a partition whose broker is looked
        at before its linger ends, as it is where many partitions are written to, wakes none.
        """
        leader = self._cluster.metadata.leader(queue.partition)
        if leader is None:
            self._attention.set()
            return
        outlet = self._outlets.get(leader.node_id)
        if outlet is None:
            self._open_outlet(leader.node_id)
        elif queue.ready or (
            queue.open is not None and queue.open.created + self.settings.linger < outlet.again
        ):
            outlet.wake.set()

    def notify_all(self) -> None:
        """Have every task look at everything: the image changed, or much was sealed."""
        self._attention.set()
        for outlet in self._outlets.values():
            outlet.wake.set()

    def give_up(self, error: OdradekError) -> None:
        """Fail what is on its way and whatever comes: nothing can be sent any more."""
        if self.closed is None:
            self.closed = error
        for batch in self.batches.seal_all():
            self._settle(batch, error=error)
        self.settled.set()  # whoever waits for room sees that it is over
        self.settled = trio.Event()
        self.notify_all()

    def health(self) -> ProducerHealth:
        """How the producer is doing now."""
        error = self.closed or self._last_error
        return ProducerHealth(
            connected=self._cluster.connected,
            buffered_bytes=self.batches.buffered,
            requests_in_flight=self._requests,
            last_error=error,
            last_error_age=None if error is None else trio.current_time() - self._last_error_at,
            closed=self.closed is not None,
        )

    # Which broker gets what

    async def run(self) -> None:
        """Find a leader for every partition with records, until the producer is closed."""
        self._nursery.start_soon(self._expire)
        self._nursery.start_soon(self._follow)
        backoff = self._cluster.backoff()
        while self.closed is None:
            self._attention = attention = trio.Event()
            leaderless = self._serve_leaders()
            if not (self._stale or leaderless):
                backoff.reset()
                await attention.wait()
                continue
            self._stale = False
            try:
                await self._cluster.renew(
                    {partition.topic for partition in self.batches.active},
                    create=self.settings.create_topics,
                )
            except OdradekError as error:
                if not is_retriable(error):
                    self.give_up(error)
                    return
                self._note(error)
                self._stale = True
            if self._stale or self._serve_leaders():
                await trio.sleep(backoff.next())

    def _serve_leaders(self) -> bool:
        """Serve every broker that leads a partition with records; tell whether some have none."""
        leaderless = False
        for partition in self.batches.active:
            leader = self._cluster.metadata.leader(partition)
            if leader is None:
                leaderless = True
            elif leader.node_id not in self._outlets:
                self._open_outlet(leader.node_id)
        return leaderless

    def _open_outlet(self, node: int) -> None:
        if self.closed is None:
            outlet = self._outlets[node] = _Outlet(node)
            self._nursery.start_soon(self._serve, outlet)

    async def _follow(self) -> None:
        """Look anew at who leads what whenever metadata changes, whoever fetched it."""
        while self.closed is None:
            await self._cluster.image_changed.wait()
            self._serve_leaders()
            self.notify_all()

    async def _expire(self) -> None:
        """Fail what is not acknowledged in time."""
        while self.closed is None:
            now = trio.current_time()
            for batch in self.batches.overdue(now):
                self._settle(batch, error=self._overdue(batch))
            # Records that come from now on cannot be overdue before a whole timeout is over, so
            # that nobody needs to tell of them.
            await trio.sleep_until(
                min(self.batches.next_overdue(), now + self.settings.delivery_timeout)
            )

    def _overdue(self, batch: ProducerBatch) -> DeliveryTimedOut:
        queue = self.batches.queues[batch.partition]
        unknown = batch.outcome_unknown or batch in queue.in_flight
        maybe = "it may have been written" if unknown else "it was not written"
        last = "" if batch.last_error is None else f"; the last error was {batch.last_error}"
        return DeliveryTimedOut(
            f"a batch of {batch.records} records for partition {batch.partition} was not "
            f"acknowledged within {self.settings.delivery_timeout:g} s ({batch.attempts} "
            f"attempts); {maybe}{last}"
        )

    async def _serve(self, outlet: _Outlet) -> None:
        """Send to one broker what it leads, in order, several requests at a time."""
        slots = trio.Semaphore(self.settings.max_in_flight)
        backoff = self._cluster.backoff()
        while True:
            await slots.acquire()
            try:
                identity = await self._get_identity() if self.settings.idempotent else None
            except OdradekError as error:
                self._note(error)
                self.give_up(error)
                return
            batches = await self._next(outlet, identity)
            if not batches:  # a new identity is needed
                slots.release()
                continue
            batches, request = self._request(batches)
            if not batches:  # none of them could be built
                slots.release()
                continue
            try:
                connection = await self._cluster.connection(outlet.node, _PURPOSE)
                response = ProduceResponse if self.settings.acks else None
                pending = await connection.submit(request, response)
            except OdradekError as error:
                self._note(error)
                for batch in batches:
                    self._failed(batch, error)
                slots.release()
                await trio.sleep(backoff.next())
            else:
                backoff.reset()
                self._requests += 1
                self._nursery.start_soon(self._conclude, batches, pending, slots, outlet)

    async def _next(self, outlet: _Outlet, identity: Identity | None) -> Sequence[ProducerBatch]:
        """Wait for batches to send to a broker; none when another identity is needed first."""
        while True:
            outlet.wake = wake = trio.Event()
            leader = self._cluster.metadata.leader
            mine = [
                partition
                for partition in self.batches.active
                if (leads := leader(partition)) is not None and leads.node_id == outlet.node
            ]
            batches, again = self.batches.take(mine, trio.current_time(), identity)
            if batches:
                return batches
            if self.batches.identity_spent:
                self.batches.identity_spent = False
                if self._identity == identity:
                    self._identity = None
                return ()
            outlet.again = again
            with trio.move_on_at(again):
                await wake.wait()
            outlet.again = _BUSY

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

    def _request(
        self, batches: Sequence[ProducerBatch]
    ) -> tuple[list[ProducerBatch], ProduceRequest]:
        """Build the batches and put them into a request; return those that are in it.

        One that cannot be built fails by itself: whatever is the matter with it is not the
        business of the others'.
        """
        topics: dict[str, TopicProduceData] = {}
        built: list[ProducerBatch] = []
        for batch in batches:
            assert batch.builder is not None
            try:
                records = batch.builder.build()
            except Exception as error:
                failure = KafkaError(
                    ErrorCode.INVALID_RECORD,
                    f"a batch for partition {batch.partition} cannot be built: {error!r}",
                )
                failure.__cause__ = error
                self._note(failure)
                self._settle(batch, error=failure)
                continue
            built.append(batch)
            name, partition = batch.partition
            topic = topics.get(name)
            if topic is None:
                topic_id = self._cluster.metadata.topics[name].topic_id
                topic = topics[name] = TopicProduceData(name=name, topic_id=topic_id)
            topic.partition_data.append(PartitionProduceData(index=partition, records=records))
        return built, ProduceRequest(
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
        outlet: _Outlet,
    ) -> None:
        try:
            if pending.expected is None:
                await pending.left()
                for batch in batches:
                    self._settle(batch)
                return
            answer = await pending.answer(self._cluster.settings.request_timeout)
        except OdradekError as error:
            self._note(error)
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
            self._requests -= 1
            slots.release()
            outlet.wake.set()

    def _note(self, error: OdradekError) -> None:
        self._last_error = error
        self._last_error_at = trio.current_time()

    def _answered(self, batch: ProducerBatch, part: PartitionProduceResponse) -> None:
        if part.error_code == ErrorCode.NONE:
            self._settle(batch, base_offset=part.base_offset, append_time=part.log_append_time_ms)
        elif part.error_code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
            self._settle(batch)  # written before, longer ago than the broker remembers offsets
        else:
            details = [each.batch_index_error_message for each in part.record_errors]
            detail = "; ".join(each for each in (part.error_message, *details) if each)
            where = f"partition {batch.partition}"
            error = error_of(part.error_code, f"{where}: {detail}" if detail else where)
            self._note(error)
            self._failed(batch, error)

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
                self._attention.set()
            queue.put_back(batch)
            queue.not_before = trio.current_time() + self._backoff(batch.attempts)
            self.notify(queue)
        else:
            self._settle(batch, error=error)

    def _backoff(self, attempts: int) -> float:
        """Return the wait before the next attempt: it doubles with each, as in KIP-580."""
        settings = self._cluster.settings
        wait = settings.retry_backoff * (1 << min(max(attempts - 1, 0), 30))
        return min(wait, settings.retry_backoff_max)

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
