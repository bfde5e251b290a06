"""Reading and writing the variable-length primitives; fixed ones are `struct` formats.

The compiled codecs inline the common case of each of these (a varint of one byte, a short
array) and call a function of this file for the rest.
"""

from __future__ import annotations

from functools import lru_cache
from struct import Struct
from typing import TYPE_CHECKING, Any
from uuid import UUID

from odradek.errors import MalformedMessage

if TYPE_CHECKING:
    from collections.abc import Callable

    from odradek.types import Buffer

__all__ = [
    "FORMATS",
    "LAST_LENGTH",
    "LAST_TEXT",
    "SHORT",
    "array_packer",
    "array_unpacker",
    "read_uvarint",
    "rest_of_uvarint",
    "skip_tagged_fields",
    "tagged_field",
    "uuid_of",
    "uvarint",
]

FORMATS = {"bool": "?", "int8": "b", "int16": "h", "int32": "i", "int64": "q", "uuid": "16s"}
"""The `struct` format of each primitive of fixed size."""

SHORT = tuple(bytes((n,)) for n in range(128))
"""Each unsigned varint of one byte."""

LAST_LENGTH = 0x7FFFFFFF
"""The largest length, count or tag."""

LAST_TEXT = 0x7FFF
"""The largest length of a string, in bytes of UTF-8."""


def uvarint(value: int) -> bytes:
    """Encode an unsigned varint (KIP-482): seven bits a byte, the lowest first."""
    if value < 128:
        return SHORT[value]
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def rest_of_uvarint(view: Buffer, at: int, first: int) -> tuple[int, int]:
    """Finish an unsigned varint whose `first` byte, before `at`, says that more follow.

    Return the value and the position after it. Raises MalformedMessage when it takes more than
    5 bytes or 31 bits, IndexError when the view ends in it.
    """
    value = first & 127
    for shift in (7, 14, 21, 28):
        byte = view[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            if value > LAST_LENGTH:
                raise MalformedMessage(f"a varint of {value} where 31 bits are allowed")
            return value, at
    raise MalformedMessage("a varint is longer than 5 bytes")


def read_uvarint(view: Buffer, at: int) -> tuple[int, int]:
    """Decode an unsigned varint at `at`: return the value and the position after it.

    Raises as `rest_of_uvarint` does.
    """
    first = view[at]
    if first < 128:
        return first, at + 1
    return rest_of_uvarint(view, at + 1, first)


def tagged_field(view: Buffer, at: int, last: int) -> tuple[int, int, int]:
    """Read the start of a tagged field at `at`; the one before it had the tag `last`, or -1.

    Return its tag, the position of its end and that of its content. Raises MalformedMessage
    when tags do not ascend or the view ends before the field, IndexError when it ends earlier.
    """
    tag, at = read_uvarint(view, at)
    if tag <= last:
        raise MalformedMessage(f"tagged field {tag} follows tagged field {last}")
    size, at = read_uvarint(view, at)
    if size > len(view) - at:
        raise MalformedMessage(f"tagged field {tag} is oversized: {size} bytes")
    return tag, at + size, at


def skip_tagged_fields(view: Buffer, at: int) -> int:
    """Return the position after the tagged fields whose count is at `at`.

    Raises as `tagged_field` does; a count that is too large ends at the end of the view.
    """
    count, at = read_uvarint(view, at)
    last = -1
    for _ in range(count):
        last, at, _ = tagged_field(view, at, last)
    return at


@lru_cache(maxsize=4096)
def uuid_of(raw: bytes) -> UUID:
    """Return the uuid of 16 bytes.

    The cache is worth it because a client names the same few topics in each of its fetches:
    creating a UUID takes about 1 microsecond, finding it 0.05.
    """
    return UUID(bytes=raw)


@lru_cache(maxsize=512)
def array_packer(code: str, count: int) -> Callable[..., bytes]:
    """Return the pack function for `count` numbers of the `struct` format `code`."""
    return Struct(f"!{count}{code}").pack


@lru_cache(maxsize=512)
def array_unpacker(code: str, count: int) -> Callable[[Buffer, int], tuple[Any, ...]]:
    """Return the unpack_from function for `count` numbers of the `struct` format `code`."""
    return Struct(f"!{count}{code}").unpack_from
