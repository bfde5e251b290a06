"""`odradek consume`: records out."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import click

from odradek.cli.connecting import TopicName, bootstrap_options, with_cluster
from odradek.cli.exits import CommandFailed, ExitCode
from odradek.cli.formats import compile_format
from odradek.cli.group_choice import GroupId
from odradek.cli.times import StartType

if TYPE_CHECKING:
    from odradek.client import Cluster, ConsumerRecord, TopicPartition

__all__ = ["Output", "consume"]

_LAST_WORDS = 0.25
"""Seconds for what is being written when the command is stopped."""

ASSIGNORS = ("cooperative-sticky", "sticky", "range", "roundrobin")
"""Those of odradek.group.assignors, which need not be imported to say so."""


@click.command()
@click.argument("topic", type=TopicName())
@click.option(
    "--from",
    "start",
    type=StartType(),
    default="earliest",
    show_default=True,
    metavar="earliest|latest|OFFSET|TIME",
    help="Where to begin; with --group, where the group has no offset yet. "
    "A time is 2026-01-31T12:00, -10m (ago) or @ms since 1970.",
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
@click.option(
    "-g",
    "--group",
    type=GroupId(),
    help="Share the partitions with the other members of this group, and commit what was read.",
)
@click.option(
    "--instance-id",
    type=GroupId(),
    metavar="ID",
    help="Be a static member of the group: one that may be away for a session timeout.",
)
@click.option(
    "--assignor",
    "assignors",
    type=click.Choice(ASSIGNORS),
    multiple=True,
    help="How the group shares out partitions, the preferred one first. "
    "Default: cooperative-sticky.",
)
@click.option("--no-commit", is_flag=True, help="Leave the group's offsets as they are.")
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
@click.option("-q", "--quiet", is_flag=True, help="With --group: no word about the group.")
@click.option("--raw", is_flag=True, help="Leave control bytes as they are on a terminal too.")
@bootstrap_options
def consume(
    topic: str,
    start: tuple[int | None, int | None],
    only: tuple[int, ...],
    until_end: bool,
    group: str | None,
    instance_id: str | None,
    assignors: tuple[str, ...],
    no_commit: bool,
    limit: int | None,
    form: str,
    null: str,
    quiet: bool,
    raw: bool,
    bootstrap: str,
    timeout: float,
) -> int:
    """Write the records of TOPIC to standard output, and go on with new ones as they come.

    Records are bytes and are written as they are; on a terminal, control bytes are escaped
    unless --raw is given.
    """
    if group is None and (instance_id is not None or assignors or no_commit):
        raise CommandFailed(
            "--instance-id, --assignor and --no-commit are for members of a --group",
            code=ExitCode.USAGE,
        )
    if group is not None and only:
        raise CommandFailed(
            "either --group, which gives out the partitions, or --partition", code=ExitCode.USAGE
        )
    write = compile_format(
        form, null=null.encode("utf-8", "surrogateescape"), escaped=sys.stdout.isatty() and not raw
    )

    async def body(cluster: Cluster) -> int:
        from odradek.client import Start, TopicPartition, open_reader

        output = Output()
        known = await cluster.topic(topic, timeout=0)
        if group is not None:
            from odradek.cli.consume_group import consume_as_member

            async def write_all(records: Sequence[ConsumerRecord]) -> None:
                await output.write(b"".join([write(record) for record in records]))

            await consume_as_member(
                cluster,
                group,
                topic,
                Start(*start),
                write_all,
                lambda: output.complete,
                until_end=until_end,
                limit=limit,
                commit=not no_commit,
                instance_id=instance_id,
                assignors=assignors,
                quiet=quiet,
            )
            return ExitCode.OK
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
                await output.write(b"".join([write(record) for record in records]))
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


class Output:
    """Standard output. `complete`: whether everything that was to be written has been."""

    def __init__(self) -> None:
        self.complete = True

    async def write(self, data: bytes) -> None:
        """Write in a thread: a pipe may be slow, and fetching goes on.

        By the file descriptor: a thread left behind in a buffered file would hold a lock that the
        interpreter wants at its end. Cancelled: what a reader takes at once is written whole, and
        a reader that takes nothing is left.
        """
        import threading

        import trio

        fd = sys.stdout.fileno()
        done = threading.Event()

        def write() -> None:
            left = memoryview(data)
            while left:
                left = left[os.write(fd, left) :]
            done.set()

        self.complete = False
        try:
            await trio.to_thread.run_sync(write, abandon_on_cancel=True)
        except trio.Cancelled:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(done.wait, _LAST_WORDS)
            raise
        finally:
            self.complete = done.is_set()
