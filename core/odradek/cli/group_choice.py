"""Which group, and which of its partitions, a command is about."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from odradek.cli.connecting import encodable
from odradek.cli.exits import CommandFailed, ExitCode
from odradek.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from odradek.client import Admin, GroupDescription, TopicPartition

__all__ = [
    "Chosen",
    "GroupId",
    "existing",
    "named_partitions",
    "nearest",
    "topic_options",
    "unknown_group",
]

F = TypeVar("F", bound=Callable[..., Any])


class GroupId(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.4 only
    """A group's id: any text but none at all."""

    name = "group"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> str:
        """Return the id; fail for bytes that are no text in the terminal's encoding."""
        text = encodable(str(value), "the group's id")
        if not text:
            self.fail("a group's id cannot be empty", param, ctx)
        return text


class Chosen(NamedTuple):
    """A topic, and some of its partitions; all of them where there are none."""

    topic: str
    partitions: tuple[int, ...]


class _ChosenType(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.4 only
    name = "topic"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> Chosen:
        """Read `topic` or `topic:0,1,2`; a topic's name has no colon."""
        text = encodable(str(value), "the topic's name")
        topic, colon, numbers = text.partition(":")
        parts = [each.strip() for each in numbers.split(",")] if colon else []
        if not topic or not all(each.isascii() and each.isdigit() for each in parts):
            self.fail(f"{text!r} is neither TOPIC nor TOPIC:0,1,2", param, ctx)
        return Chosen(topic, tuple(dict.fromkeys(int(each) for each in parts)))


def topic_options(command: F) -> F:
    """Give a command `--topic` and `--all-topics`."""
    command = click.option(
        "--all-topics", is_flag=True, help="Every topic that the group has offsets of."
    )(command)
    return click.option(
        "-t",
        "--topic",
        "topics",
        type=_ChosenType(),
        multiple=True,
        metavar="TOPIC[:0,1,...]",
        help="A topic, or some partitions of it. Repeatable.",
    )(command)


async def existing(admin: Admin, group: str) -> GroupDescription | None:
    """Return the group, None if there is none. Raises KafkaError for every other answer."""
    found = (await admin.describe_groups([group]))[group]
    if not isinstance(found, KafkaError):
        return found
    if found.code == ErrorCode.GROUP_ID_NOT_FOUND:
        return None
    raise found


async def unknown_group(admin: Admin, group: str) -> CommandFailed:
    """Return the failure for a group that could not be described: with names that are near."""
    errors: dict[int, KafkaError] = {}
    listed = {each.group_id: each for each in await admin.list_groups(errors=errors)}
    if group in listed:
        return CommandFailed(
            f"group {group!r} is of type {listed[group].type!r}, which has no description here"
        )
    return CommandFailed(f"there is no group {group!r}", hint=nearest(group, listed))


def nearest(group: str, names: Collection[str]) -> str:
    """Return a hint with the names that are most like this one."""
    from difflib import get_close_matches

    close = get_close_matches(group, names, n=3)
    if not close:
        return "`odradek groups list` shows what there is"
    return f"did you mean {' or '.join(map(repr, close))}?"


async def named_partitions(admin: Admin, topics: Sequence[Chosen]) -> list[TopicPartition]:
    """Return the partitions that were chosen, in order. Raises CommandFailed, KafkaError."""
    from odradek.client import TopicPartition

    sizes = await partition_counts(admin, {each.topic for each in topics})
    chosen: set[TopicPartition] = set()
    for topic, partitions in topics:
        size = sizes[topic]
        for each in partitions:
            if each >= size:
                raise CommandFailed(
                    f"topic {topic!r} has {size} partitions: there is no {topic}:{each}",
                    code=ExitCode.USAGE,
                )
        chosen.update(TopicPartition(topic, each) for each in partitions or range(size))
    return sorted(chosen)


async def partition_counts(admin: Admin, topics: Collection[str]) -> Mapping[str, int]:
    """Return how many partitions topics have. Raises KafkaError for one that does not exist."""
    sizes = {}
    found = await admin.describe_topics(sorted(topics)) if topics else {}
    for name, topic in found.items():
        if isinstance(topic, KafkaError):
            raise topic
        sizes[name] = len(topic.partitions)
    return sizes
