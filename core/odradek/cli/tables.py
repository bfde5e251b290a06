"""Answers of a command: a table for people, JSON for programs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, TypeVar

import click

from odradek.cli.text import escape

__all__ = ["Column", "format_option", "show", "show_json", "show_pairs", "terminal"]

F = TypeVar("F", bound=Callable[..., Any])

Format = Literal["table", "json"]


def format_option(command: F) -> F:
    """Give a command `--format table|json`."""
    option = click.option(
        "--format",
        "form",
        type=click.Choice(["table", "json"]),
        default="table",
        show_default=True,
        help="A table for people, or one JSON document for programs.",
    )
    return option(command)


class Column:
    """A column: its key in JSON, its heading, and how its values look to people."""

    def __init__(
        self,
        key: str,
        heading: str | None = None,
        *,
        text: Callable[[Any], str] = str,
        right: bool = False,
    ) -> None:
        self.key = key
        self.heading = key.replace("_", " ") if heading is None else heading
        self.text = text
        self.right = right

    def cell(self, row: dict[str, Any]) -> str:
        """Return a row's value as a person sees it."""
        value = row.get(self.key)
        return "-" if value is None else escape(self.text(value))


def terminal() -> bool:
    """Whether standard output is a terminal."""
    return sys.stdout.isatty()


def show(columns: Sequence[Column], rows: Sequence[dict[str, Any]], form: str) -> None:
    """Print rows: as JSON whole; as a table the columns named, drawn only on a terminal."""
    if form == "json":
        show_json(rows)
    elif terminal():
        _draw(columns, rows)
    else:
        _align(columns, rows)


def show_pairs(pairs: Iterable[tuple[str, str]]) -> None:
    """Print names and values, aligned."""
    pairs = list(pairs)
    width = max((len(name) for name, _ in pairs), default=0)
    for name, value in pairs:
        click.echo(f"{name:<{width}}  {escape(value)}".rstrip())


def show_json(document: Any) -> None:
    """Print one JSON document; bytes and other strangers as text.

    In ASCII: names of groups and clients are whatever their owners like, and none of their
    characters is to act on a terminal.
    """
    import json

    click.echo(json.dumps(document, default=str, indent=2 if terminal() else None))


def _draw(columns: Sequence[Column], rows: Sequence[dict[str, Any]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column.heading, justify="right" if column.right else "left")
    for row in rows:
        table.add_row(*(Text(column.cell(row)) for column in columns))
    Console().print(table)


def _align(columns: Sequence[Column], rows: Sequence[dict[str, Any]]) -> None:
    cells = [[column.heading for column in columns]]
    cells += [[column.cell(row) for column in columns] for row in rows]
    widths = [max(len(line[at]) for line in cells) for at in range(len(columns))]
    for line in cells:
        padded = [
            cell.rjust(width) if column.right else cell.ljust(width)
            for cell, width, column in zip(line, widths, columns, strict=True)
        ]
        click.echo("  ".join(padded).rstrip())
