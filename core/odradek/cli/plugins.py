"""`odradek plugins`: which plugins are installed, and what they serve."""

from __future__ import annotations

import click

from odradek.cli.exits import ExitCode
from odradek.cli.tables import Column, format_option, show, show_json
from odradek.cli.text import escape

__all__ = ["plugins"]


@click.command()
@format_option
def plugins(form: str) -> int:
    """List the plugins that are installed, and the URL schemes they serve.

    Also says whether records are read and written by compiled code or by pure Python.

    Exits with 4 when one of them cannot be used.
    """
    from odradek.plugins import load
    from odradek.record import accelerated, implementation

    found = load().describe()
    rows = [
        {
            "plugin": info.name,
            "distribution": f"{info.distribution} {info.version}".rstrip(),
            "storage": list(info.schemes.get("storage", ())),
            "coordinator": list(info.schemes.get("coordinator", ())),
            "transport": list(info.schemes.get("transport", ())),
            "location": info.location,
            "problem": info.problem,
        }
        for info in found
    ]
    kinds = [Column(kind, text=_schemes) for kind in ("storage", "coordinator", "transport")]
    columns = [Column("plugin"), *kinds, Column("distribution")]
    if any(info.problem for info in found):
        columns.append(Column("problem"))
    broken = any(info.problem for info in found)
    if form == "json":
        codec = {"accelerated": accelerated, "implementation": implementation()}
        show_json({"plugins": rows, "record_codec": codec})
    else:
        show(columns, rows, form)
        click.echo(f"\nrecord codec: {escape(implementation())}")
    return ExitCode.PARTLY_FAILED if broken else ExitCode.OK


def _schemes(names: list[str]) -> str:
    return " ".join(f"{name}:" for name in names) or "-"
