"""`odradek serve`: run a broker until it is told to stop."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING

import click

from odradek.cli.exits import CommandFailed, ExitCode
from odradek.cli.text import shown_url

if TYPE_CHECKING:
    from odradek.broker import Broker
    from odradek.config import Config

__all__ = ["serve"]

_DURABILITY = {
    "ack": "what is acknowledged survives kill -9 and loss of power",
    "interval": "what is acknowledged survives kill -9, all but the last moments loss of power",
    "none": "what is acknowledged survives a clean stop only",
}


@click.command()
@click.option(
    "--listen",
    multiple=True,
    metavar="URL",
    help="Address to listen on. Repeatable.  [default: tcp://127.0.0.1:9092]",
)
@click.option(
    "--advertised",
    multiple=True,
    metavar="HOST:PORT",
    help="What clients connect to, for each --listen in order.",
)
@click.option("--storage", metavar="URL", help="Where logs are kept, such as file:///var/lib/x.")
@click.option(
    "--coordinator",
    metavar="URL",
    help="Where the cluster's state is kept, such as embedded:/var/lib/x/coordinator.",
)
@click.option(
    "--config",
    "file",
    type=click.Path(exists=True, dir_okay=False),
    help="A TOML file; the other options take precedence.",
)
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="SECTION.KEY=VALUE",
    help="Any setting, such as broker.id=2. Repeatable.",
)
@click.option(
    "--log-format", type=click.Choice(["human", "json"]), default="human", show_default=True
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
)
@click.option(
    "--ready-fd",
    type=int,
    metavar="N",
    help="Write a line of JSON to this file descriptor when the broker serves.",
)
def serve(
    listen: tuple[str, ...],
    advertised: tuple[str, ...],
    storage: str | None,
    coordinator: str | None,
    file: str | None,
    overrides: tuple[str, ...],
    log_format: str,
    log_level: str,
    ready_fd: int | None,
) -> int:
    """Run a broker, in the foreground, until SIGINT or SIGTERM.

    It then answers what it has read and closes its logs; a second signal ends it at once. With
    no option at all, logs and topics are kept in the user's data directory.
    """
    started = time.perf_counter()
    from odradek.cli import logs
    from odradek.cli.running import run_async
    from odradek.config import config_from_options

    if ready_fd is not None:
        _check_fd(ready_fd)
    config = config_from_options(
        file=file,
        listen=listen,
        advertised=advertised,
        storage=storage,
        coordinator=coordinator,
        overrides=overrides,
    )
    logs.set_up(log_format, log_level)
    _raise_file_limit()

    async def body() -> None:
        import trio

        from odradek.broker import open_broker

        async with open_broker(config) as broker:
            _announce(broker, config, time.perf_counter() - started)
            if ready_fd is not None:
                _tell_ready(broker, ready_fd)
            _collect_less_often()
            await trio.sleep_forever()

    code = run_async(body, stopped=ExitCode.OK)
    click.echo("stopped")
    return code


def _check_fd(fd: int) -> None:
    try:
        os.fstat(fd)
    except OSError:
        raise CommandFailed(
            f"--ready-fd {fd}: that file descriptor is not open", code=ExitCode.USAGE
        ) from None


def _collect_less_often() -> None:
    """Keep the cyclic garbage collector out of the path of small requests.

    Each request makes some twenty objects that reference counting frees; Python's default of a
    collection per 700 allocations walks them, and everything that is alive, for nothing: about 3
    of 26 microseconds per single-message request. What the start has made never goes away.
    """
    import gc

    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


def _raise_file_limit() -> None:
    """Allow as many open files as the administrator does: segments and connections are files."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):  # macOS refuses "unlimited"
            import logging

            logging.getLogger(__name__).warning("at most %d files may be open", soft)


def _announce(broker: Broker, config: Config, seconds: float) -> None:
    lines = [f"broker {broker.id} of cluster {broker.image.cluster_id}"]
    for name, url in broker.urls.items():
        address = broker.addresses[name]
        clients = "" if url.endswith(f"//{address}") else f", clients use {address}"
        lines.append(f"  listening    {url}{clients}")
    traits = broker.store.traits
    survives = _DURABILITY.get(traits.durability, traits.durability)
    if traits.name == "memory":
        survives = "nothing survives a stop"
    lines.append(
        f"  storage      {shown_url(config.storage.url)}, durability {traits.durability}: "
        f"{survives}"
    )
    lines.append(f"  coordinator  {shown_url(config.coordinator.url)}")
    lines.append(f"ready after {seconds:.2f} s; Ctrl-C stops it")
    click.echo("\n".join(lines))
    sys.stdout.flush()


def _tell_ready(broker: Broker, fd: int) -> None:
    import json

    document = {
        "pid": os.getpid(),
        "broker_id": broker.id,
        "cluster_id": broker.image.cluster_id,
        "addresses": broker.addresses,
        "urls": broker.urls,
    }
    try:
        os.write(fd, json.dumps(document).encode() + b"\n")
        if fd > 2:
            os.close(fd)
    except OSError as error:  # whoever waits for it is gone: no reason to stop serving
        import logging

        logging.getLogger(__name__).warning("--ready-fd %d: %s", fd, error.strerror)
