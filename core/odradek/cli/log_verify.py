"""`odradek log verify`: is every byte what it should be?"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import aclosing, contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import click

from odradek.cli.exits import ExitCode
from odradek.cli.log_options import (
    partitions_argument,
    storage_option,
    storage_parts,
    storage_url,
)
from odradek.cli.tables import Column, format_option, show
from odradek.cli.text import count, shown_url, size

if TYPE_CHECKING:
    from odradek.contracts.storage import PartitionReader, SegmentStore
    from odradek.types import PartitionKey

__all__ = ["Progress", "progress", "repair_hint", "verify"]


@click.command()
@partitions_argument
@storage_option
@format_option
def verify(partitions: tuple[str, ...], storage: str | None, form: str) -> int:
    """Check every byte: CRCs, records, offsets, epochs, indexes, and the storage's own files.

    PARTITION is a topic id with the partition's number, as `odradek log verify` prints it; all,
    when none is given. Changes nothing. Exits with 1 when something is damaged.
    """
    from odradek.cli.running import run_async

    async def body() -> int:
        from odradek.cli.storage import open_store
        from odradek.cli.storage import partitions as each_partition
        from odradek.contracts.storage import StorageError

        rows = []
        url = storage_url(storage)
        async with (
            open_store(url) as store,
            aclosing(each_partition(store, partitions)) as logs,
        ):
            with progress() as told:
                async for key, reader in logs:
                    told.begin(str(key))
                    if isinstance(reader, StorageError):
                        row = _empty(key, [str(reader)])
                    else:
                        row = await _verify(store, key, reader, told)
                    await _own_check(storage, key, row)
                    rows.append(row)
        columns = [
            Column("partition"),
            Column("segments", right=True),
            Column("batches", right=True, text=count),
            Column("records", right=True, text=count),
            Column("bytes", "size", right=True, text=size),
            Column("start_offset", "start", right=True, text=count),
            Column("end_offset", "end", right=True, text=count),
            Column("problems", text=_texts),
            Column("notes", text=_texts),
        ]
        if form == "table" and not any(row["notes"] for row in rows):
            columns.pop()
        show(columns, rows, form)
        bad = [row["partition"] for row in rows if row["problems"]]
        repair_hint(url, bad)
        return ExitCode.FAILED if bad else ExitCode.OK

    return run_async(body)


def _texts(found: Sequence[str]) -> str:
    return "; ".join(found) or "none"


def repair_hint(url: str, damaged: Sequence[str]) -> None:
    """Say on standard error what can be done about damaged partitions, if anything is."""
    if damaged:
        click.echo(
            f"with the broker stopped: `odradek log repair {damaged[0]} --storage "
            f"{shown_url(url)} --how cut|skip`{', and so on' if len(damaged) > 1 else ''}",
            err=True,
        )


async def _verify(
    store: SegmentStore, key: PartitionKey, reader: PartitionReader, told: Progress
) -> dict[str, Any]:
    from odradek.cli.storage import steadily
    from odradek.contracts.storage import OutOfRange, StorageError

    async def check(reader: PartitionReader) -> dict[str, Any]:
        return await _read(key, reader, told)

    try:
        return await steadily(store, key, reader, check, lambda row: bool(row["problems"]))
    except OutOfRange:
        return _empty(key, [], ["it was deleted while it was read"])
    except StorageError as error:
        return _empty(key, [str(error)])


async def _read(key: PartitionKey, reader: PartitionReader, told: Progress) -> dict[str, Any]:
    from odradek.cli.storage import Damage, walk
    from odradek.contracts.storage import StorageError
    from odradek.log.verify import LogVerifier

    snapshot = reader.snapshot
    verifier = LogVerifier(snapshot)
    told.expect(sum(segment.size for segment in snapshot.segments))
    for segment in snapshot.segments:
        try:
            index = await reader.index(segment.id)
        except StorageError as error:
            index = None
            verifier.problems.append(f"segment {segment.base_offset} has no index: {error}")
        verifier.begin(segment, index)
        try:
            async with aclosing(walk(reader, segment, verify=True)) as batches:
                async for found in batches:
                    if isinstance(found, Damage):
                        verifier.damage(*found)
                        told.advance(found.end - found.position)
                    else:
                        verifier.batch(*found)
                        told.advance(found.meta.size)
        except StorageError as error:
            verifier.damage(0, segment.size, str(error))
        verifier.end()
    verifier.finish()
    return {
        "partition": str(key),
        "segments": len(snapshot.segments),
        "batches": verifier.batches,
        "empty_batches": verifier.empty_batches,
        "records": verifier.records,
        "bytes": verifier.size,
        "start_offset": snapshot.log_start,
        "end_offset": verifier.end_offset,
        "problems": verifier.problems,
        "notes": verifier.notes,
    }


def _empty(key: PartitionKey, problems: list[str], notes: Sequence[str] = ()) -> dict[str, Any]:
    return {"partition": str(key), "problems": problems, "notes": list(notes)}


async def _own_check(storage: str | None, key: PartitionKey, row: dict[str, Any]) -> None:
    """Add what the plugin finds in the files that only it knows."""
    import trio

    from odradek.contracts.storage import StorageError

    factory, part, settings = storage_parts(storage)
    if factory.verify is None:
        return
    check = factory.verify
    try:
        found = await trio.to_thread.run_sync(
            lambda: list(check(part.url, settings, key)), abandon_on_cancel=True
        )
    except StorageError as error:
        if str(error) not in row["problems"]:
            row["problems"].append(str(error))
        return
    for each in found:
        row["problems" if each.severe else "notes"].append(each.text)


class Progress(Protocol):
    """How far a command has come."""

    def begin(self, name: str) -> None:
        """The next partition."""

    def expect(self, total: int) -> None:
        """So many bytes are to be read of it, from the start again."""

    def advance(self, size: int) -> None:
        """So many more were."""


class _Silent:
    def begin(self, name: str) -> None:
        pass

    def expect(self, total: int) -> None:
        pass

    def advance(self, size: int) -> None:
        pass


@contextmanager
def progress() -> Iterator[Progress]:
    """Show on standard error how far a command has come, where that is a terminal."""
    if not sys.stderr.isatty():
        yield _Silent()
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TransferSpeedColumn
    from rich.progress import Progress as Bars

    with Bars(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        console=Console(stderr=True),
        transient=True,
    ) as bars:
        task = bars.add_task("", total=None)

        class Shown:
            def begin(self, name: str) -> None:
                bars.reset(task, description=name, total=None)

            def expect(self, total: int) -> None:
                bars.reset(task, total=total)

            def advance(self, size: int) -> None:
                bars.advance(task, size)

        yield Shown()
