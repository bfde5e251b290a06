"""Reads files of `file:` storage by the tables of docs/reference/storage_format.md alone."""

from __future__ import annotations

import re
import struct
from pathlib import Path
from typing import Any

from odradek.record import Record, crc32c

__all__ = [
    "PAGE",
    "body_of",
    "keys_of",
    "names_are",
    "names_in",
    "parse_all",
    "parse_batches",
    "records_of",
    "table",
]

PAGE = (Path(__file__).parents[1] / "docs/reference/storage_format.md").read_text("utf-8")
NUMBERS = {
    "int8": ">b", "int16": ">h", "int32": ">i", "int64": ">q",
    "uint8": ">B", "uint16": ">H", "uint32": ">I",
}  # fmt: skip
HEADER = 61


def table(kind: str, name: str) -> list[dict[str, str]]:
    """The rows of the table behind a mark of the page, by the names of its columns."""
    found = re.search(rf"^<!-- {kind}: {re.escape(name)} -->\n\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    assert found, f"the page has no {kind} {name}"
    head, _, *rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in found[1].splitlines()
    ]
    return [dict(zip(head, row, strict=True)) for row in rows]


def read_number(data: bytes, at: int, kind: str) -> tuple[int, int]:
    """Read a number of a type of the page; return it and the position behind it."""
    if kind != "varint":
        size = struct.calcsize(NUMBERS[kind])
        return struct.unpack_from(NUMBERS[kind], data, at)[0], at + size
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            return (value >> 1) ^ -(value & 1), at


def parse(name: str, data: bytes, start: int = 0) -> tuple[dict[str, Any], int]:
    """Read a structure as its table says; return its fields and the position behind it."""
    fields: dict[str, Any] = {}
    at = start
    for row in table("layout", name):
        if "at" in row:
            assert at - start == int(row["at"]), f"{name}: {row['field']} is at {at - start}"
        kind, field = row["type"], row["field"]
        if sized := re.fullmatch(r"bytes\((.+)\)", kind):
            size = fields[sized[1]]
            fields[field] = None if size < 0 else data[at : at + size]
            assert size < 0 or len(fields[field]) == size
            at += max(size, 0)
        elif repeated := re.fullmatch(r"(.+) \* (.+)", kind):
            fields[field] = []
            for _ in range(fields[repeated[1]]):
                each, at = parse(repeated[2], data, at)
                fields[field].append(each)
        else:
            fields[field], at = read_number(data, at, kind)
    return fields, at


def parse_all(name: str, data: bytes) -> list[dict[str, Any]]:
    """Read a file that is nothing but one structure after the other."""
    found, at = [], 0
    while at < len(data):
        fields, at = parse(name, data, at)
        found.append(fields)
    assert at == len(data)
    return found


def parse_batches(data: bytes) -> list[tuple[dict[str, Any], bytes]]:
    """Read a segment: the header of each batch, and all of its bytes."""
    found, at = [], 0
    while at < len(data):
        header, end = parse("record-batch", data, at)
        assert end - at == HEADER
        size = header["batch length"] + 12
        batch = data[at : at + size]
        assert header["crc"] == crc32c(batch[21:])
        found.append((header, batch))
        at += size
    assert at == len(data)
    return found


def records_of(header: dict[str, Any], batch: bytes) -> list[Record]:
    """Read the records of a batch that is not compressed."""
    found, at = [], HEADER
    for _ in range(header["record count"]):
        fields, end = parse("record", batch, at)
        length, begins = read_number(batch, at, "varint")
        assert fields["length"] == length == end - begins
        found.append(
            Record(
                header["base offset"] + fields["offset delta"],
                header["base timestamp"] + fields["timestamp delta"],
                fields["key"],
                fields["value"],
                tuple((each["name"].decode(), each["value"]) for each in fields["headers"]),
            )
        )
        at = end
    assert at == len(batch)
    return found


def body_of(path: Path) -> bytes:
    """Check the first line of a file; return what follows it."""
    line, body = path.read_bytes().split(b"\n", 1)
    pattern = re.escape("odradek KIND FORMAT crc32c HEX")
    assert "odradek KIND FORMAT crc32c HEX" in PAGE
    for word, group in (("KIND", "([a-z-]+)"), ("FORMAT", "(1)"), ("HEX", "([0-9a-f]{8})")):
        pattern = pattern.replace(word, group)
    found = re.fullmatch(pattern, line.decode())
    assert found
    assert (found[1], int(found[3], 16)) == (path.name, crc32c(body))
    return body


def keys_of(name: str) -> list[str]:
    return [next(iter(row.values())).strip("`") for row in table("keys", name)]


def pattern_of(name: str) -> re.Pattern[str]:
    """Turn a file name of the page into a pattern."""
    pattern = re.escape(name.strip("`"))
    uuid = r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
    for word, value in (
        ("TOPIC\\-PARTITION", rf"{uuid}-[0-9]+"),
        ("BASE", "[0-9]{20}"),
        ("HEX8", "[0-9a-f]{8}"),
        ("NAME", ".+"),
        ("ID", "[0-9]+"),
        ("N\\.blob", "[0-9]+\\.blob"),
    ):
        pattern = pattern.replace(word, value)
    return re.compile(pattern)


def names_in(path: Path) -> set[str]:
    return {each.name for each in path.iterdir()}


def names_are(kind: str, found: set[str]) -> None:
    """Check that each name fits one row of a table, and that each row but `.tmp` has a name."""
    rows = [pattern_of(row["name"]) for row in table("names", kind)]
    used = set()
    for name in found:
        fits = [row for row in rows if row.fullmatch(name)]
        assert len(fits) == 1, f"{name} fits {len(fits)} rows"
        used.update(fits)
    assert {row.pattern for row in rows if row not in used} <= {r".+\.tmp"}
