"""Records on their way: batches, order, sequence numbers, and what comes back."""

import pytest

from odradek.client.accumulator import Accumulator, Identity, ProducerBatch
from odradek.client.errors import OutcomeUnknown
from odradek.client.metadata import TopicPartition
from odradek.client.settings import ProducerSettings
from odradek.errors import ErrorCode, KafkaError

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
ME = Identity(7, 0)


def accumulator(**settings: object) -> Accumulator:
    return Accumulator(ProducerSettings(**{"linger": 1.0, "batch_bytes": 1000, **settings}))  # type: ignore[arg-type]


def add(to: Accumulator, count: int = 1, *, partition: TopicPartition = P0, now: float = 0.0,
        size: int = 10) -> ProducerBatch:  # fmt: skip
    batch = None
    for _ in range(count):
        queue = to.queue(partition)
        record = (queue, 1, None, b"x" * size, ())
        batch = to.join(*record) or to.start(*record, now)
    assert batch is not None
    return batch


def take(of: Accumulator, now: float = 10.0, identity: Identity = ME) -> list[ProducerBatch]:
    return of.take([P0, P1], now, identity)[0]


def proven(**settings: object) -> Accumulator:
    """An accumulator of whose producer the broker has heard, in both partitions."""
    records = accumulator(**settings)
    for partition in (P0, P1):
        records.queue(partition).proven = True
    return records


def test_batch_waits_for_its_linger_and_says_until_when() -> None:
    records = accumulator()
    add(records, now=5.0)
    assert records.take([P0], 5.5, ME) == ([], 6.0)
    assert len(take(records, 6.0)) == 1


def test_full_batch_does_not_wait() -> None:
    records = accumulator()
    full = add(records, 3, size=300)
    add(records, 1, size=300)
    assert take(records, 0.0) == [full]


def test_request_takes_one_batch_of_each_partition_up_to_its_size() -> None:
    records = proven(max_request_bytes=2000)
    first, second = add(records, 2, size=400), add(records, 2, partition=P1, size=400)
    assert take(records) == [first, second]
    add(records, 1, size=1900)
    add(records, 1, partition=P1, size=1900)
    assert len(take(records)) == 1
    assert len(take(records)) == 1


def test_record_beyond_the_request_size_is_refused_and_nothing_is_kept() -> None:
    records = accumulator(max_request_bytes=2000)
    with pytest.raises(KafkaError) as caught:
        add(records, size=5000)
    assert caught.value.code == ErrorCode.MESSAGE_TOO_LARGE
    assert records.buffered == 0


def test_sequence_numbers_are_dense_per_partition() -> None:
    records = accumulator()
    sequences = []
    for _ in range(3):
        add(records, 4)
        add(records, 2, partition=P1)
        sequences.append([batch.base_sequence for batch in take(records)])
        records.queues[P0].in_flight.clear()
        records.queues[P1].in_flight.clear()
    assert [set(each) for each in sequences] == [{0}, {4, 2}, {8, 4}]


def test_batch_that_comes_back_goes_first_and_alone_until_the_others_are_back() -> None:
    records = proven()
    batches = []
    for _ in range(3):
        batches.append(add(records))
        assert take(records) == batches[-1:]
    one, two, three = batches
    records.queues[P0].put_back(two)
    assert take(records) == []  # one and three are in flight still
    records.settle(one, base_offset=0)
    records.queues[P0].put_back(three)
    assert take(records) == [two]
    assert take(records) == [three]
    assert [one.base_sequence, two.base_sequence, three.base_sequence] == [0, 1, 2]


def test_failed_batch_leaves_a_gap_that_needs_another_identity() -> None:
    records = accumulator()
    failed = add(records, 5)
    take(records)
    waiting = add(records, 2)
    records.settle(failed, error=KafkaError(ErrorCode.MESSAGE_TOO_LARGE))
    assert take(records) == []
    assert records.identity_spent
    other = Identity(8, 0)
    assert take(records, identity=other) == [waiting]
    assert waiting.base_sequence == 0
    assert waiting.builder is not None
    assert waiting.builder.producer_id == 8


def test_batch_of_unknown_outcome_is_not_repeated_under_another_identity() -> None:
    records = proven()
    failed = add(records)
    take(records)
    doubtful = add(records)
    take(records)
    doubtful.outcome_unknown = True
    records.settle(failed, error=KafkaError(ErrorCode.MESSAGE_TOO_LARGE))
    records.queues[P0].put_back(doubtful)
    assert take(records, identity=Identity(8, 0)) == []
    assert isinstance(doubtful.error, OutcomeUnknown)
    assert records.buffered == 0


def test_idempotent_partition_has_at_most_five_in_flight_and_another_one() -> None:
    for idempotent, most in ((True, 5), (False, 1)):
        records = proven(idempotent=idempotent)
        for _ in range(7):
            add(records)
            take(records)
            records.seal(records.queues[P0])
        assert len(records.queues[P0].in_flight) == most


def test_second_batch_waits_until_the_broker_knows_the_producer() -> None:
    records = accumulator()
    first = add(records)
    assert take(records) == [first]
    second = add(records)
    assert take(records) == []  # it would be written first, should the first be refused
    records.settle(first, base_offset=0)
    assert take(records) == [second]
    third = add(records)
    assert take(records) == [third]


def test_second_batch_waits_again_under_another_identity() -> None:
    records = proven()
    refused = add(records)
    take(records)
    records.settle(refused, error=KafkaError(ErrorCode.INVALID_RECORD))
    add(records)
    assert len(take(records, identity=Identity(8, 0))) == 1
    add(records)
    assert take(records, identity=Identity(8, 0)) == []


def test_open_batch_holds_the_buffer_ahead_and_gives_back_what_it_did_not_need() -> None:
    records = accumulator(batch_bytes=50_000)
    batch = add(records, 100, size=50)
    assert batch.size < records.buffered <= batch.size + 16 * 1024
    records.seal_all()
    assert records.buffered == batch.size


def test_open_batch_is_sealed_when_the_buffer_has_no_room_for_it_to_grow() -> None:
    records = accumulator(batch_bytes=5_000, buffer_bytes=3_000)
    batch = add(records, 2, size=900)
    queue = records.queues[P0]
    assert records.join(queue, 1, None, b"x" * 2000) is None
    assert queue.open is None
    assert list(queue.ready) == [batch]


def test_buffer_is_bounded_and_freed_when_batches_settle() -> None:
    records = accumulator(buffer_bytes=500)
    assert records.has_room(10_000)  # one record always may
    batch = add(records, 2, size=200)
    assert not records.has_room(200)
    records.settle(batch, base_offset=0)
    assert records.has_room(200)
    assert not records.active


def test_overdue_batches_are_those_that_wait_too_long() -> None:
    records = accumulator(delivery_timeout=10.0)
    old = add(records, now=0.0)
    records.seal_all()
    add(records, now=5.0)
    assert records.overdue(9.0) == []
    assert records.overdue(10.0) == [old]
