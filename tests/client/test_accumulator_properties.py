"""Whatever happens to a producer's batches, in any order: order, dense numbers, bounded memory."""

from random import Random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from odradek.client.accumulator import Accumulator
from odradek.client.batches import Identity, ProducerBatch
from odradek.client.errors import OutcomeUnknown
from odradek.client.metadata import TopicPartition
from odradek.client.settings import ProducerSettings
from odradek.errors import ErrorCode, KafkaError
from odradek.record import decode_records

PARTITIONS = [TopicPartition("t", number) for number in range(3)]
SETTINGS = ProducerSettings(
    linger=1.0, batch_bytes=600, max_request_bytes=1500, buffer_bytes=6000, delivery_timeout=50.0
)


class Broker:
    """What a broker does with idempotent batches: writes each once, in the order of numbers."""

    def __init__(self) -> None:
        self.log: dict[TopicPartition, list[bytes]] = {each: [] for each in PARTITIONS}
        self.next: dict[tuple[TopicPartition, Identity], int] = {}

    def produce(self, batch: ProducerBatch) -> ErrorCode:
        builder = batch.builder
        assert builder is not None
        who = batch.partition, Identity(builder.producer_id, builder.producer_epoch)
        due = self.next.get(who, builder.base_sequence)  # any, of a producer never heard of
        if builder.base_sequence < due:
            return ErrorCode.DUPLICATE_SEQUENCE_NUMBER
        if builder.base_sequence > due:
            return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        self.next[who] = due + batch.records
        self.log[batch.partition] += [each.value or b"" for each in decode_records(builder.build())]
        return ErrorCode.NONE


class Producing(RuleBasedStateMachine):
    """Records go in; requests arrive, get lost, or their answers do; and time passes."""

    def __init__(self) -> None:
        super().__init__()
        self.batches = Accumulator(SETTINGS)
        self.broker = Broker()
        self.identity = Identity(1, 0)
        self.now = 0.0
        self.sent = 0
        self.given: dict[ProducerBatch, list[bytes]] = {}
        self.order: dict[TopicPartition, list[bytes]] = {each: [] for each in PARTITIONS}
        self.flying: list[ProducerBatch] = []

    def _note(self, batch: ProducerBatch, values: list[bytes]) -> None:
        self.given.setdefault(batch, []).extend(values)
        self.order[batch.partition] += values

    def _value(self, size: int) -> bytes:
        self.sent += 1
        return b"%d" % self.sent + b"." * size

    @rule(number=st.integers(0, 2), size=st.integers(0, 800))
    def send(self, number: int, size: int) -> None:
        queue = self.batches.queue(PARTITIONS[number])
        value = self._value(size)
        record = queue, 1, None, value, ()
        batch = self.batches.join(*record) or self.batches.start(*record, self.now)
        if batch is not None:
            self._note(batch, [value])

    @rule(number=st.integers(0, 2), count=st.integers(1, 20), size=st.integers(0, 200))
    def send_many(self, number: int, count: int, size: int) -> None:
        values = [self._value(size) for _ in range(count)]
        if not self.batches.has_room(sum(len(each) + 100 for each in values)):
            return
        start = 0
        while start < count:
            queue = self.batches.queue(PARTITIONS[number])
            batch, before, taken = self.batches.extend(queue, 1, values, None, start, self.now)
            assert before == len(self.given.get(batch, ()))
            self._note(batch, values[start : start + taken])
            start += taken

    @rule(seconds=st.floats(0, 10))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        for batch in self.batches.overdue(self.now):
            self.batches.settle(batch, error=KafkaError(ErrorCode.REQUEST_TIMED_OUT))

    @rule(seed=st.integers(0, 100), requests=st.integers(1, 3))
    def request(self, seed: int, requests: int) -> None:
        for _ in range(requests):
            self._take(seed)

    def _take(self, seed: int) -> None:
        partitions = Random(seed).sample(PARTITIONS, 3)
        taken, again = self.batches.take(partitions, self.now, self.identity)
        assert len({batch.partition for batch in taken}) == len(taken)
        assert sum(batch.size for batch in taken) <= SETTINGS.max_request_bytes or len(taken) == 1
        assert taken or again > self.now or again == float("inf")
        if self.batches.identity_spent:
            self.batches.identity_spent = False
            self.identity = Identity(self.identity.producer_id + 1, 0)
        self.flying += taken

    @precondition(lambda self: self.flying)
    @rule(data=st.data(), arrives=st.booleans(), answered=st.booleans())
    def answer(self, data: st.DataObject, arrives: bool, answered: bool) -> None:
        """One connection: what was sent first is answered first, per partition. A request that
        does not arrive was refused for a reason that may pass."""
        partition = data.draw(st.sampled_from(sorted({each.partition for each in self.flying})))
        batch = next(each for each in self.flying if each.partition == partition)
        self.flying.remove(batch)
        if batch.done.is_set():
            return
        error = self.broker.produce(batch) if arrives else None
        queue = self.batches.queues[partition]
        if not answered or not arrives:
            batch.outcome_unknown |= arrives
            queue.put_back(batch)
        elif error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            if batch is min(queue.batches(), key=lambda each: each.serial):
                queue.gap = True
            queue.put_back(batch)
        else:
            self.batches.settle(batch, base_offset=0)

    @precondition(lambda self: self.flying)
    @rule()
    def refuse(self) -> None:
        batch = self.flying.pop(0)
        if not batch.done.is_set():
            self.batches.settle(batch, error=KafkaError(ErrorCode.MESSAGE_TOO_LARGE))

    @invariant()
    def memory_is_bounded_and_accounted_for(self) -> None:
        held = [each for queue in self.batches.queues.values() for each in queue.batches()]
        assert self.batches.buffered == sum(batch.charged for batch in held)
        assert self.batches.buffered <= SETTINGS.buffer_bytes
        for batch in held:
            assert batch.size <= batch.charged <= batch.limit
            assert batch.records == len(self.given[batch])

    @invariant()
    def every_active_queue_has_something_and_no_other_has(self) -> None:
        for partition, queue in self.batches.queues.items():
            assert (partition in self.batches.active) == (not queue.empty)
            assert len(queue.in_flight) <= SETTINGS.max_in_flight

    @invariant()
    def log_has_records_once_and_in_the_order_of_sending(self) -> None:
        for partition, log in self.broker.log.items():
            place = {value: n for n, value in enumerate(self.order[partition])}
            places = [place[value] for value in log]
            assert places == sorted(set(places))

    def teardown(self) -> None:
        """Everything acknowledged is in the log; what is left can be sent, and nothing is kept."""
        self.batches.seal_all()
        for _ in range(1000):
            if not self.batches.active:
                break
            self.now += 1.0
            self._take(0)
            while self.flying:
                batch = self.flying.pop(0)
                if batch.done.is_set():
                    continue
                queue = self.batches.queues[batch.partition]
                error = self.broker.produce(batch)
                if error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
                    if batch is min(queue.batches(), key=lambda each: each.serial):
                        queue.gap = True
                    queue.put_back(batch)
                else:
                    self.batches.settle(batch, base_offset=0)
        assert not self.batches.active
        assert self.batches.buffered == 0
        for batch, values in self.given.items():
            assert batch.done.is_set()
            log = self.broker.log[batch.partition]
            if batch.error is None:
                assert set(values) <= set(log)
            elif not isinstance(batch.error, OutcomeUnknown) and not batch.attempts:
                assert not set(values) & set(log)  # a definite failure never appears later


TestProducing = Producing.TestCase
TestProducing.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)
