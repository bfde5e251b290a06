"""Records with a key go where the Java client puts them; those without stay together."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.client.partitioner import StickyPartition, murmur2, partition_for_key


@pytest.mark.parametrize(
    ("data", "signed"),
    [  # Apache Kafka, UtilsTest.testMurmur2
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_is_the_java_clients(data: bytes, signed: int) -> None:
    assert murmur2(data) == signed & 0xFFFFFFFF


def test_partition_for_key_agrees_with_kafka_python() -> None:
    oracle = pytest.importorskip("kafka.partitioner.default")

    @given(st.binary(max_size=300), st.integers(1, 100))
    def agrees(key: bytes, partitions: int) -> None:
        expected = (oracle.murmur2(key) & 0x7FFFFFFF) % partitions
        assert partition_for_key(key, partitions) == expected

    agrees()


def test_sticky_partition_stays_until_it_moves_on_and_then_changes() -> None:
    sticky = StickyPartition(Random(1))
    available = (0, 1, 2)
    first = sticky.choose(available)
    assert {sticky.choose(available) for _ in range(20)} == {first}
    assert sticky.move_on() != first
    assert sticky.fresh


def test_sticky_partition_reaches_every_partition() -> None:
    sticky = StickyPartition(Random(1))
    sticky.choose((0, 1, 2))
    assert {sticky.move_on() for _ in range(50)} == {0, 1, 2}


def test_sticky_partition_leaves_one_that_is_not_available_any_more() -> None:
    sticky = StickyPartition(Random(1))
    chosen = sticky.choose((0, 1, 2))
    rest = tuple(each for each in (0, 1, 2) if each != chosen)
    assert sticky.choose(rest) in rest


def test_sticky_partition_with_a_single_one_stays_there() -> None:
    sticky = StickyPartition(Random(1))
    assert sticky.choose((4,)) == 4
    assert sticky.move_on() == 4
