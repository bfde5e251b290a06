"""The codecs agree with two other implementations, whose definitions are not ours.

kafka-python compiles Kafka's own message files; kio is generated from them. For each message
and version that one of them knows, it must read from our bytes the values that we wrote, and
write the same bytes again, which we must read back.
"""

from __future__ import annotations

import datetime
import importlib
import io
import warnings
from random import Random
from typing import Any, cast
from uuid import UUID

import pytest
from kio.index import load_payload_module
from kio.schema.index import PayloadEntityType, api_key_map, schema_name_map
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType

from odradek.wire import API, NULL_UUID, Api, Message, Struct, decode, encode
from odradek.wire.api.a01_fetch import PartitionData
from odradek.wire.schema import version_range

with warnings.catch_warnings():
    # kafka-python 3.0.12 reads its message files by a deprecated function.
    warnings.simplefilter("ignore", DeprecationWarning)
    KAFKA_PYTHON = [
        importlib.import_module(f"kafka.protocol.{part}")
        for part in ("admin", "consumer", "metadata", "producer", "sasl")
    ]
    BitField = importlib.import_module("kafka.protocol.schemas.fields.codecs").BitField

SAMPLES = 6

PAIRS = [
    pytest.param(cls, version, id=f"{cls.__name__}-v{version}")
    for api in API.values()
    for cls in (api.request, api.response)
    for version in range(api.min, api.max + 1)
]


def plain(value: Any, version: int) -> Any:
    """Reduce a message to dictionaries of the fields its version has."""
    if isinstance(value, Struct):
        return {
            name: plain(field_of(value, name), version)
            for name, field in value.__fields__.items()
            if field.present(version)
        }
    if isinstance(value, list):
        return [plain(item, version) for item in value]
    if isinstance(value, memoryview):
        return bytes(value)
    return value


def field_of(struct: Struct, name: str) -> Any:
    """Return a field; for a tagged struct that is absent one of defaults, as Kafka has it."""
    value, field = getattr(struct, name), struct.__fields__[name]
    if value is None and field.kind == "struct" and field.tag is not None:
        return cast("type[Struct]", field.of)()
    return value


def body(message: Message, version: int) -> bytes:
    return b"".join(cast("list[bytes]", encode(message, version)))


def kafka_python_class(name: str) -> Any:
    return next((getattr(m, name) for m in KAFKA_PYTHON if hasattr(m, name)), None)


def kafka_python_plain(theirs: Any, ours: Any, version: int) -> Any:
    if isinstance(ours, Struct):
        if theirs is None:
            return plain(type(ours)(), version)
        return {
            name: kafka_python_plain(
                kafka_python_attribute(theirs, name), field_of(ours, name), version
            )
            for name, field in ours.__fields__.items()
            if field.present(version)
        }
    if isinstance(ours, list) and theirs is not None:
        assert len(theirs) == len(ours)
        return [kafka_python_plain(t, o, version) for t, o in zip(theirs, ours, strict=True)]
    if isinstance(theirs, memoryview):
        return bytes(theirs)
    if isinstance(ours, UUID) and not isinstance(theirs, UUID):
        return UUID(str(theirs)) if theirs else NULL_UUID
    return theirs


def kafka_python_attribute(theirs: Any, name: str) -> Any:
    if not name.endswith("authorized_operations") or name.startswith("include"):
        return getattr(theirs, name)
    bits = theirs.authorized_operations
    number = 1 << 31 if bits is None else BitField.to_32_bit_field(bits)
    return number - (1 << 32) if number >= 1 << 31 else number


def kafka_python_decode(oracle: Any, data: bytes, version: int) -> Any:
    # Its ApiVersionsResponse falls back to version 0 by itself when the error code is not 0.
    return oracle.__mro__[1].decode.__func__(oracle, data, version=version)


@pytest.mark.parametrize(("cls", "version"), PAIRS)
def test_kafka_python_reads_and_writes_the_same(
    cls: type[Message], version: int, make_message: Any
) -> None:
    oracle = kafka_python_class(cls.__name__)
    if oracle is None or version > oracle.max_version:
        pytest.skip("kafka-python does not know this version")
    random = Random(f"{cls.__name__} {version}")
    for _ in range(SAMPLES):
        message = make_message(cls, version, random)
        ours = body(message, version)
        theirs = kafka_python_decode(oracle, ours, version)
        assert kafka_python_plain(theirs, message, version) == plain(message, version)
        theirs._header = None  # decoding leaves it unset, and encoding looks at it
        again = theirs.encode(version=version)
        assert again == ours
        assert plain(decode(cls, version, memoryview(again)), version) == plain(message, version)


def kafka_default(field: Any) -> Any:
    if field.is_struct_array() or field.is_array():
        return None if field.default is None else []
    if field.is_struct():
        return None
    default = field.default
    if default is None and field.type_str == "bitfield":
        return -(1 << 31)
    return NULL_UUID if field.type_str == "uuid" and not default else default


def check_declarations(cls: type[Struct], fields: dict[str, Any], first: int) -> None:
    """Compare `cls` with the fields that kafka-python has from version `first` on."""
    fields = {
        name: theirs
        for name, theirs in fields.items()
        if version_range(theirs._json["versions"]).last >= first
    }
    ours = {
        "authorized_operations" if name.endswith("authorized_operations") else name: field
        for name, field in cls.__fields__.items()
    }
    if "authorized_operations" not in fields:
        ours = dict(cls.__fields__)
    assert list(ours) == list(fields), cls
    for name, theirs in fields.items():
        field = ours[name]
        where = f"{cls.__name__}.{name}"
        assert field.versions == theirs._json["versions"], where
        assert field.nullable == theirs._json.get("nullableVersions", "none"), where
        assert field.tag == theirs.tag, where
        assert field.tagged == theirs._json.get("taggedVersions", "none"), where
        assert field.ignorable == (theirs._json.get("ignorable") in (True, "true")), where
        if field.kind == "records":
            # Null is not a value librdkafka can read in a Fetch response.
            assert field.default == (b"" if cls is PartitionData else None), where
        else:
            assert field.fresh_default() == kafka_default(theirs), where
        if isinstance(field.of, type):
            assert field.of.__name__ == theirs.type_str.removeprefix("[]"), where
            check_declarations(field.of, theirs.fields, first)


@pytest.mark.parametrize(
    "cls", [cls for api in API.values() for cls in (api.request, api.response)]
)
def test_fields_are_declared_as_kafka_declares_them(cls: type[Message]) -> None:
    oracle = kafka_python_class(cls.__name__)
    if oracle is None:
        pytest.skip("kafka-python does not know this API")
    check_declarations(cls, dict(oracle.fields), cls.versions.first)


def kio_plain(theirs: Any, ours: Any, version: int) -> Any:
    if isinstance(ours, Struct):
        return {
            name: kio_plain(kio_attribute(theirs, name), field_of(ours, name), version)
            for name, field in ours.__fields__.items()
            if field.present(version)
        }
    if isinstance(ours, list) and theirs is not None:
        assert len(theirs) == len(ours)
        return [kio_plain(t, o, version) for t, o in zip(theirs, ours, strict=True)]
    if isinstance(ours, UUID) and theirs is None:
        return NULL_UUID
    if isinstance(theirs, datetime.timedelta):
        return theirs // datetime.timedelta(milliseconds=1)
    if isinstance(theirs, datetime.datetime):
        epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
        return (theirs - epoch) // datetime.timedelta(milliseconds=1)
    return theirs


def kio_attribute(theirs: Any, name: str) -> Any:
    return getattr(theirs, name) if hasattr(theirs, name) else getattr(theirs, name[:-3])


def kio_class(cls: type[Message], version: int) -> Any:
    api: Api = API[cls.api_key]
    kind: PayloadEntityType = EntityType.request if cls is api.request else EntityType.response
    if version not in schema_name_map[api_key_map[cls.api_key]]:
        return None
    return getattr(load_payload_module(cls.api_key, version, kind), cls.__name__)


@pytest.mark.parametrize(("cls", "version"), PAIRS)
def test_kio_reads_and_writes_the_same(cls: type[Message], version: int, make_message: Any) -> None:
    oracle = kio_class(cls, version)
    if oracle is None:
        pytest.skip("kio does not know this version")
    random = Random(f"{cls.__name__} {version}")
    for _ in range(SAMPLES):
        message = make_message(cls, version, random)
        ours = body(message, version)
        theirs, size = entity_reader(oracle)(ours, 0)
        assert size == len(ours)
        assert kio_plain(theirs, message, version) == plain(message, version)
        again = io.BytesIO()
        entity_writer(oracle)(again, theirs)
        assert plain(decode(cls, version, again.getbuffer()), version) == plain(message, version)
