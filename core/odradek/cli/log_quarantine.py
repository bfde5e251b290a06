"""`odradek log quarantine`: what repairs set aside."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from odradek.cli.exits import CommandFailed, ExitCode
from odradek.cli.log_options import storage_option, storage_parts
from odradek.cli.tables import Column, format_option, show
from odradek.cli.text import plural, size

if TYPE_CHECKING:
    from odradek.hookspecs import Quarantine, Quarantined

__all__ = ["quarantine"]

_yes = click.option("--yes", "-y", is_flag=True, help="Do not ask.")


@click.group()
def quarantine() -> None:
    """List, put back or delete what `odradek log repair` set aside."""


@quarantine.command("list")
@storage_option
@format_option
def list_(storage: str | None, form: str) -> int:
    """List what repairs set aside: when, of which partition, why, and its size."""
    found, url, settings = _hooks(storage)
    entries = found.entries(url, settings)
    columns = [
        Column("name"),
        Column("at", text=_time),
        Column("files", right=True),
        Column("size", right=True, text=size),
        Column("reason", text="; ".join),
    ]
    rows = [
        {
            "name": each.name,
            "partition": str(each.key),
            "at": each.at_ms,
            "files": each.files,
            "size": each.size,
            "reason": list(each.reason),
        }
        for each in entries
    ]
    if not rows and form == "table":
        click.echo("nothing is set aside")
    else:
        show(columns, rows, form)
    return ExitCode.OK


@quarantine.command()
@click.argument("name")
@storage_option
@_yes
def restore(name: str, storage: str | None, yes: bool) -> int:
    """Put a partition back as it was before a repair, while no broker has the storage.

    NAME is as `list` prints it. What takes its place now is set aside in turn, records that were
    written since the repair included; so this can be taken back as well. The damage is back too:
    the partition does not open, or reads fail, until it is repaired in another way.
    """
    found, url, settings = _hooks(storage)
    entry = _entry(found, url, settings, name)
    _confirm(
        f"Put partition {entry.key} back as it was on {_time(entry.at_ms)}? What was written to it "
        "since is set aside.",
        yes,
    )
    click.echo("\n".join(found.restore(url, settings, name)))
    return ExitCode.OK


@quarantine.command()
@click.argument("name")
@storage_option
@_yes
def delete(name: str, storage: str | None, yes: bool) -> int:
    """Delete what a repair set aside, for good, while no broker has the storage.

    NAME is as `list` prints it.
    """
    found, url, settings = _hooks(storage)
    entry = _entry(found, url, settings, name)
    _confirm(
        f"Delete {plural(entry.files, 'file')} of partition {entry.key}, {size(entry.size)}, for "
        "good?",
        yes,
    )
    found.delete(url, settings, name)
    click.echo(f"{size(entry.size)} are free again")
    return ExitCode.OK


def _hooks(storage: str | None) -> tuple[Quarantine, str, Any]:
    factory, part, settings = storage_parts(storage)
    if factory.quarantine is None:
        raise CommandFailed(f"{part.scheme}: storage sets nothing aside")
    return factory.quarantine, part.url, settings


def _entry(found: Quarantine, url: str, settings: Any, name: str) -> Quarantined:
    for each in found.entries(url, settings):
        if each.name == name:
            return each
    raise CommandFailed(
        f"nothing of the name {name!r} is set aside",
        hint="`odradek log quarantine list` shows what is",
    )


def _confirm(question: str, yes: bool) -> None:
    """Ask on a terminal; elsewhere --yes is needed."""
    import sys

    if yes:
        return
    if not sys.stdin.isatty():
        raise CommandFailed(f"{question} --yes says so", code=ExitCode.USAGE)
    click.confirm(question, abort=True, err=True)


def _time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(sep=" ", timespec="seconds")
