"""Reading a storage without a broker, through the storage contract: for every plugin alike."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import NamedTuple, TypeVar

from odradek.cli.exits import CommandFailed
from odradek.cli.log_options import partition_key
from odradek.config import config_from_options, settings_of
from odradek.contracts.storage import (
    HEADER_SIZE,
    Corrupt,
    Hint,
    PartitionReader,
    SegmentInfo,
    SegmentStore,
    StorageError,
)
from odradek.log.scrub import SegmentCheck
from odradek.plugins import load
from odradek.record import BatchMeta, find_next_valid, parse_header, scan
from odradek.types import PartitionKey

__all__ = ["Damage", "Found", "open_store", "partitions", "steadily", "walk"]

CHUNK = 4 * 1024 * 1024

LARGE = 16 * 1024 * 1024
"""A batch that says it is larger is checked in pieces before all of it is held."""

SEARCH = 32 * 1024 * 1024
"""Bytes that are held behind damage to look for what is valid; half of them a second time, so
that a batch of up to half of them is found wherever it begins."""


SECTOR = 4096

ATTEMPTS = 3
"""How often a log is read that a broker changes again and again."""

T = TypeVar("T")


class Found(NamedTuple):
    """A batch in a segment: where it starts, its header, its bytes."""

    position: int
    meta: BatchMeta
    view: memoryview


class Damage(NamedTuple):
    """Bytes of a segment that are no valid batch: from `position` to `end`, and why."""

    position: int
    end: int
    text: str


@asynccontextmanager
async def open_store(url: str) -> AsyncIterator[SegmentStore]:
    """Open a storage for reading, beside a broker that writes it where the plugin can do that.

    Raises ConfigError, PluginError, StorageError.
    """
    factory = load().storage(url.partition(":")[0].lower())
    overrides: dict[str, object] = {}
    if "read_only" in settings_of(factory.settings):
        overrides["storage.read_only"] = True
    part = config_from_options(storage=url, overrides=overrides).storage
    async with factory.open(part.url, part.settings(factory.settings)) as store:
        yield store


async def partitions(
    store: SegmentStore, wanted: Iterable[str]
) -> AsyncGenerator[tuple[PartitionKey, PartitionReader | StorageError]]:
    """Yield a reader of each partition named, or of all; each is closed before the next.

    For one that cannot be opened, what is wrong with it. Raises CommandFailed where there is
    none, or none of that name, or what is named is no partition (a usage error).
    """
    known = {str(key): key for key in sorted(await store.partitions())}
    if not known:
        raise CommandFailed("there are no logs in this storage", hint="is this its --storage URL?")
    names = tuple(dict.fromkeys(str(partition_key(name)) for name in wanted)) or tuple(known)
    for name in names:
        if name not in known:
            raise CommandFailed(
                f"{name}: no such partition in this storage",
                hint="`odradek log verify` lists them",
            )
    for name in names:
        try:
            reader = await store.open_reader(known[name])
        except StorageError as error:
            yield known[name], error
            continue
        try:
            yield known[name], reader
        finally:
            await reader.aclose()


async def steadily(
    store: SegmentStore,
    key: PartitionKey,
    reader: PartitionReader,
    check: Callable[[PartitionReader], Awaitable[T]],
    bad: Callable[[T], bool],
) -> T:
    """Check a log; again where it looks bad and a broker has changed it meanwhile.

    What is removed or replaced while it is read looks like damage. Raises StorageError.
    """
    before = reader.snapshot
    result = await check(reader)
    for _ in range(ATTEMPTS - 1):
        if not bad(result):
            break
        await reader.aclose()  # or the store would go on to show what it knew
        reader = await store.open_reader(key)
        try:
            if reader.snapshot.segments[:-1] == before.segments[:-1]:
                break
            before = reader.snapshot
            result = await check(reader)
        finally:
            await reader.aclose()
    return result


async def walk(
    reader: PartitionReader, segment: SegmentInfo, *, verify: bool, start: int = 0
) -> AsyncGenerator[Found | Damage]:
    """Yield every batch of a segment, and every stretch of bytes between that is none.

    From byte `start` on, where a batch begins. `verify` checks each CRC; without it damage is
    found only where it breaks the chain of lengths. Memory: 32 MiB, or the largest batch.
    """
    position = start
    wanted = CHUNK
    while position < segment.size:
        left = min(wanted, segment.size - position)
        held = await _read(reader, segment.id, position, left)
        view = memoryview(held)
        found = scan(view, verify=verify)
        for meta, at in zip(found.metas, found.positions, strict=True):
            yield Found(position + at, meta, view[at : at + meta.size])
        position += found.end
        wanted = CHUNK
        if found.end:
            continue  # what is wrong with the next batch shows when it is read from its start
        text = "these bytes are missing" if found.problem is None else found.problem.text
        if found.problem is not None and found.problem.kind == "incomplete" and len(held) == left:
            size, problem = await _whole_batch(reader, segment, position, view)
            if problem is None:
                wanted = size
                continue
            text = problem
        end = await _next_valid(reader, segment, position + 1)
        yield Damage(position, end, text)
        position = end


async def _whole_batch(
    reader: PartitionReader, segment: SegmentInfo, position: int, view: memoryview
) -> tuple[int, str | None]:
    """Return the size of a batch of which the beginning is held, and what is wrong with it.

    A damaged length may say anything, and the batch is held whole next: so a large one is checked
    before.
    """
    if len(view) < HEADER_SIZE:
        return 0, "the batch is cut short"
    size = parse_header(view).size
    if position + size > segment.size:
        left = segment.size - position
        return size, f"the batch says that it has {size} bytes, and {left} are left"
    check = SegmentCheck(0, segment.size, position)
    while size > LARGE and not check.batches:
        part = await _read(reader, segment.id, check.position, CHUNK)
        problem = check.feed(memoryview(part))
        if problem is not None and not check.batches:
            return size, problem
    return size, None


async def _next_valid(reader: PartitionReader, segment: SegmentInfo, position: int) -> int:
    """Return where something valid goes on behind damage, or the end of the segment."""
    step = SECTOR
    while position < segment.size:
        held = await _read(reader, segment.id, position, min(SEARCH, segment.size - position))
        found = find_next_valid(memoryview(held), 0, min_offset=segment.base_offset)
        if found is not None:
            return position + found
        if len(held) >= 2 * SECTOR:
            position += len(held) // 2
            step = SECTOR
        else:
            position += step  # the medium does not give these bytes: further and further on
            step *= 2
    return segment.size


async def _read(reader: PartitionReader, segment: int, position: int, size: int) -> bytes:
    """Return so many bytes, or as many as can be read."""
    parts: list[bytes] = []
    end = position + size
    while position < end:
        try:
            with await reader.read(segment, position, size, Hint.ONCE) as data:
                got = b"".join(data.views())
        except Corrupt:
            if size <= SECTOR:
                break
            size //= 2
            continue
        if not got:
            break
        parts.append(got)
        position += len(got)
        size = min(size, end - position)
    return parts[0] if len(parts) == 1 else b"".join(parts)
