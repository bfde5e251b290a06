"""`odradek consume`: records out."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from odradek.cli.connecting import TopicName, bootstrap_options, with_cluster
from odradek.cli.exits import ExitCode
from odradek.cli.formats import compile_format
from odradek.cli.times import StartType

if TYPE_CHECKING:
    from odradek.client import Cluster, TopicPartition

__all__ = ["consume"]


@click.command()
@click.argument("topic", type=TopicName())
@click.option(
    "--from",
    "start",
    type=StartType(),
    default="earliest",
    show_default=True,
    metavar="earliest|latest|OFFSET|TIME",
    help="Where to begin. A time is 2026-01-31T12:00, -10m (ago) or @ms since 1970.",
)
@click.option(
    "-p",
    "--partition",
    "only",
    type=click.IntRange(0),
    multiple=True,
    help="Only this partition. Repeatable.",
)
@click.option("-e", "--until-end", is_flag=True, help="Stop where the partitions end now.")
@click.option("-n", "--count", "limit", type=click.IntRange(1), help="Stop after so many records.")
@click.option(
    "-f",
    "--format",
    "form",
    default="%v\\n",
    show_default=True,
    metavar="FORMAT|json",
    help="%t topic, %p partition, %o offset, %T timestamp, %k key, %v value, %h headers.",
)
@click.option("--null", default="", metavar="TEXT", help="What to write for a null key or value.")
@click.option("--raw", is_flag=True, help="Leave control bytes as they are on a terminal too.")
@bootstrap_options
def consume(
    topic: str,
    start: tuple[int | None, int | None],
    only: tuple[int, ...],
    until_end: bool,
    limit: int | None,
    form: str,
    null: str,
    raw: bool,
    bootstrap: str,
    timeout: float,
) -> int:
    """Write the records of TOPIC to standard output, and go on with new ones as they come.

    Records are bytes and are written as they are; on a terminal, control bytes are escaped
    unless --raw is given.
    """
    write = compile_format(
        form, null=null.encode("utf-8", "surrogateescape"), escaped=sys.stdout.isatty() and not raw
    )

    async def body(cluster: Cluster) -> int:
        from odradek.client import Start, TopicPartition, open_reader

        known = await cluster.topic(topic, timeout=0)
        partitions = only or range(len(known.partitions))
        assignment = {TopicPartition(topic, each): Start(*start) for each in partitions}
        if until_end and start[0] is not None:
            await _tell_beyond(cluster, start[0], assignment)
        async with open_reader(cluster, assignment, until_end=until_end) as reader:
            left = limit
            async for batch in reader.batches():
                records = list(batch)
                if left is not None:
                    records = records[:left]
                    left -= len(records)
                await _write(b"".join([write(record) for record in records]))
                if left == 0:
                    break
        return ExitCode.OK

    return with_cluster(bootstrap, timeout, body)


async def _tell_beyond(cluster: Cluster, offset: int, wanted: Iterable[TopicPartition]) -> None:
    """Say where partitions end before the offset to begin at: nothing will come of them."""
    from odradek.cli.app import report
    from odradek.client import LATEST, list_offsets

    ends = await list_offsets(cluster, dict.fromkeys(wanted, LATEST))
    for partition, end in sorted(ends.items()):
        if offset > end.offset:
            report(f"{partition} ends at offset {end.offset}, before {offset}")


async def _write(data: bytes) -> None:
    """Write to standard output, in a thread: a pipe may be slow, and fetching goes on.

    By the file descriptor: a thread left behind in a buffered file would hold a lock that the
    interpreter wants at its end.
    """
    import trio

    def write() -> None:
        left = memoryview(data)
        while left:
            left = left[os.write(fd, left) :]

    fd = sys.stdout.fileno()
    await trio.to_thread.run_sync(write, abandon_on_cancel=True)
