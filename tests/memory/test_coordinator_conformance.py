"""The coordinator in memory keeps the contract."""

from contextlib import AbstractAsyncContextManager

import pytest

from odradek.contracts.coordinator import Coordinator, Session
from odradek.memory.coordinator import MemoryCoordinator, MemorySession, open_memory_coordinator
from odradek.testing.coordinator import CoordinatorConformance, CoordinatorHarness, Trait


class MemoryHarness(CoordinatorHarness):
    traits = frozenset({Trait.SHARED, Trait.EXPIRE, Trait.CUT})
    ttl = 0.1

    def open(self) -> AbstractAsyncContextManager[Coordinator]:
        return open_memory_coordinator(f"conformance-{id(self)}")

    async def expire(self, session: Session) -> None:
        assert isinstance(session, MemorySession)
        session.coordinator.state.expire(session.id)

    async def cut(self, coordinator: Coordinator) -> None:
        assert isinstance(coordinator, MemoryCoordinator)
        coordinator.disconnect()

    async def heal(self, coordinator: Coordinator) -> None:
        assert isinstance(coordinator, MemoryCoordinator)
        coordinator.reconnect()


class TestMemoryCoordinator(CoordinatorConformance):
    @pytest.fixture
    def harness(self) -> CoordinatorHarness:
        return MemoryHarness()
