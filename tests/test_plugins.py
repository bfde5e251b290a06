"""Plugins: found by entry point, chosen by scheme, and every way to fail explained."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from odradek import plugins
from odradek.config import ConfigError, config_from_options, config_from_table
from odradek.hookspecs import PROJECT
from odradek.plugins import PluginError, PluginInfo

Install = Callable[..., None]

GOOD = """
from contextlib import asynccontextmanager
from attrs import frozen
from odradek.config import setting
from odradek.hookspecs import Factory, hookimpl

@frozen(kw_only=True)
class Settings:
    depth_bytes: int = setting(5, minimum=1, doc="How deep.")

@asynccontextmanager
async def open_it(url, settings):
    yield url, settings

@hookimpl
def odradek_{kind}():
    return [Factory("{scheme}", Settings, open_it)]
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Install a distribution with one plugin, as pip would lay it out, for this test."""
    monkeypatch.syspath_prepend(str(tmp_path))
    modules: list[str] = []

    def put(name: str, code: str, *, version: str = "1.0") -> None:
        module = f"fake_{name}"
        (tmp_path / f"{module}.py").write_text(code)
        info = tmp_path / f"odradek_{name}-{version}.dist-info"
        info.mkdir()
        distribution = f"odradek-{name.replace('_', '-')}"
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n"
        )
        (info / "entry_points.txt").write_text(f"[{PROJECT}]\n{name} = {module}\n")
        modules.append(module)
        importlib.invalidate_caches()

    yield put
    for module in modules:
        sys.modules.pop(module, None)


def info_of(name: str) -> PluginInfo:
    (info,) = (each for each in plugins.load().describe() if each.name == name)
    return info


def test_plugin_is_found_by_its_scheme(install: Install) -> None:
    install("storage_shelf", GOOD.format(kind="storage", scheme="shelf"))
    factory = plugins.load().storage("shelf")
    assert factory.scheme == "shelf"
    assert factory.settings.__name__ == "Settings"


@pytest.mark.parametrize("kind", ["storage", "coordinator", "transport"])
def test_each_kind_has_schemes_of_its_own(install: Install, kind: str) -> None:
    install("many", GOOD.format(kind=kind, scheme="shelf"))
    loaded = plugins.load()
    for each in ("storage", "coordinator", "transport"):
        if each == kind:
            assert getattr(loaded, each)("shelf").scheme == "shelf"
        else:
            with pytest.raises(PluginError):
                getattr(loaded, each)("shelf")


def test_description_says_where_a_plugin_comes_from(install: Install, tmp_path: Path) -> None:
    install("storage_shelf", GOOD.format(kind="storage", scheme="shelf"), version="2.5")
    info = info_of("storage_shelf")
    assert (info.distribution, info.version) == ("odradek-storage-shelf", "2.5")
    assert info.location == str(tmp_path / "fake_storage_shelf.py")
    assert info.schemes == {"storage": ("shelf",)}
    assert info.settings["storage", "shelf"]["depth_bytes"].doc == "How deep."
    assert info.problem is None


def test_two_owners_of_a_scheme_are_both_named(install: Install) -> None:
    install("storage_one", GOOD.format(kind="storage", scheme="shelf"), version="1.1")
    install("storage_two", GOOD.format(kind="storage", scheme="shelf"), version="2.2")
    with pytest.raises(PluginError) as caught:
        plugins.load()
    assert str(caught.value) == (
        "two plugins serve shelf: as a storage: storage_one of odradek-storage-one 1.1 and "
        "storage_two of odradek-storage-two 2.2; uninstall one of them"
    )


def test_one_scheme_may_have_an_owner_of_each_kind(install: Install) -> None:
    install("storage_one", GOOD.format(kind="storage", scheme="shelf"))
    install("coord_one", GOOD.format(kind="coordinator", scheme="shelf"))
    loaded = plugins.load()
    assert loaded.storage("shelf").scheme == loaded.coordinator("shelf").scheme


@pytest.mark.parametrize(
    ("kind", "scheme", "distribution"),
    [
        ("storage", "file", "odradek-storage-file"),
        ("storage", "s3", "odradek-storage-s3"),
        ("storage", "gs", "odradek-storage-s3"),
        ("storage", "az", "odradek-storage-s3"),
        ("coordinator", "zk", "odradek-coord-zk"),
        ("coordinator", "etcd", "odradek-coord-etcd"),
        ("transport", "tcp", "odradek-transport-tcp"),
    ],
)
def test_missing_plugin_of_the_project_is_named(
    kind: str, scheme: str, distribution: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: ())
    with pytest.raises(PluginError) as caught:
        getattr(plugins.load(), kind)(scheme)
    assert str(caught.value) == (f"no plugin serves {scheme}: as a {kind}: install {distribution}")


def test_unknown_scheme_is_answered_with_the_nearest(install: Install) -> None:
    install("storage_shelf", GOOD.format(kind="storage", scheme="shelf"))
    with pytest.raises(PluginError, match='serves shelv: as a storage; did you mean "shelf"'):
        plugins.load().storage("shelv")
    with pytest.raises(PluginError, match=r"\(known: .*shelf"):
        plugins.load().storage("qqq")


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("import no_such_module", "it cannot be imported: No module named 'no_such_module'"),
        ("1 / 0", "it fails to load: ZeroDivisionError: division by zero"),
        (
            GOOD.format(kind="storrage", scheme="shelf"),
            "PluginValidationError: unknown hook 'odradek_storrage'",
        ),
        (
            GOOD.format(kind="storage", scheme="shelf").replace("storage()", "storage(url)"),
            "Argument(s) {'url'} are declared in the hookimpl",
        ),
        (GOOD.format(kind="storage", scheme="She lf"), "'She lf' is not a URL scheme"),
        (
            GOOD.format(kind="storage", scheme="shelf").replace("return [F", "return 5; [F"),
            "odradek_storage returned int, not a sequence of factories",
        ),
        (
            GOOD.format(kind="storage", scheme="shelf").replace("return [F", "return [5]; [F"),
            "odradek_storage returned int among its factories",
        ),
        (
            GOOD.format(kind="storage", scheme="shelf").replace("Settings, open", "int, open"),
            "the settings of shelf: are not an attrs class",
        ),
    ],
)
def test_broken_plugin_is_set_aside_with_the_reason(
    install: Install, code: str, problem: str
) -> None:
    install("storage_shelf", code)
    install("storage_sound", GOOD.format(kind="storage", scheme="sound"))
    assert problem in (info_of("storage_shelf").problem or "")
    loaded = plugins.load()
    assert loaded.storage("sound").scheme == "sound"
    with pytest.raises(PluginError) as caught:
        loaded.storage("shelf")
    assert "storage_shelf of odradek-storage-shelf 1.0 does, but" in str(caught.value)
    assert problem in str(caught.value)


def test_broken_plugin_of_another_name_is_mentioned(install: Install) -> None:
    install("furniture", "import no_such_module")
    with pytest.raises(PluginError, match=r"furniture of odradek-furniture 1.0 might, but it can"):
        plugins.load().storage("shelf")


def test_program_may_bring_a_plugin_of_its_own(install: Install) -> None:
    install("storage_shelf", GOOD.format(kind="storage", scheme="shelf"))
    module = importlib.import_module("fake_storage_shelf")

    class Brought:
        odradek_storage = staticmethod(module.odradek_storage)

    with pytest.raises(PluginError, match=r"and Brought of \(given by the program\)"):
        plugins.load([Brought()])


def test_managers_are_not_shared(install: Install) -> None:
    before = plugins.load()
    install("storage_shelf", GOOD.format(kind="storage", scheme="shelf"))
    assert plugins.load().storage("shelf").scheme == "shelf"
    with pytest.raises(PluginError):
        before.storage("shelf")


async def test_parts_of_a_configuration_open_with_their_settings(install: Install) -> None:
    for kind in ("storage", "coordinator", "transport"):
        install(f"{kind}_shelf", GOOD.format(kind=kind, scheme="shelf"))
    config = config_from_options(
        listen=["shelf://a"],
        storage="SHELF:b",
        coordinator="shelf:c",
        overrides=["storage.depth_bytes=7"],
    )
    parts = plugins.load().parts(config)
    opened: Any
    async with parts.storage.open() as opened:
        assert (opened[0], opened[1].depth_bytes) == ("SHELF:b", 7)
    async with parts.listeners[0].open() as opened:
        assert (opened[0], opened[1].depth_bytes) == ("shelf://a", 5)
    assert parts.coordinator.settings.depth_bytes == 5


def test_parts_report_every_mistake_of_every_plugin(install: Install) -> None:
    install("storage_shelf", GOOD.format(kind="storage", scheme="shelf"))
    config = config_from_table(
        {
            "storage": {"url": "shelf:", "depth": 1, "depth_bytes": 0},
            "coordinator": {"url": "shelff:"},
            "listeners": [{"url": "shelff://"}],
        },
        source="o.toml",
    )
    with pytest.raises(ConfigError) as caught:
        plugins.load().parts(config)
    assert [line.split(": ", 2)[1] for line in caught.value.problems] == [
        "[storage]",
        "[storage]",
        "[coordinator]",
        "[[listeners]]",
    ]


def test_projects_own_plugins_load_and_describe_themselves() -> None:
    loaded = plugins.load()
    for info in loaded.describe():
        assert info.problem is None, info
        for settings in info.settings.values():
            for name, declared in settings.items():
                assert declared.doc.endswith((".", ")")), f"{info.name}: {name}"
    for kind, scheme in (
        ("storage", "memory"),
        ("coordinator", "memory"),
        ("transport", "memory"),
        ("coordinator", "embedded"),
    ):
        assert getattr(loaded, kind)(scheme).scheme == scheme


def test_loading_imports_no_back_end() -> None:
    code = (
        "import sys, odradek.plugins\n"
        "odradek.plugins.load()\n"
        "heavy = {'sqlite3', 'kazoo', 'httpx', 'obstore', 'asyncio', 'cattrs', 'tomllib'}\n"
        "print(*sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
