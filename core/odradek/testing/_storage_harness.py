"""What the storage conformance kit asks of a plugin's test environment, and its model of a log."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from enum import Enum
from random import Random
from typing import ClassVar
from uuid import UUID

import pytest

from odradek.contracts.storage import (
    BatchMeta,
    Chunk,
    Claim,
    Hint,
    PartitionReader,
    PartitionWriter,
    SegmentStore,
    Ticket,
    parse_header,
    scan,
)
from odradek.record import BatchBuilder, assign
from odradek.types import PartitionKey

__all__ = [
    "KEY",
    "Log",
    "StorageHarness",
    "Trait",
    "make_batch",
    "metas_of",
    "opened",
    "read_log",
    "refused",
]

KEY = PartitionKey(UUID("6f1c8d6e-4b1f-4df5-9d36-0d6a0f0c7c11"), 3)
"""The partition that most tests use."""


class Trait(Enum):
    """What a plugin and its test environment can do; the value says what a test misses."""

    REOPEN = "logs are found again when the store is closed and opened"
    CRASH = "`crash` leaves behind what a killed process would"
    POWER = "`crash(power=True)` leaves behind what a loss of power would"
    DAMAGE = "`damage` changes a stored byte"
    BLOBS = "`damage_blob` changes the stored bytes of a blob"
    FAIL = "`failing` makes writes or syncs fail"
    FILL = "`full` leaves no room"


class StorageHarness(ABC):
    """One medium, empty when the test begins and that test's alone, and what can be done to it.

    `traits` are declared, and the methods they name overridden. `patience` is the number of
    seconds after which something that should happen counts as not happening.
    """

    traits: ClassVar[frozenset[Trait]] = frozenset()
    patience: ClassVar[float] = 10.0

    @abstractmethod
    def open(self) -> AbstractAsyncContextManager[SegmentStore]:
        """Open the store on the medium."""

    async def crash(self, *, power: bool = False) -> None:
        """Let the next `open` find what a crash at this moment would leave (CRASH, POWER).

        The store that is open goes on, without effect on what will be found. With `power`, what
        was not made durable is gone, or is there in part.
        """
        raise NotImplementedError

    async def damage(self, key: PartitionKey, position: int) -> None:
        """Change one byte of the log, counted from its beginning over all segments (DAMAGE).

        Called after `crash` or while nothing is open.
        """
        raise NotImplementedError

    async def stored(self, key: PartitionKey) -> bytes:
        """Return the bytes of the log as they lie on the medium, whatever they are (DAMAGE)."""
        raise NotImplementedError

    async def damage_blob(self, key: PartitionKey, name: str) -> None:
        """Change what is stored of a blob (BLOBS). Called as `damage` is."""
        raise NotImplementedError

    def failing(self, store: SegmentStore) -> AbstractContextManager[None]:
        """Make what `store` writes or syncs fail, within the context (FAIL)."""
        raise NotImplementedError

    def full(self, store: SegmentStore) -> AbstractContextManager[None]:
        """Leave `store` no room for a batch of 64 KiB, within the context (FILL)."""
        raise NotImplementedError

    def need(self, *traits: Trait) -> None:
        """Skip the test where one of `traits` is missing."""
        for trait in traits:
            if trait not in self.traits:
                pytest.skip(f"no Trait.{trait.name}: not declared that {trait.value}")


def refused() -> AbstractContextManager[object]:
    """Expect a ValueError; what it says is the plugin's affair."""
    return pytest.raises(ValueError)  # noqa: PT011  # see the docstring


def make_batch(
    base_offset: int,
    records: int = 1,
    *,
    epoch: int = 1,
    timestamp: int = 1_000,
    value_bytes: int = 64,
    seed: int = 0,
) -> tuple[BatchMeta, bytearray]:
    """Return a batch as the broker would append it, of incompressible values."""
    random = Random((base_offset, records, value_bytes, seed).__repr__())
    builder = BatchBuilder(max_bytes=1 << 30)
    for i in range(records):
        assert builder.append(timestamp + i, b"key", random.randbytes(value_bytes))
    data = bytearray(builder.build())
    assign(data, 0, base_offset, epoch)
    return parse_header(data), data


class Log:
    """A log as it should be: what was appended, next to the writer that it was appended to."""

    def __init__(self, writer: PartitionWriter, *, epoch: int = 1) -> None:
        self.writer = writer
        self.epoch = epoch
        self.batches: list[tuple[BatchMeta, bytes]] = []
        self.end = writer.snapshot.segments[-1].end_offset
        self._seed = 0

    def append(
        self,
        batches: int = 1,
        *,
        records: int = 1,
        value_bytes: int = 64,
        pieces: int = 1,
        timestamp: int = 1_000,
    ) -> Ticket:
        """Append one chunk; its buffers are cut into `pieces`, anywhere."""
        made = []
        end = self.end
        for _ in range(batches):
            self._seed += 1
            meta, data = make_batch(
                end,
                records,
                epoch=self.epoch,
                timestamp=timestamp,
                value_bytes=value_bytes,
                seed=self._seed,
            )
            made.append((meta, bytes(data)))
            end = meta.last_offset + 1
        joined = memoryview(bytearray(b"".join(data for _, data in made)))
        step = -(-len(joined) // pieces)
        buffers = [joined[i : i + step] for i in range(0, len(joined), step)]
        ticket = self.writer.append(Chunk([meta for meta, _ in made], buffers))
        self.batches += made
        self.end = end
        return ticket

    def bytes(self) -> bytes:
        """All that was appended and not truncated."""
        return b"".join(data for _, data in self.batches)

    def keep_below(self, end_offset: int) -> None:
        """Forget batches that reach to `end_offset` or beyond, as a truncation does."""
        self.batches = [each for each in self.batches if each[0].last_offset < end_offset]
        self.end = self.batches[-1][0].last_offset + 1 if self.batches else 0

    async def check(self, reader: PartitionReader | None = None) -> None:
        """Assert that the log reads back as it should, and that its snapshot fits it (S1)."""
        found = await read_log(reader or self.writer)
        assert found == self.bytes(), "the log does not read back as it was appended"
        snapshot = (reader or self.writer).snapshot
        assert snapshot.segments[-1].end_offset == self.end
        assert not snapshot.segments[-1].sealed
        assert all(segment.sealed for segment in snapshot.segments[:-1])
        for segment in snapshot.segments:
            held = [
                meta
                for meta, _ in self.batches
                if segment.base_offset <= meta.base_offset < segment.end_offset
            ]
            assert segment.size == sum(meta.size for meta in held)
            assert segment.max_timestamp == max((meta.max_timestamp for meta in held), default=-1)
            assert segment.max_timestamp_offset == next(
                (m.last_offset for m in held if m.max_timestamp == segment.max_timestamp), -1
            )


async def read_log(reader: PartitionReader, max_bytes: int = 1 << 20) -> bytes:
    """Read every segment from its first byte to its last."""
    found = []
    for segment in reader.snapshot.segments:
        position = 0
        while position < segment.size:
            with await reader.read(segment.id, position, max_bytes, Hint.SCAN) as data:
                part = b"".join(data.views())
            assert len(part) == len(data)
            assert 0 < len(part) <= max_bytes, "fewer bytes than asked for, before the end"
            found.append(part[: segment.size - position])
            position += len(part)
    return b"".join(found)


def metas_of(data: bytes) -> Sequence[BatchMeta]:
    """Return the metas of whole batches, whose CRCs must be right."""
    found = scan(memoryview(data))
    assert found.problem is None, found.problem
    return found.metas


@asynccontextmanager
async def opened(
    harness: StorageHarness, *, epoch: int = 1, key: PartitionKey = KEY
) -> AsyncIterator[tuple[SegmentStore, Log]]:
    """Open the store and a writer of `key`; close both in order."""
    async with harness.open() as store:
        writer = await store.open_writer(key, Claim(epoch, 1))
        yield store, Log(writer, epoch=epoch)
        await writer.aclose()
