"""What the coordinator's conformance kit asks of a plugin's test environment."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from enum import Enum
from typing import ClassVar

import pytest
import trio

from odradek.contracts.coordinator import Coordinator, Entry, Session, Unavailable, Watch

__all__ = ["CoordinatorHarness", "Trait", "View", "refused", "second_client", "until_served"]


class Trait(Enum):
    """What a plugin and its test environment can do; the value says what a test misses."""

    SHARED = "several clients can be open on one state at a time"
    DURABLE = "the state survives `restart`"
    RESTART = "the server can be restarted beneath open clients"
    EXPIRE = "a session can be ended by the server, with `expire`"
    CUT = "a client can be cut off from the server, with `cut` and `heal`"


class CoordinatorHarness(ABC):
    """One state, empty when the test begins and that test's alone, and what can be done to it.

    `traits` are declared, and the methods they name overridden. `ttl` is the shortest ttl, in
    seconds, that the plugin grants reliably. `patience` is the number of seconds after which
    something that should happen counts as not happening.
    """

    traits: ClassVar[frozenset[Trait]] = frozenset()
    ttl: float = 1.0
    patience: float = 10.0

    @abstractmethod
    def open(self) -> AbstractAsyncContextManager[Coordinator]:
        """Open a client of the state, another at each call where there is Trait.SHARED."""

    async def restart(self) -> None:
        """Restart the server (DURABLE, RESTART).

        Without RESTART no client is open when this is called: where the state is on a disk and
        there is no server, there is nothing to do.
        """
        raise NotImplementedError

    async def expire(self, session: Session) -> None:
        """Make the server end `session` although its client is well (EXPIRE)."""
        raise NotImplementedError

    async def cut(self, coordinator: Coordinator) -> None:
        """Cut `coordinator`, and no other client, off from the server (CUT)."""
        raise NotImplementedError

    async def heal(self, coordinator: Coordinator) -> None:
        """Undo `cut`; a server with a history of changes first drops (compacts) what it can."""
        raise NotImplementedError

    def need(self, *traits: Trait) -> None:
        """Skip the test where one of `traits` is missing."""
        for trait in traits:
            if trait not in self.traits:
                pytest.skip(f"no Trait.{trait.name}: not declared that {trait.value}")


def refused() -> AbstractContextManager[object]:
    """Expect a ValueError; what it says is the plugin's affair."""
    return pytest.raises(ValueError)  # noqa: PT011  # see the docstring


@asynccontextmanager
async def second_client(
    harness: CoordinatorHarness, first: Coordinator
) -> AsyncIterator[Coordinator]:
    """Open another client, or give the first one again where the plugin has only one."""
    if Trait.SHARED in harness.traits:
        async with harness.open() as another:
            yield another
    else:
        yield first


async def until_served(harness: CoordinatorHarness, coordinator: Coordinator) -> None:
    """Wait until `coordinator` answers again, for the harness's patience."""
    with trio.fail_after(harness.patience):
        while True:
            try:
                await coordinator.get("probe/probe")
            except Unavailable:
                await trio.sleep(0.01)  # a plugin may refuse at once while it is cut off
            else:
                return


class View:
    """A reader of a watch: the directory as it was told, and all that was told."""

    def __init__(self, harness: CoordinatorHarness, watch: Watch) -> None:
        self.entries: dict[str, Entry] = dict(watch.snapshot)
        self.told: list[tuple[str, Entry | None]] = []
        self._harness = harness
        self._watch = watch

    @property
    def values(self) -> dict[str, bytes]:
        """The values by key."""
        return {key: entry.value for key, entry in self.entries.items()}

    async def step(self) -> None:
        """Take one change, and check what holds for every one of them (C13)."""
        change = await anext(self._watch)
        before = self.entries.get(change.key)
        self.told.append((change.key, change.entry))
        if change.entry is None:
            self.entries.pop(change.key, None)
            return
        assert change.entry.key == change.key
        assert before is None or change.entry.revision >= before.revision, "went back in time"
        self.entries[change.key] = change.entry

    async def until(self, reached: Callable[[View], bool]) -> None:
        """Take changes until `reached`, for the harness's patience."""
        with trio.move_on_after(self._harness.patience):
            while not reached(self):
                await self.step()
        assert reached(self), f"not told in time; the watch shows {self.values}"

    async def until_values(self, values: dict[str, bytes]) -> None:
        """Take changes until the directory has exactly these values."""
        await self.until(lambda view: view.values == values)
