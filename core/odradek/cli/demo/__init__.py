"""`odradek demo`: this machine's own data through a broker and back, checked.

* `sources`, `metrics`: what is published; `publish`: publishing it
* `check`: the second process, which reads it back; `checksum`, `insights`: what it works out
* `place`: the directory and the broker; `progress`, `summary`: what is shown; `run`: all of it
"""

from __future__ import annotations

from pathlib import Path

import click

from odradek.cli.exits import CommandFailed, ExitCode
from odradek.cli.numbers import NumberRange

__all__ = ["demo"]


@click.command()
@click.argument("paths", nargs=-1, metavar="[PATH...]", type=click.Path(path_type=Path))
@click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where to keep the data.  [default: in the user's cache directory]",
)
@click.option(
    "--keep/--no-keep",
    default=True,
    show_default=True,
    help="Leave the data when the demo ends; the next one replaces it.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    help="Of the broker.  [default: 9092, or a free one if that is taken]",
)
@click.option(
    "--seconds",
    type=NumberRange(0.1, 3600),
    default=4.0,
    show_default=True,
    help="How long to sample metrics.",
)
@click.option(
    "--stay/--no-stay",
    default=None,
    help="Keep the broker running until Ctrl-C.  [default: on a terminal]",
)
def demo(
    paths: tuple[Path, ...],
    directory: Path | None,
    keep: bool,
    port: int | None,
    seconds: float,
    stay: bool | None,
) -> int:
    """Run real data of this machine through a broker, and check that it comes back.

    Starts a broker with its defaults (files, embedded coordinator, TCP on this machine only),
    publishes the machine's metrics and log files (or PATHs), reads everything back in a second
    process that compares counts and checksums, and says what there was to see. Nothing leaves
    the machine. On a terminal the broker stays up until Ctrl-C.
    """
    for path in paths:
        try:
            path.stat()
        except OSError as error:
            raise CommandFailed(f"{path}: {error.strerror}", code=ExitCode.USAGE) from None
    from odradek.cli.demo.run import run

    return run(paths, directory, keep=keep, port=port, seconds=seconds, stay=stay)
