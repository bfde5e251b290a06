"""The conformance kit of the storage contract.

A plugin proves that it keeps the promises of `odradek.contracts.storage` with a test module like
this one, which is all it has to write::

    class MyHarness(StorageHarness):
        traits = frozenset({Trait.REOPEN})

        def open(self):
            return open_my_store("my:///somewhere", MySettings())


    class TestMyStore(StorageConformance):
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
    "odradek.testing._storage_appends",
    "odradek.testing._storage_claims",
    "odradek.testing._storage_edits",
    "odradek.testing._storage_harness",
    "odradek.testing._storage_upkeep",
)

from odradek.testing._storage_appends import AppendPromises  # noqa: E402  # see above
from odradek.testing._storage_claims import ClaimPromises  # noqa: E402  # see above
from odradek.testing._storage_edits import EditPromises, chunks_of  # noqa: E402  # see above
from odradek.testing._storage_harness import (  # noqa: E402  # see above
    KEY,
    Log,
    StorageHarness,
    Trait,
    make_batch,
    metas_of,
    read_log,
)
from odradek.testing._storage_upkeep import UpkeepPromises  # noqa: E402  # see above

__all__ = [
    "KEY",
    "Log",
    "StorageConformance",
    "StorageHarness",
    "Trait",
    "chunks_of",
    "make_batch",
    "metas_of",
    "read_log",
]


class StorageConformance(AppendPromises, EditPromises, UpkeepPromises, ClaimPromises):
    """Every promise of the storage contract; subclass it and supply the fixture `harness`."""

    pytestmark = pytest.mark.anyio

    @pytest.fixture
    def anyio_backend(self) -> str:
        """Run on trio alone."""
        return "trio"

    @pytest.fixture
    def harness(self) -> StorageHarness:
        """Return a harness over a medium of this test's own; to be overridden."""
        raise NotImplementedError("a conformance test supplies the fixture `harness`")
