"""`odradek log`: look into a storage without a broker, and mend it."""

from __future__ import annotations

import click

from odradek.cli.log_dump import dump
from odradek.cli.log_quarantine import quarantine
from odradek.cli.log_repair import repair
from odradek.cli.log_scrub import scrub
from odradek.cli.log_verify import verify

__all__ = ["log"]


@click.group()
def log() -> None:
    """Look into a storage without a broker, and mend it.

    Works for every storage, through its plugin; where the plugin can, beside a running broker.
    Partitions are named by topic id, as in the storage itself.
    """


for _command in (verify, scrub, dump, repair, quarantine):
    log.add_command(_command)
