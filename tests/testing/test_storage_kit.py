"""The storage conformance kit finds what it is there to find."""

from __future__ import annotations

import importlib.util
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import trio

from odradek.contracts import storage as contract
from odradek.contracts.storage import StorageError
from odradek.testing.storage import StorageConformance, Trait


def _sibling(name: str) -> ModuleType:
    """Import a module of this folder, which is no package (`--import-mode=importlib`)."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


broken = _sibling("broken_stores")

KIT = {
    name: test
    for name, test in inspect.getmembers(StorageConformance, inspect.isfunction)
    if name.startswith("test_")
}
PROMISES = re.findall(r"^\* \*\*(S\d+) ", contract.__doc__ or "", re.MULTILINE)
PAGE = Path(__file__).parents[2] / "docs/reference/storage.md"


def cited(test_name: str) -> str:
    """Return the promise that a test of the kit cites."""
    found = re.match(r"(S\d+): ", KIT[test_name].__doc__ or "")
    assert found is not None, f"{test_name} cites no promise"
    return found[1]


FOUND_OUT = (
    AssertionError,
    StorageError,
    ValueError,
    trio.TooSlowError,
    pytest.fail.Exception,
)
"""How a test of the kit fails: by its own verdict, or by what the store raised at it."""


def leaves(error: BaseException) -> Iterator[BaseException]:
    """Take exception groups apart."""
    if isinstance(error, BaseExceptionGroup):
        for part in error.exceptions:
            yield from leaves(part)
    else:
        yield error


@pytest.mark.parametrize(
    ("store", "test_name"),
    [pytest.param(*row, id=f"{cited(row[1])}-{row[0].__name__}") for row in broken.FOUND_BY],
)
async def test_kit_finds_the_broken_store(store: Any, test_name: str) -> None:
    with pytest.raises(BaseException) as found:  # noqa: PT011  # looked at below
        await KIT[test_name](StorageConformance(), broken.KitHarness(store, 0.3))
    reasons = list(leaves(found.value))
    assert all(isinstance(reason, FOUND_OUT) for reason in reasons), (
        f"the broken store fell over instead of being found out: {reasons!r}"
    )


@pytest.mark.parametrize("test_name", KIT)
async def test_kit_is_content_with_a_faithful_store(test_name: str) -> None:
    await KIT[test_name](StorageConformance(), broken.KitHarness())


def test_every_promise_is_cited_by_a_test_of_the_kit() -> None:
    assert [f"S{number}" for number in range(1, len(PROMISES) + 1)] == PROMISES
    assert {cited(name) for name in KIT} == set(PROMISES)


def test_every_test_of_the_kit_fails_for_some_broken_store() -> None:
    assert {name for _, name in broken.FOUND_BY} == set(KIT)


def test_every_promise_is_listed_in_the_reference() -> None:
    assert re.findall(r"^\| (S\d+) \|", PAGE.read_text(), re.MULTILINE) == PROMISES


def test_plugin_test_in_the_reference_runs_without_any_configuration(tmp_path: Path) -> None:
    snippets = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    (snippet,) = [code for code in snippets if "StorageConformance" in code]
    assert len(snippet.splitlines()) < 30
    (tmp_path / "test_my_store.py").write_text(snippet)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", str(tmp_path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert run.returncode == 0, run.stdout
    assert re.search(r"^\d\d passed, \d\d skipped", run.stdout, re.MULTILINE), run.stdout
    assert "no Trait.POWER" in run.stdout or "no Trait.CRASH" in run.stdout


@pytest.mark.parametrize("trait", Trait)
def test_missing_trait_is_a_skip_that_says_what_is_missed(trait: Trait) -> None:
    class Bare(broken.KitHarness):  # type: ignore[name-defined,misc]  # imported by path
        traits: frozenset[Trait] = frozenset()

    with pytest.raises(pytest.skip.Exception, match=re.escape(trait.value)):
        Bare().need(trait)
