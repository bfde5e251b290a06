"""Scenarios of groups, as text; `ODRADEK_REWRITE=1 pytest tests/group` writes what comes out."""

from pathlib import Path

import pytest
from tests.group.scenario import check

FILES = sorted((Path(__file__).parents[1] / "scenarios/groups").glob("*.txt"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_scenario_comes_out_as_written(path):
    check(path)
