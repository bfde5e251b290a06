"""`odradek log repair`: make a damaged partition one that opens."""

from __future__ import annotations

import click

from odradek.cli.exits import CommandFailed, ExitCode
from odradek.cli.log_options import partition_key, storage_option, storage_parts

__all__ = ["repair"]


@click.command()
@click.argument("partition")
@storage_option
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
    Nothing is deleted: `odradek log quarantine` shows what was set aside, and can put it back.
    """
    factory, part, settings = storage_parts(storage)
    if factory.repair is None:
        raise CommandFailed(f"{part.scheme}: storage has no repair")
    lines = factory.repair(part.url, settings, partition_key(partition), how)
    click.echo("\n".join(lines) or "nothing was damaged")
    return ExitCode.OK
