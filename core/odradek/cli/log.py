"""`odradek log`: look into a storage without a broker."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from odradek.cli.exits import CommandFailed, ExitCode
from odradek.cli.tables import Column, format_option, show
from odradek.cli.text import count, escape_bytes, shown, size

if TYPE_CHECKING:
    from odradek.contracts.storage import PartitionReader, SegmentInfo, SegmentStore
    from odradek.types import PartitionKey

__all__ = ["log"]


def _storage_option(command: Any) -> Any:
    return click.option(
        "--storage",
        metavar="URL",
        help="Such as file:///var/lib/odradek.  [default: the user's data directory]",
    )(command)


@click.group()
def log() -> None:
    """Look into a storage without a broker.

    Works for every storage, through its plugin; where the plugin can, beside a running broker.
    """


@log.command()
@click.argument("partitions", nargs=-1, metavar="[PARTITION...]")
@_storage_option
@format_option
def verify(partitions: tuple[str, ...], storage: str | None, form: str) -> int:
    """Check every byte: each batch's CRC and structure, and the order of offsets.

    PARTITION is a topic id with the partition's number, as `odradek log verify` prints it; all,
    when none is given. Exits with 1 when something is damaged.
    """
    from odradek.cli.running import run_async

    async def body() -> int:
        from odradek.cli.storage import open_store

        rows = []
        async with open_store(_url(storage)) as store:
            async for key, reader in _readers(store, partitions):
                rows.append(await _verify(key, reader))
        columns = [
            Column("partition"),
            Column("segments", right=True),
            Column("batches", right=True, text=count),
            Column("records", right=True, text=count),
            Column("bytes", "size", right=True, text=size),
            Column("start_offset", "start", right=True, text=count),
            Column("end_offset", "end", right=True, text=count),
            Column("problems", text=_problems),
        ]
        show(columns, rows, form)
        return ExitCode.FAILED if any(row["problems"] for row in rows) else ExitCode.OK

    return run_async(body)


def _problems(found: list[str]) -> str:
    return "; ".join(found) or "none"


async def _verify(key: PartitionKey, reader: PartitionReader) -> dict[str, Any]:
    from odradek.cli.storage import Damage, walk

    snapshot = reader.snapshot
    batches = records = total = 0
    problems: list[str] = []
    expected = snapshot.segments[0].base_offset if snapshot.segments else 0
    for segment in snapshot.segments:
        where = f"segment {segment.base_offset}"
        if segment.base_offset < expected:
            problems.append(f"{where}: starts below {expected}, the end of the one before")
        expected = max(expected, segment.base_offset)
        async for found in walk(reader, segment, verify=True):
            if isinstance(found, Damage):
                problems.append(f"{where}: bytes {found.position} to {found.end}: {found.text}")
                continue
            meta = found.meta
            if meta.base_offset < expected:
                problems.append(
                    f"{where}: the batch at byte {found.position} starts at offset "
                    f"{meta.base_offset}, and {expected} or more is due"
                )
            expected = meta.next_offset
            batches += 1
            records += meta.record_count
            total += meta.size
    return {
        "partition": str(key),
        "segments": len(snapshot.segments),
        "batches": batches,
        "records": records,
        "bytes": total,
        "start_offset": snapshot.log_start,
        "end_offset": expected,
        "problems": problems,
    }


@log.command()
@click.argument("partitions", nargs=-1, metavar="[PARTITION...]")
@click.option("--records", is_flag=True, help="Show the records of each batch too.")
@_storage_option
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Text for people, or a JSON object a line.",
)
def dump(partitions: tuple[str, ...], records: bool, storage: str | None, form: str) -> int:
    """Print segments and batches as they lie in the storage."""
    from odradek.cli.running import run_async

    async def body() -> int:
        from odradek.cli.storage import open_store

        damaged = False
        async with open_store(_url(storage)) as store:
            async for key, reader in _readers(store, partitions):
                for segment in reader.snapshot.segments:
                    if form == "text":
                        click.echo(
                            f"{key}  segment {segment.base_offset}, offsets to "
                            f"{segment.end_offset}, {size(segment.size)}"
                            f"{', sealed' if segment.sealed else ''}"
                        )
                    async for document in _documents(reader, segment, records):
                        damaged |= document["kind"] == "damage"
                        _print(key, document, form)
        return ExitCode.FAILED if damaged else ExitCode.OK

    return run_async(body)


@log.command()
@click.argument("partition")
@_storage_option
@click.option(
    "--how",
    type=click.Choice(["cut", "skip"]),
    required=True,
    help="End the log before the damage, or leave out what is damaged and keep what follows.",
)
def repair(partition: str, storage: str | None, how: str) -> int:
    """Make a damaged partition one that opens, while no broker has the storage.

    PARTITION is a topic id with the partition's number, as `odradek log verify` prints it. Cut
    where replicas have the rest, skip where this is the only copy; offsets then have a gap.
    """
    from odradek.config import config_from_options
    from odradek.plugins import load

    part = config_from_options(storage=storage).storage
    factory = load().storage(part.scheme)
    if factory.repair is None:
        raise CommandFailed(f"{part.scheme}: storage has no repair")
    settings = part.settings(factory.settings)
    lines = factory.repair(part.url, settings, _key(partition), how)
    click.echo("\n".join(lines) or "nothing was damaged")
    return ExitCode.OK


def _key(text: str) -> PartitionKey:
    from uuid import UUID

    from odradek.types import PartitionKey

    topic_id, _, number = text.rpartition("-")
    try:
        return PartitionKey(UUID(topic_id), int(number))
    except ValueError:
        raise CommandFailed(
            f"{text!r} is not a partition: write it as `odradek log verify` prints it",
            code=ExitCode.USAGE,
        ) from None


async def _documents(
    reader: PartitionReader, segment: SegmentInfo, records: bool
) -> AsyncIterator[dict[str, Any]]:
    from odradek.cli.storage import Damage, walk
    from odradek.errors import KafkaError
    from odradek.record import CompressionType, decode_records

    async for found in walk(reader, segment, verify=True):
        if isinstance(found, Damage):
            yield {"kind": "damage", "segment": segment.base_offset, **found._asdict()}
            continue
        meta = found.meta
        codec = meta.compression
        known = codec in CompressionType._value2member_map_
        yield {
            "kind": "batch",
            "segment": segment.base_offset,
            "position": found.position,
            "base_offset": meta.base_offset,
            "last_offset": meta.last_offset,
            "records": meta.record_count,
            "size": meta.size,
            "compression": CompressionType(codec).name.lower() if known else codec,
            "leader_epoch": meta.leader_epoch,
            "max_timestamp": meta.max_timestamp,
            "producer_id": meta.producer_id,
            "producer_epoch": meta.producer_epoch,
            "base_sequence": meta.base_sequence,
            "transactional": meta.transactional,
            "control": meta.control,
        }
        if records and not meta.control:
            try:
                decoded = decode_records(found.view, verify=False)
            except KafkaError as error:
                end = found.position + meta.size
                yield {
                    "kind": "damage",
                    "segment": segment.base_offset,
                    "position": found.position,
                    "end": end,
                    "text": str(error),
                }
                continue
            for record in decoded:
                yield {"kind": "record", **record._asdict()}


def _print(key: PartitionKey, document: dict[str, Any], form: str) -> None:
    if form == "json":
        import json

        click.echo(json.dumps({"partition": str(key), **document}, default=_text))
        return
    kind = document["kind"]
    if kind == "damage":
        click.echo(
            f"  byte {document['position']:>12}  DAMAGED to byte {document['end']}: "
            f"{document['text']}"
        )
    elif kind == "batch":
        flags = [name for name in ("transactional", "control") if document[name]]
        producer = ""
        if document["producer_id"] >= 0:
            producer = (
                f", producer {document['producer_id']}/{document['producer_epoch']} "
                f"sequence {document['base_sequence']}"
            )
        click.echo(
            f"  byte {document['position']:>12}  offsets {document['base_offset']} to "
            f"{document['last_offset']}, {document['records']} records, "
            f"{size(document['size'])} {document['compression']}, epoch "
            f"{document['leader_epoch']}, {_time(document['max_timestamp'])}"
            f"{producer}{''.join(', ' + flag for flag in flags)}"
        )
    else:
        headers = [(name, _text(value)) for name, value in document["headers"]]
        click.echo(
            f"    {document['offset']}  {_time(document['timestamp'])}  "
            f"key {shown(_text(document['key']))}  value {shown(_text(document['value']))}"
            f"{'  headers ' + shown(str(headers)) if headers else ''}"
        )


def _text(data: bytes | None) -> str:
    return "null" if data is None else escape_bytes(data)


def _time(timestamp: int) -> str:
    if timestamp < 0:
        return "no time"
    try:
        return datetime.fromtimestamp(timestamp / 1000, UTC).isoformat(timespec="milliseconds")
    except (OverflowError, ValueError, OSError):
        return f"{timestamp} ms"


async def _readers(
    store: SegmentStore, wanted: Iterable[str]
) -> AsyncIterator[tuple[PartitionKey, PartitionReader]]:
    """Yield a reader of each partition named, or of all; each is closed before the next."""
    known = {str(key): key for key in sorted(await store.partitions())}
    if not known:
        raise CommandFailed("there are no logs in this storage", hint="is this its --storage URL?")
    for name in tuple(wanted) or tuple(known):
        key = known.get(name)
        if key is None:
            raise CommandFailed(
                f"{name}: no such partition in this storage",
                hint="`odradek log verify` lists them",
            )
        reader = await store.open_reader(key)
        try:
            yield key, reader
        finally:
            await reader.aclose()


def _url(storage: str | None) -> str:
    from odradek.config import config_from_options

    return config_from_options().storage.url if storage is None else storage
