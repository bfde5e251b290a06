"""Groups as documents for programs and tables for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from odradek.cli.tables import Column, show
from odradek.cli.text import count, escape, plural

if TYPE_CHECKING:
    from odradek.client import Admin, GroupDescription, LogRange, TopicPartition
    from odradek.client.membership import CommittedOffset

__all__ = ["OFFSET_COLUMNS", "describe", "known_ranges", "offset_rows", "show_group"]

OFFSET_COLUMNS = (
    Column("topic"),
    Column("partition", right=True),
    Column("offset", right=True, text=count),
    Column("start_offset", "start", right=True, text=count),
    Column("end_offset", "end", right=True, text=count),
    Column("lag", right=True, text=count),
)


async def known_ranges(
    admin: Admin, partitions: Sequence[TopicPartition]
) -> dict[TopicPartition, LogRange]:
    """Return the ranges of the logs that can be asked for: those that exist and have a leader."""
    from odradek.client import TopicPartition
    from odradek.errors import KafkaError

    names = sorted({each.topic for each in partitions})
    found = await admin.describe_topics(names) if names else {}
    led = {
        TopicPartition(name, each)
        for name, topic in found.items()
        if not isinstance(topic, KafkaError)
        for each in topic.available
    }
    return await admin.log_ranges([each for each in partitions if each in led])


def offset_rows(
    committed: Mapping[TopicPartition, CommittedOffset],
    ranges: Mapping[TopicPartition, LogRange],
    owners: Mapping[TopicPartition, str],
) -> list[dict[str, Any]]:
    """Return what is known of each partition that is committed or owned.

    `lag` counts offsets, as everybody's tools do: of a compacted log it is an upper bound. It
    is None where nothing is committed, or where the log cannot be asked for its end.
    """
    rows = []
    for partition in sorted({*committed, *owners}):
        at, log = committed.get(partition), ranges.get(partition)
        rows.append(
            {
                "topic": partition.topic,
                "partition": partition.partition,
                "offset": None if at is None else at.offset,
                "leader_epoch": None if at is None or at.leader_epoch < 0 else at.leader_epoch,
                "metadata": None if at is None else at.metadata,
                "start_offset": None if log is None else log.start,
                "end_offset": None if log is None else log.end,
                "lag": None if at is None or log is None else max(log.end - at.offset, 0),
                "member_id": owners.get(partition),
            }
        )
    return rows


async def describe(admin: Admin, group: GroupDescription) -> dict[str, Any]:
    """Return everything about a group as one document."""
    committed = await admin.group_offsets(group.group_id)
    owners = {
        partition: member.member_id
        for member in group.members
        for partition in member.partitions or ()
    }
    rows = offset_rows(committed, await known_ranges(admin, sorted({*committed, *owners})), owners)
    return {
        "group": group.group_id,
        "state": group.state,
        "protocol_type": group.protocol_type,
        "protocol": group.protocol,
        "coordinator": {
            "id": group.coordinator.node_id,
            "host": group.coordinator.host,
            "port": group.coordinator.port,
        },
        "lag": sum(row["lag"] or 0 for row in rows),
        "members": [
            {
                "member_id": member.member_id,
                "instance_id": member.instance_id,
                "client_id": member.client_id,
                "host": member.client_host,
                "topics": None if member.topics is None else list(member.topics),
                "partitions": None
                if member.partitions is None
                else [
                    {"topic": each.topic, "partition": each.partition} for each in member.partitions
                ],
            }
            for member in sorted(group.members, key=lambda each: each.member_id)
        ],
        "partitions": rows,
    }


def show_group(document: dict[str, Any]) -> None:
    """Print a group's document for people."""
    where = document["coordinator"]
    protocol = "/".join(filter(None, (document["protocol_type"], document["protocol"])))
    parts = [
        document["group"],
        document["state"],
        *([protocol] if protocol else []),
        f"coordinator {where['id']} ({where['host']}:{where['port']})",
        plural(len(document["members"]), "member"),
        f"lag {count(document['lag'])}",
    ]
    click.echo("  ".join(map(escape, parts)))
    clients = {each["member_id"]: each["client_id"] for each in document["members"]}
    rows = [{**row, "client_id": clients.get(row["member_id"])} for row in document["partitions"]]
    columns = [*OFFSET_COLUMNS]
    if document["members"]:
        columns += [Column("client_id", "client"), Column("member_id", "member")]
    if rows:
        show(columns, rows, "table")
    if document["members"]:
        click.echo()
        columns = [
            Column("member_id", "member"),
            Column("client_id", "client"),
            Column("host"),
            Column("partitions", text=_partitions),
        ]
        if any(each["instance_id"] is not None for each in document["members"]):
            columns.insert(1, Column("instance_id", "instance"))
        show(columns, document["members"], "table")
    click.echo()


def _partitions(partitions: Sequence[Mapping[str, Any]]) -> str:
    topics: dict[str, list[int]] = {}
    for each in partitions:
        topics.setdefault(each["topic"], []).append(each["partition"])
    return " ".join(
        f"{topic}:{','.join(map(str, numbers))}" for topic, numbers in sorted(topics.items())
    )
