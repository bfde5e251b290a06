"""What the commands that talk to a cluster have in common."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from odradek.cli.exits import CommandFailed, ExitCode
from odradek.cli.numbers import NumberRange

if TYPE_CHECKING:
    from odradek.client import Cluster
    from odradek.errors import KafkaError

__all__ = [
    "TopicName",
    "bootstrap_options",
    "conclude",
    "encodable",
    "outcome",
    "with_cluster",
]

F = TypeVar("F", bound=Callable[..., Any])


class TopicName(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.4 only
    """A topic's name; whether it is a good one is the broker's to say."""

    name = "topic"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> str:
        """Return the name; fail for bytes that are no text in the terminal's encoding."""
        return encodable(str(value), "the topic's name")


def encodable(text: str, what: str) -> str:
    """Return a command-line argument that the protocol can carry as text.

    Raises CommandFailed for bytes that are no text: Python keeps them as lone surrogates.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        raise CommandFailed(
            f"{what} is not text in the terminal's encoding: {text!a}", code=ExitCode.USAGE
        ) from None
    return text


def bootstrap_options(command: F) -> F:
    """Give a command `--bootstrap` and `--timeout`."""
    command = click.option(
        "--timeout",
        type=NumberRange(min=0.001),
        default=10.0,
        show_default=True,
        metavar="SECONDS",
        help="How long to try.",
    )(command)
    return click.option(
        "-b",
        "--bootstrap",
        default="127.0.0.1:9092",
        show_default=True,
        envvar="ODRADEK_BOOTSTRAP",
        show_envvar=True,
        metavar="HOST:PORT,...",
        help="A broker's address, or several.",
    )(command)


def with_cluster(
    bootstrap: str, timeout: float, body: Callable[[Cluster], Awaitable[int | None]]
) -> int:
    """Run `body` with the cluster, after a broker was reached; return its exit code.

    Signals cancel it. Raises CommandFailed for a bootstrap list that is none.
    """
    from odradek.cli.running import run_async
    from odradek.client import ClientSettings, bootstrap_urls, open_cluster

    try:
        urls = bootstrap_urls(bootstrap)
    except ValueError as error:
        raise CommandFailed(f"--bootstrap: {error}", code=ExitCode.USAGE) from None
    settings = ClientSettings(
        client_id="odradek-cli", connect_timeout=timeout, request_timeout=max(timeout, 0.1)
    )

    async def main() -> int | None:
        async with open_cluster(urls, settings) as cluster:
            await cluster.retrying(cluster.any_connection, timeout=min(timeout, 1.0))
            return await body(cluster)

    return run_async(main)


def outcome(errors: dict[str, KafkaError | None], done: str) -> int:
    """Report what became of each of several things; return the exit code.

    `done` is what is said of those without an error. All failed: 1; some: 4.
    """
    from odradek.cli.app import report
    from odradek.cli.exits import explain
    from odradek.cli.text import escape, shown

    failed = 0
    for name, error in errors.items():
        if error is None:
            click.echo(f"{done} {escape(name)}")
        else:
            failed += 1
            explained = explain(error)
            report(f"{escape(name)}: {shown(str(error))}", explained[1] if explained else "")
    if not failed:
        return ExitCode.OK
    return ExitCode.FAILED if failed == len(errors) else ExitCode.PARTLY_FAILED


def conclude(errors: dict[str, KafkaError | None], done: str, form: str) -> int:
    """Report what became of each, as `outcome` does; as JSON: `name`, `done`, `error` of each."""
    if form != "json":
        return outcome(errors, done)
    from odradek.cli.tables import show_json

    show_json(
        [
            {
                "name": name,
                "done": error is None,
                "error": None if error is None else error.code.name,
            }
            for name, error in errors.items()
        ]
    )
    failed = {name: error for name, error in errors.items() if error is not None}
    if not failed:
        return ExitCode.OK
    code = outcome({**failed}, done)
    return code if len(failed) == len(errors) else ExitCode.PARTLY_FAILED
