"""`odradek groups`: everything about consumer groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from odradek.cli.connecting import bootstrap_options, with_cluster
from odradek.cli.exits import CommandFailed, ExitCode
from odradek.cli.group_choice import GroupId, unknown_group
from odradek.cli.groups_offsets import offsets
from odradek.cli.groups_reset import reset
from odradek.cli.tables import Column, format_option, show, show_json
from odradek.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from odradek.client import Admin, Cluster

__all__ = ["groups"]

STATES = {
    each.lower(): each
    for each in ("Stable", "Empty", "PreparingRebalance", "CompletingRebalance", "Dead")
}


@click.group()
def groups() -> None:
    """List, describe, reset and delete consumer groups."""


groups.add_command(reset)
groups.add_command(offsets)


@groups.command("list")
@click.option(
    "-s",
    "--state",
    "states",
    type=click.Choice(list(STATES), case_sensitive=False),
    multiple=True,
    help="Only groups in this state. Repeatable.",
)
@click.option(
    "--type",
    "types",
    multiple=True,
    metavar="TYPE",
    help="Only groups of this type: classic, consumer, ... Repeatable.",
)
@bootstrap_options
@format_option
def list_(
    states: tuple[str, ...], types: tuple[str, ...], bootstrap: str, timeout: float, form: str
) -> int:
    """List the groups of every broker.

    Exits with 4 when a broker cannot read some of its groups: the list is not complete then.
    """

    async def body(cluster: Cluster) -> int:
        from odradek.client import Admin

        errors: dict[int, KafkaError] = {}
        found = await Admin(cluster, timeout=timeout).list_groups(
            states=[STATES[each.lower()] for each in states], types=types, errors=errors
        )
        rows = [
            {
                "group": each.group_id,
                "state": each.state or None,
                "type": each.type or None,
                "protocol_type": each.protocol_type,
                "coordinator": each.coordinator.node_id,
            }
            for each in found
        ]
        columns = [
            Column("group"),
            Column("state"),
            Column("type"),
            Column("protocol_type", "protocol"),
            Column("coordinator", right=True),
        ]
        show(columns, rows, form)
        return _warn(errors)

    return with_cluster(bootstrap, timeout, body)


def _warn(errors: dict[int, KafkaError]) -> int:
    """Say which brokers have groups that they cannot read; return the exit code."""
    from odradek.cli.app import report

    for broker in sorted(errors):
        report(
            f"broker {broker} cannot read some partitions of __consumer_offsets: "
            "there may be more groups",
            "its own log says which, and what to do",
        )
    return ExitCode.PARTLY_FAILED if errors else ExitCode.OK


@groups.command()
@click.argument("names", type=GroupId(), nargs=-1, metavar="[GROUP...]")
@bootstrap_options
@format_option
def describe(names: tuple[str, ...], bootstrap: str, timeout: float, form: str) -> int:
    """Show state, members, offsets and lag of groups; of all, when none is named."""

    async def body(cluster: Cluster) -> int:
        from odradek.cli.app import report
        from odradek.cli.exits import explain
        from odradek.cli.group_views import describe, show_group
        from odradek.client import Admin

        admin = Admin(cluster, timeout=timeout)
        errors: dict[int, KafkaError] = {}
        listed = (
            {}
            if names
            else {each.group_id: each for each in await admin.list_groups(errors=errors)}
        )
        chosen = names or tuple(listed)
        found = await admin.describe_groups(chosen) if chosen else {}
        documents = [
            await describe(admin, each)
            for each in found.values()
            if not isinstance(each, KafkaError)
        ]
        if form == "json":
            show_json(documents)
        else:
            for document in documents:
                show_group(document)
        failed = {name: each for name, each in found.items() if isinstance(each, KafkaError)}
        absent = ErrorCode.GROUP_ID_NOT_FOUND
        for name in [*failed]:
            gone = name in listed and listed[name].type in ("", "classic")
            if gone and failed[name].code == absent:  # since it was listed
                del failed[name]
        for name, error in failed.items():
            failure: Exception = error
            if error.code == absent:
                failure = await unknown_group(admin, name)
            explained = explain(failure)
            assert explained is not None
            report(explained[0], explained[1])
        if not failed:
            return _warn(errors)
        _warn(errors)
        return ExitCode.PARTLY_FAILED if documents else ExitCode.FAILED

    return with_cluster(bootstrap, timeout, body)


@groups.command()
@click.argument("names", type=GroupId(), nargs=-1, required=True, metavar="GROUP...")
@click.option("--if-exists", is_flag=True, help="A group that does not exist is no failure.")
@bootstrap_options
@format_option
def delete(
    names: tuple[str, ...], if_exists: bool, bootstrap: str, timeout: float, form: str
) -> int:
    """Delete groups without members, with all their offsets, for good."""

    async def body(cluster: Cluster) -> int:
        from odradek.client import Admin

        admin = Admin(cluster, timeout=timeout)
        errors = await admin.delete_groups(names)
        if if_exists:
            missing = ErrorCode.GROUP_ID_NOT_FOUND
            errors = {
                name: None if error is not None and error.code == missing else error
                for name, error in errors.items()
            }
        return await _tell_deleted(admin, errors, form)

    return with_cluster(bootstrap, timeout, body)


async def _tell_deleted(admin: Admin, errors: dict[str, KafkaError | None], form: str) -> int:
    """Report what became of each group; return the exit code."""
    from odradek.cli.app import report
    from odradek.cli.exits import explain
    from odradek.cli.text import escape

    done = {name: None for name, error in errors.items() if error is None}
    if form == "json":
        show_json(
            [
                {"name": name, "done": error is None, "error": error.code.name if error else None}
                for name, error in errors.items()
            ]
        )
    else:
        for name in done:
            click.echo(f"deleted {escape(name)}")
    for name, error in errors.items():
        failure: Exception | None = error
        if error is None:
            continue
        if error.code == ErrorCode.GROUP_ID_NOT_FOUND:
            failure = await unknown_group(admin, name)
        elif error.code == ErrorCode.NON_EMPTY_GROUP:
            failure = CommandFailed(
                f"group {name!r} has members",
                hint="stop them: `odradek groups describe GROUP` shows them",
            )
        assert failure is not None
        explained = explain(failure)
        assert explained is not None
        report(explained[0], explained[1])
    if len(done) == len(errors):
        return ExitCode.OK
    return ExitCode.PARTLY_FAILED if done else ExitCode.FAILED
