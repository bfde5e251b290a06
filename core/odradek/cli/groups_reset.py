"""`odradek groups reset`: move a group's committed offsets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import IO, TYPE_CHECKING, Any

import click

from odradek.cli.connecting import bootstrap_options, with_cluster
from odradek.cli.exits import CommandFailed, ExitCode
from odradek.cli.group_choice import (
    Chosen,
    GroupId,
    existing,
    named_partitions,
    partition_counts,
    topic_options,
    unknown_group,
)
from odradek.cli.tables import Column, format_option, show
from odradek.cli.text import count, plural
from odradek.cli.times import SpanType, TimeType
from odradek.errors import KafkaError

if TYPE_CHECKING:
    from odradek.client import Admin, Cluster, OffsetChange, OffsetReset, TopicPartition

__all__ = ["reset"]

TARGETS = (
    "--to-earliest, --to-latest, --to-time, --to-offset, --shift-by, --by-duration or --from-file"
)
LONGEST_FILE = 64 * 1024 * 1024


@click.command()
@click.argument("group", type=GroupId())
@topic_options
@click.option("--to-earliest", is_flag=True, help="To the start of the logs.")
@click.option("--to-latest", is_flag=True, help="To the end of the logs.")
@click.option(
    "--to-time",
    type=TimeType(),
    metavar="TIME",
    help="To the first record since 2026-01-31T12:00, -10m (ago) or @ms since 1970.",
)
@click.option("--to-offset", type=click.IntRange(0), metavar="OFFSET", help="To this offset.")
@click.option(
    "--shift-by", type=int, metavar="N", help="N records on, or back where N is negative."
)
@click.option(
    "--by-duration",
    type=SpanType(),
    metavar="SPAN",
    help="To the first record of the last 90s, 2h, 7d or P1DT12H.",
)
@click.option(
    "--from-file",
    type=click.File("r", encoding="utf-8"),
    metavar="FILE",
    help="To offsets that `groups offsets --format json`, or Kafka's tool, wrote. - for stdin.",
)
@click.option("--execute", is_flag=True, help="Do it. Without it, only what would change is shown.")
@click.option("--create", is_flag=True, help="A group that does not exist yet is no failure.")
@bootstrap_options
@format_option
def reset(
    group: str,
    topics: tuple[Chosen, ...],
    all_topics: bool,
    to_earliest: bool,
    to_latest: bool,
    to_time: int | None,
    to_offset: int | None,
    shift_by: int | None,
    by_duration: int | None,
    from_file: IO[str] | None,
    execute: bool,
    create: bool,
    bootstrap: str,
    timeout: float,
    form: str,
) -> int:
    """Move the committed offsets of GROUP, which must have no members.

    A dry run, unless --execute is given: it shows the old and new offset of each partition.
    An offset that the log does not hold becomes the nearest that it does, and is marked.
    """
    import time

    from odradek.client import EARLIEST, LATEST, ShiftBy, ToOffset, ToTime

    targets: list[OffsetReset] = []
    if to_earliest:
        targets.append(ToTime(EARLIEST))
    if to_latest:
        targets.append(ToTime(LATEST))
    if to_time is not None:
        targets.append(ToTime(to_time))
    if to_offset is not None:
        targets.append(ToOffset(to_offset))
    if shift_by is not None:
        targets.append(ShiftBy(shift_by))
    if by_duration is not None:
        targets.append(ToTime(max(time.time_ns() // 1_000_000 - by_duration, 0)))
    if from_file is not None:
        targets.append(_listed(from_file))
    if len(targets) != 1:
        problem = "where to?" if not targets else "one target only"
        raise CommandFailed(problem, code=ExitCode.USAGE, hint=TARGETS)
    if topics and all_topics:
        raise CommandFailed("either --topic or --all-topics", code=ExitCode.USAGE)
    if not topics and not all_topics and from_file is None:
        raise CommandFailed(
            "which partitions?",
            code=ExitCode.USAGE,
            hint="--topic TOPIC, --topic TOPIC:0,1 or --all-topics",
        )

    async def body(cluster: Cluster) -> int:
        from odradek.client import Admin, ResetImpossible

        admin = Admin(cluster, timeout=timeout)
        await _inactive(admin, group, create)
        partitions = await _partitions(admin, group, topics, targets[0])
        try:
            changes = await admin.plan_group_reset(group, partitions, targets[0])
        except ResetImpossible as error:
            raise CommandFailed(str(error), hint="name the others by --topic TOPIC:0,1") from None
        errors: dict[TopicPartition, KafkaError | None] = {}
        if execute:
            errors = await admin.alter_group_offsets(
                group, {each.partition: each.new for each in changes}
            )
        return _tell(changes, errors, execute, form)

    return with_cluster(bootstrap, timeout, body)


def _listed(file: IO[str]) -> OffsetReset:
    from odradek.client import ToOffsets
    from odradek.client.offset_reset import parse_offsets

    try:
        text = file.read(LONGEST_FILE + 1)
        if len(text) > LONGEST_FILE:
            raise ValueError(f"more than {LONGEST_FILE} characters")
        return ToOffsets(parse_offsets(text))
    except ValueError as error:  # what is no UTF-8 too
        raise CommandFailed(f"{file.name}: {error}", code=ExitCode.USAGE) from None


async def _inactive(admin: Admin, group: str, create: bool) -> None:
    """Raise CommandFailed unless the group's offsets may be changed by somebody else."""
    found = await existing(admin, group)
    if found is None:
        if create:
            return
        failure = await unknown_group(admin, group)
        if failure.hint:  # it may be there after all, and be of another type
            failure.hint += " (--create begins a new group)"
        raise failure
    if found.active:
        hint = "stop them: `odradek groups describe GROUP` shows them"
        if any(each.instance_id is not None for each in found.members):
            hint += "; a static member stays for its session timeout after it stopped"
        raise CommandFailed(
            f"group {group!r} has {plural(len(found.members), 'member')} (it is {found.state}): "
            "only a group without any can be reset",
            hint=hint,
        )


async def _partitions(
    admin: Admin, group: str, topics: Sequence[Chosen], target: OffsetReset
) -> list[TopicPartition]:
    """Return the partitions to reset. Raises CommandFailed if there are none."""
    from odradek.client import ShiftBy, ToOffsets, TopicPartition

    named = await named_partitions(admin, topics)
    if isinstance(target, ToOffsets):
        listed = [Chosen(each.topic, (each.partition,)) for each in target.offsets]
        in_file = await named_partitions(admin, listed)
        chosen = [each for each in in_file if each in named] if topics else in_file
    elif topics:
        chosen = named
    else:
        committed = await admin.group_offsets(group)
        if isinstance(target, ShiftBy):
            chosen = sorted(committed)
        else:
            # Partitions that it has nothing of yet, too: else they would go their own way.
            sizes = await partition_counts(admin, {each.topic for each in committed})
            chosen = [TopicPartition(name, n) for name, size in sizes.items() for n in range(size)]
    if not chosen:
        raise CommandFailed(
            f"there is nothing to reset: group {group!r} has no offsets of these partitions",
            hint="name topics by --topic",
        )
    return chosen


def _tell(
    changes: Sequence[OffsetChange],
    errors: dict[TopicPartition, KafkaError | None],
    execute: bool,
    form: str,
) -> int:
    """Print what would become, or became, of each partition; return the exit code."""
    from odradek.cli.app import report
    from odradek.cli.exits import explain
    from odradek.cli.text import shown

    rows: list[dict[str, Any]] = []
    for each in changes:
        error = errors.get(each.partition)
        rows.append(
            {
                "topic": each.partition.topic,
                "partition": each.partition.partition,
                "old_offset": each.old,
                "new_offset": each.new,
                "wanted_offset": each.wanted,
                "clamped": each.clamped,
                "start_offset": each.log.start,
                "end_offset": each.log.end,
                "lag": each.lag,
                "done": execute and error is None,
                "error": None if error is None else error.code.name,
            }
        )
    if form == "json":
        show(_COLUMNS, rows, form)
    else:
        notes = [{**row, "note": _note(row)} for row in rows]
        columns = [*_COLUMNS]
        if any(row["note"] for row in notes):
            columns.append(Column("note", ""))
        show(columns, notes, form)
    if not execute:
        click.echo("dry run: nothing was changed; --execute does it", err=True)
        return ExitCode.OK
    failed = {each: error for each, error in errors.items() if error is not None}
    for partition, error in sorted(failed.items(), key=lambda item: item[0]):
        explained = explain(error)
        report(f"{partition}: {shown(str(error))}", explained[1] if explained else "")
    if not failed:
        return ExitCode.OK
    return ExitCode.FAILED if len(failed) == len(changes) else ExitCode.PARTLY_FAILED


def _note(row: dict[str, Any]) -> str:
    if row["error"]:
        return str(row["error"])
    if row["clamped"]:
        end = "start" if row["new_offset"] == row["start_offset"] else "end"
        return f"not {count(row['wanted_offset'])}: that is beyond the {end} of the log"
    return ""


_COLUMNS = (
    Column("topic"),
    Column("partition", right=True),
    Column("old_offset", "old", right=True, text=count),
    Column("new_offset", "new", right=True, text=count),
    Column("start_offset", "start", right=True, text=count),
    Column("end_offset", "end", right=True, text=count),
    Column("lag", right=True, text=count),
)
