"""Fixtures that every test may use."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for storage_file_*.py beside the tests


@pytest.fixture
def anyio_backend() -> str:
    """Run async tests on trio alone (anyio's pytest plugin would try asyncio too)."""
    return "trio"
