"""Compiles (message, version) into one straight-line function that encodes it.

The function appends to a bytearray; neighbouring fields of fixed size, with the length or count
that follows them, are written by a single precompiled `struct.Struct`. Where record batches
come, the bytearray so far becomes a part of its own, the records follow by reference, and a new
bytearray begins: a Fetch response of any size costs the copy of its few header bytes.

Values are not checked beforehand. When writing fails, `odradek.wire.explain` looks for the
field that does not fit and says its path; that costs nothing as long as nothing fails.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from odradek.wire.explain import Unrepresentable, explain
from odradek.wire.primitives import FORMATS, SHORT, array_packer, uvarint
from odradek.wire.schema import EMPTY_LIST, EMPTY_STRUCT, Field, Message, Struct
from odradek.wire.source import Source

if TYPE_CHECKING:
    from collections.abc import Sized

__all__ = ["MERGED", "Encode", "compile_encoder"]

Encode: TypeAlias = "Callable[[Any, bytearray, list[bytes | bytearray | memoryview | Sized]], None]"
"""Append a message to the bytearray; append every finished part, the last included, to the list."""

MERGED = 512
"""Records smaller than this many bytes are copied instead: a part costs more than the copy."""


def compile_encoder(message: type[Message], version: int) -> Encode:
    """Return the encode function of `message` at `version`, which must be a valid one."""
    return _Encoder(message, version).function


class _Encoder:
    def __init__(self, message: type[Message], version: int) -> None:
        self.version = version
        self.flexible = message.flexible.has(version)
        self.source = source = Source(
            SHORT=SHORT,
            BYTES=(bytes, bytearray, memoryview),
            uvarint=uvarint,
            array_packer=array_packer,
            explain=explain,
            Unrepresentable=Unrepresentable,
        )
        self.run: list[tuple[str, str]] = []
        self.temporaries = 0
        self.buffer = "b"
        with source.block("def encode(m, b, parts):"):
            with source.block("try:"):
                self.struct(message, "m")
                self.flush()
                source.line("if b: parts.append(b)")
            with source.block("except Exception as failure:"):
                source.line(f"raise explain(m, {version}, failure) from failure")
        self.function: Encode = source.function("encode", f"<encode {message.__name__} v{version}>")

    def temporary(self) -> str:
        self.temporaries += 1
        return f"t{self.temporaries}"

    def flush(self) -> None:
        """Write the fixed-size fields collected so far; a varint (code "V") comes last."""
        if not self.run:
            return
        line, b = self.source.line, self.buffer
        codes = "".join(code for _, code in self.run)
        values = [value for value, code in self.run if code != "x"]
        self.run.clear()
        if codes == "V":
            line(f"{b} += SHORT[{values[0]}] if {values[0]} < 128 else uvarint({values[0]})")
        elif not values:
            line(f"{b} += {bytes(len(codes))!r}")
        elif codes.endswith("V"):
            n = values[-1]
            short = f"{self.source.packer(codes[:-1] + 'B')}({', '.join(values)})"
            long = f"{self.source.packer(codes[:-1])}({', '.join(values[:-1])}) + uvarint({n})"
            line(f"{b} += {short} if {n} < 128 else {long}")
        else:
            line(f"{b} += {self.source.packer(codes)}({', '.join(values)})")

    def struct(self, cls: type[Struct], source: str) -> None:
        """Encode the `cls` in the variable `source`."""
        tagged: list[tuple[str, Field]] = []
        for name, field in cls.__fields__.items():
            place = f"{source}.{name}"
            if not field.present(self.version):
                if not field.ignorable:
                    self.source.line(f"if {self.differs(place, field)}: raise Unrepresentable")
            elif field.is_tagged(self.version):
                tagged.append((place, field))
            else:
                self.field(place, field)
        if self.flexible:
            self.tagged_fields(tagged)

    def differs(self, place: str, field: Field) -> str:
        """Return the condition that `place` differs from the field's default."""
        if field.default is EMPTY_LIST:
            return f"{place} is None or {place}" if field.nullable != "none" else place
        if field.default is EMPTY_STRUCT:
            return f"{place} != {self.source.name('default_', field.fresh_default())}"
        if field.kind == "uuid":
            return f"{place}.int"
        if field.default is None:
            return f"{place} is not None"
        if field.default in (0, "", b"") and field.nullable == "none":
            return place
        return f"{place} != {field.default!r}"

    def field(self, place: str, field: Field) -> None:
        if field.kind == "uuid":
            self.run.append((f"{place}.bytes", "16s"))
        elif field.kind in FORMATS:
            self.run.append((place, FORMATS[field.kind]))
        elif field.kind == "struct":
            self.single(place, field)
        else:
            self.sized(place, field)

    def single(self, place: str, field: Field) -> None:
        assert isinstance(field.of, type)
        inner = self.temporary()
        self.source.line(f"{inner} = {place}")
        if not field.may_be_null(self.version):
            self.struct(field.of, inner)
            return
        self.flush()
        with self.source.block(f"if {inner} is None:"):
            self.source.line(f"{self.buffer} += b'\\xff'")
        with self.source.block("else:"):
            self.run.append(("1", "b"))
            self.struct(field.of, inner)
            self.flush()

    def sized(self, place: str, field: Field) -> None:
        """Encode a field with a length: string, bytes, records or array."""
        line = self.source.line
        value = self.temporary()
        text = field.kind == "string"
        null, more, empty = (0, " + 1", "()") if self.flexible else (-1, "", "()")
        if text:
            empty = "b''"
        if field.may_be_null(self.version):
            line(f"{value} = {place}")
            with self.source.block(f"if {value} is None:"):
                line(f"n = {null}; {value} = {empty}")
            with self.source.block("else:"):
                if text:
                    line(f"{value} = {value}.encode()")
                line(f"n = len({value}){more}")
        else:
            line(f"{value} = {place}{'.encode()' if text else ''}; n = len({value}){more}")
        if text and self.flexible:
            line("if n > 32768: raise Unrepresentable")
        self.run.append(("n", "V" if self.flexible else "h" if text else "i"))
        self.flush()
        if field.kind in ("string", "bytes"):
            line(f"{self.buffer} += {value}")
        elif field.kind == "records":
            self.records(value)
        else:
            self.elements(value, field.of)

    def records(self, value: str) -> None:
        assert self.buffer == "b", "records in a tagged field cannot be passed by reference"
        limit = MERGED + self.flexible
        with self.source.block(f"if n >= {limit} or n and not isinstance({value}, BYTES):"):
            line = f"if n > {int(self.flexible)}: parts.append(b); parts.append({value}); "
            self.source.line(line + "b = bytearray()")
        with self.source.block(f"elif n > {int(self.flexible)}:"):
            self.source.line(f"b += {value}")

    def elements(self, value: str, of: str | type[Struct] | None) -> None:
        line = self.source.line
        if isinstance(of, type):
            item = self.temporary()
            with self.source.block(f"for {item} in {value}:"):
                self.struct(of, item)
                self.flush()
        elif of == "string":
            item = self.temporary()
            with self.source.block(f"for {item} in {value}:"):
                self.sized(item, Field("string", "0+"))
        elif of == "uuid":
            line(f"for u in {value}: {self.buffer} += u.bytes")
        else:
            code = FORMATS[str(of)]
            line(f"if {value}: {self.buffer} += array_packer({code!r}, len({value}))(*{value})")

    def tagged_fields(self, fields: list[tuple[str, Field]]) -> None:
        if not fields:
            self.run.append(("", "x"))
            return
        self.flush()
        line, outer = self.source.line, self.buffer
        fields.sort(key=lambda pair: pair[1].tag or 0)
        inner = self.temporary()
        conditions = [f"({self.differs(place, field)})" for place, field in fields]
        with self.source.block(f"if {' or '.join(conditions)}:"):
            count = " + ".join(f"(1 if {condition} else 0)" for condition in conditions)
            line(f"{outer} += SHORT[{count}]")
            for (place, field), condition in zip(fields, conditions, strict=True):
                with self.source.block(f"if {condition}:"):
                    line(f"{inner} = bytearray()")
                    self.buffer = inner
                    if field.kind == "struct" and not field.may_be_null(self.version):
                        self.single(place, field)
                    else:
                        self.field(place, field)
                    self.flush()
                    self.buffer = outer
                    line(f"{outer} += uvarint({field.tag}) + uvarint(len({inner})) + {inner}")
        line(f"else: {outer} += b'\\0'")
