"""The journal keeps the promises of the coordinator contract."""

from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from odradek.contracts.coordinator import Coordinator
from odradek.plugins import load
from odradek.testing.coordinator import CoordinatorConformance, CoordinatorHarness, Trait


class JournalHarness(CoordinatorHarness):
    traits = frozenset({Trait.DURABLE})

    def __init__(self, path: Path) -> None:
        self.path = path

    def open(self) -> AbstractAsyncContextManager[Coordinator]:
        factory = load().coordinator("journal")
        return factory.open(f"journal://{self.path}", factory.settings())

    async def restart(self) -> None:
        """The state is a file: there is no server."""


class TestJournal(CoordinatorConformance):
    @pytest.fixture
    def harness(self, tmp_path: Path) -> CoordinatorHarness:
        return JournalHarness(tmp_path / "journal")
