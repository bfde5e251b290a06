"""The commands, by name; and what every one of them has in common when it ends."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module

import click

from odradek.cli.exits import ExitCode, explain

__all__ = ["LazyGroup", "cli", "run"]

COMMANDS = {
    "serve": ("odradek.cli.serve:serve", "Run a broker."),
    "topics": ("odradek.cli.topics:topics", "List, create, describe, alter, delete topics."),
    "groups": (
        "odradek.cli.groups:groups",
        "List, describe, reset, delete consumer groups; their offsets.",
    ),
    "produce": ("odradek.cli.produce:produce", "Send records from a file or standard input."),
    "consume": ("odradek.cli.consume:consume", "Read records of a topic."),
    "log": (
        "odradek.cli.log:log",
        "Look into a storage without a broker: verify, scrub, dump, repair.",
    ),
    "config": ("odradek.cli.config:config", "Check, show and explain configurations."),
    "plugins": ("odradek.cli.plugins:plugins", "List the plugins that are installed."),
    "demo": ("odradek.cli.demo:demo", "Run real data of this machine through a broker."),
    "version": ("odradek.cli.version:version", "Print versions."),
}


class LazyGroup(click.Group):
    """A group whose commands are imported when they are called; help needs none of them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names, in the order they are presented."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command."""
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name][0].partition(":")
        command = getattr(import_module(module), name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
def cli() -> None:
    """A partitioned, append-only log service that speaks the Kafka protocol.

    `odradek demo` shows it at work; `odradek serve` runs a broker on 127.0.0.1:9092.
    """


def run(arguments: Sequence[str]) -> int:
    """Run a command line and return its exit code; failures are one line on standard error."""
    try:
        outcome = cli.main(list(arguments), prog_name="odradek", standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return ExitCode.INTERRUPTED
    except (BrokenPipeError, SystemExit):
        # Whoever read the output has gone: click makes SystemExit of it, and of nothing else
        # here. Python would complain once more when it flushes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.BROKEN_PIPE
    except Exception as error:
        explained = explain(error)
        if explained is None:
            raise
        message, hint, code = explained
        report(message, hint)
        return code
    return outcome if isinstance(outcome, int) else ExitCode.OK


def report(message: str, hint: str = "") -> None:
    """Write a failure to standard error: what is wrong, and what to do."""
    lines = message.splitlines() or ["unknown error"]
    click.echo("\n".join(f"odradek: {line}" for line in lines), err=True)
    if hint:
        click.echo(f"  {hint}", err=True)
