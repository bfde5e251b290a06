"""The documentation says what is true: links, excerpts, hooks, settings, commands."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from odradek import hookspecs
from odradek.config import config_from_table, settings_of
from odradek.plugins import load

ROOT = Path(__file__).parent.parent
PAGES = sorted(
    path
    for path in (
        *ROOT.glob("*.md"),
        *ROOT.glob("core/*.md"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("plugins/*/*.md"),
        *ROOT.glob("examples/*/*.md"),
    )
    if path.name != "0000-template.md"
)
EACH_PAGE = pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
FENCE = re.compile(r"^(?:<!-- excerpt: (\S+) -->\n)?```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path, *languages: str) -> Iterator[tuple[str, str]]:
    """Yield the fenced blocks of a page: the file each is an excerpt of, if any, and its text."""
    for excerpt, language, text in FENCE.findall(page.read_text(encoding="utf-8")):
        if language in languages:
            yield excerpt, text


def anchors(page: Path) -> set[str]:
    """Return what a link to a heading of the page ends with, by GitHub's rule."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


@EACH_PAGE
def test_links_within_the_repository_resolve(page: Path) -> None:
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert ROOT in (target, *target.parents), f"{link} leaves the repository"
        if anchor:
            assert anchor in anchors(target), link


@EACH_PAGE
def test_excerpts_stand_in_their_files(page: Path) -> None:
    for excerpt, text in blocks(page, "python", "toml"):
        if excerpt:
            assert text in (ROOT / excerpt).read_text(encoding="utf-8"), f"no longer in {excerpt}"


@EACH_PAGE
def test_python_is_python(page: Path) -> None:
    for excerpt, text in blocks(page, "python"):
        if not excerpt:  # those may start in the middle
            compile(text, str(page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


@EACH_PAGE
def test_configuration_is_accepted(page: Path) -> None:
    for excerpt, text in blocks(page, "toml"):
        if excerpt:
            continue
        config = config_from_table(tomllib.loads(text), source=page.name)
        loaded = load()
        for kind, part in (("storage", config.storage), ("coordinator", config.coordinator)):
            if any(part.scheme in info.schemes.get(kind, ()) for info in loaded.describe()):
                part.settings(getattr(loaded, kind)(part.scheme).settings)


@EACH_PAGE
def test_commands_and_options_exist(page: Path) -> None:
    import click

    from odradek.cli.app import cli

    for _, text in blocks(page, "sh"):
        for line in text.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if not words or Path(words[0]).name != "odradek":
                continue
            command: click.Command = cli
            rest = words[1:]
            while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
                found = command.get_command(click.Context(command), rest[0])
                assert found is not None, f"no such command: {line}"
                command, rest = found, rest[1:]
            known = {name for each in command.params for name in each.opts}
            for word in rest:
                if word.startswith("--"):
                    assert word.partition("=")[0] in known, f"no such option: {line}"


@EACH_PAGE
def test_targets_of_make_exist(page: Path) -> None:
    targets = re.findall(
        r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE
    )
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"^make ([a-z]+)|`make ([a-z]+)`", text, re.MULTILINE):
        assert "".join(target) in targets


@pytest.mark.interop
@pytest.mark.parametrize("page", ["README.md", "docs/start.md"])
def test_python_runs_against_a_broker(page: str, tmp_path: Path) -> None:
    from tests.interop.process import BrokerProcess

    snippets = [text for _, text in blocks(ROOT / page, "python")]
    assert snippets
    broker = BrokerProcess(tmp_path).start()
    try:
        for text in snippets:
            code = text.replace("127.0.0.1:9092", broker.address)
            subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    finally:
        broker.stop()


def test_every_hook_is_documented_with_its_arguments() -> None:
    text = (ROOT / "docs/plugins/writing.md").read_text(encoding="utf-8")
    hooks = [name for name in vars(hookspecs) if name.startswith("odradek_")]
    for name in hooks:
        arguments = ", ".join(inspect.signature(getattr(hookspecs, name)).parameters)
        assert f"| `{name}({arguments})` |" in text
    documented = re.findall(r"^\| `(odradek_\w+)\(", text, re.MULTILINE)
    assert documented == hooks


def test_every_setting_is_documented() -> None:
    spec = importlib.util.spec_from_file_location("reference", ROOT / "scripts" / "reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for page, text in module.pages().items():
        assert text == page.read_text(encoding="utf-8"), "run `make reference`"


def test_every_setting_of_the_core_is_read_somewhere() -> None:
    from odradek.config import PLAIN_SECTIONS, topic_settings

    code = "\n".join(
        path.read_text(encoding="utf-8")
        for path in (ROOT / "core" / "odradek").rglob("*.py")
        if path.parent.name != "config"
    )
    names = [name for section in PLAIN_SECTIONS.values() for name in settings_of(section)]
    names += [row.field for row in topic_settings().values()]
    names.remove("unclean_leader_election_enable")  # it can only be false
    assert [name for name in names if not re.search(rf"\.{name}\b", code)] == []


@pytest.mark.parametrize("contract", ["storage", "coordinator", "transport"])
def test_every_promise_is_in_the_reference_and_in_the_kit(contract: str) -> None:
    module = importlib.import_module(f"odradek.contracts.{contract}")
    promises = re.findall(r"^\* \*\*([A-Z]\d+)\b", module.__doc__ or "", re.MULTILINE)
    assert len(promises) > 5
    reference = (ROOT / f"docs/reference/{contract}.md").read_text(encoding="utf-8")
    kit = "\n".join(
        path.read_text(encoding="utf-8")
        for path in (ROOT / "core" / "odradek" / "testing").glob(f"*{contract}*.py")
    )
    for promise in promises:
        assert re.search(rf"\b{promise}\b", reference), f"{promise} is not in the reference"
        assert re.search(rf"\b{promise}\b", kit), f"{promise} is not cited by the kit"


def test_decisions_are_numbered_once() -> None:
    numbers = [path.name[:4] for path in sorted((ROOT / "docs/decisions").glob("*.md"))]
    assert len(set(numbers)) == len(numbers)
    for path in (ROOT / "docs/decisions").glob("*.md"):
        title = path.read_text(encoding="utf-8").splitlines()[0]
        assert title.startswith(f"# {int(path.name[:4])}. "), path.name
