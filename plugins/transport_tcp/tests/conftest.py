"""Fixtures that every test may use."""

import pytest


@pytest.fixture
def anyio_backend() -> str:
    """Run async tests on trio alone (anyio's pytest plugin would try asyncio too)."""
    return "trio"
