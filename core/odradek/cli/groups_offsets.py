"""`odradek groups offsets`: what a group has committed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from odradek.cli.connecting import bootstrap_options, conclude, with_cluster
from odradek.cli.exits import CommandFailed, ExitCode
from odradek.cli.group_choice import (
    Chosen,
    GroupId,
    existing,
    named_partitions,
    topic_options,
    unknown_group,
)
from odradek.cli.tables import Column, format_option, show

if TYPE_CHECKING:
    from odradek.client import Cluster

__all__ = ["offsets"]


class _ShowByDefault(click.Group):
    """A group of commands that takes its first argument for a consumer group where it is none."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put `show` in front of what names no command."""
        if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
            args = ["show", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_ShowByDefault)
def offsets() -> None:
    """Show or delete the committed offsets of a group: `odradek groups offsets GROUP`.

    A group that has the name of a command below is shown by `offsets show NAME`.
    """


@offsets.command("show")
@click.argument("group", type=GroupId())
@topic_options
@bootstrap_options
@format_option
def show_(
    group: str,
    topics: tuple[Chosen, ...],
    all_topics: bool,
    bootstrap: str,
    timeout: float,
    form: str,
) -> int:
    """Show the committed offsets of GROUP, with lag; of all topics, when none is named.

    With --format json this is what `groups reset --from-file` reads.
    """
    if topics and all_topics:
        raise CommandFailed("either --topic or --all-topics", code=ExitCode.USAGE)

    async def body(cluster: Cluster) -> None:
        from odradek.cli.group_views import OFFSET_COLUMNS, known_ranges, offset_rows
        from odradek.client import Admin

        admin = Admin(cluster, timeout=timeout)
        only = await named_partitions(admin, topics) if topics else None
        committed = await admin.group_offsets(group, only)
        if not committed and await existing(admin, group) is None:
            raise await unknown_group(admin, group)
        rows = offset_rows(committed, await known_ranges(admin, sorted(committed)), {})
        for row in rows:
            del row["member_id"]  # who owns a partition is not asked for here
        columns = [*OFFSET_COLUMNS]
        if any(row["metadata"] for row in rows):
            columns.append(Column("metadata"))
        show(columns, rows, form)

    return with_cluster(bootstrap, timeout, body)


@offsets.command()
@click.argument("group", type=GroupId())
@topic_options
@bootstrap_options
@format_option
def delete(
    group: str,
    topics: tuple[Chosen, ...],
    all_topics: bool,
    bootstrap: str,
    timeout: float,
    form: str,
) -> int:
    """Delete committed offsets of GROUP: its members will begin where --from sends them.

    Topics that members are subscribed to are refused.
    """
    if bool(topics) == all_topics:
        raise CommandFailed(
            "which offsets?" if not topics else "either --topic or --all-topics",
            code=ExitCode.USAGE,
            hint="--topic TOPIC, --topic TOPIC:0,1 or --all-topics",
        )

    async def body(cluster: Cluster) -> int:
        from odradek.client import Admin

        admin = Admin(cluster, timeout=timeout)
        if await existing(admin, group) is None:
            raise await unknown_group(admin, group)
        committed = await admin.group_offsets(group)
        chosen = sorted(committed if all_topics else await named_partitions(admin, topics))
        results = await admin.delete_group_offsets(group, chosen)
        return conclude({str(each): results[each] for each in chosen}, "deleted offset of", form)

    return with_cluster(bootstrap, timeout, body)
