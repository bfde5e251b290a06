"""The embedded coordinator keeps the contract."""

from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from odradek.contracts.coordinator import Coordinator
from odradek.embedded.coordinator import open_embedded_coordinator
from odradek.testing.coordinator import CoordinatorConformance, CoordinatorHarness, Trait


class EmbeddedHarness(CoordinatorHarness):
    traits = frozenset({Trait.DURABLE})
    ttl = 0.1

    def __init__(self, path: Path) -> None:
        self.path = path

    def open(self) -> AbstractAsyncContextManager[Coordinator]:
        return open_embedded_coordinator(self.path)

    async def restart(self) -> None:
        """There is no server besides the process: opening again is the restart."""


class TestEmbeddedCoordinator(CoordinatorConformance):
    @pytest.fixture
    def harness(self, tmp_path: Path) -> CoordinatorHarness:
        return EmbeddedHarness(tmp_path)
