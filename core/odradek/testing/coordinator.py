"""The conformance kit of the coordinator contract.

A plugin proves that it keeps the promises of `odradek.contracts.coordinator` with a test module
like this one, which is all it has to write::

    class MyHarness(CoordinatorHarness):
        traits = frozenset({Trait.SHARED})

        def open(self):
            return open_my_coordinator("my://127.0.0.1:1234", namespace=self.namespace)


    class TestMyCoordinator(CoordinatorConformance):
        @pytest.fixture
        def harness(self):
            return MyHarness()

What a plugin or its test environment cannot do is a trait left out, and the tests which need it
are skipped and say so. The tests run on trio through anyio's pytest plugin, in any anyio mode.
"""

from __future__ import annotations

import pytest

# Before they are imported, so that a failing assert of the kit shows its values in anyone's suite.
pytest.register_assert_rewrite(
    "odradek.testing._coordinator_elections",
    "odradek.testing._coordinator_failures",
    "odradek.testing._coordinator_keys",
    "odradek.testing._coordinator_sessions",
    "odradek.testing._coordinator_txns",
    "odradek.testing._coordinator_watches",
)

from odradek.testing._coordinator_elections import ElectionPromises  # noqa: E402  # see above
from odradek.testing._coordinator_failures import FailurePromises  # noqa: E402  # see above
from odradek.testing._coordinator_harness import CoordinatorHarness, Trait  # noqa: E402
from odradek.testing._coordinator_keys import KeyPromises  # noqa: E402  # see above
from odradek.testing._coordinator_sessions import SessionPromises  # noqa: E402  # see above
from odradek.testing._coordinator_txns import TransactionPromises  # noqa: E402  # see above
from odradek.testing._coordinator_watches import WatchPromises  # noqa: E402  # see above

__all__ = ["CoordinatorConformance", "CoordinatorHarness", "Trait"]


class CoordinatorConformance(
    KeyPromises,
    TransactionPromises,
    WatchPromises,
    SessionPromises,
    FailurePromises,
    ElectionPromises,
):
    """Every promise of the coordinator contract; subclass it and supply the fixture `harness`."""

    pytestmark = pytest.mark.anyio

    @pytest.fixture
    def anyio_backend(self) -> str:
        """Run on trio alone."""
        return "trio"

    @pytest.fixture
    def harness(self) -> CoordinatorHarness:
        """Return a harness over a state of this test's own; to be overridden."""
        raise NotImplementedError("a conformance test supplies the fixture `harness`")
