"""The distributions of the repository: named alike everywhere, and known to all the tools."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PLUGINS = sorted(path.parent for path in ROOT.glob("plugins/*/pyproject.toml"))
EXAMPLES = sorted(path.parent for path in ROOT.glob("examples/plugin_*/pyproject.toml"))
EACH = pytest.mark.parametrize("folder", [*PLUGINS, *EXAMPLES], ids=lambda path: path.name)


@EACH
def test_folder_distribution_package_and_entry_point_share_a_name(folder: Path) -> None:
    name = folder.name.removeprefix("plugin_")
    project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["name"] == f"odradek-{name.replace('_', '-')}"
    assert project["entry-points"]["odradek"] == {name: f"odradek_{name}"}
    assert (folder / f"odradek_{name}" / "py.typed").exists()
    assert (folder / "README.md").exists()


@pytest.mark.parametrize("folder", [ROOT / "core", *PLUGINS, *EXAMPLES], ids=lambda path: path.name)
def test_distribution_ships_the_licence(folder: Path) -> None:
    assert (folder / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


@pytest.mark.parametrize("folder", PLUGINS, ids=lambda path: path.name)
def test_plugin_is_known_to_the_tools(folder: Path) -> None:
    tox = (ROOT / "tox.ini").read_text(encoding="utf-8")
    assert tox.count(f"./plugins/{folder.name}\n") == 2, "in `everything` and in lint"
    assert f"mypy plugins/{folder.name}/tests" in tox
    assert f"-p odradek_{folder.name}" in tox
    assert f"plugins/{folder.name}" in (ROOT / "Makefile").read_text(encoding="utf-8")
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    package = f"odradek_{folder.name}"
    assert package in tools["importlinter"]["root_packages"]
    of_plugins = [each for each in tools["importlinter"]["contracts"] if package in str(each)]
    assert len(of_plugins) == 3, "what it may import, who may not import it, independence"
