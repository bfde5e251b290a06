"""Frames that no honest client sends, from a seed: the same seed, the same frames."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from random import Random
from typing import Any, cast

from tests.wire.conftest import make_struct

from odradek.broker.dispatch import OFFERED
from odradek.record import BatchBuilder, CompressionType
from odradek.record.batch import ATTRIBUTES_POSITION, CRC_POSITION
from odradek.record.crc import crc32c
from odradek.wire import API, Message, encode_request

__all__ = ["TOPICS", "frames", "hostile_batch", "valid_frame"]

TOPICS = ("events", "other", "", ".", "..", "../../etc", "a/b", "x" * 250, "new\nline", "a\x1b[31m")
NAMES = (*TOPICS, "cleanup.policy", "retention.ms", "compact", "-1", "9" * 30, "\x00", "é" * 200)
EDGES = (0, 1, -1, 2, 127, 128, 2**15 - 1, -(2**15), 2**31 - 1, -(2**31), 2**63 - 1, -(2**63))
LENGTHS = (b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\x80\x00\x00\x00", b"\x00\x10\x00\x00",
           b"\xff\xff\xff\xff\x0f", b"\xff" * 10, b"\x80" * 6)  # fmt: skip


def hostile_batch(random: Random) -> bytes:
    """A batch that is valid, or has some fields changed, with its CRC put right or not."""
    builder = BatchBuilder(
        2**20,
        compression=random.choice(list(CompressionType)),
        producer_id=random.choice((-1, -1, 0, 7, 2**62)),
        producer_epoch=random.choice((-1, 0, 1)),
        base_sequence=random.choice((-1, 0, 1, 2**31 - 1)),
    )
    for _ in range(random.choice((1, 1, 2, 50))):
        builder.append(
            random.choice((0, -1, 1_700_000_000_000, 2**62, -5)),
            random.choice((None, b"", b"key")),
            random.choice((None, b"", random.randbytes(100), bytes(3000))),
        )
    data = builder.build()
    for _ in range(random.choice((0, 0, 1, 2, 5))):
        at = random.randrange(min(len(data), 75))
        data[at] = random.choice((0, 1, 0x7F, 0x80, 0xFF, random.randrange(256)))
    if random.random() < 0.7:
        crc = crc32c(memoryview(bytes(data))[ATTRIBUTES_POSITION:])
        data[CRC_POSITION : CRC_POSITION + 4] = crc.to_bytes(4, "big")
    if random.random() < 0.2:
        return bytes(data[: random.randrange(len(data))])
    return bytes(data)


def _twist(value: Any, random: Random, name: str = "") -> Any:
    """Replace names by ones that mean something here, records by batches, numbers by edges."""
    if isinstance(value, str):
        return random.choice(NAMES if random.random() < 0.5 else TOPICS[:2])
    if isinstance(value, bytes):
        return hostile_batch(random) if name == "records" else value
    if isinstance(value, list):
        return [_twist(item, random, name) for item in value]
    if hasattr(value, "__fields__"):
        for field in value.__fields__:
            setattr(value, field, _twist(getattr(value, field), random, field))
        return value
    if name in ("partition_index", "partition", "index"):
        return random.choice((0, 0, 1, 2, -1, 2**31 - 1))
    if name in ("num_partitions", "count"):  # ten thousand would be served, and take a while
        return random.choice((1, 2, 3, -1, 0, 2**31 - 1))
    if name == "fetch_offset":
        return random.choice((0, 1, 5, -1, 2**63 - 1))
    if name == "acks":
        return random.choice((0, 1, -1, 2))
    return value


def valid_frame(random: Random, keys: tuple[int, ...] = tuple(OFFERED)) -> bytes:
    """A request that can be decoded; what it asks for may be absurd."""
    offer = OFFERED[random.choice(keys)]
    version = random.randint(offer.served_from, offer.max)
    client = random.choice((None, "", "c", "evil\n\x1b]0;x\x07", "x" * 300))
    while True:
        message: Message = _twist(make_struct(API[offer.key].request, version, random), random)
        try:
            parts = encode_request(
                message, version=version, correlation_id=random.getrandbits(31), client_id=client
            )
        except ValueError:
            continue  # a value that this version cannot say
        return b"".join(cast("list[bytes]", parts))


def _flipped(frame: bytes, random: Random) -> bytes:
    data = bytearray(frame)
    for _ in range(random.choice((1, 1, 2, 3, 10))):
        at = random.randrange(4, len(data))
        kind = random.randrange(3)
        if kind == 0:
            data[at] ^= 1 << random.randrange(8)
        elif kind == 1:
            data[at] = random.choice((0, 1, 0x7F, 0x80, 0xFF))
        else:
            edge = random.choice(LENGTHS)
            data[at : at + len(edge)] = edge
    return bytes(data[: len(frame)])


def _resized(frame: bytes, random: Random) -> bytes:
    """Cut or longer, with a size that says so or lies."""
    body = frame[4 : 4 + random.randrange(len(frame))] + random.randbytes(random.choice((0, 3)))
    size = random.choice((len(body), len(body), len(body) + random.choice(EDGES)))
    return struct.pack("!I", size & 0xFFFFFFFF) + body


def _headed(random: Random) -> bytes:
    """A header of some API, and anything behind it."""
    key = random.choice((*OFFERED, *range(90), -1, 32767))
    version = random.choice((0, 1, 3, 7, 9, 12, 99, -1, 32767))
    body = struct.pack("!hhih", key, version, random.getrandbits(31), random.choice((-1, 0, 4, -7)))
    body += random.randbytes(random.choice((0, 1, 10, 200)))
    return struct.pack("!i", len(body)) + body


def frames(random: Random) -> Iterator[bytes]:
    """Frames without end."""
    while True:
        kind = random.randrange(10)
        if kind < 4:
            yield valid_frame(random)
        elif kind < 7:
            yield _flipped(valid_frame(random), random)
        elif kind == 7:
            yield _resized(valid_frame(random), random)
        elif kind == 8:
            yield _headed(random)
        else:
            size = random.choice((len(LENGTHS), 40, 4))
            yield struct.pack("!i", size) + random.randbytes(size)
