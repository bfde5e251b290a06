"""`odradek topics`: everything about topics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from odradek.cli.connecting import (
    TopicName,
    bootstrap_options,
    conclude,
    encodable,
    outcome,
    with_cluster,
)
from odradek.cli.exits import CommandFailed, ExitCode
from odradek.cli.tables import Column, format_option, show, show_json
from odradek.cli.text import count, escape, plural, size
from odradek.cli.times import StartType
from odradek.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from odradek.client import Admin, Cluster, ConfigEntry, TopicInfo

__all__ = ["topics"]


@click.group()
def topics() -> None:
    """List, create, describe, alter and delete topics."""


@topics.command("list")
@click.option("--internal", is_flag=True, help="Show the cluster's own topics too.")
@bootstrap_options
@format_option
def list_(internal: bool, bootstrap: str, timeout: float, form: str) -> int:
    """List all topics."""

    async def body(cluster: Cluster) -> None:
        found = await _admin(cluster, timeout).list_topics(internal=internal)
        rows = [
            {
                "topic": topic.name,
                "partitions": len(topic.partitions),
                "replicas": max((len(each.replicas) for each in topic.partitions), default=0),
                "without_leader": len(topic.partitions) - len(topic.available),
                "topic_id": str(topic.topic_id),
            }
            for topic in found.values()
        ]
        columns = [
            Column("topic"),
            Column("partitions", right=True),
            Column("replicas", right=True),
            Column("topic_id", "id"),
        ]
        if any(row["without_leader"] for row in rows):
            columns.insert(3, Column("without_leader", right=True))
        show(columns, rows, form)

    return with_cluster(bootstrap, timeout, body)


@topics.command()
@click.argument("names", type=TopicName(), nargs=-1, required=True, metavar="NAME...")
@click.option("-p", "--partitions", type=click.IntRange(1), help="Default: the broker's.")
@click.option("-r", "--replication-factor", type=click.IntRange(1), help="Default: the broker's.")
@click.option("-c", "--config", "configs", multiple=True, metavar="KEY=VALUE", help="Repeatable.")
@click.option("--if-not-exists", is_flag=True, help="A topic that exists is no failure.")
@click.option("--dry-run", is_flag=True, help="Only check whether it would work.")
@bootstrap_options
@format_option
def create(
    names: tuple[str, ...],
    partitions: int | None,
    replication_factor: int | None,
    configs: tuple[str, ...],
    if_not_exists: bool,
    dry_run: bool,
    bootstrap: str,
    timeout: float,
    form: str,
) -> int:
    """Create topics."""
    settings = dict(_pairs(configs))

    async def body(cluster: Cluster) -> int:
        from odradek.client import NewTopic

        new = [
            NewTopic(
                name=name,
                partitions=partitions or -1,
                replication_factor=replication_factor or -1,
                configs=settings,
            )
            for name in names
        ]
        results = await _admin(cluster, timeout).create_topics(new, validate_only=dry_run)
        errors = {
            name: result if isinstance(result, KafkaError) else None
            for name, result in results.items()
        }
        if if_not_exists:
            exists = ErrorCode.TOPIC_ALREADY_EXISTS
            errors = {
                name: None if error is not None and error.code == exists else error
                for name, error in errors.items()
            }
        return conclude(errors, "could create" if dry_run else "created", form)

    return with_cluster(bootstrap, timeout, body)


@topics.command()
@click.argument("names", type=TopicName(), nargs=-1, metavar="[NAME...]")
@click.option("--all-settings", is_flag=True, help="Show settings at their default too.")
@bootstrap_options
@format_option
def describe(
    names: tuple[str, ...], all_settings: bool, bootstrap: str, timeout: float, form: str
) -> int:
    """Show partitions, offsets, sizes and settings of topics; of all, when none is named."""

    async def body(cluster: Cluster) -> int:
        admin = _admin(cluster, timeout)
        if names:
            found = await admin.describe_topics(names)
        else:
            found = {**await admin.list_topics()}
        known = [each for each in found.values() if not isinstance(each, KafkaError)]
        errors = {name: each for name, each in found.items() if isinstance(each, KafkaError)}
        documents = await _describe(admin, known, all_settings)
        if form == "json":
            show_json(documents)
        else:
            for document in documents:
                _show_topic(document)
        if errors:
            code = outcome({**errors}, "")
            return ExitCode.PARTLY_FAILED if known else code
        return ExitCode.OK

    return with_cluster(bootstrap, timeout, body)


async def _describe(
    admin: Admin, known: Sequence[TopicInfo], all_settings: bool
) -> list[dict[str, Any]]:
    from odradek.client import EARLIEST, LATEST, ConfigResource, TopicPartition, list_offsets

    led = [TopicPartition(topic.name, each) for topic in known for each in topic.available]
    starts = await list_offsets(admin.cluster, dict.fromkeys(led, EARLIEST)) if led else {}
    ends = await list_offsets(admin.cluster, dict.fromkeys(led, LATEST)) if led else {}
    resources = [ConfigResource("topic", topic.name) for topic in known]
    configs = await admin.configs.describe(resources) if resources else {}
    sizes = {
        (found.node_id, replica.partition): replica.size
        for found in await admin.describe_log_dirs()
        for replica in found.replicas
    }
    documents = []
    for topic in known:
        settings = configs.get(ConfigResource("topic", topic.name), {})
        shown = {
            name: entry
            for name, entry in ({} if isinstance(settings, KafkaError) else settings).items()
            if all_settings or not entry.is_default
        }
        partitions = []
        for each in topic.partitions:
            key = TopicPartition(topic.name, each.partition)
            leader = each.leader.node_id if each.leader is not None else None
            start, end = starts.get(key), ends.get(key)
            partitions.append(
                {
                    "partition": each.partition,
                    "leader": leader,
                    "leader_epoch": each.leader.epoch if each.leader is not None else None,
                    "replicas": list(each.replicas),
                    "isr": list(each.isr),
                    "start_offset": start.offset if start is not None else None,
                    "end_offset": end.offset if end is not None else None,
                    "bytes": sizes.get((leader, key)) if leader is not None else None,
                }
            )
        documents.append(
            {
                "topic": topic.name,
                "topic_id": str(topic.topic_id),
                "internal": topic.internal,
                "partitions": partitions,
                "settings": {name: entry.value for name, entry in shown.items()},
                "origins": {name: _origin(entry) for name, entry in shown.items()},
            }
        )
    return documents


def _show_topic(document: dict[str, Any]) -> None:
    partitions = document["partitions"]
    click.echo(
        f"{escape(document['topic'])}  id {document['topic_id']}  "
        f"{plural(len(partitions), 'partition')}"
    )
    show(
        [
            Column("partition", right=True),
            Column("leader", right=True),
            Column("leader_epoch", "epoch", right=True),
            Column("replicas", text=_numbers),
            Column("isr", text=_numbers),
            Column("start_offset", "start", right=True, text=count),
            Column("end_offset", "end", right=True, text=count),
            Column("bytes", "size", right=True, text=size),
        ],
        partitions,
        "table",
    )
    for name, value in sorted(document["settings"].items()):
        origin = document["origins"][name]
        click.echo(f"  {escape(name)} = {escape(str(value))}  ({origin})")
    click.echo()


def _origin(entry: ConfigEntry) -> str:
    """Return who set it: `topic`, `broker`, `cluster` (all brokers, at run time), `default`."""
    from odradek.client import ConfigSource

    return {
        ConfigSource.DYNAMIC_TOPIC: "topic",
        ConfigSource.DYNAMIC_BROKER: "broker",
        ConfigSource.STATIC_BROKER: "broker",
        ConfigSource.DYNAMIC_DEFAULT_BROKER: "cluster",
        ConfigSource.DEFAULT: "default",
    }.get(entry.source, "unknown")


def _numbers(values: Sequence[int]) -> str:
    return ",".join(map(str, values))


@topics.command()
@click.argument("names", type=TopicName(), nargs=-1, required=True, metavar="NAME...")
@click.option("--set", "to_set", multiple=True, metavar="KEY=VALUE", help="Repeatable.")
@click.option("--unset", multiple=True, metavar="KEY", help="Back to the default. Repeatable.")
@click.option("--dry-run", is_flag=True, help="Only check whether it would work.")
@bootstrap_options
@format_option
def alter(
    names: tuple[str, ...],
    to_set: tuple[str, ...],
    unset: tuple[str, ...],
    dry_run: bool,
    bootstrap: str,
    timeout: float,
    form: str,
) -> int:
    """Change settings of topics; those that are not named stay as they are."""
    pairs = _pairs(to_set, unset)
    if not pairs and not unset:
        raise CommandFailed("nothing to change", code=ExitCode.USAGE, hint="use --set or --unset")

    async def body(cluster: Cluster) -> int:
        from odradek.client import ConfigAlteration, ConfigResource

        changes = [ConfigAlteration(name, value) for name, value in pairs]
        changes += [ConfigAlteration(name, operation="delete") for name in unset]
        resources = {ConfigResource("topic", name): changes for name in names}
        found = await _admin(cluster, timeout).configs.alter(resources, validate_only=dry_run)
        errors = {resource.name: error for resource, error in found.items()}
        return conclude(errors, "could alter" if dry_run else "altered", form)

    return with_cluster(bootstrap, timeout, body)


@topics.command()
@click.argument("names", type=TopicName(), nargs=-1, required=True, metavar="NAME...")
@click.option("--if-exists", is_flag=True, help="A topic that does not exist is no failure.")
@bootstrap_options
@format_option
def delete(
    names: tuple[str, ...], if_exists: bool, bootstrap: str, timeout: float, form: str
) -> int:
    """Delete topics with all their records, for good."""

    async def body(cluster: Cluster) -> int:
        errors = await _admin(cluster, timeout).delete_topics(names)
        if if_exists:
            missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            errors = {
                name: None if error is not None and error.code == missing else error
                for name, error in errors.items()
            }
        return conclude(errors, "deleted", form)

    return with_cluster(bootstrap, timeout, body)


@topics.command("add-partitions")
@click.argument("names", type=TopicName(), nargs=-1, required=True, metavar="NAME...")
@click.option("--to", "total", type=click.IntRange(2), required=True, help="The new total.")
@bootstrap_options
@format_option
def add_partitions(
    names: tuple[str, ...], total: int, bootstrap: str, timeout: float, form: str
) -> int:
    """Raise the number of partitions. Keys will go to other partitions than before."""

    async def body(cluster: Cluster) -> int:
        errors = await _admin(cluster, timeout).create_partitions(dict.fromkeys(names, total))
        return conclude(errors, f"{total} partitions now has", form)

    return with_cluster(bootstrap, timeout, body)


@topics.command()
@click.argument("name", type=TopicName())
@click.option(
    "--before",
    type=StartType(),
    required=True,
    metavar="latest|OFFSET|TIME",
    help="Delete what lies before this offset or time.",
)
@click.option(
    "-p",
    "--partition",
    "only",
    type=click.IntRange(0),
    multiple=True,
    help="Only this partition. Repeatable.",
)
@bootstrap_options
@format_option
def trim(
    name: str,
    before: tuple[int | None, int | None],
    only: tuple[int, ...],
    bootstrap: str,
    timeout: float,
    form: str,
) -> int:
    """Delete the oldest records of a topic, for good."""

    async def body(cluster: Cluster) -> int:
        from odradek.client import LATEST, TopicPartition, list_offsets

        topic = await cluster.topic(name, timeout=0)
        wanted = only or range(len(topic.partitions))
        partitions = [TopicPartition(name, each) for each in wanted]
        offset, time = before
        if offset is None:
            assert time is not None
            found = await list_offsets(cluster, dict.fromkeys(partitions, time))
            ends = await list_offsets(cluster, dict.fromkeys(partitions, LATEST))
            limits = {
                each: at.offset if at.offset >= 0 else ends[each].offset
                for each, at in found.items()
            }
        else:
            limits = dict.fromkeys(partitions, offset)
        results = await _admin(cluster, timeout).delete_records(limits)
        errors = {
            f"{each}"
            if isinstance(result, KafkaError) or form == "json"
            else f"{each}, which starts at {result}": (
                result if isinstance(result, KafkaError) else None
            )
            for each, result in sorted(results.items())
        }
        return conclude(errors, "trimmed", form)

    return with_cluster(bootstrap, timeout, body)


def _admin(cluster: Cluster, timeout: float) -> Admin:
    from odradek.client import Admin

    return Admin(cluster, timeout=timeout)


def _pairs(texts: Sequence[str], more: Sequence[str] = ()) -> list[tuple[str, str]]:
    """Return the settings KEY=VALUE. Raises CommandFailed if one is given twice; `more` counts."""
    pairs = [_pair(each) for each in texts]
    names = [name for name, _ in pairs] + [name.strip() for name in more]
    for at, name in enumerate(names):
        if name in names[:at]:
            raise CommandFailed(f"{escape(name)} is given twice", code=ExitCode.USAGE)
    return pairs


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = encodable(text, "a setting").partition("=")
    if not equals or not name:
        raise CommandFailed(f"{text!r} is not KEY=VALUE", code=ExitCode.USAGE)
    return name.strip(), value.strip()
