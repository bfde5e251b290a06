"""Messages to test with, made from the declarations themselves."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, TypeAlias
from uuid import UUID

import pytest

from odradek.wire import API, Message, Struct
from odradek.wire.schema import Field

MakeMessage: TypeAlias = Callable[[type[Message], int, Random], Any]

TEXTS = ("", "a", "events", "größe", "日本", "x" * 126, "y" * 127, "z" * 300)
BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}


def make_struct(cls: type[Struct], version: int, random: Random) -> Any:
    values = {
        name: make_value(name, field, version, random)
        for name, field in cls.__fields__.items()
        if field.present(version) and not (field.is_tagged(version) and random.random() < 0.5)
    }
    return cls(**values)


def make_value(name: str, field: Field, version: int, random: Random) -> object:
    if field.may_be_null(version) and random.random() < 0.25:
        return None
    if isinstance(field.of, type):
        if field.kind == "struct":
            return make_struct(field.of, version, random)
        return [make_struct(field.of, version, random) for _ in range(random.randrange(4))]
    if field.kind == "array":
        item = Field(str(field.of), "0+")
        count = random.choice((0, 1, 1, 2, 3, 130))
        return [make_value(name, item, version, random) for _ in range(count)]
    return make_primitive(name, field.kind, random)


def make_primitive(name: str, kind: str, random: Random) -> object:
    if kind == "bool":
        return random.random() < 0.5
    if kind == "string":
        return random.choice(TEXTS)
    if kind == "uuid":
        return UUID(int=random.getrandbits(128))
    if kind in ("bytes", "records"):
        return random.randbytes(random.choice((0, 1, 60, 127, 128, 600)))
    if name.endswith("error_code"):
        return random.randrange(0, 100)
    if name.endswith("_ms"):
        return random.randrange(0, 1_000_000)
    bits = BITS[kind]
    edges = (0, 1, -1, 127, -(1 << bits - 1), (1 << bits - 1) - 1)
    return random.choice((*edges, random.getrandbits(bits - 1)))


@pytest.fixture(scope="session")
def make_message() -> MakeMessage:
    """Make a message that fits a version: (class, version, random) -> message."""
    return make_struct


@pytest.fixture(scope="session")
def messages() -> list[type[Message]]:
    """Every declared request and response."""
    return [cls for api in API.values() for cls in (api.request, api.response)]
