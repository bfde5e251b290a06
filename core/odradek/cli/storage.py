"""Reading a storage without a broker, through the storage contract: for every plugin alike."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

from odradek.config import config_from_options, settings_of
from odradek.contracts.storage import Hint, PartitionReader, SegmentInfo, SegmentStore
from odradek.plugins import load
from odradek.record import BatchMeta, Problem, find_next_valid, scan

__all__ = ["Damage", "Found", "open_store", "walk"]

_CHUNK = 4 * 1024 * 1024


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


async def walk(
    reader: PartitionReader, segment: SegmentInfo, *, verify: bool
) -> AsyncIterator[Found | Damage]:
    """Yield every batch of a segment, and every stretch of bytes between that is none.

    `verify` checks each CRC; without it damage is found only where it breaks the chain of
    lengths. Memory: a few MiB, or the largest batch.
    """
    position = 0
    held = b""  # bytes of the segment from `position` on
    while position < segment.size:
        wanted = min(segment.size - position - len(held), _CHUNK)
        got = await _read(reader, segment.id, position + len(held), wanted)
        held += got
        whole = position + len(held) >= segment.size or len(got) < wanted
        view = memoryview(held)
        found = scan(view, verify=verify)
        for meta, at in zip(found.metas, found.positions, strict=True):
            yield Found(position + at, meta, view[at : at + meta.size])
        used, problem = found.end, found.problem
        if problem is not None and (problem.kind == "corrupt" or whole):
            used = _after(view, problem)
            yield Damage(position + problem.position, position + used, problem.text)
        held = held[used:]
        position += used
        if whole and not held:
            break
    if position < segment.size:
        yield Damage(position, segment.size, "these bytes are missing")


def _after(view: memoryview, problem: Problem) -> int:
    """Where something valid goes on behind damage, or the end of what is there."""
    following = find_next_valid(view, problem.position + 1)
    return len(view) if following is None else following


async def _read(reader: PartitionReader, segment: int, position: int, size: int) -> bytes:
    parts: list[bytes] = []
    while size > 0:
        ref = await reader.read(segment, position, size, Hint.SCAN)
        try:
            got = b"".join(ref.views())
        finally:
            ref.close()
        if not got:
            break
        parts.append(got)
        position += len(got)
        size -= len(got)
    return b"".join(parts)
