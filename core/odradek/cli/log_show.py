"""Documents of `odradek log dump`, as lines for people or JSON."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import click

from odradek.cli.text import escape_bytes, plural, shown, size

__all__ = ["print_document"]


def print_document(partition: str, document: dict[str, Any], form: str) -> None:
    """Print one document of a partition."""
    if form == "json":
        import json

        if document["kind"] == "record":
            document = _json_record(document)
        click.echo(json.dumps({"partition": partition, **document}))
        return
    click.echo(_LINES[document["kind"]](partition, document))


def _json_record(document: dict[str, Any]) -> dict[str, Any]:
    """Return a record with its bytes as `odradek consume --format json` has them."""
    from odradek.cli.formats import text_or_base64

    rest = {name: each for name, each in document.items() if name not in ("key", "value")}
    return {
        **rest,
        **text_or_base64("key", document["key"]),
        **text_or_base64("value", document["value"]),
        "headers": [
            {"name": name, **text_or_base64("value", value)} for name, value in document["headers"]
        ],
    }


def _failure(partition: str, document: dict[str, Any]) -> str:
    return f"{partition}  CANNOT BE READ: {shown(document['text'])}"


def _note(partition: str, document: dict[str, Any]) -> str:
    return f"{partition}  {shown(document['text'])}"


def _segment(partition: str, document: dict[str, Any]) -> str:
    return (
        f"{partition}  segment {document['segment']}, offsets to {document['end_offset']}, "
        f"{size(document['size'])}{', sealed' if document['sealed'] else ''}"
    )


def _row(_: str, document: dict[str, Any]) -> str:
    return (
        f"  byte {document['position']:>12}  offset {document['offset']}, newest before: "
        f"{_time(document['max_timestamp_before'])}"
    )


def _damage(_: str, document: dict[str, Any]) -> str:
    return (
        f"  byte {document['position']:>12}  DAMAGED to byte {document['end']}: "
        f"{shown(document['text'])}"
    )


def _batch(_: str, document: dict[str, Any]) -> str:
    flags = [name for name in ("transactional", "control") if document[name]]
    if document["delete_horizon"] is not None:
        flags.append(f"tombstones may go at {_time(document['delete_horizon'])}")
    producer = ""
    if document["producer_id"] >= 0:
        producer = (
            f", producer {document['producer_id']}/{document['producer_epoch']} "
            f"sequence {document['base_sequence']}"
        )
    records = f"{document['records']} records" if document["records"] else "empty"
    return (
        f"  byte {document['position']:>12}  offsets {document['base_offset']} to "
        f"{document['last_offset']}, {records}, "
        f"{size(document['size'])} {document['compression']}, epoch "
        f"{document['leader_epoch']}, {_time(document['max_timestamp'])}"
        f"{producer}{''.join(', ' + flag for flag in flags)}"
    )


def _record(_: str, document: dict[str, Any]) -> str:
    headers = ", ".join(
        f"{_bytes(name.encode('utf-8', 'backslashreplace'))} = {_bytes(value)}"
        for name, value in document["headers"]
    )
    return (
        f"    {document['offset']}  {_time(document['timestamp'])}  "
        f"key {_bytes(document['key'])}  value {_bytes(document['value'])}"
        f"{'  headers ' + headers if headers else ''}"
        f"{'  (' + shown(document['reason']) + ')' if 'reason' in document else ''}"
    )


def _group_offset(_: str, document: dict[str, Any]) -> str:
    what = (
        "deleted"
        if document["deleted"]
        else f"offset {document['offset']} (epoch {document['leader_epoch']}), committed "
        f"{_time(document['committed'])}"
        f"{', metadata ' + shown(document['metadata']) if document['metadata'] else ''}"
    )
    return (
        f"    {document['record_offset']}  group {shown(document['group'])}  "
        f"{shown(document['topic'])}-{document['topic_partition']}: {what}"
    )


def _group(_: str, document: dict[str, Any]) -> str:
    head = f"    {document['record_offset']}  group {shown(document['group'])}: "
    if document["deleted"]:
        return head + "deleted"
    members = ", ".join(
        f"{shown(member['member'])} at {shown(member['host'])}" for member in document["members"]
    )
    return (
        f"{head}generation {document['generation']}, {shown(str(document['protocol_type']))}/"
        f"{shown(str(document['protocol']))}, leader {shown(str(document['leader']))}, "
        f"{plural(len(document['members']), 'member')}{': ' + members if members else ''}"
    )


def _state(partition: str, document: dict[str, Any]) -> str:
    lines = [
        f"{partition}  log start {document['log_start']}, end {document['end_offset']}",
        *(f"  {_segment('', each).strip()}" for each in document["segments"]),
        *(
            f"  leader epoch {each['epoch']} from offset {each['start_offset']}"
            for each in document["epochs"]
        ),
    ]
    producers = document["producers"]
    if isinstance(producers, dict):
        lines.append(f"  producers as of offset {producers['as_of_offset']}")
        for each in producers["producers"]:
            last = each["batches"][-1] if each["batches"] else None
            lines.append(
                f"    {each['producer_id']}/{each['epoch']}, last at "
                f"{_time(each['last_timestamp'])}"
                + (
                    f", sequence {last['last_sequence']} at offset {last['last_offset']}"
                    if last
                    else ""
                )
            )
    elif producers is not None:
        lines.append(f"  producers {producers}")
    for name, text in (("cleaner", "compacted"), ("scrub", "scrubbed"), ("repaired", "repaired")):
        if document[name] is not None:
            lines.append(f"  {text}: {shown(_pairs(document[name]))}")
    return "\n".join(lines)


def _pairs(value: Any) -> str:
    if not isinstance(value, dict):
        return str(value)
    return ", ".join(f"{name} {each}" for name, each in value.items() if name != "version")


_LINES: dict[str, Callable[[str, dict[str, Any]], str]] = {
    "failure": _failure,
    "note": _note,
    "segment": _segment,
    "row": _row,
    "damage": _damage,
    "batch": _batch,
    "record": _record,
    "group_offset": _group_offset,
    "group": _group,
    "state": _state,
}


def _bytes(data: bytes | None) -> str:
    """Return bytes between quotes; what is not UTF-8 and a backslash are told apart."""
    if data is None:
        return "null"
    text = shown(escape_bytes(data.replace(b"\\", b"\\\\")))
    return "'" + text.replace("'", "\\'") + "'"


def _time(timestamp: int) -> str:
    if timestamp < 0:
        return "no time"
    try:
        return datetime.fromtimestamp(timestamp / 1000, UTC).isoformat(timespec="milliseconds")
    except (OverflowError, ValueError, OSError):
        return f"{timestamp} ms"
