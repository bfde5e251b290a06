"""How a message of the Kafka protocol is declared: classes whose fields know their versions.

    class TopicProduceData(Struct):
        name: str = string("0-12", ignorable=True)
        topic_id: UUID = uuid("13+", ignorable=True)
        partition_data: list[PartitionProduceData] = array(PartitionProduceData, "0+")

    class ProduceRequest(Message, api_key=0, versions="3-13", flexible="9+"):
        ...

A field declaration says, in Kafka's own terms (`clients/src/main/resources/common/message` in
Apache Kafka), its type, the versions that carry it, the versions in which it may be null, its
tag (KIP-482), its default, and whether a value may be dropped in silence when it is written at
a version that has no place for it (`ignorable`). Version ranges are "3+", "0-12" or "4".

Instances have slots, keyword constructors with Kafka's defaults, equality by value, and no
validation of their own: what does not fit is found when the message is encoded. One class
stands for all versions of a message; a field that a version lacks has its default after
decoding.

Declaring costs next to nothing: constructors and codecs are compiled on first use, so a broker
starts without paying for the versions nobody speaks.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    NamedTuple,
    TypeAlias,
    TypeVar,
    cast,
    dataclass_transform,
)
from uuid import UUID

if TYPE_CHECKING:
    from collections.abc import Sized

    from odradek.types import Buffer

__all__ = [
    "NULL_UUID",
    "Field",
    "Message",
    "Records",
    "Struct",
    "VersionRange",
    "array",
    "bool_",
    "bytes_",
    "int8",
    "int16",
    "int32",
    "int64",
    "records_",
    "string",
    "struct",
    "uuid",
    "version_range",
]

T = TypeVar("T")

NULL_UUID = UUID(int=0)
"""What Kafka writes for "no id": uuids are never null on the wire."""

Records: TypeAlias = "Buffer | Sized"
"""Record batches: decoding gives a memoryview of the receive buffer; encoding takes bytes or any
object whose `len` is its size in bytes, which is handed on to the transport as it is."""

LAST_VERSION = 32767


class VersionRange(NamedTuple):
    """Versions from `first` to `last`, both included; empty when `last` < `first`."""

    first: int
    last: int

    def has(self, version: int) -> bool:
        """Whether `version` lies in the range."""
        return self.first <= version <= self.last


@cache
def version_range(text: str) -> VersionRange:
    """Read "3+", "0-12", "4" or "none". Raises ValueError for anything else."""
    if text == "none":
        # Above every version: the hot path asks for `first` alone.
        return VersionRange(LAST_VERSION + 1, -1)
    if text.endswith("+"):
        return VersionRange(int(text[:-1]), LAST_VERSION)
    first, dash, last = text.partition("-")
    return VersionRange(int(first), int(last if dash else first))


class Field:
    """One declared field.

    `kind` is the name of a primitive, "struct" or "array"; `of` the class of the struct, or the
    kind or class of the array's elements. `versions`, `nullable` and `tagged` are version ranges
    as text.
    """

    __slots__ = ("default", "ignorable", "kind", "nullable", "of", "tag", "tagged", "versions")

    def __init__(
        self,
        kind: str,
        versions: str,
        *,
        nullable: str = "none",
        tag: int | None = None,
        tagged: str = "none",
        default: object = None,
        ignorable: bool = False,
        of: str | type[Struct] | None = None,
    ) -> None:
        self.kind = kind
        self.versions = versions
        self.nullable = nullable
        self.tag = tag
        self.tagged = tagged
        self.default = default
        self.ignorable = ignorable
        self.of = of

    def present(self, version: int) -> bool:
        """Whether `version` carries the field, tagged or not."""
        return version_range(self.versions).has(version)

    def may_be_null(self, version: int) -> bool:
        """Whether the field may be null at `version`."""
        return version_range(self.nullable).has(version)

    def is_tagged(self, version: int) -> bool:
        """Whether `version` carries the field among its tagged fields."""
        return version_range(self.tagged).has(version)

    def fresh_default(self) -> object:
        """Return the default; a new object each time where the default can be changed."""
        if self.default is EMPTY_LIST:
            return []
        if self.default is EMPTY_STRUCT:
            return cast("type[Struct]", self.of)()
        return self.default


class _Fresh:
    """Stands for a default that every instance gets a copy of its own of."""


EMPTY_LIST = _Fresh()
EMPTY_STRUCT = _Fresh()


# The field functions claim to return the value an instance will hold. So type checkers compare
# them with the annotation, and take every field of a constructor to have a default.


def bool_(
    versions: str,
    *,
    tag: int | None = None,
    tagged: str = "none",
    default: bool = False,
    ignorable: bool = False,
) -> bool:
    """Declare a boolean of one byte."""
    field = Field("bool", versions, tag=tag, tagged=tagged, default=default, ignorable=ignorable)
    return cast("bool", field)


def _integer(kind: str) -> Callable[..., int]:
    def declare(
        versions: str,
        *,
        tag: int | None = None,
        tagged: str = "none",
        default: int = 0,
        ignorable: bool = False,
    ) -> int:
        field = Field(kind, versions, tag=tag, tagged=tagged, default=default, ignorable=ignorable)
        return cast("int", field)

    declare.__name__ = declare.__qualname__ = kind
    declare.__doc__ = f"Declare a signed big-endian integer of {kind[3:]} bits."
    return declare


int8 = _integer("int8")
int16 = _integer("int16")
int32 = _integer("int32")
int64 = _integer("int64")


def uuid(
    versions: str, *, tag: int | None = None, tagged: str = "none", ignorable: bool = False
) -> UUID:
    """Declare a uuid of 16 bytes; its default is `NULL_UUID`."""
    field = Field("uuid", versions, tag=tag, tagged=tagged, default=NULL_UUID, ignorable=ignorable)
    return cast("UUID", field)


def string(
    versions: str,
    *,
    nullable: str = "none",
    tag: int | None = None,
    tagged: str = "none",
    default: str | None = "",
    ignorable: bool = False,
) -> str:
    """Declare UTF-8 text of at most 32767 bytes."""
    field = Field(
        "string",
        versions,
        nullable=nullable,
        tag=tag,
        tagged=tagged,
        default=default,
        ignorable=ignorable,
    )
    return cast("str", field)


def bytes_(
    versions: str,
    *,
    nullable: str = "none",
    default: bytes | None = b"",
    ignorable: bool = False,
) -> bytes:
    """Declare a byte string; decoding copies it, so it outlives the receive buffer."""
    field = Field("bytes", versions, nullable=nullable, default=default, ignorable=ignorable)
    return cast("bytes", field)


def records_(versions: str, *, nullable: str = "none", default: bytes | None = None) -> Records:
    """Declare record batches: decoded as a slice of the receive buffer, encoded by reference."""
    return cast("Records", Field("records", versions, nullable=nullable, default=default))


def struct(
    of: type[T],
    versions: str,
    *,
    nullable: str = "none",
    tag: int | None = None,
    tagged: str = "none",
    ignorable: bool = False,
) -> T:
    """Declare a single nested struct.

    A tagged struct is None when it is absent, where Kafka's Java classes hold one of defaults:
    most responses have none, and creating it for every partition would cost more than the rest.
    """
    optional = tag is not None or nullable != "none"
    field = Field(
        "struct",
        versions,
        nullable=nullable,
        tag=tag,
        tagged=tagged,
        default=None if optional else EMPTY_STRUCT,
        ignorable=ignorable,
        of=cast("type[Struct]", of),
    )
    return cast("T", field)


def array(
    of: Callable[..., T],
    versions: str,
    *,
    nullable: str = "none",
    tag: int | None = None,
    tagged: str = "none",
    default: _Fresh | None = EMPTY_LIST,
    ignorable: bool = False,
) -> list[T]:
    """Declare an array of structs (`array(Broker, "0+")`) or of primitives (`array(int32, "0+")`).

    The default is an empty list; `default=None` makes it null.
    """
    field = Field(
        "array",
        versions,
        nullable=nullable,
        tag=tag,
        tagged=tagged,
        default=default,
        ignorable=ignorable,
        of=of if isinstance(of, type) else of.__name__.rstrip("_"),
    )
    return cast("list[T]", field)


@dataclass_transform(kw_only_default=True)
class StructType(type):
    """Turns declared fields into slots."""

    __fields__: dict[str, Field]

    def __new__(
        mcls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **options: Any
    ) -> StructType:
        """Create the class; `options` belong to `Message`."""
        fields = {key: value for key, value in namespace.items() if type(value) is Field}
        for key in fields:
            del namespace[key]
        namespace["__slots__"] = namespace["__match_args__"] = tuple(fields)
        namespace["__fields__"] = fields
        return super().__new__(mcls, name, bases, namespace, **options)


class Struct(metaclass=StructType):
    """A part of a message that has fields of its own."""

    __fields__: ClassVar[dict[str, Field]]

    if not TYPE_CHECKING:

        def __init__(self, **values: object) -> None:
            cls = type(self)
            cls.__init__ = _constructor(cls)
            cls.__init__(self, **values)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__fields__)

    __hash__ = None  # type: ignore[assignment]  # instances can be changed

    def __repr__(self) -> str:
        values = (f"{name}={_show(getattr(self, name))}" for name in self.__fields__)
        return f"{type(self).__name__}({', '.join(values)})"


def _show(value: object) -> str:
    # Byte strings are record batches, or secrets on their way through SASL: neither belongs
    # into a log line.
    if isinstance(value, bytes | bytearray | memoryview):
        return f"<{len(value)} bytes>"
    return repr(value)


def _constructor(cls: type[Struct]) -> Callable[..., None]:
    """Compile `__init__` of `cls`: keyword arguments only, a default for each."""
    scope: dict[str, Any] = {"MISSING": EMPTY_LIST}
    arguments: list[str] = []
    body: list[str] = []
    for name, field in cls.__fields__.items():
        value = name
        if isinstance(field.default, _Fresh):
            arguments.append(f"{name}=MISSING")
            fresh = "[]" if field.default is EMPTY_LIST else f"new_{name}()"
            value = f"{fresh} if {name} is MISSING else {name}"
            scope[f"new_{name}"] = field.of
        else:
            arguments.append(f"{name}=default_{name}")
            scope[f"default_{name}"] = field.default
        body.append(f"    self.{name} = {value}\n")
    head = f"def __init__(self{', *, ' if arguments else ''}{', '.join(arguments)}):\n"
    exec(head + ("".join(body) or "    pass\n"), scope)
    function = cast("Callable[..., None]", scope["__init__"])
    function.__qualname__ = f"{cls.__qualname__}.__init__"
    return function


class Message(Struct):
    """A request, a response, or another versioned message.

    Class arguments: `api_key` where it belongs to an API, `versions` that can be encoded and
    decoded, and `flexible`, the versions with compact lengths and tagged fields (KIP-482).
    `surplus` is how many bytes behind the end some client is known to send at a flexible version:
    exactly so many are ignored, and any other number is refused as always.
    """

    api_key: ClassVar[int]
    versions: ClassVar[VersionRange]
    flexible: ClassVar[VersionRange]
    surplus: ClassVar[int]

    def __init_subclass__(
        cls,
        *,
        versions: str,
        flexible: str = "none",
        api_key: int = -1,
        surplus: int = 0,
        **options: Any,
    ) -> None:
        super().__init_subclass__(**options)
        cls.api_key = api_key
        cls.versions = version_range(versions)
        cls.flexible = version_range(flexible)
        cls.surplus = surplus
