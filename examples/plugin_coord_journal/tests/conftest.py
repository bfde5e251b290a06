import pytest


@pytest.fixture
def anyio_backend() -> str:
    """Run async tests on trio alone."""
    return "trio"
