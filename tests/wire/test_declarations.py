"""The declarations are complete, consistent and documented."""

from __future__ import annotations

import doctest
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
from kio.index import load_payload_module
from kio.schema.index import api_key_map, schema_name_map
from kio.static.constants import EntityType

import odradek.wire
import odradek.wire.api
from odradek.wire import API, Api, Message, Struct
from odradek.wire.schema import LAST_VERSION, version_range

APIS = pytest.mark.parametrize("api", API.values(), ids=lambda api: api.name)


def structs_of(cls: type[Struct]) -> Iterator[type[Struct]]:
    yield cls
    for field in cls.__fields__.values():
        if isinstance(field.of, type):
            yield from structs_of(field.of)


def test_every_file_is_in_the_table() -> None:
    folder = Path(odradek.wire.api.__path__[0])
    files = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    assert files == {api.module.rpartition(".")[2] for api in API.values()}
    assert list(API) == sorted(API)


@APIS
class TestApi:
    def test_file_documents_each_of_its_versions(self, api: Api) -> None:
        doc = import_module(api.module).__doc__ or ""
        assert doc.startswith(f"{api.name} (API key {api.key}): ")
        span = f"Versions {api.min} to {api.max}" if api.max > api.min else f"Version {api.min}"
        assert f"\n{span}; " in doc
        assert re.findall(r"^    v(\d+) +\S", doc, re.MULTILINE) == [
            str(version) for version in range(api.min, api.max + 1)
        ]
        flexible = (
            "all are flexible"
            if api.flexible_from == 0
            else "none is flexible"
            if api.flexible_from > api.max
            else f"flexible from {api.flexible_from}"
        )
        assert f"{span}; {flexible}." in doc

    def test_table_says_what_the_messages_say(self, api: Api) -> None:
        for cls in (api.request, api.response):
            assert cls.api_key == api.key
            assert cls.versions == (api.min, api.max)
            flexible = [v for v in range(api.min, api.max + 1) if cls.flexible.has(v)]
            assert flexible == list(range(max(api.flexible_from, api.min), api.max + 1))
        assert api.has(api.min)
        assert api.has(api.max)
        assert not api.has(api.max + 1)
        assert not api.has(api.min - 1)

    def test_versions_are_all_that_kafka_has(self, api: Api) -> None:
        known = schema_name_map[api_key_map[api.key]]
        assert list(range(api.min, api.max + 1)) == sorted(known)

    def test_headers_are_those_of_kafka(self, api: Api) -> None:
        for version in range(api.min, api.max + 1):
            module = load_payload_module(api.key, version, EntityType.request)
            schema = getattr(module, f"{api.name}Request").__header_schema__
            assert schema.__flexible__ == (version >= api.flexible_from)
            module = load_payload_module(api.key, version, EntityType.response)
            schema = getattr(module, f"{api.name}Response").__header_schema__
            flexible = version >= api.flexible_from and api.name != "ApiVersions"
            assert schema.__flexible__ == flexible

    def test_module_exports_its_classes(self, api: Api) -> None:
        module = import_module(api.module)
        structs = {
            struct.__name__ for cls in (api.request, api.response) for struct in structs_of(cls)
        }
        assert set(module.__all__) == structs


def test_fields_keep_the_rules_of_declarations(messages: list[type[Message]]) -> None:
    for cls in messages:
        for struct in structs_of(cls):
            tags = [field.tag for field in struct.__fields__.values() if field.tag is not None]
            assert sorted(tags) == list(range(len(tags))), struct
            for name, field in struct.__fields__.items():
                where = f"{cls.__name__}: {struct.__name__}.{name}"
                versions = version_range(field.versions)
                tagged = version_range(field.tagged)
                nullable = version_range(field.nullable)
                assert versions.first <= min(versions.last, cls.versions.last), where
                assert versions.last >= cls.versions.first, where
                assert nullable.last <= versions.last, where
                assert (field.tag is None) == (field.tagged == "none"), where
                if field.tag is not None:
                    assert tagged.last == LAST_VERSION, where
                    assert cls.flexible.first <= tagged.first, where
                if field.default is None and field.tag is None:
                    assert nullable.first <= max(versions.first, cls.versions.first), where


def test_package_imports_no_api_and_no_compiler_before_they_are_used() -> None:
    """The broker's start pays for what is spoken, not for what could be."""
    code = (
        "import sys, odradek.wire\n"
        "print(*sorted(n for n in sys.modules if n.startswith('odradek.wire.')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == [
        f"odradek.wire.{name}" for name in ("codec", "framing", "primitives", "registry", "schema")
    ]


@pytest.mark.parametrize(
    ("text", "first", "last"), [("3+", 3, LAST_VERSION), ("0-12", 0, 12), ("4", 4, 4)]
)
def test_version_range_holds_both_ends(text: str, first: int, last: int) -> None:
    versions = version_range(text)
    assert versions.has(first)
    assert versions.has(last)
    assert not versions.has(first - 1)
    assert not versions.has(last + 1)


def test_version_range_may_be_empty() -> None:
    assert not any(version_range("none").has(version) for version in range(-1, 3))


@pytest.mark.parametrize("text", ["", "x", "+", "1-", "1,2"])
def test_version_range_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"invalid literal"):
        version_range(text)


def test_usage_in_the_docstring_runs() -> None:
    done = doctest.testmod(odradek.wire)
    assert done.attempted > 10
    assert done.failed == 0
