"""Moving a group's committed offsets: what would become of each partition, sans-IO.

A reset says where a group is to go on: at an end of the logs, at a time, at an offset, so many
records before or after where it is, or where a list says. `plan_reset` works out the offset of
each partition and keeps it within what the log holds, since a consumer that finds its committed
offset outside of the log goes wherever its own auto.offset.reset sends it.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from attrs import frozen

from odradek.client.metadata import TopicPartition
from odradek.client.offsets import EARLIEST, LATEST

__all__ = [
    "LogRange",
    "OffsetChange",
    "OffsetReset",
    "ResetImpossible",
    "ShiftBy",
    "ToOffset",
    "ToOffsets",
    "ToTime",
    "parse_offsets",
    "plan_reset",
]

LARGEST = 2**63 - 1


class ResetImpossible(ValueError):
    """A partition has nothing that this reset could start from; the text names it."""


@frozen
class ToTime:
    """To the first record with at least this timestamp, in ms since 1970; the end if none has.

    `EARLIEST` and `LATEST` are times in this sense.
    """

    timestamp: int


@frozen
class ToOffset:
    """To one offset in every partition."""

    offset: int


@frozen
class ToOffsets:
    """To the offset given for each partition; others are left as they are."""

    offsets: Mapping[TopicPartition, int]


@frozen
class ShiftBy:
    """So many records on from the committed offset; negative: back, to process them again."""

    records: int


OffsetReset = ToTime | ToOffset | ToOffsets | ShiftBy
"""How to reset."""


class LogRange(NamedTuple):
    """What a partition's log holds: from `start` (log start offset) to before `end`."""

    start: int
    end: int


@frozen
class OffsetChange:
    """What a reset does to one partition.

    `old`: the committed offset, None without one. `wanted`: what was asked for. `new`: the same,
    or the end of the log's range that is nearest to it.
    """

    partition: TopicPartition
    old: int | None
    new: int
    wanted: int
    log: LogRange

    @property
    def clamped(self) -> bool:
        """Whether the log does not hold what was asked for."""
        return self.new != self.wanted

    @property
    def lag(self) -> int:
        """How many offsets are left to consume afterwards."""
        return self.log.end - self.new


def plan_reset(
    reset: OffsetReset,
    partitions: Collection[TopicPartition],
    *,
    committed: Mapping[TopicPartition, int],
    logs: Mapping[TopicPartition, LogRange],
    at_time: Mapping[TopicPartition, int],
) -> list[OffsetChange]:
    """Return what `reset` does to each of `partitions`, in order.

    `logs` has every partition. `at_time` is needed for `ToTime` alone: the first offset of that
    time, and no entry, or a negative one, where no record has it or a later one.

    Raises ResetImpossible: ShiftBy where nothing is committed, ToOffsets for a partition that is
    not among them.
    """
    changes = []
    for partition in sorted(partitions):
        log = logs[partition]
        old = committed.get(partition)
        wanted = _wanted(reset, partition, old, log, at_time)
        new = min(max(wanted, log.start), log.end)
        changes.append(OffsetChange(partition, old, new, wanted, log))
    return changes


def _wanted(
    reset: OffsetReset,
    partition: TopicPartition,
    old: int | None,
    log: LogRange,
    at_time: Mapping[TopicPartition, int],
) -> int:
    match reset:
        case ToTime(timestamp):
            if timestamp == EARLIEST:
                return log.start
            if timestamp == LATEST:
                return log.end
            found = at_time.get(partition, -1)
            return found if found >= 0 else log.end
        case ToOffset(offset):
            return offset
        case ToOffsets(offsets):
            if partition not in offsets:
                raise ResetImpossible(f"there is no offset for partition {partition}")
            return offsets[partition]
        case ShiftBy(records):
            if old is None:
                raise ResetImpossible(
                    f"partition {partition} has no committed offset to shift from"
                )
            return old + records


def parse_offsets(text: str) -> dict[TopicPartition, int]:
    """Read a list of offsets: JSON as `odradek groups offsets --format json` writes it, or CSV as
    Kafka's kafka-consumer-groups exports it (`topic,partition,offset`, quoted where need be).

    Raises ValueError that says where the text is neither, or names a partition twice.
    """
    rows = _from_json(text) if text.lstrip()[:1] in ("[", "{") else _from_csv(text)
    found: dict[TopicPartition, int] = {}
    for where, topic, partition, offset in rows:
        key = TopicPartition(_name(topic, where), _number(partition, f"{where}: partition"))
        if key in found:
            raise ValueError(f"{where}: partition {key} is listed twice")
        found[key] = _number(offset, f"{where}: offset")
    if not found:
        raise ValueError("there are no offsets in it")
    return found


_Row = tuple[str, object, object, object]


def _from_json(text: str) -> Iterable[_Row]:
    try:
        document = json.loads(text)
    except ValueError as error:
        raise ValueError(f"not JSON: {error}") from None
    if not isinstance(document, list):
        raise ValueError("not a JSON array of objects with topic, partition and offset")
    for at, item in enumerate(document, 1):
        where = f"item {at}"
        if not isinstance(item, dict) or not {"topic", "partition", "offset"} <= item.keys():
            raise ValueError(f"{where} is not an object with topic, partition and offset")
        yield where, item["topic"], item["partition"], item["offset"]


def _from_csv(text: str) -> Iterable[_Row]:
    reader = csv.reader(io.StringIO(text), strict=True)
    try:
        for row in reader:
            if not row:
                continue
            if len(row) != 3:
                raise ValueError(f"line {reader.line_num} is not topic,partition,offset")
            yield f"line {reader.line_num}", row[0].strip(), row[1], row[2]
    except csv.Error as error:
        raise ValueError(f"line {reader.line_num}: {error}") from None


def _name(value: object, where: str) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{where}: {value!r} is not a topic's name")
    return value


def _number(value: object, what: str) -> int:
    text = value.strip() if isinstance(value, str) else value
    if isinstance(text, str) and text.isascii() and text.isdigit():
        text = int(text) if len(text) < 20 else LARGEST + 1
    if not isinstance(text, int) or isinstance(text, bool) or not 0 <= text <= LARGEST:
        raise ValueError(f"{what} {value!r} is not a number from 0 on")
    return text
