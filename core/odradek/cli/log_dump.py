"""`odradek log dump`: segments, batches, records, indexes and state, as they lie in a storage."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import click
from attrs import frozen

from odradek.cli.exits import CommandFailed, ExitCode
from odradek.cli.log_options import partitions_argument, storage_option, storage_url
from odradek.cli.log_show import print_document

if TYPE_CHECKING:
    from odradek.cli.storage import Found
    from odradek.contracts.storage import PartitionReader, SegmentInfo
    from odradek.record import BatchMeta, Record

__all__ = ["dump"]


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
            and segment.end_offset >= self.start
            and (self.end is None or segment.base_offset < self.end)
        )


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
        from odradek.contracts.storage import StorageError

        damaged = False
        shown = False
        async with (
            open_store(storage_url(storage)) as store,
            aclosing(each_partition(store, partitions)) as logs,
        ):
            async for key, reader in logs:
                if isinstance(reader, StorageError):
                    print_document(str(key), {"kind": "failure", "text": str(reader)}, form)
                    damaged = True
                    continue
                async with aclosing(_documents(reader, choice)) as documents:
                    async for document in documents:
                        shown = True
                        damaged |= document["kind"] in ("damage", "failure")
                        print_document(str(key), document, form)
        if segment is not None and not shown and not damaged:
            raise CommandFailed(
                f"no partition has a segment with base offset {segment}",
                hint="`odradek log dump --state` lists them",
            )
        return ExitCode.FAILED if damaged else ExitCode.OK

    return run_async(body)


async def _documents(reader: PartitionReader, choice: Choice) -> AsyncGenerator[dict[str, Any]]:
    from odradek.cli.log_state import state_document
    from odradek.contracts.storage import OutOfRange, StorageError

    if choice.state:
        yield state_document(reader.snapshot)
    for segment in reader.snapshot.segments:
        if not choice.wants(segment) or (choice.state and not choice.index):
            continue
        yield {"kind": "segment", **_segment(segment)}
        try:
            kind = _rows if choice.index else _batches
            async with aclosing(kind(reader, segment, choice)) as documents:
                async for document in documents:
                    yield document
        except OutOfRange:
            continue  # a broker removed it meanwhile
        except StorageError as error:
            yield {"kind": "failure", "segment": segment.base_offset, "text": str(error)}


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
