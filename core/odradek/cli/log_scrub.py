"""`odradek log scrub`: read a storage slowly, to find damage while a broker runs."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import click

from odradek.cli.exits import ExitCode
from odradek.cli.log_options import partitions_argument, storage_option, storage_url
from odradek.cli.log_verify import Progress, progress, repair_hint
from odradek.cli.numbers import NumberRange
from odradek.cli.tables import Column, format_option, show
from odradek.cli.text import count, size

if TYPE_CHECKING:
    from odradek.contracts.storage import PartitionReader, SegmentStore
    from odradek.types import PartitionKey

__all__ = ["scrub"]

MIB = 1024 * 1024


@click.command()
@partitions_argument
@click.option(
    "--rate",
    type=NumberRange(min=0),
    default=16,
    show_default=True,
    metavar="MIB",
    help="MiB to read in a second, over all partitions; 0 for as fast as it goes.",
)
@storage_option
@format_option
def scrub(partitions: tuple[str, ...], rate: float, storage: str | None, form: str) -> int:
    """Check the CRC of every batch, at a rate that leaves room for a running broker.

    What a broker does by itself in the background ([scrub] in its configuration), once and now.
    PARTITION is a topic id with the partition's number; all, when none is given. Changes nothing.
    Exits with 1 when something is damaged.
    """
    from odradek.cli.running import run_async

    async def body() -> int:
        import trio

        from odradek.cli.storage import open_store
        from odradek.cli.storage import partitions as each_partition
        from odradek.contracts.storage import StorageError
        from odradek.log.pace import Pace
        from odradek.log.scrubber import WINDOW

        pace = Pace(rate * MIB, WINDOW)
        rows: list[dict[str, Any]] = []
        url = storage_url(storage)
        with progress() as told:

            async def throttle(size: int) -> None:
                told.advance(size)
                await trio.sleep(pace.take(size, trio.current_time()))

            async with (
                open_store(url) as store,
                aclosing(each_partition(store, partitions)) as logs,
            ):
                async for key, reader in logs:
                    told.begin(str(key))
                    if isinstance(reader, StorageError):
                        rows.append({"partition": str(key), "damage": [str(reader)]})
                    else:
                        rows.append(await _scrub(store, key, reader, throttle, told))
        columns = [
            Column("partition"),
            Column("segments", right=True, text=count),
            Column("bytes", "size", right=True, text=size),
            Column("damage", text=lambda found: "; ".join(map(str, found)) or "none"),
        ]
        if form == "json":
            for row in rows:
                row["damage"] = [
                    each if isinstance(each, str) else each._asdict() for each in row["damage"]
                ]
        show(columns, rows, form)
        bad = [row["partition"] for row in rows if row["damage"]]
        repair_hint(url, bad)
        return ExitCode.FAILED if bad else ExitCode.OK

    return run_async(body)


async def _scrub(
    store: SegmentStore,
    key: PartitionKey,
    reader: PartitionReader,
    throttle: Any,
    told: Progress,
) -> dict[str, Any]:
    from odradek.cli.storage import steadily
    from odradek.contracts.storage import OutOfRange, StorageError
    from odradek.log.scrub import Damage
    from odradek.log.scrubber import scrub_segment
    from odradek.log.worker import InlineWorker

    worker = InlineWorker()

    async def check(reader: PartitionReader) -> dict[str, Any]:
        segments = reader.snapshot.segments
        total = sum(segment.size for segment in segments)
        told.expect(total)
        damage: list[Damage] = []
        for segment in segments:
            try:
                damage += await scrub_segment(reader, segment, throttle, worker)
            except StorageError as error:
                damage.append(Damage(segment.base_offset, 0, str(error)))
        return {
            "partition": str(key),
            "segments": len(segments),
            "bytes": total,
            "damage": damage,
        }

    try:
        return await steadily(store, key, reader, check, lambda row: bool(row["damage"]))
    except OutOfRange:  # it was deleted meanwhile
        return {"partition": str(key), "damage": []}
    except StorageError as error:
        return {"partition": str(key), "damage": [str(error)]}
