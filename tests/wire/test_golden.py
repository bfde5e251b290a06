"""The bytes of every message at every version stay what they are.

`tests/golden/wire/<api>.txt` has a line for each: direction, versions, which example, bytes in
hex; versions in a row with the same bytes share a line. The examples are made from the
declarations: `full` has a value other than the default in every field, `bare` has defaults and
nulls. The oracle tests show that two foreign implementations agree with these codecs; these
files show that nothing changed since.

A change that is meant (a new version, a new API) is written with `ODRADEK_GOLDEN=write pytest
tests/wire/test_golden.py`; the difference is then for a reviewer to read.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import pytest

from odradek.wire import API, Api, Message, Struct, decode, encode
from odradek.wire.schema import Field

FOLDER = Path(__file__).parent.parent / "golden" / "wire"
WRITE = os.environ.get("ODRADEK_GOLDEN") == "write"
SIZES = {"int8": 1 << 7, "int16": 1 << 15, "int32": 1 << 31, "int64": 1 << 63}


def full(cls: type[Struct], version: int, numbers: Iterator[int]) -> Any:
    return cls(
        **{
            name: full_value(name, field, version, numbers)
            for name, field in cls.__fields__.items()
            if field.present(version)
        }
    )


def full_value(name: str, field: Field, version: int, numbers: Iterator[int]) -> object:
    if isinstance(field.of, type):
        inner = full(field.of, version, numbers)
        return [inner] if field.kind == "array" else inner
    if field.kind == "array":
        item = Field(str(field.of), "0+")
        return [full_value(name, item, version, numbers) for _ in range(2)]
    n = next(numbers)
    match field.kind:
        case "bool":
            return not field.default
        case "string":
            return f"{name}-{n}"
        case "bytes" | "records":
            return bytes(range(n, n + 5))
        case "uuid":
            return UUID(int=n << 64 | n)
    return (n * 0x0102030405060708 + 1) % SIZES[field.kind] * (-1 if n % 2 else 1)


def bare(cls: type[Message], version: int) -> Any:
    fields = cls.__fields__.items()
    return cls(**{name: None for name, field in fields if field.may_be_null(version)})


def examples(cls: type[Message], version: int) -> dict[str, Any]:
    return {"full": full(cls, version, count(1)), "bare": bare(cls, version)}


def path_of(api: Api) -> Path:
    return FOLDER / f"{api.module.rpartition('.')[2]}.txt"


def body(message: Message, version: int) -> bytes:
    return b"".join(cast("list[bytes]", encode(message, version)))


def lines_of(api: Api) -> Iterator[str]:
    for direction, cls in (("request", api.request), ("response", api.response)):
        for example in ("full", "bare"):
            first = api.min
            for version in range(api.min, api.max + 1):
                raw = body(examples(cls, version)[example], version)
                if version < api.max:
                    following = body(examples(cls, version + 1)[example], version + 1)
                    if following == raw:
                        continue
                versions = f"v{first}-{version}" if first < version else f"v{version}"
                yield f"{direction} {versions} {example} {raw.hex() or '-'}\n"
                first = version + 1


def golden(api: Api) -> dict[tuple[str, int, str], bytes]:
    found = {}
    for line in path_of(api).read_text().splitlines():
        direction, versions, example, raw = line.split()
        first, _, last = versions[1:].partition("-")
        for version in range(int(first), int(last or first) + 1):
            found[direction, version, example] = bytes.fromhex(raw.removeprefix("-"))
    return found


@pytest.mark.skipif(not WRITE, reason="rewrites the files; set ODRADEK_GOLDEN=write")
def test_golden_files_are_written() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for api in API.values():
        path_of(api).write_text("".join(lines_of(api)))


def test_golden_files_are_those_of_the_apis() -> None:
    assert {path.name for path in FOLDER.iterdir()} == {path_of(api).name for api in API.values()}


@pytest.mark.parametrize("api", API.values(), ids=lambda api: api.name)
def test_message_keeps_its_bytes_in_both_directions(api: Api) -> None:
    expected = golden(api)
    for direction, cls in (("request", api.request), ("response", api.response)):
        for version in range(api.min, api.max + 1):
            for name, message in examples(cls, version).items():
                raw = expected.pop((direction, version, name))
                assert body(message, version) == raw, (direction, version, name)
                assert decode(cls, version, memoryview(raw)) == message
    assert not expected, "lines for versions that are not declared"
