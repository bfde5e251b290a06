"""How `odradek consume` writes a record: by a format string, or as JSON."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from odradek.cli.exits import CommandFailed, ExitCode
from odradek.cli.text import escape_bytes

if TYPE_CHECKING:
    from odradek.client import ConsumerRecord

__all__ = ["FORMATS", "compile_format", "text_or_base64"]

Writer = Callable[["ConsumerRecord"], bytes]

FORMATS = """\
%t topic, %p partition, %o offset, %T timestamp in ms, %k key, %v or %s value, %h headers,
%K and %S length of key and value (-1: null), %% a percent sign; \\n, \\t, \\r, \\0, \\xHH"""

_TOKEN = re.compile(r"%([a-zA-Z%])|\\(x[0-9a-fA-F]{2}|[ntr0\\])|([^%\\]+)|(.)", re.DOTALL)
_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}


def compile_format(form: str, *, null: bytes = b"", escaped: bool = False) -> Writer:
    """Return the function that makes a record's bytes.

    `form` is `json` (an object a line) or a format string. `null` stands for a null key or
    value. `escaped`: no control byte of a key, value or header comes through, so that records
    cannot act on a terminal. Raises CommandFailed for a format string with an unknown letter.
    """
    if form == "json":
        return _json
    shown: Callable[[bytes], bytes] = _escaped if escaped else _itself

    def maybe(data: bytes | None) -> bytes:
        return null if data is None else shown(data)

    def headers(record: ConsumerRecord) -> bytes:
        return b",".join(
            shown(name.encode()) + b"=" + maybe(value) for name, value in record.headers
        )

    fields: dict[str, Writer] = {
        "t": lambda record: record.topic.encode(),
        "p": lambda record: b"%d" % record.partition,
        "o": lambda record: b"%d" % record.offset,
        "T": lambda record: b"%d" % record.timestamp,
        "k": lambda record: maybe(record.key),
        "v": lambda record: maybe(record.value),
        "s": lambda record: maybe(record.value),
        "h": headers,
        "K": lambda record: b"%d" % _length(record.key),
        "S": lambda record: b"%d" % _length(record.value),
    }
    parts: list[Writer] = []
    literal = b""
    for field, code, text, lone in _TOKEN.findall(form):
        if field and field != "%":
            if field not in fields:
                raise CommandFailed(
                    f"--format: %{field} is unknown", code=ExitCode.USAGE, hint=FORMATS
                )
            if literal:
                parts.append(_constant(literal))
                literal = b""
            parts.append(fields[field])
        elif code:
            literal += bytes((int(code[1:], 16),)) if len(code) == 3 else _ESCAPES[code]
        else:
            literal += os.fsencode(field or text or lone)
    if literal:
        parts.append(_constant(literal))
    return lambda record: b"".join([part(record) for part in parts])


def _constant(data: bytes) -> Writer:
    return lambda record: data


def _itself(data: bytes) -> bytes:
    return data


def _escaped(data: bytes) -> bytes:
    return escape_bytes(data, keep="\t").encode("utf-8", "backslashreplace")


def _length(data: bytes | None) -> int:
    return -1 if data is None else len(data)


def _json(record: ConsumerRecord) -> bytes:
    import json

    document: dict[str, Any] = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        **text_or_base64("key", record.key),
        **text_or_base64("value", record.value),
        "headers": [
            {"name": name, **text_or_base64("value", value)} for name, value in record.headers
        ],
    }
    # ASCII: whatever terminal or pipe it goes to, no byte of a record acts on it.
    return json.dumps(document).encode() + b"\n"


def text_or_base64(name: str, data: bytes | None) -> dict[str, str | None]:
    """Return bytes for JSON: as text under `name`, or under `name_base64` if they are no UTF-8."""
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        from base64 import b64encode

        return {f"{name}_base64": b64encode(data).decode()}
