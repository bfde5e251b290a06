"""Says which field of a message cannot be encoded, after the fact.

The compiled encoders do not look at values before they write them; this walk over the
declarations does, and only runs when one of them failed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

from odradek.wire.primitives import LAST_LENGTH, LAST_TEXT
from odradek.wire.schema import Field, Message, Struct

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Unrepresentable", "explain"]


class Unrepresentable(Exception):
    """Thrown by an encoder that met a value its version has no place for; never escapes."""


def explain(message: Message, version: int, failure: Exception) -> ValueError:
    """Return the error to raise because encoding `message` at `version` ended in `failure`."""
    what = f"{type(message).__name__} v{version}"
    for path, problem in _problems(message, version, ""):
        return ValueError(f"{what} cannot be encoded: {path} {problem}")
    return ValueError(f"{what} cannot be encoded: {failure!r}")


def _problems(struct: Struct, version: int, prefix: str) -> Iterator[tuple[str, str]]:
    for name, field in struct.__fields__.items():
        path = prefix + name
        try:
            value = getattr(struct, name)
        except AttributeError:
            yield path, "has no value"
            continue
        if field.present(version):
            yield from _field_problems(path, value, field, version)
        elif not field.ignorable and value != field.fresh_default():
            yield path, f"is {value!r}, and this version has no such field"


def _field_problems(path: str, value: Any, field: Field, version: int) -> Iterator[tuple[str, str]]:
    if value is None:
        absent = field.kind == "struct" and field.is_tagged(version)
        if not absent and not field.may_be_null(version):
            yield path, "is None, and may not be null at this version"
    elif field.kind == "struct":
        yield from _struct_problems(path, value, field.of, version)
    elif field.kind == "array":
        if not isinstance(value, list | tuple):
            yield path, f"is {value!r}, not a list"
            return
        for i, item in enumerate(value):
            where = f"{path}[{i}]"
            if isinstance(field.of, type):
                yield from _struct_problems(where, item, field.of, version)
            else:
                yield from _primitive_problems(where, item, str(field.of))
    else:
        yield from _primitive_problems(path, value, field.kind)


def _struct_problems(path: str, value: Any, of: Any, version: int) -> Iterator[tuple[str, str]]:
    if isinstance(value, of):
        yield from _problems(value, version, path + ".")
    else:
        yield path, f"is {value!r}, not a {of.__name__}"


def _primitive_problems(path: str, value: Any, kind: str) -> Iterator[tuple[str, str]]:
    if kind.startswith("int"):
        bits = int(kind[3:])
        if not isinstance(value, int) or not -(1 << bits - 1) <= value < 1 << bits - 1:
            yield path, f"is {value!r}, not an integer of {bits} bits"
    elif kind == "string":
        yield from _text_problems(path, value)
    elif kind == "uuid":
        if not isinstance(value, UUID):
            yield path, f"is {value!r}, not a UUID"
    elif kind == "bytes" and not isinstance(value, bytes | bytearray | memoryview):
        yield path, "is not bytes"
    elif kind in ("bytes", "records"):
        if not hasattr(value, "__len__"):
            yield path, "has no length"
        elif len(value) > LAST_LENGTH:
            yield path, f"is longer than {LAST_LENGTH} bytes"


def _text_problems(path: str, value: Any) -> Iterator[tuple[str, str]]:
    if not isinstance(value, str):
        yield path, f"is {value!r}, not text"
        return
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        yield path, "is text with a lone surrogate"
    else:
        if size > LAST_TEXT:
            yield path, f"is longer than {LAST_TEXT} bytes"
