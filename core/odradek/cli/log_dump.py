"""`odradek log dump`: segments, batches, records, indexes and state, as they lie in a storage."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import AsyncExitStack, aclosing
from typing import TYPE_CHECKING, Any

import click
from attrs import evolve, frozen

from odradek.cli.exits import CommandFailed, ExitCode
from odradek.cli.log_options import partitions_argument, storage_option, storage_url
from odradek.cli.log_show import print_document

if TYPE_CHECKING:
    from odradek.cli.storage import Found
    from odradek.contracts.storage import PartitionReader, SegmentInfo
    from odradek.record import BatchMeta, Record
    from odradek.types import PartitionKey

__all__ = ["dump"]

BAD = ("damage", "failure")
DELETED = {"kind": "note", "text": "it was deleted while it was read"}


@frozen
class Choice:
    """What is asked for: offsets [start, end), perhaps of one segment; and what of them."""

    start: int
    end: int | None
    segment: int | None
    index: bool
    state: bool
    records: bool
    groups: bool

    def wants(self, segment: SegmentInfo) -> bool:
        """Whether anything of a segment is asked for."""
        return (
            self.segment in (None, segment.base_offset)
            and (segment.end_offset > self.start or self._at_the_end(segment))
            and (self.end is None or segment.base_offset < self.end)
        )

    def _at_the_end(self, segment: SegmentInfo) -> bool:
        """Whether it is an empty active segment at the first offset."""
        return not segment.sealed and segment.end_offset == self.start


@click.command()
@partitions_argument
@click.option("--records", is_flag=True, help="Show the records of each batch too.")
@click.option(
    "--groups", is_flag=True, help="Show the records of __consumer_offsets, and what they say."
)
@click.option("--from-offset", type=click.IntRange(min=0), default=0, help="Begin at this offset.")
@click.option("--to-offset", type=click.IntRange(min=0), help="End before this offset.")
@click.option(
    "--segment", type=click.IntRange(min=0), help="Only the segment with this base offset."
)
@click.option("--index", is_flag=True, help="Show the rows of the indexes instead of the batches.")
@click.option(
    "--state",
    is_flag=True,
    help="Show instead what is kept beside the batches: log start, leader epochs, producers, how "
    "far the log is compacted and scrubbed, what repairs left out.",
)
@storage_option
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Text for people, or a JSON object a line.",
)
def dump(
    partitions: tuple[str, ...],
    records: bool,
    groups: bool,
    from_offset: int,
    to_offset: int | None,
    segment: int | None,
    index: bool,
    state: bool,
    storage: str | None,
    form: str,
) -> int:
    """Print segments and batches as they lie in the storage.

    PARTITION is a topic id with the partition's number, as `odradek log verify` prints it; all,
    when none is given. Exits with 1 when something is damaged.
    """
    from odradek.cli.running import run_async

    choice = Choice(from_offset, to_offset, segment, index, state, records or groups, groups)

    async def body() -> int:
        from odradek.cli.storage import open_store
        from odradek.cli.storage import partitions as each_partition
        from odradek.contracts.storage import OutOfRange, StorageError

        kinds = set()
        url = storage_url(storage)
        async with (
            open_store(url) as store,
            aclosing(each_partition(store, partitions)) as logs,
        ):
            async for key, reader in logs:

                def show(document: dict[str, Any], name: str = str(key)) -> None:
                    kinds.add(document["kind"])
                    print_document(name, document, form)

                if isinstance(reader, OutOfRange):
                    show(DELETED)
                elif isinstance(reader, StorageError):
                    show({"kind": "failure", "text": str(reader)})
                else:
                    await _dump(url, key, reader, choice, show)
        if segment is not None and not kinds:
            raise CommandFailed(
                f"no partition has a segment with base offset {segment}",
                hint="`odradek log dump --state` lists them",
            )
        return ExitCode.FAILED if kinds.intersection(BAD) else ExitCode.OK

    return run_async(body)


async def _dump(
    url: str,
    key: PartitionKey,
    reader: PartitionReader,
    choice: Choice,
    show: Callable[[dict[str, Any]], None],
) -> None:
    """Show what is asked for of a partition.

    What a broker removes or replaces while it is read looks like damage. So where something looks
    bad, and the segment is no part of the log any more, it goes on in the log as that is by then.
    """
    from odradek.cli.log_state import state_document
    from odradek.cli.storage import ATTEMPTS
    from odradek.contracts.storage import OutOfRange

    if choice.state:
        show(state_document(reader.snapshot))
        if not choice.index:
            return
    attempts = ATTEMPTS
    async with AsyncExitStack() as held:
        while True:
            changed = None
            reached = choice.start
            async with aclosing(_segments(reader, choice)) as documents:
                async for segment, document in documents:
                    if document["kind"] in BAD and attempts:
                        try:
                            changed = await _changed(held, url, key, segment)
                        except OutOfRange:
                            show(DELETED)
                            return
                        if changed is not None:
                            break
                    if document["kind"] == "batch":
                        reached = document["last_offset"] + 1
                    show(document)
            if changed is None:
                return
            attempts = ATTEMPTS if reached > choice.start else attempts - 1
            choice = evolve(choice, start=reached)
            reader = changed


async def _changed(
    held: AsyncExitStack, url: str, key: PartitionKey, segment: SegmentInfo
) -> PartitionReader | None:
    """Return a reader of the log as it is now, if a segment is no part of it any more.

    By a store of its own: the one in use goes on to show what it knew. `held` closes it, and here
    what it held before. Raises OutOfRange when the log is gone, StorageError.
    """
    from odradek.cli.storage import open_store
    from odradek.contracts.storage import OutOfRange, StorageError

    try:
        async with open_store(url) as store:
            reader = await store.open_reader(key)
            known = {each.id for each in reader.snapshot.segments}
            await reader.aclose()
    except OutOfRange:
        raise
    except StorageError:
        return None
    if segment.id in known:
        return None
    await held.aclose()  # before the next is opened: stores are nested in the same task
    store = await held.enter_async_context(open_store(url))
    reader = await store.open_reader(key)
    held.push_async_callback(reader.aclose)
    return reader


async def _segments(
    reader: PartitionReader, choice: Choice
) -> AsyncGenerator[tuple[SegmentInfo, dict[str, Any]]]:
    from odradek.contracts.storage import StorageError

    for segment in reader.snapshot.segments:
        if not choice.wants(segment):
            continue
        yield segment, {"kind": "segment", **_segment(segment)}
        try:
            kind = _rows if choice.index else _batches
            async with aclosing(kind(reader, segment, choice)) as documents:
                async for document in documents:
                    yield segment, document
        except StorageError as error:
            text = str(error)
            yield segment, {"kind": "failure", "segment": segment.base_offset, "text": text}


def _segment(segment: SegmentInfo) -> dict[str, Any]:
    return {
        "segment": segment.base_offset,
        "end_offset": segment.end_offset,
        "size": segment.size,
        "max_timestamp": segment.max_timestamp,
        "created": segment.created_ms,
        "sealed": segment.sealed,
    }


async def _rows(
    reader: PartitionReader, segment: SegmentInfo, choice: Choice
) -> AsyncGenerator[dict[str, Any]]:
    index = await reader.index(segment.id)
    for row in range(index.floor(choice.start), len(index)):
        if choice.end is not None and index.offsets[row] >= choice.end:
            break
        yield {
            "kind": "row",
            "segment": segment.base_offset,
            "offset": index.offsets[row],
            "position": index.positions[row],
            "max_timestamp_before": index.timestamps[row],
        }


async def _start(reader: PartitionReader, segment: SegmentInfo, offset: int) -> int:
    """Where to begin reading for an offset: by the index, if that can be read."""
    from odradek.contracts.storage import Corrupt

    if offset <= segment.base_offset:
        return 0
    try:
        index = await reader.index(segment.id)
    except Corrupt:
        return 0
    return index.positions[index.floor(offset)] if len(index) else 0


async def _batches(
    reader: PartitionReader, segment: SegmentInfo, choice: Choice
) -> AsyncGenerator[dict[str, Any]]:
    from odradek.cli.storage import Damage, walk

    start = await _start(reader, segment, choice.start)
    async with aclosing(walk(reader, segment, verify=True, start=start)) as batches:
        async for found in batches:
            if isinstance(found, Damage):
                yield {"kind": "damage", "segment": segment.base_offset, **found._asdict()}
                continue
            meta = found.meta
            if meta.last_offset < choice.start:
                continue
            if choice.end is not None and meta.base_offset >= choice.end:
                break
            yield {
                "kind": "batch",
                "segment": segment.base_offset,
                "position": found.position,
                **_header(meta),
            }
            if choice.records and not meta.control:
                for document in _records(found, segment, choice):
                    yield document


def _header(meta: BatchMeta) -> dict[str, Any]:
    from odradek.record import CompressionType

    codec = meta.compression
    known = codec in CompressionType._value2member_map_
    return {
        "base_offset": meta.base_offset,
        "last_offset": meta.last_offset,
        "records": meta.record_count,
        "size": meta.size,
        "compression": CompressionType(codec).name.lower() if known else codec,
        "leader_epoch": meta.leader_epoch,
        "max_timestamp": meta.max_timestamp,
        "delete_horizon": meta.delete_horizon,
        "producer_id": meta.producer_id,
        "producer_epoch": meta.producer_epoch,
        "base_sequence": meta.base_sequence,
        "transactional": meta.transactional,
        "control": meta.control,
    }


def _records(found: Found, segment: SegmentInfo, choice: Choice) -> Iterator[dict[str, Any]]:
    from odradek.cli.log_groups import group_document
    from odradek.errors import KafkaError
    from odradek.record import decode_records

    try:
        records: list[Record] = decode_records(found.view, verify=False)
    except KafkaError as error:
        yield {
            "kind": "damage",
            "segment": segment.base_offset,
            "position": found.position,
            "end": found.position + found.meta.size,
            "text": str(error),
        }
        return
    for record in records:
        if record.offset < choice.start or (choice.end is not None and record.offset >= choice.end):
            continue
        if choice.groups:
            yield group_document(record)
        else:
            yield {"kind": "record", **record._asdict()}
