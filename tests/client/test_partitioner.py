"""Records with a key go where the Java client puts them; those without stay together."""

import zlib
from random import Random
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.client.batches import PartitionQueue, ProducerBatch
from odradek.client.metadata import PartitionInfo, TopicInfo
from odradek.client.partitioner import (
    Queues,
    StickyPartition,
    consistent,
    murmur2,
    partition_for_key,
)
from odradek.record import BatchBuilder

ENOUGH = 1000


def _partition(number: int) -> PartitionInfo:
    return PartitionInfo(number, None, (), (), ())


@pytest.mark.parametrize(
    ("data", "signed"),
    [  # Apache Kafka, UtilsTest.testMurmur2
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
        # librdkafka, unittest_murmur2, of its partitioners murmur2 and murmur2_random
        (b"kafka", 0xD067CF64),
        (b"giberish123456789", 0x8F552B0C),
        (b"1234", 0x9FC97B14),
        (b"234", 0xE7C009CA),
        (b"34", 0x873930DA),
        (b"4", 0x5A4B5CA1),
        (b"PreAmbleWillBeRemoved,ThePrePartThatIs", 0x78424F1C),
        (b"", 0x106E08D9),
    ],
)
def test_murmur2_is_the_java_clients(data: bytes, signed: int) -> None:
    assert murmur2(data) & 0xFFFFFFFF == signed & 0xFFFFFFFF


def test_partition_for_key_agrees_with_kafka_python() -> None:
    oracle = pytest.importorskip("kafka.partitioner.default")

    @given(st.binary(max_size=300), st.integers(1, 100))
    def agrees(key: bytes, partitions: int) -> None:
        expected = (oracle.murmur2(key) & 0x7FFFFFFF) % partitions
        assert partition_for_key(key, partitions) == expected

    agrees()


def test_consistent_places_keys_by_crc32_and_leaves_the_others_alone() -> None:
    topic = TopicInfo("t", UUID(int=1), False, tuple(_partition(n) for n in range(7)), ())
    assert consistent(topic, b"key", None) == zlib.crc32(b"key") % 7
    assert consistent(topic, b"", None) is None
    assert consistent(topic, None, b"value") is None


def queues() -> Queues:
    return Queues("t", PartitionQueue)


def fill(queue: PartitionQueue) -> None:
    """Let a partition have got a batch's worth since the last time."""
    queue.sealed_bytes += ENOUGH


def test_sticky_partition_stays_until_it_got_a_batchs_worth() -> None:
    sticky, known, available = StickyPartition(Random(1)), queues(), tuple(range(50))
    first = sticky.choose(available, known, ENOUGH)
    for _ in range(9):
        first.sealed_bytes += ENOUGH // 10
        assert sticky.choose(available, known, ENOUGH) is first
    first.sealed_bytes += ENOUGH // 10
    assert sticky.choose(available, known, ENOUGH) is not first


def test_sticky_partition_gives_every_partition_the_same_share() -> None:
    sticky, known = StickyPartition(Random(1)), queues()
    for _ in range(3000):
        fill(sticky.choose((0, 1, 2), known, ENOUGH))
    shares = [known[n].sealed_bytes / ENOUGH for n in range(3)]
    assert all(900 < share < 1100 for share in shares)


def test_sticky_partition_gives_less_to_one_where_batches_wait() -> None:
    sticky, known = StickyPartition(Random(1)), queues()
    slow = known[1]
    slow.ready.extend(
        ProducerBatch(slow.partition, BatchBuilder(100), 0.0, n, 100) for n in range(3)
    )
    for _ in range(3000):
        fill(sticky.choose((0, 1, 2), known, ENOUGH))
    assert slow.sealed_bytes / ENOUGH < 450  # 1 in 9


def test_sticky_partition_leaves_one_that_is_not_available_any_more() -> None:
    sticky, known = StickyPartition(Random(1)), queues()
    chosen = sticky.choose((0, 1, 2), known, ENOUGH).partition.partition
    rest = tuple(each for each in (0, 1, 2) if each != chosen)
    assert sticky.choose(rest, known, ENOUGH).partition.partition in rest


def test_sticky_partition_with_a_single_one_stays_there() -> None:
    sticky, known = StickyPartition(Random(1)), queues()
    fill(sticky.choose((4,), known, ENOUGH))
    assert sticky.choose((4,), known, ENOUGH).partition.partition == 4
