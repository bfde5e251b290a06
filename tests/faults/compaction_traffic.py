"""The batches of the kill test of compaction: batch `number` of a run is the same wherever made."""

from __future__ import annotations

from random import Random
from typing import NamedTuple

from odradek.record import BatchBuilder, CompressionType

__all__ = ["EPOCH", "KEYS", "PRODUCER", "T0", "Sent", "batch_of", "records_of"]

KEYS = 40
PRODUCER = 4242
EPOCH = 3
T0 = 1_700_000_000_000

CODECS = (
    CompressionType.NONE,
    CompressionType.NONE,
    CompressionType.LZ4,
    CompressionType.ZSTD,
    CompressionType.GZIP,
    CompressionType.SNAPPY,
)


class Sent(NamedTuple):
    """A record as it was sent; a value of None deletes the key."""

    key: bytes
    value: bytes | None
    timestamp: int


def records_of(run: int, number: int) -> list[Sent]:
    """Return the records of a batch: few keys, some deletions, values that name their origin."""
    random = Random(f"{run} {number}")
    found = []
    for index in range(random.randrange(1, 12)):
        key = b"key-%d" % min(int(random.expovariate(0.1)), KEYS - 1)
        value = b"%d:%d:" % (number, index) + b"." * random.randrange(300)
        deletes = random.random() < 0.15
        found.append(Sent(key, None if deletes else value, T0 + 1000 * number + index))
    return found


def batch_of(run: int, number: int, sequence: int) -> bytearray:
    """Return the batch for a producer whose next sequence number is `sequence`."""
    builder = BatchBuilder(
        1 << 20,
        compression=CODECS[number % len(CODECS)],
        producer_id=PRODUCER,
        producer_epoch=EPOCH,
        base_sequence=sequence,
    )
    for record in records_of(run, number):
        assert builder.append(record.timestamp, record.key, record.value)
    return builder.build()
